//! Shared access signatures: `SharedAccessSignature sr=…&sig=…&se=…&skn=…`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use percent_encoding::percent_decode_str;
use sha2::Sha256;
use subtle::ConstantTimeEq;

/// A parsed token, not yet verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SasToken {
    /// The resource as it was signed, percent-encoded.
    resource: String,
    signature: Vec<u8>,
    /// Seconds since 1970, as they were signed.
    expires: String,
    pub key_name: String,
}

impl SasToken {
    /// Parses a token; none if it is malformed.
    pub fn parse(text: &str) -> Option<SasToken> {
        let fields = text.strip_prefix("SharedAccessSignature ")?;
        let field = |name: &str| {
            let found = fields.split('&').find_map(|field| field.strip_prefix(name));
            found.and_then(|value| value.strip_prefix('='))
        };
        let signature = STANDARD.decode(form_decode(field("sig")?)?).ok()?;
        Some(SasToken {
            resource: field("sr")?.to_owned(),
            signature,
            expires: field("se")?.to_owned(),
            key_name: form_decode(field("skn")?)?,
        })
    }

    /// Expiry, in milliseconds since 1970.
    pub fn expires_ms(&self) -> Option<u64> {
        self.expires.parse::<u64>().ok()?.checked_mul(1000)
    }

    /// The scope of the token; none if the resource is ambiguous. `is_own_name` recognizes host names of this broker.
    pub fn scope(&self, is_own_name: impl Fn(&str) -> bool) -> Option<TokenScope> {
        TokenScope::parse(&form_decode(&self.resource)?, is_own_name)
    }

    /// Whether the token was signed with this key.
    pub fn is_signed_with(&self, key: &str) -> bool {
        let signed =
            hmac(key.as_bytes(), format!("{}\n{}", self.resource, self.expires).as_bytes());
        signed.ct_eq(&self.signature).into()
    }
}

/// What a token is valid for: an entity and everything below it, or the whole namespace.
///
/// It depends only on what was signed. The caller cannot influence it with the host name it uses or the entity it asks
/// for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenScope {
    /// In lower case, without leading or trailing slashes; empty for the namespace.
    path: String,
}

impl TokenScope {
    /// Parses a resource: `scheme://host/path`, or a path. Some clients omit the scheme of a host. The first segment
    /// counts as a host if it has a port, or if it contains a dot and is a name of this broker. A bare word is always
    /// an entity.
    fn parse(resource: &str, is_own_name: impl Fn(&str) -> bool) -> Option<TokenScope> {
        let path = match resource.split_once("://") {
            Some((scheme, rest)) => {
                let path = rest.split_once('/').map_or("", |(_, path)| path);
                match scheme.to_ascii_lowercase().as_str() {
                    "sb" | "amqp" | "amqps" => path.to_owned(),
                    // Web addresses are percent-encoded once more.
                    "http" | "https" => percent_decode(without_query(path))?,
                    _ => return None,
                }
            }
            None => {
                let path = without_query(resource).trim_matches('/');
                let (first, rest) = path.split_once('/').unwrap_or((path, ""));
                match is_authority(first) || (first.contains('.') && is_own_name(first)) {
                    true => rest.to_owned(),
                    // An empty resource must not grant everything.
                    false if path.is_empty() => return None,
                    false => path.to_owned(),
                }
            }
        };
        Some(TokenScope::of(without_query(&path)))
    }

    /// The scope of an entity and everything below it. An empty path is the namespace.
    pub fn of(path: &str) -> TokenScope {
        TokenScope { path: path.trim_matches('/').to_lowercase() }
    }

