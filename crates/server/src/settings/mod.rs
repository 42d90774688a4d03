//! Settings: flags over environment over one `malote.toml` over defaults.
//!
//! [`RawSettings`] is what somebody wrote, [`Settings`] what the server runs with: checked and
//! complete. Each value remembers where it came from, for `malote config print` and for messages
//! that name the flag, variable or line to change. Properties of queues are not settings: they
//! live with the queue.

mod paths;
mod problem;
mod raw;
mod reader;
pub(crate) mod suggest;
#[cfg(test)]
mod tests;
mod value;

pub use paths::Environment;
pub use problem::{Problem, SettingsError};
pub use raw::{KEYS, Key, LISTS, RawSettings};
pub use value::{Listen, format_duration, format_size, parse_duration, parse_size};

use reader::{Layer, Reader};
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Everything the server runs with.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Where each protocol listens.
    pub listeners: Listeners,
    /// Directory of the journal and the credentials.
    pub data: PathBuf,
    /// What is logged, and how.
    pub log: LogSettings,
    /// The certificate, and whether speaking TLS is a must.
    pub tls: TlsSettings,
    /// Bounds on what peers may use.
    pub limits: Limits,
    /// A Config.json of Microsoft's Service Bus emulator, whose entities are made at start.
    pub servicebus_config: Option<PathBuf>,
    /// How queues look to callers of SQS.
    pub sqs: SqsSettings,
    /// How long connections may finish their work after SIGTERM.
    pub drain_timeout: Duration,
    /// Listening beyond this machine without credentials was asked for.
    pub allow_open: bool,
    /// Bytes a second at which stored data is read again and verified; 0 for never.
    pub scrub_bytes_per_s: u64,
    /// Password for the user `admin`, made at start if there are no credentials yet.
    pub admin_password: Option<Secret>,
    entries: Vec<Entry>,
}

/// Where each protocol listens. A port is opened once something speaks on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listeners {
    /// HTTP API, health, metrics.
    pub http: Listen,
    /// Amazon SQS.
    pub sqs: Listen,
    /// AMQP 0-9-1 and 1.0.
    pub amqp: Listen,
    /// The same, where clients look for TLS.
    pub amqps: Listen,
    /// Administration of Service Bus entities, where emulators have it.
    pub servicebus_admin: Listen,
    /// Kafka.
    pub kafka: Listen,
}

/// What is logged, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogSettings {
    /// A level, or comma-separated `target=level` pairs.
    pub filter: String,
    /// For people or for programs.
    pub format: LogFormat,
}

/// The shape of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// Human when standard error is a terminal, JSON otherwise.
    Auto,
    /// One readable line per event.
    Human,
    /// One JSON object per event.
    Json,
}

/// The certificate, and whether speaking TLS is a must.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsSettings {
    /// Which certificate is shown.
    pub certificate: Certificate,
    /// Whether connections without TLS are refused.
    pub required: bool,
}

/// Which certificate the server shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Certificate {
    /// None: no TLS.
    None,
    /// The operator's own, read again when the files change.
    Files {
        /// Certificate chain, PEM.
        cert: PathBuf,
        /// Private key, PEM.
        key: PathBuf,
    },
    /// Made once and kept in the data directory; made anew when its names change.
    SelfSigned {
        /// DNS names and IP addresses that it is for, besides this machine's loopback ones.
        names: Vec<String>,
    },
}

/// How queues look to callers of SQS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SqsSettings {
    /// What queue URLs begin with, without a slash at the end; none: the host that the caller used.
    pub public_url: Option<String>,
    /// The account in URLs and ARNs.
    pub account: String,
    /// For how long a queue cannot be purged again.
    pub purge_pause: Duration,
}

/// Bounds on what peers may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Connections open at once, over all ports.
    pub connections_max: usize,
    /// Largest message, body and properties.
    pub message_bytes_max: u64,
    /// Memory for bodies of waiting messages.
    pub payload_cache_bytes: u64,
    /// For the first bytes of a connection, and again for its TLS handshake.
    pub handshake_timeout: Duration,
    /// For the header of one request.
    pub header_timeout: Duration,
    /// For the silence between requests.
    pub idle_timeout: Duration,
}

/// Text that is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// The text itself.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// Nobody said anything.
    Default,
    /// The settings file.
    File(PathBuf),
    /// This environment variable.
    Variable(&'static str),
    /// This flag; the dotted name where a setting has no flag of its own.
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
    /// The setting.
    pub key: Key,
    /// The effective value; `None` when it has none. Secrets show as `…`.
    pub value: Option<String>,
    /// Where it came from.
    pub origin: Origin,
}

impl Settings {
    /// Finds and reads the file, lays environment and flags over it, and checks the whole.
    ///
    /// `config` is the argument of `--config`. All problems are reported together, so this is
    /// also what `malote config check` calls.
    pub fn load(
        config: Option<&Path>,
        flags: RawSettings,
        env: &Environment,
    ) -> Result<Settings, SettingsError> {
        let mut problems = Vec::new();
        let mut layers = vec![(Layer::Flags, flags)];
        layers.push((Layer::Environment, RawSettings::from_environment(env, &mut problems)));
        if let Some(path) = paths::config_file(config, env) {
            let raw = RawSettings::from_file(&path, &mut problems);
            layers.push((Layer::File(path), raw));
        }
        let mut reader = Reader::new(layers, problems);
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

    /// The effective settings as a `malote.toml` with the origin of each value behind it; what
    /// `malote config print` shows.
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
                    // A number with zeros before it is not one to TOML: an account is text.
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

    /// Refuses to listen where other machines can reach us while nobody needs a credential.
    ///
    /// `opened` are the listeners that something speaks on; `guarded` says that there is a
    /// credential (a user, key or token, or an admin password to make one).
    pub fn check_open<'a>(
        &self,
        opened: impl IntoIterator<Item = (&'static str, &'a Listen)>,
        guarded: bool,
    ) -> Result<(), Problem> {
        if guarded || self.allow_open || self.admin_password.is_some() {
            return Ok(());
        }
        match opened.into_iter().find(|(_, listen)| !listen.is_loopback()) {
            Some((key, listen)) => Err(Problem::Open { key, listen: listen.clone() }),
            None => Ok(()),
        }
    }
}
