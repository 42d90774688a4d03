//! The configuration of a client: parsed from a connection string of the portal, or set field by field.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::error::{Error, Result};
pub use crate::dial::TlsMode;

/// The default port without TLS.
const PORT_PLAIN: u16 = 5672;
/// The default port with TLS.
const PORT_TLS: u16 = 5671;

/// The credential of a client.
#[derive(Clone)]
pub enum Credential {
    /// A shared access key. The client signs a token for each entity and renews it before it expires.
    Key {
        /// The name of the key.
        name: String,
        /// The key as the portal shows it.
        key: String,
    },
    /// A signed token. It cannot be renewed, so access ends when it expires.
    Signature(String),
    /// User name and password for SASL PLAIN, without tokens: for brokers other than Service Bus.
    Plain {
        /// The user name of the login.
        user: String,
        /// The password of the login.
        password: String,
    },
    /// SASL ANONYMOUS, without tokens: for brokers other than Service Bus.
    Anonymous,
}

/// Never prints a key.
impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Credential::Key { name, .. } => write!(f, "Key({name})"),
            Credential::Signature(_) => f.write_str("Signature"),
            Credential::Plain { user, .. } => write!(f, "Plain({user})"),
            Credential::Anonymous => f.write_str("Anonymous"),
        }
    }
}

/// The configuration of a client.
#[derive(Debug, Clone)]
pub struct Config {
    /// The host without the port.
    pub host: String,
    /// The port, 5671 with TLS and 5672 without by default.
    pub port: u16,
    /// The name of the namespace in tokens: the host, and the port if the connection string has one.
    pub authority: String,
    /// The TLS settings.
    pub tls: TlsMode,
    /// How the client authenticates.
    pub credential: Credential,
    /// The entity, if the connection string is for a single one.
    pub entity: Option<String>,
    /// The number of attempts to connect, with growing pauses.
    pub attempts: u32,
    /// The timeout of one attempt to connect, and of requests without a timeout of their own.
    pub timeout: Duration,
    /// How long a signed token is valid. It is renewed after four fifths of this time.
    pub token_life: Duration,
}

impl Config {
    /// A broker without TLS.
    pub fn plain(host: impl Into<String>, port: u16, credential: Credential) -> Config {
        let host = host.into();
        Config {
            authority: host.clone(),
            host,
            port,
            tls: TlsMode::Off,
            credential,
            entity: None,
            attempts: 5,
            timeout: Duration::from_secs(30),
            token_life: Duration::from_secs(3600),
        }
    }

    /// Whether tokens are sent to `$cbs`.
    pub(super) fn has_claims(&self) -> bool {
        matches!(self.credential, Credential::Key { .. } | Credential::Signature(_))
    }

    /// The name of an entity in tokens.
    pub(super) fn audience(&self, address: &str) -> String {
        format!("sb://{}/{address}", self.authority)
    }
}

/// Parses
/// `Endpoint=sb://host[:port]/;SharedAccessKeyName=…;SharedAccessKey=…[;EntityPath=…][;UseDevelopmentEmulator=true]`,
/// or `SharedAccessSignature=…` instead of name and key. The order and the case of the names do not matter. With the
/// emulator, TLS is off.
impl FromStr for Config {
    type Err = Error;

