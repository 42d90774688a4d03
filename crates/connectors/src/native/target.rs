//! Where a `malote://` or `malote+tls://` URL leads.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::broker::BrokerError;
use crate::dial::{Tls, unescaped};

/// The port of the HTTP API unless the URL names another.
const PORT: u16 = 8080;

/// A server and, if it asks, who we are.
pub(super) struct Target {
    pub host: String,
    pub port: u16,
    pub tls: Tls,
    user: Option<(String, String)>,
}

impl Target {
    pub(super) fn of(url: &str) -> Result<Self, BrokerError> {
        let wrong = |why: &str| BrokerError::Refused {
            code: "bad_url".into(),
            text: format!(
                "the URL {why}: write malote://[USER:PASSWORD@]HOST[:PORT] or malote+tls://…[?ca=FILE]"
            ),
        };
        let text = |part| unescaped(part).ok_or_else(|| wrong("has a bad escape"));
        let (tls, rest) = match url.split_once("://") {
            Some(("malote", rest)) => (Tls::Off, rest),
            Some(("malote+tls", rest)) => match rest.split_once('?') {
                None => (Tls::System, rest),
                Some((rest, query)) => {
                    let ca = query.strip_prefix("ca=").filter(|path| !path.is_empty());
                    let ca = ca.ok_or_else(|| wrong("says something else than `?ca=FILE`"))?;
                    (Tls::AuthorityFile(text(ca)?.into()), rest)
                }
            },
            _ => return Err(wrong("is none of Malote's")),
        };
        let rest = rest.trim_end_matches('/');
        let (user, address) = match rest.rsplit_once('@') {
            Some((who, address)) => {
                let (user, password) =
                    who.split_once(':').ok_or_else(|| wrong("has a user without a password"))?;
                (Some((text(user)?, text(password)?)), address)
            }
            None => (None, rest),
        };
        if address.contains(['/', '?', '#']) {
            return Err(wrong("has a path"));
        }
        let (host, port) = match address.rsplit_once(':') {
            // The colons of an IPv6 address stand in brackets.
            Some((host, port)) if !port.contains(']') => {
                (host, port.parse().map_err(|_| wrong("has a bad port"))?)
            }
            _ => (address, PORT),
        };
        let host = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
        if host.is_empty() {
            return Err(wrong("has no host"));
        }
        Ok(Self { host: host.to_owned(), port, tls, user })
    }

    pub(super) fn url(&self) -> String {
        let host = &self.host;
        let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
        format!("ws://{host}:{}/api/v1/connect", self.port)
    }

    pub(super) fn authorization(&self) -> Option<String> {
        let (user, password) = self.user.as_ref()?;
        Some(format!("Basic {}", STANDARD.encode(format!("{user}:{password}"))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read() {
        let target = Target::of("malote://ana:p%40ss@broker.example:9000/").unwrap();
        assert_eq!((target.host.as_str(), target.port), ("broker.example", 9000));
        assert_eq!(target.authorization().unwrap(), "Basic YW5hOnBAc3M=");
        let target = Target::of("malote://[::1]").unwrap();
        assert_eq!(target.url(), "ws://[::1]:8080/api/v1/connect");
        assert_eq!(target.tls, Tls::Off);
        assert_eq!(Target::of("malote+tls://h").unwrap().tls, Tls::System);
        let target = Target::of("malote+tls://u:p@h:1/?ca=/etc/our%20ca.pem").unwrap();
        assert_eq!(target.tls, Tls::AuthorityFile("/etc/our ca.pem".into()));
        assert_eq!((target.host.as_str(), target.port), ("h", 1));
        for bad in [
            "malote://",
            "malote://:1",
            "malote://h:x",
            "malote://h/x",
            "malote://u@h",
            "malote://u:%zz@h",
            "malote://h?ca=x",
            "malote+tls://h?ca=",
            "malote+tls://h?insecure=yes",
            "https://h",
        ] {
            assert!(Target::of(bad).is_err(), "{bad}");
        }
    }
}
