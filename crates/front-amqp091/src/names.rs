//! Names of queues and exchanges ↔ names of queues and topics in the engine.
//!
//! In the virtual host `/`, a name is the same on both sides. In another virtual host, the engine's name begins with
//! `~HOST/`. AMQP allows every character in a name; those that the engine forbids are percent-encoded.

use std::borrow::Cow;
use std::fmt::Write as _;

use malote_model::{QueueName, TopicName};

use crate::wire::error::{Exception, ReplyCode};

/// The virtual host that shares its names with the other protocols.
pub const DEFAULT_VHOST: &str = "/";

/// The topic that stands for the default exchange as a dead-letter or alternate exchange. RabbitMQ's management API uses
/// the same name. Publications to the default exchange go to their queue directly.
pub const DEFAULT_EXCHANGE: &str = "amq.default";

/// A virtual host: translates names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VirtualHost {
    name: String,
    /// What the engine's names begin with; empty for the default one.
    prefix: String,
}

impl VirtualHost {
    pub fn new(name: &str) -> Self {
        let prefix = match name {
            DEFAULT_VHOST => String::new(),
            name => format!("~{}/", escape_all(name)),
        };
        Self { name: name.to_owned(), prefix }
    }

    /// The virtual host of a queue or topic of the engine.
    pub fn of(engine_name: &str) -> Self {
        let encoded = engine_name.strip_prefix('~').and_then(|rest| rest.split_once('/'));
        encoded.map_or_else(|| Self::new(DEFAULT_VHOST), |(host, _)| Self::new(&unescape(host)))
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether a queue or topic of the engine belongs to this virtual host.
    pub fn has(&self, engine_name: &str) -> bool {
        match self.prefix.is_empty() {
            true => Self::of(engine_name).name == self.name,
            false => engine_name.starts_with(&self.prefix),
        }
    }

    /// The engine's names of this virtual host are after the first text and before the second one. The default one has
    /// names everywhere.
    pub(crate) fn bounds(&self) -> Option<(&str, String)> {
        let first = self.prefix.strip_suffix('/')?;
        // The character after the slash.
        Some((first, format!("{first}0")))
    }

    /// The queue of the engine. A name that is too long for it is refused.
    pub fn queue(&self, name: &str) -> Result<QueueName, Exception> {
        QueueName::new(&self.escaped(name)).map_err(|_| invalid("queue", name))
    }

    /// The topic of the engine. The empty name is the default exchange.
    pub fn topic(&self, name: &str) -> Result<TopicName, Exception> {
        let name = if name.is_empty() { DEFAULT_EXCHANGE } else { name };
        TopicName::new(&self.escaped(name)).map_err(|_| invalid("exchange", name))
    }

    /// Whether a queue or topic of the engine is in this virtual host.
    pub fn owns(&self, engine_name: &str) -> bool {
        match self.prefix.is_empty() {
            true => Self::of(engine_name).name == self.name,
            false => engine_name.starts_with(&self.prefix),
        }
    }

    fn escaped<'n>(&self, name: &'n str) -> Cow<'n, str> {
        match (self.prefix.is_empty(), escape(name)) {
            (true, name) => name,
            (false, name) => Cow::Owned(format!("{}{name}", self.prefix)),
        }
    }

    /// The name of an exchange that clients of this virtual host see.
    pub fn shown_exchange<'n>(&self, name: &'n str) -> Cow<'n, str> {
        match self.shown(name) {
            shown if shown == DEFAULT_EXCHANGE => Cow::Borrowed(""),
            shown => shown,
        }
    }

    /// The name of a queue that clients of this virtual host see.
    pub fn shown<'n>(&self, name: &'n str) -> Cow<'n, str> {
        unescape(name.strip_prefix(self.prefix.as_str()).unwrap_or(name))
    }
}

/// The virtual host of a queue or topic of the engine, and its name there.
pub fn split(engine_name: &str) -> (Cow<'_, str>, Cow<'_, str>) {
    match engine_name.strip_prefix('~').and_then(|rest| rest.split_once('/')) {
        Some((host, name)) => (unescape(host), unescape(name)),
        None => (Cow::Borrowed(DEFAULT_VHOST), unescape(engine_name)),
    }
}

fn invalid(what: &str, name: &str) -> Exception {
    let shown: String = name.chars().take(64).collect();
    Exception::new(ReplyCode::PreconditionFailed, format!("invalid {what} name '{shown}'"))
}

/// Whether the engine accepts the name as it is, and it does not look like an encoded one.
fn is_plain(name: &str) -> bool {
    !name.starts_with('~') && !name.contains('%') && QueueName::new(name).is_ok()
}

