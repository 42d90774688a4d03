//! Shared access signatures: `SharedAccessSignature sr=…&sig=…&se=…&skn=…`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// A token, taken apart and not yet believed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    /// What it is for, as signed: still percent-encoded.
    resource: String,
    signature: Vec<u8>,
    /// Seconds since 1970, as signed.
    expires: String,
    /// Who signed.
    pub key_name: String,
}

impl Token {
    /// Takes a token apart; none if it is not one.
    pub fn parse(text: &str) -> Option<Token> {
        let fields = text.strip_prefix("SharedAccessSignature ")?;
        let field = |name: &str| {
            let found = fields.split('&').find_map(|field| field.strip_prefix(name));
            found.and_then(|value| value.strip_prefix('='))
        };
        let signature = STANDARD.decode(unescape(field("sig")?)?).ok()?;
        Some(Token {
            resource: field("sr")?.to_owned(),
            signature,
            expires: field("se")?.to_owned(),
            key_name: unescape(field("skn")?)?,
        })
    }

    /// When it ends, in milliseconds since 1970.
    pub fn expires_ms(&self) -> Option<u64> {
        self.expires.parse::<u64>().ok()?.checked_mul(1000)
    }

    /// What it is for; none if it does not say it clearly. `is_own_name` knows the host names of this broker.
    pub fn scope(&self, is_own_name: impl Fn(&str) -> bool) -> Option<Scope> {
        Scope::parse(&unescape(&self.resource)?, is_own_name)
    }

    /// Whether this key has signed it.
    pub fn is_signed_with(&self, key: &str) -> bool {
        let signed =
            hmac(key.as_bytes(), format!("{}\n{}", self.resource, self.expires).as_bytes());
        signed.ct_eq(&self.signature).into()
    }
}

/// What a token is good for: an entity and all below it, or the whole namespace.
///
/// It depends on what was signed and on nothing that the caller chooses: not on the host name that it calls the broker
/// by, and not on the entity that it asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scope {
    /// In small letters, without slashes at its ends; empty for the namespace.
    path: String,
}

impl Scope {
    /// Reads a resource: `scheme://host/path`, or a path. Some clients write the host without a scheme: that is one if
    /// it has a port, or if it is a name of this broker with a dot. A bare word is always an entity, never a host.
    fn parse(resource: &str, is_own_name: impl Fn(&str) -> bool) -> Option<Scope> {
        let path = match resource.split_once("://") {
            Some((scheme, rest)) => {
                let path = rest.split_once('/').map_or("", |(_, path)| path);
                match scheme.to_ascii_lowercase().as_str() {
                    "sb" | "amqp" | "amqps" => path.to_owned(),
                    // An address of the web is percent-encoded within.
                    "http" | "https" => unescape_path(without_query(path))?,
                    _ => return None,
                }
            }
            None => {
                let path = without_query(resource).trim_matches('/');
                let (first, rest) = path.split_once('/').unwrap_or((path, ""));
                match is_authority(first) || (first.contains('.') && is_own_name(first)) {
                    true => rest.to_owned(),
                    // What names nothing is not taken for everything.
                    false if path.is_empty() => return None,
                    false => path.to_owned(),
                }
            }
        };
        Some(Scope::of(without_query(&path)))
    }

    /// The scope that is this entity and all below it; the namespace for an empty path.
    pub fn of(path: &str) -> Scope {
        Scope { path: path.trim_matches('/').to_lowercase() }
    }

