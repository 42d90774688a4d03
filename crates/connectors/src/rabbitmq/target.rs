//! Where an `amqp://` or `amqps://` URL leads, and what it asks for.

use lapin::uri::{AMQPAuthority, AMQPQueryString, AMQPScheme, AMQPUri, AMQPUserInfo};

use super::refused;
use crate::broker::BrokerError;
use crate::dial::{Tls, unescaped};

/// Partitions of a queue with sessions unless the URL says otherwise.
const PARTITIONS: usize = 16;
/// Each is a queue with its own log on every node.
pub(super) const PARTITIONS_MAX: usize = 256;
/// Messages of one partition that this process has at once.
const PREFETCH: u16 = 128;
const PREFETCH_MAX: u16 = 4096;
/// A peer that says nothing for twice as long is gone.
const HEARTBEAT_S: u16 = 10;

/// A server, who we are, and how its queues are used.
#[derive(Clone)]
pub(super) struct Target {
    /// One for each node, the same but for the host and port.
    pub nodes: Vec<AMQPUri>,
    pub tls: Tls,
    /// Of queues with sessions.
    pub partitions: usize,
    /// Messages of one partition in hand.
    pub prefetch: u16,
}

impl Target {
    pub(super) fn of(url: &str) -> Result<Self, BrokerError> {
        let wrong = |why: &str| {
            refused(
                "bad_url",
                format!(
                    "the URL {why}: write amqp://[USER:PASSWORD@]HOST[:PORT][,HOST[:PORT]…][/VHOST][?partitions=N&prefetch=N] or amqps://…[&ca=FILE]"
                ),
            )
        };
        let text = |part| unescaped(part).ok_or_else(|| wrong("has a bad escape"));
        let (scheme, mut tls, rest) = match url.split_once("://") {
            Some(("amqp", rest)) => (AMQPScheme::AMQP, Tls::Off, rest),
            Some(("amqps", rest)) => (AMQPScheme::AMQPS, Tls::System, rest),
            _ => return Err(wrong("is none of AMQP's")),
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, vhost) = rest.split_once('/').unwrap_or((rest, ""));
        if vhost.contains('/') {
            return Err(wrong("has more than one path segment (a slash in a virtual host is %2F)"));
        }
        // No virtual host has an empty name: a slash at the end means the default one.
        let vhost = if vhost.is_empty() { "/".to_owned() } else { text(vhost)? };
        let (userinfo, address) = match authority.rsplit_once('@') {
            Some((who, address)) => {
                let (user, password) =
                    who.split_once(':').ok_or_else(|| wrong("has a user without a password"))?;
                (AMQPUserInfo { username: text(user)?, password: text(password)? }, address)
            }
            None => (AMQPUserInfo::default(), authority),
        };
        let (mut partitions, mut prefetch, mut heartbeat) = (PARTITIONS, PREFETCH, HEARTBEAT_S);
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let number = |value: &str, max: u16| {
                let number = value.parse::<u16>().ok().filter(|n| (1..=max).contains(n));
                number.ok_or_else(|| wrong(&format!("has `{pair}`, not a number from 1 to {max}")))
            };
            match pair.split_once('=') {
                Some(("partitions", value)) => {
                    partitions = number(value, PARTITIONS_MAX as u16)?.into();
                }
                Some(("prefetch", value)) => prefetch = number(value, PREFETCH_MAX)?,
                Some(("heartbeat", value)) => heartbeat = number(value, u16::MAX)?,
                Some(("ca", path)) if !path.is_empty() && tls != Tls::Off => {
                    tls = Tls::AuthorityFile(text(path)?.into());
                }
                _ => return Err(wrong(&format!("says `{pair}`, which means nothing here"))),
            }
        }
        let query = AMQPQueryString { heartbeat: Some(heartbeat), ..AMQPQueryString::default() };
        let mut nodes = Vec::new();
        for address in address.split(',') {
            let (host, port) = match address.rsplit_once(':') {
                // The colons of an IPv6 address stand in brackets.
                Some((host, port)) if !port.contains(']') => {
                    (host, port.parse().map_err(|_| wrong("has a bad port"))?)
                }
                _ => (address, scheme.default_port()),
            };
            let host = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
            if host.is_empty() {
                return Err(wrong("has no host"));
            }
            let (userinfo, host) = (userinfo.clone(), host.to_owned());
            let authority = AMQPAuthority { userinfo, host, port };
            let (scheme, vhost, query) = (scheme.clone(), vhost.clone(), query.clone());
            nodes.push(AMQPUri { scheme, authority, vhost, query });
        }
        Ok(Self { nodes, tls, partitions, prefetch })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read() {
        let of = |url: &str| {
            let Target { nodes, tls, partitions, prefetch } = Target::of(url).unwrap();
            let nodes = nodes.iter().map(|AMQPUri { authority, vhost, .. }| {
                let AMQPAuthority { userinfo, host, port } = authority;
                format!("{}:{} {host} {port} {vhost}", userinfo.username, userinfo.password)
            });
            (nodes.collect::<Vec<_>>().join("; "), tls, partitions, prefetch)
        };
        let usual = |node: &str| (node.to_owned(), Tls::Off, PARTITIONS, PREFETCH);
        assert_eq!(
            of("amqp://ana:p%40ss@rabbit.example:7000/shop%2F1"),
            usual("ana:p@ss rabbit.example 7000 shop/1")
        );
        for default in ["amqp://h", "amqp://h/", "amqp://h/%2F"] {
            assert_eq!(of(default), usual("guest:guest h 5672 /"));
        }
        assert_eq!(of("amqp://u:p@a,b:1,[::2]:3/v"), usual("u:p a 5672 v; u:p b 1 v; u:p ::2 3 v"));
        assert_eq!(
            of("amqps://[::1]/?partitions=4&prefetch=9&ca=/etc/ca.pem"),
            ("guest:guest ::1 5671 /".into(), Tls::AuthorityFile("/etc/ca.pem".into()), 4, 9)
        );
    }

    #[test]
    fn wrong_urls_say_what_to_write() {
        for bad in [
            "amqp://",
            "amqp://:1",
            "amqp://h,",
            "amqp://h:x",
            "amqp://u@h",
            "amqp://h/a/b",
            "amqp://u:%zz@h",
            "amqp://h?ca=/x",
            "amqp://h?partitions=0",
            "amqp://h?partitions=257",
            "amqp://h?prefetch=x",
            "amqp://h?durable=no",
            "http://h",
        ] {
            let Err(error) = Target::of(bad) else { panic!("{bad} was accepted") };
            assert!(error.to_string().contains("write amqp://"), "{bad}: {error}");
        }
    }
}