fn escape(name: &str) -> Cow<'_, str> {
    if is_plain(name) {
        return Cow::Borrowed(name);
    }
    let encode = |keep_slashes: bool| {
        let mut out = String::with_capacity(name.len() + 8);
        let mut starts = true;
        for (at, c) in name.char_indices() {
            let special = c.is_control() || matches!(c, '\\' | '?' | '#' | '@');
            let looks_encoded = c == '%' && is_code(&name[at..]);
            let reserved = starts && c == '$' || at == 0 && c == '~' || c == '/' && !keep_slashes;
            match special || looks_encoded || reserved {
                true => put_code(&mut out, c),
                false => out.push(c),
            }
            starts = c == '/';
        }
        out
    };
    let out = encode(true);
    if QueueName::new(&out).is_ok() {
        return Cow::Owned(out);
    }
    let out = encode(false);
    match QueueName::new(&out).is_ok() {
        true => Cow::Owned(out),
        // `.`, `..`, `Subscriptions`; or a name that is too long, which stays invalid.
        false => Cow::Owned(escape_all(name)),
    }
}

/// Encodes every character that is not a letter or digit, and the first one.
fn escape_all(name: &str) -> String {
    let mut out = String::with_capacity(name.len() * 3);
    for (at, c) in name.char_indices() {
        let plain = c.is_alphanumeric() || at > 0 && matches!(c, '-' | '_' | '.' | ' ' | ':');
        let reserved = at == 0 && name.eq_ignore_ascii_case("subscriptions");
        match plain && !reserved {
            true => out.push(c),
            false => put_code(&mut out, c),
        }
    }
    out
}

fn put_code(out: &mut String, c: char) {
    for byte in c.encode_utf8(&mut [0; 4]).bytes() {
        write!(out, "%{byte:02X}").expect("writing to a string succeeds");
    }
}

fn is_code(text: &str) -> bool {
    matches!(text.as_bytes(), [b'%', a, b, ..] if a.is_ascii_hexdigit() && b.is_ascii_hexdigit())
}

fn unescape(name: &str) -> Cow<'_, str> {
    if !name.contains('%') {
        return Cow::Borrowed(name);
    }
    let mut bytes = Vec::with_capacity(name.len());
    let mut rest = name.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let code = rest.get(1..3).filter(|_| first == b'%');
        let code = code.and_then(|hex| std::str::from_utf8(hex).ok());
        match code.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &rest[3..];
            }
            None => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    String::from_utf8(bytes).map_or(Cow::Borrowed(name), Cow::Owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_names_are_the_same_on_both_sides() {
        let host = VirtualHost::new("/");
        for name in ["orders", "a.b-c_d", "amq.gen-x", "eu/orders", "q/$deadletterqueue", "été"] {
            assert_eq!(host.queue(name).unwrap().as_str(), name);
            assert_eq!(host.shown(name), name);
        }
        assert_eq!(host.queue("t/Subscriptions/s").unwrap().as_str(), "t/Subscriptions/s");
    }

    #[test]
    fn every_name_can_be_read_back() {
        let names = [
            "celery@host.pidbox",
            "a#b",
            "a\\b",
            "a?b",
            "/",
            "//",
            "a//b",
            ".",
            "..",
            "a/../b",
            "$x",
            "a/$x",
            "100%",
            "%41",
            "~x",
            "Subscriptions",
            "subscriptions/x",
            "a\nb",
            "x/",
            "%",
            "%zz",
            "/lead",
            "~",
        ];
        for host in ["/", "dev", "a/b", "x%2F"] {
            let host = VirtualHost::new(host);
            let mut seen = std::collections::BTreeSet::new();
            for name in names {
                let queue = host.queue(name).unwrap();
                assert_eq!(host.shown(queue.as_str()), name, "{queue}");
                host.topic(name).unwrap();
                assert!(seen.insert(queue), "{name}");
            }
        }
    }

    #[test]
    fn a_name_tells_its_virtual_host() {
        for host in ["/", "dev", "a/b", "x%2F"] {
            let queue = VirtualHost::new(host).queue("orders/new").unwrap();
            assert_eq!(VirtualHost::of(queue.as_str()).name(), host);
            let (found, name) = split(queue.as_str());
            assert_eq!((found.as_ref(), name.as_ref()), (host, "orders/new"));
        }
    }

    #[test]
    fn virtual_hosts_do_not_share_names() {
        let orders = |host: &str| VirtualHost::new(host).queue("orders").unwrap();
        assert_eq!(orders("dev").as_str(), "~dev/orders");
        assert_ne!(orders("dev"), VirtualHost::new("/").queue("~dev/orders").unwrap());
        assert_eq!(VirtualHost::new("a/b").queue("q").unwrap().as_str(), "~a%2Fb/q");
        VirtualHost::new("/").queue(&"x".repeat(261)).unwrap_err();
    }
}
