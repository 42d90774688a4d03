//! Where a namespace is and who calls: connection strings as the portal shows them, or fields one by one.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::error::{Error, Result};
pub use crate::dial::Tls;

/// The port of the protocol without TLS.
const PORT_PLAIN: u16 = 5672;
/// The port with it.
const PORT_TLS: u16 = 5671;

/// Who calls, and how it is shown.
#[derive(Clone)]
pub enum Credential {
    /// A shared access key: signs a token for each entity, and a new one before that expires.
    Key {
        /// The name of the key.
        name: String,
        /// The key itself, as the portal shows it.
        key: String,
    },
    /// A token that somebody else has signed. It cannot be renewed: with it ends what it allows.
    Signature(String),
    /// Name and password in the SASL exchange and no token afterwards: brokers other than Service Bus.
    Plain {
        /// The user.
        user: String,
        /// The password.
        password: String,
    },
    /// Nobody, and no token: brokers other than Service Bus.
    Anonymous,
}

/// A key is never shown.
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

/// What a client needs to know.
#[derive(Debug, Clone)]
pub struct Config {
    /// The host, without port.
    pub host: String,
    /// The port.
    pub port: u16,
    /// How the namespace is called in tokens: the host, and the port if the connection string says one.
    pub authority: String,
    /// How the stream is protected.
    pub tls: Tls,
    /// Who calls.
    pub credential: Credential,
    /// The only entity that the connection string is for.
    pub entity: Option<String>,
    /// How often a connection is tried before the caller hears that there is none; with a growing pause between.
    pub attempts: u32,
    /// How long one attempt may take, and an answer to anything that has no time of its own.
    pub timeout: Duration,
    /// How long a signed token is good. It is renewed after four fifths of that.
    pub token_life: Duration,
}

impl Config {
    /// A broker at a host and port, in the clear.
    pub fn plain(host: impl Into<String>, port: u16, credential: Credential) -> Config {
        let host = host.into();
        Config {
            authority: host.clone(),
            host,
            port,
            tls: Tls::Off,
            credential,
            entity: None,
            attempts: 5,
            timeout: Duration::from_secs(30),
            token_life: Duration::from_secs(3600),
        }
    }

    /// Whether tokens are put at `$cbs`.
    pub(super) fn has_claims(&self) -> bool {
        matches!(self.credential, Credential::Key { .. } | Credential::Signature(_))
    }

    /// The name of an entity in tokens.
    pub(super) fn audience(&self, address: &str) -> String {
        format!("sb://{}/{address}", self.authority)
    }
}

/// `Endpoint=sb://host[:port]/;SharedAccessKeyName=…;SharedAccessKey=…[;EntityPath=…][;UseDevelopmentEmulator=true]`,
/// or `SharedAccessSignature=` instead of name and key. Names in any case, in any order. With the emulator the stream
/// is in the clear.
impl FromStr for Config {
    type Err = Error;

    fn from_str(text: &str) -> Result<Config> {
        let wrong = |why: &str| Error::Config(why.to_owned());
        let (mut endpoint, mut name, mut key, mut signature, mut entity) =
            (None, None, None, None, None);
        let mut emulator = false;
        for part in text.split(';').map(str::trim).filter(|part| !part.is_empty()) {
            // Keys end in `=`, so only the first one parts.
            let (field, value) = part
                .split_once('=')
                .ok_or_else(|| wrong("every part is `Name=value`, parted by `;`"))?;
            let value = value.trim().to_owned();
            match field.trim().to_ascii_lowercase().as_str() {
                "endpoint" => endpoint = Some(value),
                "sharedaccesskeyname" => name = Some(value),
                "sharedaccesskey" => key = Some(value),
                "sharedaccesssignature" => signature = Some(value),
                "entitypath" => entity = Some(value),
                "usedevelopmentemulator" => emulator = value.eq_ignore_ascii_case("true"),
                // What other tools add means nothing here.
                _ => {}
            }
        }
        let endpoint = endpoint.ok_or_else(|| wrong("`Endpoint=sb://…` is missing"))?;
        let (scheme, rest) =
            endpoint.split_once("://").ok_or_else(|| wrong("the endpoint begins with `sb://`"))?;
        if !["sb", "amqp", "amqps"].contains(&scheme.to_ascii_lowercase().as_str()) {
            return Err(wrong("the endpoint begins with `sb://`"));
        }
        let authority = rest.split('/').next().unwrap_or_default();
        let (host, port) = host_and_port(authority).ok_or_else(|| {
            wrong("the endpoint is `sb://host` or `sb://host:port`, with a port below 65536")
        })?;
        let credential = match (signature, name, key) {
            (Some(signature), None, None) => Credential::Signature(signature),
            (None, Some(name), Some(key)) => Credential::Key { name, key },
            (Some(_), _, _) => {
                return Err(wrong("a signature and a key exclude each other"));
            }
            _ => {
                return Err(wrong(
                    "`SharedAccessKeyName` and `SharedAccessKey`, or `SharedAccessSignature`, are missing",
                ));
            }
        };
        let (tls, usual) = if emulator { (Tls::Off, PORT_PLAIN) } else { (Tls::System, PORT_TLS) };
        Ok(Config {
            authority: authority.to_owned(),
            tls,
            entity: entity.filter(|entity| !entity.is_empty()),
            ..Config::plain(host, port.unwrap_or(usual), credential)
        })
    }
}

fn host_and_port(authority: &str) -> Option<(String, Option<u16>)> {
    let (host, rest) = match authority.strip_prefix('[') {
        // An address of version six has colons of its own.
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
    fn connection_strings_as_they_are_found() {
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
    fn what_is_missing_or_wrong_is_said() {
        for (text, expected) in [
            ("", "Endpoint=sb://"),
            ("hello", "parted by"),
            ("Endpoint=http://h;SharedAccessKeyName=R;SharedAccessKey=k", "begins with"),
            ("Endpoint=sb://h:99999;SharedAccessKeyName=R;SharedAccessKey=k", "65536"),
            ("Endpoint=sb://:1;SharedAccessKeyName=R;SharedAccessKey=k", "sb://host"),
            ("Endpoint=sb://h;SharedAccessKeyName=R", "missing"),
            ("Endpoint=sb://h;SharedAccessKey=k;SharedAccessSignature=s", "exclude"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn a_key_is_never_shown() {
        let text = "Endpoint=sb://h;SharedAccessKeyName=R;SharedAccessKey=verysecret";
        let config: Config = text.parse().unwrap();
        assert!(!format!("{config:?}").contains("verysecret"));
    }
}
