//! Settings as written: optional, as text, unchecked.
//!
//! One table lists every setting with its name in the file, in the environment and on the command line. The readers,
//! `config print` and the error messages all use it.

use super::suggest::nearest;
use super::{Environment, SettingsProblem};
use crate::files;
use std::path::Path;

/// A setting and its names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    /// Dotted name in `malote.toml` and in `malote config print`.
    pub name: &'static str,
    pub variable: &'static str,
    /// Rarely used settings have no flag.
    pub flag: Option<&'static str>,
    /// Never printed. The variable has a `…_FILE` variant that names a file with the value.
    pub secret: bool,
    pub help: &'static str,
}

macro_rules! settings {
    ($($field:ident = $name:literal, $variable:literal, $flag:expr, $secret:literal, $help:literal;)*) => {
        /// One layer of settings: from the flags, the environment or the file.
        #[derive(Clone, Default, PartialEq, Eq)]
        pub struct RawSettings {
            $(#[doc = $help] pub $field: Option<String>,)*
        }

        /// All settings, in the order of the reference page.
        pub const KEYS: &[Key] = &[
            $(Key { name: $name, variable: $variable, flag: $flag, secret: $secret, help: $help },)*
        ];

        impl RawSettings {
            /// The field of the setting with this dotted name, which must be one of [`KEYS`].
            pub fn field(&mut self, name: &str) -> &mut Option<String> {
                match name {
                    $($name => &mut self.$field,)*
                    _ => unreachable!("only names from KEYS are looked up, `{name}` is not one"),
                }
            }
        }
    };
}

settings! {
    http = "http", "MALOTE_HTTP", Some("--http"), false,
        "HTTP API, health and metrics: host:port, :port, port or off";
    sqs = "sqs", "MALOTE_SQS", Some("--sqs"), false, "Amazon SQS protocol: host:port, :port, port or off";
    amqp = "amqp", "MALOTE_AMQP", Some("--amqp"), false,
        "AMQP (RabbitMQ, Service Bus): host:port, :port, port or off";
    amqps = "amqps", "MALOTE_AMQPS", Some("--amqps"), false,
        "A second port for AMQP, where clients expect TLS (5671): host:port, :port, port or off";
    servicebus_admin = "servicebus_admin", "MALOTE_SERVICEBUS_ADMIN", Some("--servicebus-admin"), false,
        "Service Bus administration (Atom XML over HTTP), also on the AMQP port: host:port, :port, port or off";
    rabbitmq_management = "rabbitmq_management", "MALOTE_RABBITMQ_MANAGEMENT", Some("--rabbitmq-management"), false,
        "RabbitMQ's management API over HTTP (15672): host:port, :port, port or off";
    data = "data", "MALOTE_DATA", Some("--data"), false, "Directory of the journal and the credentials";
    servicebus_config = "servicebus_config", "MALOTE_SERVICEBUS_CONFIG", Some("--servicebus-config"), false,
        "Entities to create at start: a Config.json of Microsoft's Service Bus emulator";
    rabbitmq_vhosts = "rabbitmq_vhosts", "MALOTE_RABBITMQ_VHOSTS", None, false,
        "Virtual hosts of RabbitMQ to create at start, besides /, separated by commas";
    rabbitmq_definitions = "rabbitmq_definitions", "MALOTE_RABBITMQ_DEFINITIONS", None, false,
        "Definitions of RabbitMQ to import at start: a JSON file";
    rabbitmq_consumer_timeout = "rabbitmq_consumer_timeout", "MALOTE_RABBITMQ_CONSUMER_TIMEOUT", None, false,
        "Time for a RabbitMQ client to acknowledge a message before its channel is closed, or off";
    public_url = "public_url", "MALOTE_PUBLIC_URL", None, false,
        "Base of SQS queue URLs, such as https://queues.example.com (default: the host that the caller used)";
    sqs_account = "sqs_account", "MALOTE_SQS_ACCOUNT", None, false,
        "Account in the queue URLs and ARNs of SQS: twelve digits";
    sqs_purge_pause = "sqs_purge_pause", "MALOTE_SQS_PURGE_PAUSE", None, false,
        "Minimum time between two PurgeQueue calls of SQS for a queue, or off";
    allow_open = "allow_open", "MALOTE_ALLOW_OPEN", Some("--allow-open"), false,
        "Listen on other addresses than loopback without credentials";
    drain_timeout = "drain_timeout", "MALOTE_DRAIN_TIMEOUT", Some("--drain-timeout"), false,
        "Time for connections to finish after SIGTERM";
    admin_password = "admin_password", "MALOTE_ADMIN_PASSWORD", None, true,
        "Create the user `admin` with all permissions if there are no credentials";
    scrub = "scrub", "MALOTE_SCRUB", None, false,
        "Rate per second at which stored data is read again and verified, such as 4MiB, or off";
    log_filter = "log.filter", "MALOTE_LOG", Some("--log"), false,
        "Log filter: a level, or target=level pairs such as info,malote_engine=debug";
    log_format = "log.format", "MALOTE_LOG_FORMAT", Some("--log-format"), false,
        "Log format: auto (human on a terminal, JSON otherwise), human or json";
    tls_cert = "tls.cert", "MALOTE_TLS_CERT", Some("--tls-cert"), false, "Certificate chain, a PEM file";
    tls_key = "tls.key", "MALOTE_TLS_KEY", Some("--tls-key"), false, "Private key of the certificate, a PEM file";
    tls_self_signed = "tls.self_signed", "MALOTE_TLS_SELF_SIGNED", Some("--tls-self-signed"), false,
        "Create a self-signed certificate and keep it in the data directory";
    tls_names = "tls.names", "MALOTE_TLS_NAMES", Some("--tls-name"), false,
        "Name or IP address of the server in a self-signed certificate, besides localhost; repeatable";
    tls_required = "tls.required", "MALOTE_TLS_REQUIRED", Some("--tls-required"), false,
        "Refuse connections without TLS";
    limits_connections = "limits.connections", "MALOTE_LIMITS_CONNECTIONS", None, false,
        "Concurrent connections over all ports";
    limits_handshake_timeout = "limits.handshake_timeout", "MALOTE_LIMITS_HANDSHAKE_TIMEOUT", None, false,
        "Time for the first bytes of a connection, and again for its TLS handshake";
    limits_header_timeout = "limits.header_timeout", "MALOTE_LIMITS_HEADER_TIMEOUT", None, false,
        "Time for a peer to send the header of a request";
    limits_idle_timeout = "limits.idle_timeout", "MALOTE_LIMITS_IDLE_TIMEOUT", None, false,
        "Idle time of a connection between requests";
}

/// Settings that are lists: an array in the file, a repeated flag, or comma-separated.
pub const LISTS: [&str; 1] = ["tls.names"];

/// Secrets must not reach a log through `{:?}`.
impl std::fmt::Debug for RawSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut all = self.clone();
        let mut shown = f.debug_map();
        for key in KEYS {
            if let Some(value) = all.field(key.name).take() {
                shown.entry(&key.name, &if key.secret { "…".to_owned() } else { value });
            }
        }
        shown.finish()
    }
}

