//! Times, durations, sizes and counts as text.

use std::time::Duration;

use jiff::Timestamp;

/// A duration argument: `500ms`, `30s`, `1m30s`, `2h`, `7d`, `PT30S`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    malote_server::settings::parse_duration(text).map_err(|expected| format!("expected {expected}"))
}

/// A size argument: `64KiB`, `1MB`, `4096`.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    malote_server::settings::parse_size(text).map_err(|expected| format!("expected {expected}"))
}

/// A time argument: milliseconds since 1970 or RFC 3339.
pub(crate) fn moment(text: &str) -> Result<u64, String> {
    let rule = "expected milliseconds since 1970 or an RFC 3339 time such as 2030-01-31T08:00:00Z";
    if let Ok(ms) = text.parse::<u64>() {
        return Ok(ms);
    }
    let time = text.parse::<Timestamp>().map_err(|_| rule.to_owned())?;
    u64::try_from(time.as_millisecond()).map_err(|_| rule.to_owned())
}

/// Milliseconds, as in the API.
pub(crate) fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// A time in UTC, to the second.
pub(crate) fn format_time(ms: u64) -> String {
    let time = i64::try_from(ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
    time.map_or_else(|| format!("{ms} ms"), |time| format!("{time:.0}"))
}

/// A time, or a dash.
pub(crate) fn time_or_dash(ms: Option<u64>) -> String {
    ms.map_or_else(|| "-".to_owned(), format_time)
}

/// A duration in the notation of the flags.
pub(crate) fn format_ms(ms: u64) -> String {
    malote_server::settings::format_duration(Duration::from_millis(ms))
}

/// Milliseconds since 1970. Used for display and for lock renewal only; the server has its own clock.
pub(crate) fn now() -> u64 {
    u64::try_from(Timestamp::now().as_millisecond()).unwrap_or_default()
}

/// The time since a moment, in one unit.
pub(crate) fn age(at_ms: u64) -> String {
    span(now().saturating_sub(at_ms) / 1000)
}

fn span(seconds: u64) -> String {
    match seconds {
        s if s < 120 => format!("{s}s"),
        s if s < 7200 => format!("{}m", s / 60),
        s if s < 172_800 => format!("{}h", s / 3600),
        s => format!("{}d", s / 86_400),
    }
}

/// With separators: `1,204,000`.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A number with its noun: `1 message`, `1,000 messages`.
pub(crate) fn count(number: u64, what: &str) -> String {
    format!("{} {what}{}", grouped(number), if number == 1 { "" } else { "s" })
}

/// A size with its unit.
pub(crate) fn bytes(count: u64) -> String {
    for (unit, name) in [(1_u64 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")] {
        if count >= unit {
            return format!("{:.1} {name}", count as f64 / unit as f64);
        }
    }
    format!("{count} B")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_read_both_ways() {
        assert_eq!(moment("1700000000123"), Ok(1_700_000_000_123));
        assert_eq!(moment("1970-01-01T00:00:01.5Z"), Ok(1500));
        assert_eq!(moment("1970-01-01T01:00:00+01:00"), Ok(0));
        assert!(moment("tomorrow").is_err() && moment("1969-01-01T00:00:00Z").is_err());
    }

    #[test]
    fn values_are_short() {
        assert_eq!(format_time(1_700_000_000_123), "2023-11-14T22:13:20Z");
        assert_eq!(
            (span(119), span(120), span(7200), span(172_800)),
            ("119s".into(), "2m".into(), "2h".into(), "2d".into())
        );
        assert_eq!(
            (grouped(1), grouped(1000), grouped(1_204_000)),
            ("1".into(), "1,000".into(), "1,204,000".into())
        );
        assert_eq!((count(1, "day"), count(2, "day")), ("1 day".into(), "2 days".into()));
        assert_eq!((bytes(1023), bytes(1536)), ("1023 B".into(), "1.5 KiB".into()));
    }
}
