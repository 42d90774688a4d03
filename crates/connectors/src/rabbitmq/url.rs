//! Parses `amqp://` and `amqps://` URLs.

use lapin::uri::{AMQPAuthority, AMQPQueryString, AMQPScheme, AMQPUri, AMQPUserInfo};

use super::refused;
use crate::broker::BrokerError;
use crate::dial::{TlsMode, host_and_port, percent_decode};

/// Default number of partitions of a queue with sessions.
const PARTITIONS: usize = 16;
/// Each partition is a queue with its own log on every node.
pub(super) const PARTITIONS_MAX: usize = 256;
/// Default number of unsettled messages of one partition in this process.
const PREFETCH: u16 = 128;
const PREFETCH_MAX: u16 = 4096;
/// A peer that is silent for twice this time counts as gone.
const HEARTBEAT_S: u16 = 10;

/// A parsed URL.
#[derive(Clone)]
pub(super) struct AmqpUrl {
    /// One URI for each node. They differ only in host and port.
    pub nodes: Vec<AMQPUri>,
    pub tls: TlsMode,
    /// For queues with sessions.
    pub partitions: usize,
    /// Unsettled messages of one partition.
    pub prefetch: u16,
}

impl AmqpUrl {
    pub(super) fn parse(url: &str) -> Result<Self, BrokerError> {
        let invalid = |why: &str| {
            refused(
                "bad_url",
                format!(
                    "the URL {why}: write amqp://[USER:PASSWORD@]HOST[:PORT][,HOST[:PORT]…][/VHOST][?partitions=N&prefetch=N] or amqps://…[&ca=FILE]"
                ),
            )
        };
        let text =
            |part| percent_decode(part).ok_or_else(|| invalid("contains a bad percent escape"));
        let (scheme, mut tls, rest) = match url.split_once("://") {
            Some(("amqp", rest)) => (AMQPScheme::AMQP, TlsMode::Off, rest),
            Some(("amqps", rest)) => (AMQPScheme::AMQPS, TlsMode::System, rest),
            _ => return Err(invalid("has another scheme")),
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, vhost) = rest.split_once('/').unwrap_or((rest, ""));
        if vhost.contains('/') {
            return Err(invalid(
                "has more than one path segment (a slash in a virtual host is %2F)",
            ));
        }
        // A virtual host cannot have an empty name: a trailing slash means the default one.
        let vhost = if vhost.is_empty() { "/".to_owned() } else { text(vhost)? };
        let (userinfo, address) = match authority.rsplit_once('@') {
            Some((who, address)) => {
                let (user, password) =
                    who.split_once(':').ok_or_else(|| invalid("has a user without a password"))?;
                (AMQPUserInfo { username: text(user)?, password: text(password)? }, address)
            }
            None => (AMQPUserInfo::default(), authority),
        };
        let (mut partitions, mut prefetch, mut heartbeat) = (PARTITIONS, PREFETCH, HEARTBEAT_S);
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let number = |value: &str, max: u16| {
                let number = value.parse::<u16>().ok().filter(|n| (1..=max).contains(n));
                number
                    .ok_or_else(|| invalid(&format!("has `{pair}`, not a number from 1 to {max}")))
            };
            match pair.split_once('=') {
                Some(("partitions", value)) => {
                    partitions = number(value, PARTITIONS_MAX as u16)?.into();
                }
                Some(("prefetch", value)) => prefetch = number(value, PREFETCH_MAX)?,
                Some(("heartbeat", value)) => heartbeat = number(value, u16::MAX)?,
                Some(("ca", path)) if !path.is_empty() && tls != TlsMode::Off => {
                    tls = TlsMode::AuthorityFile(text(path)?.into());
                }
                _ => return Err(invalid(&format!("has the unknown option `{pair}`"))),
            }
        }
        let query = AMQPQueryString { heartbeat: Some(heartbeat), ..AMQPQueryString::default() };
        let mut nodes = Vec::new();
        for address in address.split(',') {
            let (host, port) = host_and_port(address, scheme.default_port()).map_err(invalid)?;
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
    fn urls_are_parsed() {
        let parse = |url: &str| {
            let AmqpUrl { nodes, tls, partitions, prefetch } = AmqpUrl::parse(url).unwrap();
            let nodes = nodes.iter().map(|AMQPUri { authority, vhost, .. }| {
                let AMQPAuthority { userinfo, host, port } = authority;
                format!("{}:{} {host} {port} {vhost}", userinfo.username, userinfo.password)
            });
            (nodes.collect::<Vec<_>>().join("; "), tls, partitions, prefetch)
        };
        let with_defaults = |node: &str| (node.to_owned(), TlsMode::Off, PARTITIONS, PREFETCH);
        assert_eq!(
            parse("amqp://ana:p%40ss@rabbit.example:7000/shop%2F1"),
            with_defaults("ana:p@ss rabbit.example 7000 shop/1")
        );
        for default in ["amqp://h", "amqp://h/", "amqp://h/%2F"] {
            assert_eq!(parse(default), with_defaults("guest:guest h 5672 /"));
        }
        assert_eq!(
            parse("amqp://u:p@a,b:1,[::2]:3/v"),
            with_defaults("u:p a 5672 v; u:p b 1 v; u:p ::2 3 v")
        );
        assert_eq!(
            parse("amqps://[::1]/?partitions=4&prefetch=9&ca=/etc/ca.pem"),
            ("guest:guest ::1 5671 /".into(), TlsMode::AuthorityFile("/etc/ca.pem".into()), 4, 9)
        );
    }

    #[test]
    fn an_invalid_url_is_refused_with_the_syntax() {
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
            let Err(error) = AmqpUrl::parse(bad) else { panic!("{bad} was accepted") };
            assert!(error.to_string().contains("write amqp://"), "{bad}: {error}");
        }
    }
}