    fn from_str(text: &str) -> Result<Config> {
        let invalid = |why: &str| Error::Config(why.to_owned());
        let (mut endpoint, mut name, mut key, mut signature, mut entity) =
            (None, None, None, None, None);
        let mut emulator = false;
        for part in text.split(';').map(str::trim).filter(|part| !part.is_empty()) {
            // Keys may end in `=`, so only the first one separates.
            let (field, value) = part
                .split_once('=')
                .ok_or_else(|| invalid("write `Name=value` parts separated by `;`"))?;
            let value = value.trim().to_owned();
            match field.trim().to_ascii_lowercase().as_str() {
                "endpoint" => endpoint = Some(value),
                "sharedaccesskeyname" => name = Some(value),
                "sharedaccesskey" => key = Some(value),
                "sharedaccesssignature" => signature = Some(value),
                "entitypath" => entity = Some(value),
                "usedevelopmentemulator" => emulator = value.eq_ignore_ascii_case("true"),
                // Parts added by other tools are ignored.
                _ => {}
            }
        }
        let endpoint = endpoint.ok_or_else(|| invalid("`Endpoint=sb://…` is missing"))?;
        let (scheme, rest) = endpoint
            .split_once("://")
            .ok_or_else(|| invalid("the endpoint must begin with `sb://`"))?;
        if !["sb", "amqp", "amqps"].contains(&scheme.to_ascii_lowercase().as_str()) {
            return Err(invalid("the endpoint must begin with `sb://`"));
        }
        let authority = rest.split('/').next().unwrap_or_default();
        let (host, port) = host_and_port(authority).ok_or_else(|| {
            invalid("the endpoint must be `sb://host` or `sb://host:port`, with a port below 65536")
        })?;
        let credential = match (signature, name, key) {
            (Some(signature), None, None) => Credential::Signature(signature),
            (None, Some(name), Some(key)) => Credential::Key { name, key },
            (Some(_), _, _) => {
                return Err(invalid("use either a signature or a key, not both"));
            }
            _ => {
                return Err(invalid(
                    "`SharedAccessKeyName` and `SharedAccessKey`, or `SharedAccessSignature`, are missing",
                ));
            }
        };
        let (tls, default_port) =
            if emulator { (TlsMode::Off, PORT_PLAIN) } else { (TlsMode::System, PORT_TLS) };
        Ok(Config {
            authority: authority.to_owned(),
            tls,
            entity: entity.filter(|entity| !entity.is_empty()),
            ..Config::plain(host, port.unwrap_or(default_port), credential)
        })
    }
}

fn host_and_port(authority: &str) -> Option<(String, Option<u16>)> {
    let (host, rest) = match authority.strip_prefix('[') {
        // The colons of an IPv6 address are inside brackets.
        Some(rest) => rest.split_once(']')?,
        None => authority.split_at(authority.find(':').unwrap_or(authority.len())),
    };
    let port = match rest.strip_prefix(':') {
        Some(port) => Some(port.parse().ok()?),
        None if rest.is_empty() => None,
        None => return None,
    };
    (!host.is_empty()).then(|| (host.to_owned(), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> std::result::Result<String, String> {
        let config: Config = text.parse().map_err(|error: Error| error.to_string())?;
        let Config { host, port, authority, tls, credential, entity, .. } = config;
        Ok(format!("{host} {port} {authority} {tls:?} {credential:?} {entity:?}"))
    }

    #[test]
    fn connection_strings_are_parsed() {
        for (text, expected) in [
            (
                "Endpoint=sb://ns.servicebus.windows.net/;SharedAccessKeyName=Root;SharedAccessKey=a+b/c==",
                "ns.servicebus.windows.net 5671 ns.servicebus.windows.net System Key(Root) None",
            ),
            (
                "endpoint=sb://localhost;sharedaccesskeyname=R;SharedAccessKey=k;UseDevelopmentEmulator=true;",
                "localhost 5672 localhost Off Key(R) None",
            ),
            (
                "Endpoint=sb://[::1]:7000;SharedAccessKeyName=R;SharedAccessKey=k;UseDevelopmentEmulator=true;EntityPath=a/b",
                "::1 7000 [::1]:7000 Off Key(R) Some(\"a/b\")",
            ),
            (
                "Endpoint=sb://h:5;SharedAccessSignature=SharedAccessSignature sr=x&sig=y&se=1&skn=z",
                "h 5 h:5 System Signature None",
            ),
        ] {
            assert_eq!(parse(text).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn errors_name_the_missing_or_invalid_part() {
        for (text, expected) in [
            ("", "Endpoint=sb://"),
            ("hello", "separated by"),
            ("Endpoint=http://h;SharedAccessKeyName=R;SharedAccessKey=k", "must begin with"),
            ("Endpoint=sb://h:99999;SharedAccessKeyName=R;SharedAccessKey=k", "65536"),
            ("Endpoint=sb://:1;SharedAccessKeyName=R;SharedAccessKey=k", "sb://host"),
            ("Endpoint=sb://h;SharedAccessKeyName=R", "missing"),
            ("Endpoint=sb://h;SharedAccessKey=k;SharedAccessSignature=s", "not both"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn a_key_is_never_printed() {
        let text = "Endpoint=sb://h;SharedAccessKeyName=R;SharedAccessKey=verysecret";
        let config: Config = text.parse().unwrap();
        assert!(!format!("{config:?}").contains("verysecret"));
    }
}
