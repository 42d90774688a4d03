//! Parsers of addresses, durations, sizes and booleans.
//!
//! On failure, each returns the text that follows "expected".

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;
use std::time::Duration;

/// The address of a listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listen {
    Off,
    At {
        /// A name or an IP address, without the brackets of IPv6.
        host: String,
        /// 0 lets the system choose.
        port: u16,
    },
}

impl Listen {
    /// Whether only programs on this machine can reach it. A name other than `localhost` counts as reachable by others,
    /// because what it resolves to can change.
    pub fn is_loopback(&self) -> bool {
        match self {
            Listen::Off => true,
            Listen::At { host, .. } => match host.parse::<IpAddr>() {
                Ok(ip) => ip.to_canonical().is_loopback(),
                Err(_) => host == "localhost" || host.ends_with(".localhost"),
            },
        }
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Listen::Off => f.write_str("off"),
            Listen::At { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Listen::At { host, port } => write!(f, "{host}:{port}"),
        }
    }
}

impl FromStr for Listen {
    type Err = &'static str;

    /// `host:port`; `:port` for all interfaces; `port` for loopback; `off`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const EXPECTED: &str = "host:port, :port (all interfaces), port (loopback only) or off";
        if text == "off" {
            return Ok(Listen::Off);
        }
        let (host, port) = match text.rsplit_once(':') {
            None => (Ipv4Addr::LOCALHOST.to_string(), text),
            Some(("", port)) => (Ipv4Addr::UNSPECIFIED.to_string(), port),
            Some((host, port)) => {
                let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
                match bare {
                    Some(ip) if ip.parse::<std::net::Ipv6Addr>().is_ok() => (ip.to_owned(), port),
                    Some(_) => return Err(EXPECTED),
                    None if host.contains(':') => {
                        return Err("an IPv6 address in brackets, such as [::1]:8080");
                    }
                    None => (host.to_owned(), port),
                }
            }
        };
        let good_host = host
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':' | '%'));
        let good_port = !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
        match port.parse() {
            Ok(port) if good_host && good_port => Ok(Listen::At { host, port }),
            _ => Err(EXPECTED),
        }
    }
}

/// Parses `500ms`, `30s`, `1m30s`, `2h`, `7d` or ISO 8601 `PT1M30S`.
pub fn parse_duration(text: &str) -> Result<Duration, &'static str> {
    const EXPECTED: &str = "a duration such as 500ms, 30s, 1m30s or PT30S";
    const UNITS: &[(&str, u64)] =
        &[("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];
    const ISO_UNITS: &[(&str, u64)] = &[("S", 1_000), ("M", 60_000), ("H", 3_600_000)];

    let (mut rest, units) = match text.strip_prefix("PT") {
        Some(rest) => (rest, ISO_UNITS),
        None => (text, UNITS),
    };
    if rest.is_empty() {
        return Err(EXPECTED);
    }
    let mut total_ms = 0_u64;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or(EXPECTED)?;
        let (number, tail) = rest.split_at(digits);
        let letters = tail.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(letters);
        let (_, unit_ms) = units.iter().find(|(name, _)| *name == unit).ok_or(EXPECTED)?;
        let part_ms = scaled(number, *unit_ms).ok_or(EXPECTED)?;
        total_ms = total_ms.checked_add(part_ms).ok_or(EXPECTED)?;
        rest = tail;
    }
    Ok(Duration::from_millis(total_ms))
}

/// `number × unit` for a decimal number with an optional fraction; exact, without floats.
fn scaled(number: &str, unit: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || (number.contains('.') && fraction.is_empty()) || fraction.len() > 9 {
        return None;
    }
    let mut total = whole.parse::<u64>().ok()?.checked_mul(unit)?;
    if !fraction.is_empty() {
        let part = fraction.parse::<u64>().ok()?;
        let scaled = u128::from(part) * u128::from(unit) / 10_u128.pow(fraction.len() as u32);
        total = total.checked_add(u64::try_from(scaled).ok()?)?;
    }
    Some(total)
}

/// Formats a duration for [`parse_duration`], in the largest unit that fits.
pub fn format_duration(duration: Duration) -> String {
    let ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    match ms {
        0 => "0s".to_owned(),
        ms if ms % 3_600_000 == 0 => format!("{}h", ms / 3_600_000),
        ms if ms % 60_000 == 0 => format!("{}m", ms / 60_000),
        ms if ms % 1_000 == 0 => format!("{}s", ms / 1_000),
        ms => format!("{ms}ms"),
    }
}