impl RawSettings {
    /// Reads a `malote.toml`. Errors are collected, so that one run shows all of them.
    pub(super) fn from_file(path: &Path, problems: &mut Vec<SettingsProblem>) -> RawSettings {
        let mut raw = RawSettings::default();
        let text = match files::read_text(path) {
            Ok(text) => text,
            Err(error) => {
                problems.push(SettingsProblem::Unreadable {
                    path: path.to_owned(),
                    why: error.to_string(),
                });
                return raw;
            }
        };
        let table = match text.parse::<toml::Table>() {
            Ok(table) => table,
            Err(error) => {
                let line = error.span().map_or(1, |span| files::line_at(&text, span.start));
                problems.push(SettingsProblem::NotToml {
                    path: path.to_owned(),
                    line,
                    why: error.message().to_owned(),
                });
                return raw;
            }
        };
        raw.take_table("", table, path, problems);
        raw
    }

    fn take_table(
        &mut self,
        prefix: &str,
        table: toml::Table,
        path: &Path,
        problems: &mut Vec<SettingsProblem>,
    ) {
        for (name, value) in table {
            let full = if prefix.is_empty() { name } else { format!("{prefix}.{name}") };
            let known = KEYS.iter().find(|key| key.name == full);
            let section = KEYS.iter().any(|key| {
                key.name.strip_prefix(full.as_str()).is_some_and(|rest| rest.starts_with('.'))
            });
            match (value, known) {
                (toml::Value::Table(inner), None) if section => {
                    self.take_table(&full, inner, path, problems);
                }
                (_, None) => {
                    let nearest = nearest(&full, KEYS.iter().map(|key| key.name));
                    problems.push(SettingsProblem::UnknownKey {
                        path: path.to_owned(),
                        key: full,
                        nearest,
                    });
                }
                (value, Some(key)) => match text_of(key, value) {
                    Some(text) => *self.field(key.name) = Some(text),
                    None => problems
                        .push(SettingsProblem::NotScalar { path: path.to_owned(), key: key.name }),
                },
            }
        }
    }

