//! Reply codes, and exceptions: errors that close a channel or a connection.
//!
//! Where RabbitMQ sends a text, an exception has the same text: programs and tests compare it.

use std::borrow::Cow;
use std::fmt;

use super::method::{MethodId, channel, connection};
use super::text::ShortString;
use crate::limits::SNIPPET_BYTES_MAX;

/// What an exception closes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    Channel,
    Connection,
}

macro_rules! reply_codes {
    ($($name:ident = $code:literal $text:literal $scope:ident,)+) => {
        /// Why a channel or a connection is closed, or a message is returned.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum ReplyCode { $($name = $code,)+ }

        impl ReplyCode {
            pub const ALL: &[Self] = &[$(Self::$name,)+];

            /// The name at the beginning of every reply text.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)+ }
            }

            /// What an exception with this code closes, unless something else is said.
            pub const fn scope(self) -> Scope {
                match self { $(Self::$name => Scope::$scope,)+ }
            }

            pub const fn code(self) -> u16 {
                self as u16
            }
        }
    };
}

reply_codes! {
    Success = 200 "REPLY_SUCCESS" Channel,
    ContentTooLarge = 311 "CONTENT_TOO_LARGE" Channel,
    NoRoute = 312 "NO_ROUTE" Channel,
    NoConsumers = 313 "NO_CONSUMERS" Channel,
    ConnectionForced = 320 "CONNECTION_FORCED" Connection,
    InvalidPath = 402 "INVALID_PATH" Connection,
    AccessRefused = 403 "ACCESS_REFUSED" Channel,
    NotFound = 404 "NOT_FOUND" Channel,
    ResourceLocked = 405 "RESOURCE_LOCKED" Channel,
    PreconditionFailed = 406 "PRECONDITION_FAILED" Channel,
    FrameError = 501 "FRAME_ERROR" Connection,
    SyntaxError = 502 "SYNTAX_ERROR" Connection,
    CommandInvalid = 503 "COMMAND_INVALID" Connection,
    ChannelError = 504 "CHANNEL_ERROR" Connection,
    UnexpectedFrame = 505 "UNEXPECTED_FRAME" Connection,
    ResourceError = 506 "RESOURCE_ERROR" Connection,
    NotAllowed = 530 "NOT_ALLOWED" Connection,
    NotImplemented = 540 "NOT_IMPLEMENTED" Connection,
    InternalError = 541 "INTERNAL_ERROR" Connection,
}

/// An error that closes a channel or the connection.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct Exception {
    pub code: ReplyCode,
    pub scope: Scope,
    /// The text after the name of the code.
    pub detail: Cow<'static, str>,
    /// The method that caused it; zero if none did.
    pub method: MethodId,
}

impl Exception {
    pub fn new(code: ReplyCode, detail: impl Into<Cow<'static, str>>) -> Self {
        Self { code, scope: code.scope(), detail: detail.into(), method: MethodId::NONE }
    }

    /// Names the method that caused it.
    pub fn caused_by(self, method: MethodId) -> Self {
        Self { method, ..self }
    }

    /// Closes the connection although the code alone would close the channel.
    pub fn closing_connection(self) -> Self {
        Self { scope: Scope::Connection, ..self }
    }

    /// `NAME - detail`, as much of it as fits.
    pub fn reply_text(&self) -> ShortString {
        ShortString::truncated(&self.to_string())
    }

    pub fn channel_close(&self) -> channel::Close {
        channel::Close {
            reply_code: self.code.code(),
            reply_text: self.reply_text(),
            class_id: self.method.class,
            method_id: self.method.method,
        }
    }

    pub fn connection_close(&self) -> connection::Close {
        connection::Close {
            reply_code: self.code.code(),
            reply_text: self.reply_text(),
            class_id: self.method.class,
            method_id: self.method.method,
        }
    }

