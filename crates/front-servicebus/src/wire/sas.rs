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

    /// What it is for: an entity or a namespace, without scheme and host. Some write the host without a scheme.
    pub fn path(&self, host: &str) -> Option<String> {
        let resource = unescape(&self.resource)?;
        let path = super::address::path_of(&resource);
        let (first, rest) = path.split_once('/').unwrap_or((path, ""));
        let is_host = !resource.contains("://") && first.eq_ignore_ascii_case(host);
        Some(if is_host { rest } else { path }.to_owned())
    }

    /// Whether this key has signed it.
    pub fn is_signed_with(&self, key: &str) -> bool {
        let signed =
            hmac(key.as_bytes(), format!("{}\n{}", self.resource, self.expires).as_bytes());
        signed.ct_eq(&self.signature).into()
    }
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

fn unescape(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digit = |byte: u8| char::from(byte).to_digit(16);
                (digit(rest.next()?)? * 16 + digit(rest.next()?)?) as u8
            }
            b'+' => b' ',
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
        assert_eq!(token.path("host").as_deref(), Some("orders"));
        for (resource, path) in [
            ("host:5300", ""),
            ("HOST:5300%2Forders", "orders"),
            ("sb%3A%2F%2Fhost:5300%2Fhost:5300", "host:5300"),
            ("other%2Forders", "other/orders"),
        ] {
            let token = Token::parse(&sign(resource, "secret")).unwrap();
            assert_eq!(token.path("host:5300").as_deref(), Some(path), "{resource}");
        }
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
}
