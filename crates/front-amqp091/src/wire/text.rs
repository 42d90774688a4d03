//! Short strings, which share the bytes that they were read from.

use std::borrow::Borrow;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;

use bytes::Bytes;

/// The length is one octet.
pub const SHORT_STRING_BYTES_MAX: usize = 255;

/// At most 255 bytes of UTF-8, validated when created.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ShortString(Bytes);

/// A text has more than 255 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a short string of {bytes} bytes exceeds the limit of {SHORT_STRING_BYTES_MAX}")]
pub struct TooLong {
    pub bytes: usize,
}

impl ShortString {
    /// Does not compile if the text is too long.
    pub const fn from_static(text: &'static str) -> Self {
        assert!(text.len() <= SHORT_STRING_BYTES_MAX, "a short string has at most 255 bytes");
        Self(Bytes::from_static(text.as_bytes()))
    }

    /// The beginning of a text, as much of it as fits.
    pub fn truncated(text: &str) -> Self {
        Self(Bytes::copy_from_slice(truncate(text).as_bytes()))
    }

    /// None if the bytes are too long or not UTF-8.
    pub fn from_bytes(bytes: Bytes) -> Option<Self> {
        let valid = bytes.len() <= SHORT_STRING_BYTES_MAX && std::str::from_utf8(&bytes).is_ok();
        valid.then_some(Self(bytes))
    }

    /// The same text in bytes of its own. What is kept must not keep the buffer that it was read into.
    #[must_use]
    pub fn detached(&self) -> Self {
        Self(Bytes::copy_from_slice(&self.0))
    }

    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).expect("validated when created")
    }

    /// The shared bytes.
    pub fn as_bytes(&self) -> &Bytes {
        &self.0
    }
}

/// The longest beginning of a text that fits a short string.
pub(super) fn truncate(text: &str) -> &str {
    &text[..text.floor_char_boundary(SHORT_STRING_BYTES_MAX)]
}

impl TryFrom<String> for ShortString {
    type Error = TooLong;

    fn try_from(text: String) -> Result<Self, TooLong> {
        match text.len() {
            0..=SHORT_STRING_BYTES_MAX => Ok(Self(text.into_bytes().into())),
            bytes => Err(TooLong { bytes }),
        }
    }
}

impl TryFrom<&str> for ShortString {
    type Error = TooLong;

    fn try_from(text: &str) -> Result<Self, TooLong> {
        text.to_owned().try_into()
    }
}

impl Deref for ShortString {
    type Target = str;

    fn deref(&self) -> &str {
        self.as_str()
    }
}

impl Borrow<str> for ShortString {
    fn borrow(&self) -> &str {
        self.as_str()
    }
}

/// As `str` does: `Borrow` requires it.
impl Hash for ShortString {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

impl fmt::Debug for ShortString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl fmt::Display for ShortString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl PartialEq<str> for ShortString {
    fn eq(&self, other: &str) -> bool {
        self.0.as_ref() == other.as_bytes()
    }
}

impl PartialEq<&str> for ShortString {
    fn eq(&self, other: &&str) -> bool {
        self == *other
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn a_text_is_cut_at_a_character() {
        let text = "é".repeat(200);
        let short = ShortString::truncated(&text);
        assert_eq!(short.len(), 254);
        assert!(text.starts_with(short.as_str()));
        assert_eq!(ShortString::try_from(text), Err(TooLong { bytes: 400 }));
        assert_eq!(ShortString::from_bytes(Bytes::from_static(b"\xff")), None);
        assert_eq!(ShortString::from_bytes(vec![b'a'; 256].into()), None);
    }

    #[test]
    fn a_map_is_asked_with_plain_text() {
        let map = HashMap::from([(ShortString::from_static("orders"), 1)]);
        assert_eq!(map.get("orders"), Some(&1));
    }
}