    /// A frame that breaks the rules of its kind: `type 9, all octets = <<"abc">>: unknown_frame`.
    pub(super) fn bad_frame(kind: u8, payload: &[u8], why: impl fmt::Display) -> Self {
        let detail = format!("type {kind}, {}: {why}", Snippet(payload));
        Self::new(ReplyCode::FrameError, detail)
    }

    /// A correct frame on a channel where none of its kind may be.
    pub(super) fn misplaced_frame(kind: u8, payload: &[u8]) -> Self {
        Self::new(ReplyCode::UnexpectedFrame, format!("type {kind}, {}", Snippet(payload)))
    }
}

impl fmt::Display for Exception {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.code.name())?;
        if self.detail.is_empty() { Ok(()) } else { write!(f, " - {}", self.detail) }
    }
}

/// The first octets of a payload: `first 16 octets = <<…>>`.
struct Snippet<'a>(&'a [u8]);

impl fmt::Display for Snippet<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (extent, octets) = match self.0.get(..SNIPPET_BYTES_MAX) {
            Some(first) if self.0.len() > SNIPPET_BYTES_MAX => ("first 16", first),
            _ => ("all", self.0),
        };
        let printable = octets.iter().all(|byte| (b' '..=b'~').contains(byte));
        if printable && !octets.is_empty() {
            let text = String::from_utf8_lossy(octets);
            write!(f, "{extent} octets = <<{text:?}>>")
        } else {
            write!(f, "{extent} octets = {}", Octets(octets))
        }
    }
}

/// Octets as numbers: `<<0,60>>`.
pub(super) struct Octets<'a>(pub &'a [u8]);

impl fmt::Display for Octets<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<<")?;
        for (index, byte) in self.0.iter().enumerate() {
            write!(f, "{}{byte}", if index == 0 { "" } else { "," })?;
        }
        f.write_str(">>")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_code_decides_what_is_closed() {
        let closing = |scope| {
            let codes = ReplyCode::ALL.iter().filter(move |code| code.scope() == scope);
            codes.map(|code| code.code()).collect::<Vec<_>>()
        };
        assert_eq!(closing(Scope::Channel), [200, 311, 312, 313, 403, 404, 405, 406]);
        let hard = [320, 402, 501, 502, 503, 504, 505, 506, 530, 540, 541];
        assert_eq!(closing(Scope::Connection), hard);
        let login = Exception::new(ReplyCode::AccessRefused, "").closing_connection();
        assert_eq!(login.scope, Scope::Connection);
    }

    #[test]
    fn a_close_method_has_the_name_the_detail_and_the_cause() {
        let missing = Exception::new(ReplyCode::NotFound, "no queue 'q' in vhost '/'")
            .caused_by(MethodId { class: 50, method: 10 });
        assert_eq!(
            missing.channel_close(),
            channel::Close {
                reply_code: 404,
                reply_text: ShortString::from_static("NOT_FOUND - no queue 'q' in vhost '/'"),
                class_id: 50,
                method_id: 10,
            }
        );
        assert_eq!(Exception::new(ReplyCode::InternalError, "").to_string(), "INTERNAL_ERROR");
        let long = Exception::new(ReplyCode::NotAllowed, "x".repeat(300));
        assert_eq!(long.connection_close().reply_text.len(), 255);
    }

    #[test]
    fn snippets_are_text_where_they_can_be() {
        assert_eq!(Snippet(b"").to_string(), "all octets = <<>>");
        assert_eq!(Snippet(b"abc").to_string(), "all octets = <<\"abc\">>");
        assert_eq!(Snippet(&[0, 60]).to_string(), "all octets = <<0,60>>");
        let long = b"abcdefghijklmnopqrstuvwxyz";
        assert_eq!(Snippet(long).to_string(), "first 16 octets = <<\"abcdefghijklmnop\">>");
        assert_eq!(Snippet(&long[..16]).to_string(), "all octets = <<\"abcdefghijklmnop\">>");
    }
}