    /// Whether the scope covers the entity with this path: the path itself, or a prefix of it that ends at a slash.
    /// Case-insensitive, because clients sign lower-case names.
    pub fn covers(&self, path: &str) -> bool {
        let path = path.trim_matches('/').to_lowercase();
        let rest = path.strip_prefix(&self.path);
        self.path.is_empty() || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    /// Specificity: the longest scope that covers an entity is used.
    pub fn len(&self) -> usize {
        self.path.len()
    }

    /// Whether it is the whole namespace.
    pub fn is_empty(&self) -> bool {
        self.path.is_empty()
    }

    /// Clients sign for the management node of an entity, and use the token for the entity.
    #[must_use]
    pub fn of_entity(mut self) -> TokenScope {
        if let Some(entity) = self.path.strip_suffix("/$management") {
            self.path.truncate(entity.len());
        }
        self
    }
}

/// Whether `text` is a host with a port.
fn is_authority(text: &str) -> bool {
    text.rsplit_once(':').is_some_and(|(host, port)| {
        !host.is_empty() && port.parse::<u16>().is_ok() && port.bytes().all(|b| b.is_ascii_digit())
    })
}

fn without_query(path: &str) -> &str {
    path.split(['?', '#']).next().unwrap_or_default()
}

fn hmac(key: &[u8], text: &[u8]) -> [u8; 32] {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC accepts keys of any length");
    mac.update(text);
    mac.finalize().into_bytes().into()
}

/// Decodes a form field, in which a plus is a space.
fn form_decode(text: &str) -> Option<String> {
    percent_decode(&text.replace('+', " "))
}

/// Percent-decodes text; none if it is malformed or not UTF-8.
pub(crate) fn percent_decode(text: &str) -> Option<String> {
    // The library passes malformed escapes through.
    let is_escape =
        |rest: &str| rest.len() >= 2 && rest.bytes().take(2).all(|byte| byte.is_ascii_hexdigit());
    text.split('%').skip(1).all(is_escape).then_some(())?;
    Some(percent_decode_str(text).decode_utf8().ok()?.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use data_encoding::HEXLOWER;

    #[test]
    fn hmac_matches_rfc_4231() {
        let hex = |bytes: [u8; 32]| HEXLOWER.encode(&bytes);
        assert_eq!(
            hex(hmac(b"Jefe", b"what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
        );
        assert_eq!(
            hex(hmac(&[0xaa; 131], b"Test Using Larger Than Block-Size Key - Hash Key First")),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"
        );
    }

    #[test]
    fn a_token_of_another_key_or_resource_is_not_signed() {
        let sign = |resource: &str, key: &str| {
            let sig = STANDARD.encode(hmac(key.as_bytes(), format!("{resource}\n123").as_bytes()));
            let sig = sig.replace('+', "%2B").replace('/', "%2F").replace('=', "%3D");
            format!("SharedAccessSignature sr={resource}&sig={sig}&se=123&skn=Root")
        };
        let token = SasToken::parse(&sign("sb%3A%2F%2Fhost%2Forders", "secret")).unwrap();
        assert!(token.is_signed_with("secret") && !token.is_signed_with("other"));
        assert_eq!(token.scope(|_| false), Some(TokenScope::of("orders")));
        assert_eq!((token.expires_ms(), token.key_name.as_str()), (Some(123_000), "Root"));
        let moved = sign("a", "secret").replace("sr=a", "sr=b");
        assert!(!SasToken::parse(&moved).unwrap().is_signed_with("secret"));
    }

    #[test]
    fn malformed_tokens_are_not_parsed() {
        for text in
            ["", "SharedAccessSignature ", "SharedAccessSignature sr=a&sig=%&se=1&skn=k", "jwt"]
        {
            assert_eq!(SasToken::parse(text), None, "{text}");
        }
    }

    /// The scope of a resource, on a broker whose certificate is for `bus.example.com`.
    fn scope(resource: &str) -> Option<String> {
        TokenScope::parse(resource, |name| name == "bus.example.com").map(|scope| scope.path)
    }

    #[test]
    fn the_scope_depends_only_on_what_was_signed() {
        for (resource, path) in [
            ("sb://host/orders", Some("orders")),
            ("sb://host:5672/Orders/", Some("orders")),
            ("amqps://host/orders/Subscriptions/a", Some("orders/subscriptions/a")),
            ("amqp://host", Some("")),
            ("SB://host/", Some("")),
            ("http://host/orders?api-version=2021-05", Some("orders")),
            ("https://host:5300/a%2Fb", Some("a/b")),
            ("sb://host:5300/host:5300", Some("host:5300")),
            // A word is an entity, whatever the name of the broker.
            ("mine", Some("mine")),
            ("localhost", Some("localhost")),
            ("mine/sub", Some("mine/sub")),
            ("/mine/", Some("mine")),
            ("mine.example.com", Some("mine.example.com")),
            // A host without a scheme.
            ("localhost:5300", Some("")),
            ("malote:5300/orders", Some("orders")),
            ("bus.example.com", Some("")),
            ("bus.example.com/orders", Some("orders")),
            // An empty resource covers nothing.
            ("", None),
            ("/", None),
            ("?api-version=2021-05", None),
            ("ftp://host/orders", None),
            ("mine://", None),
            ("https://host/%zz", None),
            // Not a port.
            ("mine:", Some("mine:")),
            (":5300", Some(":5300")),
            ("mine:+1", Some("mine:+1")),
            ("mine:99999", Some("mine:99999")),
        ] {
            assert_eq!(scope(resource).as_deref(), path, "{resource}");
        }
    }

    use proptest::prelude::*;

    /// Valid queue names, including `%` and `.`.
    fn name() -> impl Strategy<Value = String> {
        "[a-zA-Z0-9._%-]{1,8}(/[a-zA-Z0-9._%-]{1,8}){0,2}"
    }

    proptest! {
        #[test]
        fn a_token_covers_its_entity_and_everything_below(
            signed in name(),
            asked in name(),
            scheme in prop::sample::select(vec!["", "sb://h/", "amqp://h:1/", "amqps://h/", "AMQPS://H.x:5671/"]),
            slash in prop::sample::select(vec!["", "/"]),
        ) {
            let scope = TokenScope::parse(&format!("{scheme}{signed}{slash}"), |_| false).unwrap();
            let (signed, asked) = (signed.to_lowercase(), asked.to_lowercase());
            let below = asked == signed || asked.starts_with(&format!("{signed}/"));
            prop_assert_eq!(scope.covers(&asked), below);
            let is_upper = asked.to_uppercase();
            prop_assert_eq!(scope.covers(&is_upper), below);
            let path = format!("/{asked}/");
            prop_assert_eq!(scope.covers(&path), below);
            prop_assert!(scope.covers(&signed));
            let sub = format!("{signed}/sub");
            prop_assert!(scope.covers(&sub));
            let longer = format!("{signed}x");
            prop_assert!(!scope.covers(&longer));
        }

        #[test]
        fn a_resource_without_scheme_and_port_never_covers_the_namespace(text in "[^:]{0,24}") {
            if let Some(scope) = TokenScope::parse(&text, |_| false) {
                prop_assert!(!scope.is_empty(), "{:?}", scope);
            }
        }

        #[test]
        fn web_addresses_are_percent_decoded_once(path in name()) {
            let encoded: String = path.bytes().map(|byte| format!("%{byte:02x}")).collect();
            let scope = TokenScope::parse(&format!("https://h/{encoded}"), |_| false).unwrap();
            prop_assert!(scope.covers(&path));
        }
    }
}
