//! Settings: flags over environment over one `malote.toml` over defaults.
//!
//! [`RawSettings`] is what somebody wrote, [`Settings`] what the server runs with: checked and
//! complete. Each value remembers where it came from, for `malote config print` and for messages
//! that name the flag, variable or line to change. Properties of queues are not settings: they
//! live with the queue.

mod paths;
mod raw;
pub(crate) mod suggest;
#[cfg(test)]
mod tests;
mod value;

pub use paths::Environment;
pub use raw::{KEYS, Key, RawSettings};
pub use value::{Listen, format_duration, format_size, parse_duration, parse_size};

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
    /// How long connections may finish their work after SIGTERM.
    pub drain_timeout: Duration,
    /// Listening beyond this machine without credentials was asked for.
    pub allow_open: bool,
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
    /// Made once and kept in the data directory.
    SelfSigned,
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

/// Something wrong with the settings, as one sentence that says what to change.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// A file that was named, or found in its usual place, cannot be read.
    #[error("cannot read {}: {why}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        why: String,
    },
    /// The settings file is not TOML.
    #[error("{}, line {line}: {why}", path.display())]
    NotToml {
        /// The file.
        path: PathBuf,
        /// Counted from one.
        line: usize,
        /// What the parser said.
        why: String,
    },
    /// A key that names no setting.
    #[error("{}: there is no setting `{key}`{}", path.display(), did_you_mean(*nearest))]
    UnknownKey {
        /// The file.
        path: PathBuf,
        /// As written, with its section.
        key: String,
        /// What was probably meant.
        nearest: Option<&'static str>,
    },
    /// A list or table where one value belongs.
    #[error("{}: `{key}` takes one value", path.display())]
    NotScalar {
        /// The file.
        path: PathBuf,
        /// The setting.
        key: &'static str,
    },
    /// A variable with our prefix that means nothing.
    #[error("there is no environment variable `{name}`{}", did_you_mean(*nearest))]
    UnknownVariable {
        /// As set.
        name: String,
        /// What was probably meant.
        nearest: Option<&'static str>,
    },
    /// A secret and its `_FILE` twin.
    #[error("`{variable}` and `{variable}_FILE` are both set: remove one")]
    SaidTwice {
        /// The variable without `_FILE`.
        variable: &'static str,
    },
    /// A value that cannot be read.
    #[error("`{key}` is `{value}` (from {origin}): expected {expected}")]
    Invalid {
        /// The setting.
        key: &'static str,
        /// As written.
        value: String,
        /// Where it came from.
        origin: Origin,
        /// What it could have been.
        expected: String,
    },
    /// Values that cannot stand together.
    #[error("{0}")]
    Conflict(&'static str),
    /// The environment does not say where a home is.
    #[error("there is no place for the data: HOME is not set, so say --data DIRECTORY")]
    NoDataDirectory,
    /// Reachable by others, and nobody needs a password.
    #[error(
        "`{key}` listens on {listen}, which other machines can reach, and there are no \
         credentials: add a user with `malote user add`, listen on 127.0.0.1, or force it with \
         --allow-open"
    )]
    Open {
        /// The listener's setting.
        key: &'static str,
        /// Its address.
        listen: Listen,
    },
}

fn did_you_mean(nearest: Option<&str>) -> String {
    nearest.map_or_else(String::new, |nearest| format!("; did you mean `{nearest}`?"))
}

/// All that is wrong with the settings, one sentence per line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettingsError {
    /// Never empty.
    pub problems: Vec<Problem>,
}

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for SettingsError {}

impl From<Problem> for SettingsError {
    fn from(problem: Problem) -> Self {
        SettingsError { problems: vec![problem] }
    }
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
        let mut reader = Reader { layers, problems, entries: Vec::new() };
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
                    let bare = value == "true" || value == "false" || value.parse::<u32>().is_ok();
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

enum Layer {
    Flags,
    Environment,
    File(PathBuf),
}

/// Takes one value after the other out of the layers, notes where it came from, and collects
/// what is wrong.
struct Reader {
    /// Strongest first.
    layers: Vec<(Layer, RawSettings)>,
    problems: Vec<Problem>,
    entries: Vec<Entry>,
}

impl Reader {
    /// In the order of [`KEYS`]: `config print` shows the entries as they are read.
    fn settings(&mut self, env: &Environment) -> Option<Settings> {
        let http = self.listen("http", "127.0.0.1:8080");
        let sqs = self.listen("sqs", "127.0.0.1:9324");
        let amqp = self.listen("amqp", "127.0.0.1:5672");
        let kafka = self.listen("kafka", "127.0.0.1:9092");
        let data = self.data(env);
        let allow_open = self.yes_or_no("allow_open");
        // Below the 30 s that Kubernetes and most service managers wait before they kill.
        let drain_timeout = self.duration("drain_timeout", "25s");
        let admin_password = self.admin_password();
        let filter = self.parsed("log.filter", "info", |text| {
            match text.parse::<tracing_subscriber::filter::Targets>() {
                Ok(_) => Ok(text.to_owned()),
                Err(_) => {
                    Err("a level (error, warn, info, debug, trace, off) or target=level pairs")
                }
            }
        });
        let format = self.parsed("log.format", "auto", |text| match text {
            "auto" => Ok(LogFormat::Auto),
            "human" => Ok(LogFormat::Human),
            "json" => Ok(LogFormat::Json),
            _ => Err("auto, human or json"),
        });
        let tls = self.tls();
        let limits = self.limits();
        Some(Settings {
            listeners: Listeners { http: http?, sqs: sqs?, amqp: amqp?, kafka: kafka? },
            data: data?,
            log: LogSettings { filter: filter?, format: format? },
            tls: tls?,
            limits: limits?,
            drain_timeout: drain_timeout?,
            allow_open: allow_open?,
            admin_password,
            entries: Vec::new(),
        })
    }

