//! Converts layers of text into checked settings: defaults, types, and constraints between settings.

use super::value::{parse_bool, parse_duration, parse_size};
use super::{
    Certificate, Entry, Environment, KEYS, Key, LimitSettings, Listen, Listeners, LogFormat,
    LogSettings, Origin, RabbitmqSettings, RawSettings, Secret, Settings, SettingsProblem,
    SqsSettings, TlsSettings, paths,
};
use std::path::PathBuf;
use std::time::Duration;

/// The origin of a layer.
pub(super) enum SettingsLayer {
    Flags,
    Environment,
    File(PathBuf),
}

/// Takes values out of the layers, records their origins, and collects errors.
pub(super) struct SettingsReader {
    /// Highest precedence first.
    layers: Vec<(SettingsLayer, RawSettings)>,
    pub(super) problems: Vec<SettingsProblem>,
    pub(super) entries: Vec<Entry>,
}

impl SettingsReader {
    pub(super) fn new(
        layers: Vec<(SettingsLayer, RawSettings)>,
        problems: Vec<SettingsProblem>,
    ) -> SettingsReader {
        SettingsReader { layers, problems, entries: Vec::new() }
    }

    /// Reads in the order of [`KEYS`], because `config print` shows the entries in that order.
    pub(super) fn settings(&mut self, env: &Environment) -> Option<Settings> {
        let http = self.listen("http", "127.0.0.1:8080");
        let sqs = self.listen("sqs", "127.0.0.1:9324");
        let amqp = self.listen("amqp", "127.0.0.1:5672");
        let amqps = self.listen("amqps", "off");
        let servicebus_admin = self.listen("servicebus_admin", "5300");
        let rabbitmq_management = self.listen("rabbitmq_management", "off");
        let data = self.data(env);
        let servicebus_config = self.optional("servicebus_config").map(PathBuf::from);
        let vhosts = self.optional("rabbitmq_vhosts").unwrap_or_default();
        let names = vhosts.split(',').map(str::trim).filter(|name| !name.is_empty());
        let vhosts = names.map(str::to_owned).collect();
        let definitions = self.optional("rabbitmq_definitions").map(PathBuf::from);
        let consumer_timeout = self.parsed("rabbitmq_consumer_timeout", "30m", |text| match text {
            "off" => Ok(None),
            text => parse_duration(text).map(Some).map_err(|_| "a duration such as 30m, or off"),
        });
        let sqs_settings = self.sqs();
        let allow_open = self.yes_or_no("allow_open");
        // Below the 30 s that Kubernetes and most service managers wait before they kill a process.
        let drain_timeout = self.duration("drain_timeout", "25s");
        let admin_password = self.admin_password();
        let scrub_bytes_per_s = self.parsed("scrub", "4MiB", |text| match text {
            "off" => Ok(0),
            text => parse_size(text).map_err(|_| "a size such as 4MiB, or off"),
        });
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
            listeners: Listeners {
                http: http?,
                sqs: sqs?,
                amqp: amqp?,
                amqps: amqps?,
                servicebus_admin: servicebus_admin?,
                rabbitmq_management: rabbitmq_management?,
            },
            data: data?,
            servicebus_config,
            rabbitmq: RabbitmqSettings { vhosts, definitions, consumer_timeout: consumer_timeout? },
            sqs: sqs_settings?,
            log: LogSettings { filter: filter?, format: format? },
            tls: tls?,
            limits: limits?,
            drain_timeout: drain_timeout?,
            allow_open: allow_open?,
            scrub_bytes_per_s: scrub_bytes_per_s?,
            admin_password,
            entries: Vec::new(),
        })
    }

    fn sqs(&mut self) -> Option<SqsSettings> {
        let public_url = self.optional("public_url");
        if let Some(url) = public_url.as_deref().filter(|url| !is_base_url(url)) {
            let entry = self.entries.pop().expect("a value that was read has its entry");
            self.problems.push(SettingsProblem::Invalid {
                key: "public_url",
                value: url.to_owned(),
                origin: entry.origin,
                expected:
                    "a URL with http:// or https://, a host, and optionally a port and a path"
                        .to_owned(),
            });
            return None;
        }
        let account = self.parsed("sqs_account", "000000000000", |text| {
            let digits = text.len() == 12 && text.bytes().all(|byte| byte.is_ascii_digit());
            if digits { Ok(text.to_owned()) } else { Err("twelve digits in quotes") }
        });
        let purge_pause = self.parsed("sqs_purge_pause", "60s", |text| match text {
            "off" => Ok(Duration::ZERO),
            text => parse_duration(text).map_err(|_| "a duration such as 60s, or off"),
        });
        let public_url = public_url.map(|url| url.trim_end_matches('/').to_owned());
        Some(SqsSettings { public_url, account: account?, purge_pause: purge_pause? })
    }

    fn tls(&mut self) -> Option<TlsSettings> {
        let cert = self.optional("tls.cert").map(PathBuf::from);
        let key = self.optional("tls.key").map(PathBuf::from);
        let self_signed = self.yes_or_no("tls.self_signed")?;
        let names = self.tls_names();
        let required = self.yes_or_no("tls.required")?;
        if !self_signed && names.as_ref().is_some_and(|names| !names.is_empty()) {
            self.problems.push(SettingsProblem::Conflict(
                "`tls.names` is set without `tls.self_signed`; the names of another certificate are fixed",
            ));
            return None;
        }
        let certificate = match (cert, key, self_signed) {
            (None, None, false) if required => {
                self.problems.push(SettingsProblem::Conflict(
                    "`tls.required` is set and there is no certificate: set `tls.cert` and \
                     `tls.key`, or `tls.self_signed`",
                ));
                return None;
            }
            (None, None, false) => Certificate::None,
            (None, None, true) => Certificate::SelfSigned { names: names? },
            (Some(cert), Some(key), false) => Certificate::Files { cert, key },
            (_, _, true) => {
                self.problems.push(SettingsProblem::Conflict(
                    "`tls.self_signed` and `tls.cert` are both set: remove one",
                ));
                return None;
            }
            (_, _, false) => {
                self.problems.push(SettingsProblem::Conflict(
                    "a certificate needs its key: set both `tls.cert` and `tls.key`",
                ));
                return None;
            }
        };
        Some(TlsSettings { certificate, required })
    }

    /// The names of a self-signed certificate, in lower case and without duplicates.
    fn tls_names(&mut self) -> Option<Vec<String>> {
        let Some(value) = self.optional("tls.names") else { return Some(Vec::new()) };
        let mut names: Vec<String> = Vec::new();
        for name in value.split(',').map(|name| name.trim().to_ascii_lowercase()) {
            if !is_host(&name) {
                let entry = self.entries.pop().expect("a value that was read has its entry");
                let expected = "DNS names or IP addresses, such as broker.example.com or 10.0.0.7";
                self.problems.push(SettingsProblem::Invalid {
                    key: "tls.names",
                    value: name,
                    origin: entry.origin,
                    expected: expected.to_owned(),
                });
                return None;
            }
            if !names.contains(&name) {
                names.push(name);
            }
        }
        Some(names)
    }

    fn limits(&mut self) -> Option<LimitSettings> {
        let connections_max = self.parsed("limits.connections", "16384", |text| {
            text.parse().ok().filter(|count| *count > 0).ok_or("a number above 0")
        });
        let handshake_timeout = self.duration("limits.handshake_timeout", "10s");
        let header_timeout = self.duration("limits.header_timeout", "15s");
        let idle_timeout = self.duration("limits.idle_timeout", "5m");
        Some(LimitSettings {
            connections_max: connections_max?,
            handshake_timeout: handshake_timeout?,
            header_timeout: header_timeout?,
            idle_timeout: idle_timeout?,
        })
    }

    fn listen(&mut self, name: &'static str, default: &str) -> Option<Listen> {
        let listen: Listen = self.parsed(name, default, str::parse)?;
        // Shows the complete address for `8080` and `:8080`.
        let entry = self.entries.last_mut().expect("a value that was read has its entry");
        entry.value = Some(listen.to_string());
        Some(listen)
    }

    fn yes_or_no(&mut self, name: &'static str) -> Option<bool> {
        self.parsed(name, "false", parse_bool)
    }

    /// A duration above zero.
    fn duration(&mut self, name: &'static str, default: &str) -> Option<Duration> {
        self.parsed(name, default, |text| match parse_duration(text) {
            Ok(duration) if duration.is_zero() => Err("a duration above 0"),
            duration => duration,
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
            self.problems.push(SettingsProblem::NoDataDirectory);
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
            let expected = "a value; to use the default, remove the setting".to_owned();
            self.problems.push(SettingsProblem::Invalid {
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
                self.problems.push(SettingsProblem::Invalid { key: name, value, origin, expected });
                None
            }
        }
    }

    fn take(&mut self, name: &'static str) -> (Option<String>, Origin) {
        let key = key(name);
        for (layer, raw) in &mut self.layers {
            if let Some(value) = raw.field(name).take() {
                let origin = match layer {
                    SettingsLayer::Flags => Origin::Flag(key.flag.unwrap_or(key.name)),
                    SettingsLayer::Environment => Origin::Variable(key.variable),
                    SettingsLayer::File(path) => Origin::File(path.clone()),
                };
                return (Some(value), origin);
            }
        }
        (None, Origin::Default)
    }
}

/// Whether a path can be appended to the URL.
fn is_base_url(url: &str) -> bool {
    let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
    rest.is_some_and(|rest| {
        let host = rest.split('/').next().unwrap_or("");
        let plain = |byte: u8| byte.is_ascii_graphic() && !b"?#\"<>\\@".contains(&byte);
        !host.is_empty() && rest.bytes().all(plain)
    })
}

fn key(name: &'static str) -> Key {
    *KEYS.iter().find(|key| key.name == name).expect("the reader asks for listed settings only")
}

/// Whether a certificate can be issued for this name: an IP address, or a DNS name whose first label may be `*`.
fn is_host(name: &str) -> bool {
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
    };
    name.parse::<std::net::IpAddr>().is_ok()
        || (name.len() <= 253 && name.strip_prefix("*.").unwrap_or(name).split('.').all(is_label))
}