/// Parses `64MiB`, `1.5GB`, `4096`. Units are case-insensitive; without a unit, bytes.
pub fn parse_size(text: &str) -> Result<u64, &'static str> {
    const EXPECTED: &str = "a size such as 64MiB, 1GB or 4096";
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = match unit.trim_start().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "kib" => 1 << 10,
        "mib" => 1 << 20,
        "gib" => 1 << 30,
        _ => return Err(EXPECTED),
    };
    scaled(number, unit).ok_or(EXPECTED)
}

/// Formats a size for [`parse_size`], in the largest unit that fits.
pub fn format_size(size_bytes: u64) -> String {
    for (unit, name) in [(1_u64 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")] {
        if size_bytes >= unit && size_bytes.is_multiple_of(unit) {
            return format!("{}{name}", size_bytes / unit);
        }
    }
    size_bytes.to_string()
}

pub(crate) fn parse_bool(text: &str) -> Result<bool, &'static str> {
    match text {
        "true" | "yes" | "on" | "1" => Ok(true),
        "false" | "no" | "off" | "0" => Ok(false),
        _ => Err("true or false"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(host: &str, port: u16) -> Result<Listen, &'static str> {
        Ok(Listen::At { host: host.to_owned(), port })
    }

    #[test]
    fn listeners_in_all_their_spellings() {
        assert_eq!("127.0.0.1:8080".parse(), at("127.0.0.1", 8080));
        assert_eq!(":8080".parse(), at("0.0.0.0", 8080));
        assert_eq!("8080".parse(), at("127.0.0.1", 8080));
        assert_eq!("[::1]:8080".parse(), at("::1", 8080));
        assert_eq!("mq.example.org:1".parse(), at("mq.example.org", 1));
        assert_eq!("off".parse(), Ok(Listen::Off));
        for wrong in
            ["", ":", "host:", "host:x", "host:65536", "::1:80", "[x]:1", "a b:1", "+80", "-1"]
        {
            assert!(wrong.parse::<Listen>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn only_this_machine_counts_as_loopback() {
        for (text, loopback) in [
            ("127.0.0.1:1", true),
            ("127.8.9.1:1", true),
            ("[::1]:1", true),
            ("[::ffff:127.0.0.1]:1", true),
            ("localhost:1", true),
            ("off", true),
            (":1", false),
            ("[::]:1", false),
            ("10.0.0.1:1", false),
            ("localhost.example.org:1", false),
        ] {
            assert_eq!(text.parse::<Listen>().unwrap().is_loopback(), loopback, "{text}");
        }
    }

    #[test]
    fn durations() {
        let ms = |text| parse_duration(text).map(|duration| duration.as_millis());
        assert_eq!(ms("500ms"), Ok(500));
        assert_eq!(ms("30s"), Ok(30_000));
        assert_eq!(ms("1m30s"), Ok(90_000));
        assert_eq!(ms("1.5s"), Ok(1_500));
        assert_eq!(ms("PT30S"), Ok(30_000));
        assert_eq!(ms("PT1H1M0.25S"), Ok(3_660_250));
        for wrong in
            ["", "30", "s", "PT", "-1s", "1 s", "1S", "PT1s", "1.s", ".5s", "99999999999999999999s"]
        {
            assert!(ms(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn sizes() {
        assert_eq!(parse_size("4096"), Ok(4096));
        assert_eq!(parse_size("64MiB"), Ok(64 << 20));
        assert_eq!(parse_size("64 mib"), Ok(64 << 20));
        assert_eq!(parse_size("1.5KiB"), Ok(1536));
        assert_eq!(parse_size("1GB"), Ok(1_000_000_000));
        for wrong in ["", "MiB", "64M", "-1", "1.2.3MiB", "99999999999GiB"] {
            assert!(parse_size(wrong).is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in ".{0,40}") {
            let _ = text.parse::<Listen>();
            let _ = parse_duration(&text);
            let _ = parse_size(&text);
        }

        #[test]
        fn printed_settings_can_be_read_back(ms in 0_u64..1_u64 << 50, size in any::<u64>()) {
            let duration = Duration::from_millis(ms);
            prop_assert_eq!(parse_duration(&format_duration(duration)), Ok(duration));
            prop_assert_eq!(parse_size(&format_size(size)), Ok(size));
        }
    }
}
