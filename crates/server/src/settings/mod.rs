//! Settings: flags over environment over `malote.toml` over defaults.
//!
//! [`RawSettings`] is what was written; [`Settings`] is checked and complete. Each value has its origin, for `malote
//! config print` and for messages that name the flag, variable or file to change. Properties of queues are not
//! settings.

mod paths;
mod problem;
mod raw;
mod reader;
pub(crate) mod suggest;
#[cfg(test)]
mod tests;
mod value;

pub use paths::Environment;
pub use problem::{SettingsError, SettingsProblem};
pub use raw::{KEYS, Key, LISTS, RawSettings};
pub use value::{Listen, format_duration, format_size, parse_duration, parse_size};

use reader::{SettingsLayer, SettingsReader};
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The checked settings.
#[derive(Debug, Clone)]
pub struct Settings {
    pub listeners: Listeners,
    /// Directory of the journal and the credentials.
    pub data: PathBuf,
    pub log: LogSettings,
    pub tls: TlsSettings,
    pub limits: LimitSettings,
    /// A Config.json of Microsoft's Service Bus emulator; its entities are created at start.
    pub servicebus_config: Option<PathBuf>,
    pub rabbitmq: RabbitmqSettings,
    pub sqs: SqsSettings,
    /// Time for connections to finish after SIGTERM.
    pub drain_timeout: Duration,
    /// Listen on other addresses than loopback without credentials.
    pub allow_open: bool,
    /// Rate at which stored data is read again and verified; 0 for never.
    pub scrub_bytes_per_s: u64,
    /// Password of the user `admin`, created at start if there are no credentials.
    pub admin_password: Option<Secret>,
    entries: Vec<Entry>,
}

/// Addresses of the listeners.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listeners {
    /// HTTP API, health, metrics.
    pub http: Listen,
    pub sqs: Listen,
    /// The port of AMQP 1.0 and AMQP 0-9-1 without TLS.
    pub amqp: Listen,
    /// The same as `amqp`, on the port where clients expect TLS.
    pub amqps: Listen,
    /// Administration API of Service Bus, on the port of Microsoft's emulator.
    pub servicebus_admin: Listen,
    /// Management API of RabbitMQ.
    pub rabbitmq_management: Listen,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogSettings {
    /// A level, or comma-separated `target=level` pairs.
    pub filter: String,
    pub format: LogFormat,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// Human if standard error is a terminal, JSON otherwise.
    Auto,
    /// One readable line per event.
    Human,
    /// One JSON object per event.
    Json,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsSettings {
    pub certificate: Certificate,
    /// Whether connections without TLS are refused.
    pub required: bool,
}

/// The source of the certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Certificate {
    None,
    /// The operator's files, reloaded when they change.
    Files {
        /// Certificate chain, PEM.
        cert: PathBuf,
        /// Private key, PEM.
        key: PathBuf,
    },
    /// Created once and kept in the data directory; created again when the names change.
    SelfSigned {
        /// DNS names and IP addresses besides those of loopback.
        names: Vec<String>,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RabbitmqSettings {
    /// Virtual hosts to create at start, besides `/`.
    pub vhosts: Vec<String>,
    /// Definitions to import at start.
    pub definitions: Option<PathBuf>,
    /// Time to acknowledge a message; none for no limit.
    pub consumer_timeout: Option<Duration>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SqsSettings {
    /// Base of queue URLs, without a trailing slash. None: the host that the caller used.
    pub public_url: Option<String>,
    /// The account in URLs and ARNs.
    pub account: String,
    /// Minimum time between two purges of a queue.
    pub purge_pause: Duration,
}

/// Limits for peers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitSettings {
    /// Concurrent connections over all ports.
    pub connections_max: usize,
    /// Time for the first bytes of a connection, and again for its TLS handshake.
    pub handshake_timeout: Duration,
    /// Time for the header of a request.
    pub header_timeout: Duration,
    /// Time between two requests of a connection.
    pub idle_timeout: Duration,
}

/// Text that is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// The origin of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    Default,
    File(PathBuf),
    Variable(&'static str),
    /// The flag, or the dotted name of a setting without a flag.
    Flag(&'static str),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => f.write_str("default"),
            Origin::File(path) => write!(f, "{}", path.display()),
            Origin::Variable(name) | Origin::Flag(name) => f.write_str(name),
        }
    }
}

/// One line of `malote config print`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub key: Key,
    /// The effective value; `None` if it is not set. Secrets are shown as `…`.
    pub value: Option<String>,
    pub origin: Origin,
}

impl Settings {
    /// Reads the file, applies environment and flags, and checks the result.
    ///
    /// `config` is the argument of `--config`. All problems are reported together; `malote config check` uses this,
    /// too.
    pub fn load(
        config: Option<&Path>,
        flags: RawSettings,
        env: &Environment,
    ) -> Result<Settings, SettingsError> {
        let mut problems = Vec::new();
        let mut layers = vec![(SettingsLayer::Flags, flags)];
        layers
            .push((SettingsLayer::Environment, RawSettings::from_environment(env, &mut problems)));
        if let Some(path) = paths::config_file(config, env) {
            let raw = RawSettings::from_file(&path, &mut problems);
            layers.push((SettingsLayer::File(path), raw));
        }
        let mut reader = SettingsReader::new(layers, problems);
        let settings = reader.settings(env);
        match settings {
            Some(settings) if reader.problems.is_empty() => {
                Ok(Settings { entries: reader.entries, ..settings })
            }
            _ => Err(SettingsError { problems: reader.problems }),
        }
    }

    /// Every setting with its value and origin, in the order of [`KEYS`].
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The effective settings as a `malote.toml`, with the origin of each value in a comment; the output of `malote
    /// config print`.
    pub fn to_toml(&self) -> String {
        let mut text = String::new();
        let mut section = "";
        for Entry { key, value, origin } in &self.entries {
            let (table, name) = key.name.split_once('.').unwrap_or(("", key.name));
            if table != section {
                section = table;
                text.push_str(&format!("\n[{table}]\n"));
            }
            match value {
                None => text.push_str(&format!("# {name} is not set\n")),
                Some(_) if key.secret => text.push_str(&format!("# {name} is set by {origin}\n")),
                Some(value) => {
                    // TOML does not allow leading zeros in numbers, so an account is a string.
                    let number = value.parse::<u32>().is_ok_and(|n| n.to_string() == *value);
                    let bare = value == "true" || value == "false" || number;
                    let value = match bare {
                        true => value.clone(),
                        false => toml::Value::String(value.clone()).to_string(),
                    };
                    text.push_str(&format!("{name} = {value} # {origin}\n"));
                }
            }
        }
        text
    }

    /// Refuses to listen on addresses that other machines can reach, without credentials.
    ///
    /// `opened` are the listeners in use. `guarded`: there are credentials, or an admin password to create them.
    pub fn check_open<'a>(
        &self,
        opened: impl IntoIterator<Item = (&'static str, &'a Listen)>,
        guarded: bool,
    ) -> Result<(), SettingsProblem> {
        if guarded || self.allow_open || self.admin_password.is_some() {
            return Ok(());
        }
        match opened.into_iter().find(|(_, listen)| !listen.is_loopback()) {
            Some((key, listen)) => Err(SettingsProblem::Open { key, listen: listen.clone() }),
            None => Ok(()),
        }
    }
}
