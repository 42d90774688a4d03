//! Parses `malote://` and `malote+tls://` URLs.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::broker::BrokerError;
use crate::dial::{TlsMode, host_and_port, percent_decode};

/// The default port, that of the HTTP API.
const PORT: u16 = 8080;

/// A parsed URL.
pub(super) struct NativeUrl {
    pub host: String,
    pub port: u16,
    pub tls: TlsMode,
    credentials: Option<Credentials>,
}

/// The credentials in a URL.
enum Credentials {
    Token(String),
    Password { user: String, password: String },
}

impl NativeUrl {
    pub(super) fn parse(url: &str) -> Result<Self, BrokerError> {
        let invalid = |why: &str| BrokerError::Refused {
            code: "bad_url".into(),
            text: format!(
                "the URL {why}: write malote://[TOKEN@|USER:PASSWORD@]HOST[:PORT] or malote+tls://…[?ca=FILE]"
            ),
        };
        let text =
            |part| percent_decode(part).ok_or_else(|| invalid("contains a bad percent escape"));
        let (tls, rest) = match url.split_once("://") {
            Some(("malote", rest)) => (TlsMode::Off, rest),
            Some(("malote+tls", rest)) => match rest.split_once('?') {
                None => (TlsMode::System, rest),
                Some((rest, query)) => {
                    let ca = query.strip_prefix("ca=").filter(|path| !path.is_empty());
                    let ca = ca.ok_or_else(|| invalid("has an unknown option"))?;
                    (TlsMode::AuthorityFile(text(ca)?.into()), rest)
                }
            },
            _ => return Err(invalid("has another scheme")),
        };
        let rest = rest.trim_end_matches('/');
        let (credentials, address) = match rest.rsplit_once('@') {
            Some((user_info, address)) => {
                let credentials = match user_info.split_once(':') {
                    Some((user, password)) => {
                        Credentials::Password { user: text(user)?, password: text(password)? }
                    }
                    None if user_info.is_empty() => return Err(invalid("has an empty token")),
                    None => Credentials::Token(text(user_info)?),
                };
                (Some(credentials), address)
            }
            None => (None, rest),
        };
        if address.contains(['/', '?', '#']) {
            return Err(invalid("has a path"));
        }
        let (host, port) = host_and_port(address, PORT).map_err(invalid)?;
        Ok(Self { host: host.to_owned(), port, tls, credentials })
    }

    pub(super) fn url(&self) -> String {
        let host = &self.host;
        let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
        format!("ws://{host}:{}/api/v1/connect", self.port)
    }

    /// The value of the `Authorization` header.
    pub(super) fn authorization(&self) -> Option<String> {
        Some(match self.credentials.as_ref()? {
            Credentials::Token(token) => format!("Bearer {token}"),
            Credentials::Password { user, password } => {
                format!("Basic {}", STANDARD.encode(format!("{user}:{password}")))
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_parsed() {
        let url = NativeUrl::parse("malote://ana:p%40ss@broker.example:9000/").unwrap();
        assert_eq!((url.host.as_str(), url.port), ("broker.example", 9000));
        assert_eq!(url.authorization().unwrap(), "Basic YW5hOnBAc3M=");
        let url = NativeUrl::parse("malote://a%2Fb@h").unwrap();
        assert_eq!(url.authorization().unwrap(), "Bearer a/b");
        let url = NativeUrl::parse("malote://[::1]").unwrap();
        assert_eq!(url.url(), "ws://[::1]:8080/api/v1/connect");
        assert_eq!(url.tls, TlsMode::Off);
        assert_eq!(NativeUrl::parse("malote+tls://h").unwrap().tls, TlsMode::System);
        let url = NativeUrl::parse("malote+tls://u:p@h:1/?ca=/etc/our%20ca.pem").unwrap();
        assert_eq!(url.tls, TlsMode::AuthorityFile("/etc/our ca.pem".into()));
        assert_eq!((url.host.as_str(), url.port), ("h", 1));
        for bad in [
            "malote://",
            "malote://:1",
            "malote://h:x",
            "malote://h/x",
            "malote://@h",
            "malote://u:%zz@h",
            "malote://h?ca=x",
            "malote+tls://h?ca=",
            "malote+tls://h?insecure=yes",
            "https://h",
        ] {
            assert!(NativeUrl::parse(bad).is_err(), "{bad}");
        }
    }
}