    fn tls(&mut self) -> Option<TlsSettings> {
        let cert = self.optional("tls.cert").map(PathBuf::from);
        let key = self.optional("tls.key").map(PathBuf::from);
        let self_signed = self.yes_or_no("tls.self_signed")?;
        let required = self.yes_or_no("tls.required")?;
        let certificate = match (cert, key, self_signed) {
            (None, None, false) if required => {
                self.problems.push(Problem::Conflict(
                    "`tls.required` is set and there is no certificate: set `tls.cert` and \
                     `tls.key`, or `tls.self_signed`",
                ));
                return None;
            }
            (None, None, false) => Certificate::None,
            (None, None, true) => Certificate::SelfSigned,
            (Some(cert), Some(key), false) => Certificate::Files { cert, key },
            (_, _, true) => {
                self.problems.push(Problem::Conflict(
                    "`tls.self_signed` and an own certificate are both set: remove one",
                ));
                return None;
            }
            (_, _, false) => {
                self.problems.push(Problem::Conflict(
                    "a certificate needs its key: set both `tls.cert` and `tls.key`",
                ));
                return None;
            }
        };
        Some(TlsSettings { certificate, required })
    }

    fn limits(&mut self) -> Option<Limits> {
        let connections_max = self.parsed("limits.connections", "16384", |text| {
            text.parse().ok().filter(|count| *count > 0).ok_or("a number above 0")
        });
        let message_bytes_max = self.size("limits.message_size", "16MiB");
        let payload_cache_bytes = self.size("limits.payload_cache", "256MiB");
        let handshake_timeout = self.duration("limits.handshake_timeout", "10s");
        let header_timeout = self.duration("limits.header_timeout", "15s");
        let idle_timeout = self.duration("limits.idle_timeout", "5m");
        Some(Limits {
            connections_max: connections_max?,
            message_bytes_max: message_bytes_max?,
            payload_cache_bytes: payload_cache_bytes?,
            handshake_timeout: handshake_timeout?,
            header_timeout: header_timeout?,
            idle_timeout: idle_timeout?,
        })
    }

    fn listen(&mut self, name: &'static str, default: &str) -> Option<Listen> {
        let listen: Listen = self.parsed(name, default, str::parse)?;
        // `8080` and `:8080` are short for an address; the whole of it is what counts.
        let entry = self.entries.last_mut().expect("a value that was read has its entry");
        entry.value = Some(listen.to_string());
        Some(listen)
    }

    fn yes_or_no(&mut self, name: &'static str) -> Option<bool> {
        self.parsed(name, "false", value::parse_bool)
    }

    /// A duration above zero: every wait has an end, and a wait of nothing serves nobody.
    fn duration(&mut self, name: &'static str, default: &str) -> Option<Duration> {
        self.parsed(name, default, |text| match parse_duration(text) {
            Ok(duration) if duration.is_zero() => Err("a duration above 0"),
            duration => duration,
        })
    }

    fn size(&mut self, name: &'static str, default: &str) -> Option<u64> {
        self.parsed(name, default, |text| match parse_size(text) {
            Ok(0) => Err("a size above 0"),
            size => size,
        })
    }

    fn data(&mut self, env: &Environment) -> Option<PathBuf> {
        if let Some(default) = paths::data_directory(env) {
            return self.parsed("data", &default, |text| match text {
                "" => Err("a directory"),
                text => Ok(PathBuf::from(text)),
            });
        }
        let data = self.optional("data").map(PathBuf::from);
        if data.is_none() {
            self.problems.push(Problem::NoDataDirectory);
        }
        data
    }

    fn admin_password(&mut self) -> Option<Secret> {
        self.optional("admin_password").map(Secret)
    }

    fn optional(&mut self, name: &'static str) -> Option<String> {
        let (value, origin) = self.take(name);
        let key = key(name);
        if value.as_deref() == Some("") {
            let expected = "something, or leave it out".to_owned();
            self.problems.push(Problem::Invalid {
                key: name,
                value: String::new(),
                origin,
                expected,
            });
            return None;
        }
        let shown =
            if key.secret { value.as_ref().map(|_| "…".to_owned()) } else { value.clone() };
        self.entries.push(Entry { key, value: shown, origin });
        value
    }

    fn parsed<T>(
        &mut self,
        name: &'static str,
        default: &str,
        parse: impl FnOnce(&str) -> Result<T, &'static str>,
    ) -> Option<T> {
        let (value, origin) = self.take(name);
        let value = value.unwrap_or_else(|| default.to_owned());
        match parse(&value) {
            Ok(parsed) => {
                self.entries.push(Entry { key: key(name), value: Some(value), origin });
                Some(parsed)
            }
            Err(expected) => {
                let expected = expected.to_owned();
                self.problems.push(Problem::Invalid { key: name, value, origin, expected });
                None
            }
        }
    }

    fn take(&mut self, name: &'static str) -> (Option<String>, Origin) {
        let key = key(name);
        for (layer, raw) in &mut self.layers {
            if let Some(value) = raw.field(name).take() {
                let origin = match layer {
                    Layer::Flags => Origin::Flag(key.flag.unwrap_or(key.name)),
                    Layer::Environment => Origin::Variable(key.variable),
                    Layer::File(path) => Origin::File(path.clone()),
                };
                return (Some(value), origin);
            }
        }
        (None, Origin::Default)
    }
}

fn key(name: &'static str) -> Key {
    *KEYS.iter().find(|key| key.name == name).expect("the reader asks for listed settings only")
}
