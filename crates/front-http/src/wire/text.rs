//! Small things written as text: base64, times, tokens.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use malote_model::Timestamp;

use crate::problem::{Code, Problem};

/// Bytes as text (RFC 4648 §4, padded).
pub fn to_base64(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

/// Text as bytes.
pub fn from_base64(field: &str, text: &str) -> Result<Bytes, Problem> {
    let wrong = |e| Problem::new(Code::BadField, format!("{field} is not base64: {e}"));
    STANDARD.decode(text).map(Bytes::from).map_err(wrong)
}

/// Milliseconds since 1970 of a number or of an RFC 3339 time such as `2030-01-31T08:00:00Z`.
pub fn time_of(text: &str) -> Option<i64> {
    if let Ok(ms) = text.parse::<i64>() {
        return Some(ms);
    }
    text.parse::<jiff::Timestamp>().ok().map(|time| time.as_millisecond())
}

/// A moment from now on, as `at` means it.
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
        assert_eq!(moment_of("-1"), None);
    }
}
