//! Text forms of bytes and times.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use malote_model::Timestamp;

/// Encodes bytes as padded base64 (RFC 4648 §4).
pub fn to_base64(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

/// Decodes base64. The error names `field`.
pub fn from_base64(field: &str, text: &str) -> Result<Bytes, String> {
    STANDARD.decode(text).map(Bytes::from).map_err(|e| format!("{field} is not base64: {e}"))
}

/// Reads milliseconds since 1970: a number, or an RFC 3339 time such as `2030-01-31T08:00:00Z`.
pub fn time_of(text: &str) -> Option<i64> {
    if let Ok(ms) = text.parse::<i64>() {
        return Some(ms);
    }
    text.parse::<jiff::Timestamp>().ok().map(|time| time.as_millisecond())
}

/// Like [`time_of`], without times before 1970.
pub fn moment_of(text: &str) -> Option<Timestamp> {
    time_of(text).and_then(|ms| u64::try_from(ms).ok()).map(Timestamp)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_milliseconds_or_rfc_3339() {
        assert_eq!(time_of("1700000000123"), Some(1_700_000_000_123));
        assert_eq!(time_of("1970-01-01T00:00:01.5Z"), Some(1500));
        assert_eq!(time_of("1970-01-01T01:00:00+01:00"), Some(0));
        assert_eq!(time_of("tomorrow"), None);
    }

    #[test]
    fn a_moment_is_not_before_1970() {
        assert_eq!(moment_of("1970-01-01T00:00:01.5Z"), Some(Timestamp(1500)));
        assert_eq!(moment_of("-1"), None);
    }
}
