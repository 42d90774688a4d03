//! Strings and symbols that share the bytes they were read from.

use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;

use bytes::Bytes;

use super::{DecodeFault, Decoded};

/// A UTF-8 string in shared bytes, validated when created.
#[derive(Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Str(Bytes);

impl Str {
    pub const fn from_static(text: &'static str) -> Str {
        Str(Bytes::from_static(text.as_bytes()))
    }

    pub(crate) fn checked(bytes: Bytes) -> Decoded<Str> {
        match std::str::from_utf8(&bytes) {
            Ok(_) => Ok(Str(bytes)),
            Err(_) => Err(DecodeFault::NotUtf8.into()),
        }
    }

    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).expect("validated when created")
    }

    /// The shared bytes.
    pub fn as_bytes(&self) -> &Bytes {
        &self.0
    }
}

/// A name from a constrained domain: ASCII only.
#[derive(Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Symbol(Str);

impl Symbol {
    /// Does not compile if the text is not ASCII.
    pub const fn from_static(text: &'static str) -> Symbol {
        assert!(text.is_ascii(), "a symbol is ASCII");
        Symbol(Str::from_static(text))
    }

    /// None if the text is not ASCII.
    pub fn new(text: impl Into<Str>) -> Option<Symbol> {
        let text = text.into();
        text.as_bytes().is_ascii().then_some(Symbol(text))
    }

    /// Replaces characters that are not ASCII with question marks.
    pub fn lossy(text: &str) -> Symbol {
        let ascii: Cow<'_, str> = if text.is_ascii() {
            Cow::Borrowed(text)
        } else {
            Cow::Owned(text.chars().map(|c| if c.is_ascii() { c } else { '?' }).collect())
        };
        Symbol(Str::from(ascii.into_owned()))
    }

    pub(crate) fn checked(bytes: Bytes) -> Decoded<Symbol> {
        if !bytes.is_ascii() {
            return Err(DecodeFault::NotAscii.into());
        }
        Ok(Symbol(Str(bytes)))
    }

    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }

    /// The shared bytes.
    pub fn as_bytes(&self) -> &Bytes {
        self.0.as_bytes()
    }
}

impl From<String> for Str {
    fn from(text: String) -> Str {
        Str(Bytes::from(text.into_bytes()))
    }
}

impl From<&str> for Str {
    fn from(text: &str) -> Str {
        Str(Bytes::copy_from_slice(text.as_bytes()))
    }
}

impl From<Symbol> for Str {
    fn from(symbol: Symbol) -> Str {
        symbol.0
    }
}

macro_rules! text {
    ($($name:ident)*) => {$(
        impl Deref for $name {
            type Target = str;

            fn deref(&self) -> &str {
                self.as_str()
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(self.as_str(), f)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl PartialEq<str> for $name {
            fn eq(&self, other: &str) -> bool {
                self.as_bytes().as_ref() == other.as_bytes()
            }
        }

        impl PartialEq<&str> for $name {
            fn eq(&self, other: &&str) -> bool {
                self == *other
            }
        }
    )*};
}
text!(Str Symbol);
