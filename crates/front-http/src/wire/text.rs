//! Small things written as text: base64, times, tokens.

use bytes::Bytes;
use malote_model::Timestamp;

use crate::problem::{Code, Problem};

pub use malote_wire_native::text::{time_of, to_base64};

/// Text as bytes.
pub fn from_base64(field: &str, text: &str) -> Result<Bytes, Problem> {
    let wrong = |why| Problem::new(Code::BadField, why);
    malote_wire_native::text::from_base64(field, text).map_err(wrong)
}

/// A moment from now on, as `at` means it.
pub fn moment_of(text: &str) -> Option<Timestamp> {
    time_of(text).and_then(|ms| u64::try_from(ms).ok()).map(Timestamp)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_not_before_1970() {
        assert_eq!(moment_of("1970-01-01T00:00:01.5Z"), Some(Timestamp(1500)));
        assert_eq!(moment_of("-1"), None);
    }
}