    /// Reads the `MALOTE_*` variables.
    pub(super) fn from_environment(
        env: &Environment,
        problems: &mut Vec<SettingsProblem>,
    ) -> RawSettings {
        let mut raw = RawSettings::default();
        for (name, value) in env.iter().filter(|(name, _)| name.starts_with("MALOTE_")) {
            if let Some(key) = KEYS.iter().find(|key| key.variable == name) {
                let field = raw.field(key.name);
                if field.is_some() {
                    problems.push(SettingsProblem::SaidTwice { variable: key.variable });
                }
                *field = Some(value.to_owned());
            } else if let Some(key) = KEYS
                .iter()
                .find(|key| key.secret && name.strip_suffix("_FILE") == Some(key.variable))
            {
                match files::read_text(Path::new(value)) {
                    // A trailing newline is not part of the secret.
                    Ok(secret) => {
                        let field = raw.field(key.name);
                        if field.is_some() {
                            problems.push(SettingsProblem::SaidTwice { variable: key.variable });
                        }
                        *field = Some(secret.trim_end_matches(['\r', '\n']).to_owned());
                    }
                    Err(error) => problems.push(SettingsProblem::Unreadable {
                        path: value.into(),
                        why: error.to_string(),
                    }),
                }
            } else if !is_foreign(name, value) {
                problems.push(SettingsProblem::UnknownVariable {
                    name: name.to_owned(),
                    nearest: nearest_variable(name),
                });
            }
        }
        raw
    }
}

/// Variables of the command-line tool, which share the prefix.
const CLIENT_VARIABLES: &[&str] = &[
    "MALOTE_CONFIG",
    "MALOTE_CONTEXT",
    "MALOTE_PASSWORD",
    "MALOTE_PASSWORD_FILE",
    "MALOTE_TOKEN",
    "MALOTE_TOKEN_FILE",
    "MALOTE_URL",
    "MALOTE_USER",
];

/// Compares the names without the prefix, which would make all of them similar.
fn nearest_variable(name: &str) -> Option<&'static str> {
    let known = || KEYS.iter().map(|key| key.variable).chain(CLIENT_VARIABLES.iter().copied());
    let own = |variable: &'static str| variable.trim_start_matches("MALOTE_");
    let found = nearest(name.trim_start_matches("MALOTE_"), known().map(own))?;
    known().find(|variable| own(variable) == found)
}

/// Kubernetes sets `MALOTE_SERVICE_HOST`, `MALOTE_PORT=tcp://…`, `MALOTE_PORT_8080_TCP_ADDR` and others in every pod
/// next to a Service called `malote` or `malote-…`.
fn is_foreign(name: &str, value: &str) -> bool {
    CLIENT_VARIABLES.contains(&name)
        || name.contains("_SERVICE_HOST")
        || name.contains("_SERVICE_PORT")
        || value.starts_with("tcp://")
        || value.starts_with("udp://")
        || name.split_once("_PORT_").is_some_and(|(_, rest)| {
            rest.starts_with(|c: char| c.is_ascii_digit())
                && (rest.contains("_TCP") || rest.contains("_UDP"))
        })
}

fn text_of(key: &Key, value: toml::Value) -> Option<String> {
    match value {
        toml::Value::Array(values) if LISTS.contains(&key.name) => {
            let texts: Option<Vec<String>> = values.into_iter().map(scalar).collect();
            texts.map(|texts| texts.join(","))
        }
        value => scalar(value),
    }
}

fn scalar(value: toml::Value) -> Option<String> {
    match value {
        toml::Value::String(text) => Some(text),
        toml::Value::Integer(number) => Some(number.to_string()),
        toml::Value::Boolean(flag) => Some(flag.to_string()),
        toml::Value::Float(_)
        | toml::Value::Datetime(_)
        | toml::Value::Array(_)
        | toml::Value::Table(_) => None,
    }
}