    /// Whether it covers the entity with this path: it is the path, or a way to it that ends at a slash. Letters of
    /// either case are the same, because clients sign in small letters.
    pub fn covers(&self, path: &str) -> bool {
        let path = path.trim_matches('/').to_lowercase();
        let rest = path.strip_prefix(&self.path);
        self.path.is_empty() || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    /// How closely it fits: of several that cover an entity, the longest counts.
    pub fn len(&self) -> usize {
        self.path.len()
    }

    /// Whether it is the whole namespace.
    pub fn is_empty(&self) -> bool {
        self.path.is_empty()
    }

    /// Clients sign for an entity's management node by itself, and ask there about the entity.
    #[must_use]
    pub fn of_entity(mut self) -> Scope {
        if let Some(entity) = self.path.strip_suffix("/$management") {
            self.path.truncate(entity.len());
        }
        self
    }
}

/// Whether text is a host with a port.
fn is_authority(text: &str) -> bool {
    text.rsplit_once(':').is_some_and(|(host, port)| {
        !host.is_empty() && port.parse::<u16>().is_ok() && port.bytes().all(|b| b.is_ascii_digit())
    })
}

fn without_query(path: &str) -> &str {
    path.split(['?', '#']).next().unwrap_or_default()
}

/// HMAC with SHA-256 (RFC 2104).
fn hmac(key: &[u8], text: &[u8]) -> [u8; 32] {
    const BLOCK: usize = 64;
    let mut block = [0; BLOCK];
    if key.len() > BLOCK {
        block[..32].copy_from_slice(&Sha256::digest(key));
    } else {
        block[..key.len()].copy_from_slice(key);
    }
    let inner = Sha256::new().chain_update(block.map(|byte| byte ^ 0x36)).chain_update(text);
    let outer = Sha256::new().chain_update(block.map(|byte| byte ^ 0x5c));
    outer.chain_update(inner.finalize()).finalize().into()
}

/// Percent-decoding of a field of a form, where a plus is a space.
fn unescape(text: &str) -> Option<String> {
    unescape_path(&text.replace('+', " "))
}

/// Percent-decoding; none if it is malformed or not UTF-8.
pub(crate) fn unescape_path(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digit = |byte: u8| char::from(byte).to_digit(16);
                (digit(rest.next()?)? * 16 + digit(rest.next()?)?) as u8
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_is_that_of_rfc_4231() {
        let hex = |bytes: [u8; 32]| bytes.map(|byte| format!("{byte:02x}")).concat();
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
        let token = Token::parse(&sign("sb%3A%2F%2Fhost%2Forders", "secret")).unwrap();
        assert!(token.is_signed_with("secret") && !token.is_signed_with("other"));
        assert_eq!(token.scope(|_| false), Some(Scope::of("orders")));
        assert_eq!((token.expires_ms(), token.key_name.as_str()), (Some(123_000), "Root"));
        let moved = sign("a", "secret").replace("sr=a", "sr=b");
        assert!(!Token::parse(&moved).unwrap().is_signed_with("secret"));
    }

    #[test]
    fn what_is_no_token_is_none() {
        for text in
            ["", "SharedAccessSignature ", "SharedAccessSignature sr=a&sig=%&se=1&skn=k", "jwt"]
        {
            assert_eq!(Token::parse(text), None, "{text}");
        }
    }

    /// What a resource covers, on a broker whose certificate is for `bus.example.com`.
    fn scope(resource: &str) -> Option<String> {
        Scope::parse(resource, |name| name == "bus.example.com").map(|scope| scope.path)
    }

    #[test]
    fn a_scope_is_read_from_what_was_signed_and_from_nothing_else() {
        for (resource, path) in [
            ("sb://host/orders", Some("orders")),
            ("sb://host:5672/Orders/", Some("orders")),
            ("amqps://host/orders/Subscriptions/a", Some("orders/subscriptions/a")),
            ("amqp://host", Some("")),
            ("SB://host/", Some("")),
            ("http://host/orders?api-version=2021-05", Some("orders")),
            ("https://host:5300/a%2Fb", Some("a/b")),
            ("sb://host:5300/host:5300", Some("host:5300")),
            // A word is an entity, whatever the broker is called.
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
            // What says nothing covers nothing.
            ("", None),
            ("/", None),
            ("?api-version=2021-05", None),
            ("ftp://host/orders", None),
            ("mine://", None),
            ("https://host/%zz", None),
            // No ports.
            ("mine:", Some("mine:")),
            (":5300", Some(":5300")),
            ("mine:+1", Some("mine:+1")),
            ("mine:99999", Some("mine:99999")),
        ] {
            assert_eq!(scope(resource).as_deref(), path, "{resource}");
        }
    }

    use proptest::prelude::*;

    /// Names as queues have them; `%` and `.` included.
    fn name() -> impl Strategy<Value = String> {
        "[a-zA-Z0-9._%-]{1,8}(/[a-zA-Z0-9._%-]{1,8}){0,2}"
    }

    proptest! {
        #[test]
        fn a_token_for_an_entity_covers_it_and_what_is_below_and_nothing_else(
            signed in name(),
            asked in name(),
            scheme in prop::sample::select(vec!["", "sb://h/", "amqp://h:1/", "amqps://h/", "AMQPS://H.x:5671/"]),
            slash in prop::sample::select(vec!["", "/"]),
        ) {
            let scope = Scope::parse(&format!("{scheme}{signed}{slash}"), |_| false).unwrap();
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
        fn nothing_that_lacks_a_scheme_and_a_port_covers_everything(text in "[^:]{0,24}") {
            if let Some(scope) = Scope::parse(&text, |_| false) {
                prop_assert!(!scope.is_empty(), "{:?}", scope);
            }
        }

        #[test]
        fn addresses_of_the_web_are_percent_decoded_once(path in name()) {
            let encoded: String = path.bytes().map(|byte| format!("%{byte:02x}")).collect();
            let scope = Scope::parse(&format!("https://h/{encoded}"), |_| false).unwrap();
            prop_assert!(scope.covers(&path));
        }
    }
}
