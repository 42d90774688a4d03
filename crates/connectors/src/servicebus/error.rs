//! What can go wrong, by what a caller can do about it.

use malote_wire_amqp::connection::{SendError, UseError};
use malote_wire_amqp::performative::{AmqpError, condition};
use malote_wire_amqp::types::DecodeError;

/// Conditions that only Service Bus has.
mod servicebus {
    pub const SESSION_CANNOT_BE_LOCKED: &str = "com.microsoft:session-cannot-be-locked";
    pub const SESSION_LOCK_LOST: &str = "com.microsoft:session-lock-lost";
    pub const MESSAGE_LOCK_LOST: &str = "com.microsoft:message-lock-lost";
    pub const MESSAGE_NOT_FOUND: &str = "com.microsoft:message-not-found";
    pub const SESSION_NOT_FOUND: &str = "com.microsoft:session-not-found";
    pub const TIMEOUT: &str = "com.microsoft:timeout";
    pub const SERVER_BUSY: &str = "com.microsoft:server-busy";
    pub const ENTITY_DISABLED: &str = "com.microsoft:entity-disabled";
    pub const ENTITY_ALREADY_EXISTS: &str = "com.microsoft:entity-already-exists";
    pub const ARGUMENT_ERROR: &str = "com.microsoft:argument-error";
    pub const ARGUMENT_OUT_OF_RANGE: &str = "com.microsoft:argument-out-of-range";
    pub const AUTH_FAILED: &str = "com.microsoft:auth-failed";
}

/// What kind of refusal it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// No such queue, topic or subscription.
    EntityNotFound,
    /// The credential does not allow it.
    Unauthorized,
    /// Not of this entity, or not in this way.
    NotAllowed,
    /// Another receiver has the session.
    SessionCannotBeLocked,
    /// The session's lock is over; its messages come again.
    SessionLockLost,
    /// The message's lock is over; it comes again.
    MessageLockLost,
    /// No message with this sequence number.
    MessageNotFound,
    /// Nothing came in the time that was given: no session was free, or the server did not answer.
    Timeout,
    /// Too much at once: later.
    Busy,
    /// The entity is full.
    QuotaExceeded,
    /// The message is larger than the entity takes.
    MessageTooLarge,
    /// The entity is switched off.
    EntityDisabled,
    /// There is one of this name already.
    AlreadyExists,
    /// Something in the request is wrong.
    BadArgument,
    /// The receiver of a message gave it back: try again.
    Released,
    /// The link was detached for the server's own reasons: attach again.
    Detached,
    /// Anything else.
    Other,
}

/// Why something was not done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A connection string or a setting is wrong.
    #[error("the connection string is not usable: {0}")]
    Config(String),
    /// No connection could be made.
    #[error("cannot connect to {to}: {why}")]
    Unreachable {
        /// Host and port.
        to: String,
        /// What happened.
        why: String,
    },
    /// The server said no.
    #[error("{text} ({condition})")]
    Refused {
        /// What kind of no.
        kind: Kind,
        /// The condition as it came.
        condition: String,
        /// What the server said.
        text: String,
    },
    /// The connection or the link was lost. Whether something that was under way has happened is not known.
    #[error("the connection or link was lost: {0}")]
    Lost(String),
    /// The link was closed by this side, or the client was.
    #[error("closed")]
    Closed,
    /// What came from the server cannot be read.
    #[error("the server's answer cannot be read: {0}")]
    Unreadable(String),
    /// Too many links, questions or tokens on one connection.
    #[error("too many {0} on one connection")]
    TooMany(&'static str),
}

/// What came of something.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(super) fn refused(error: &AmqpError) -> Error {
        let condition = error.condition.as_str().to_owned();
        let text = error.description.as_deref().unwrap_or("refused without a reason").to_owned();
        Error::Refused { kind: kind_of(&condition), condition, text }
    }

    /// A link that the server has detached; without an error it was by its own wish.
    pub(super) fn detached(error: Option<&AmqpError>) -> Error {
        error.map_or_else(
            || Error::Refused {
                kind: Kind::Detached,
                condition: condition::DETACH_FORCED.to_owned(),
                text: "the server detached the link".to_owned(),
            },
            Error::refused,
        )
    }

    pub(super) fn of(kind: Kind, condition: &str, text: impl Into<String>) -> Error {
        Error::Refused { kind, condition: condition.to_owned(), text: text.into() }
    }

    pub(super) fn timeout(text: impl Into<String>) -> Error {
        Error::of(Kind::Timeout, servicebus::TIMEOUT, text)
    }

    /// The status of an answer that is not a good one.
    pub(super) fn of_status(status: i64, named: Option<&str>, text: &str) -> Error {
        let fallback = match status {
            401 => condition::UNAUTHORIZED_ACCESS,
            403 => condition::NOT_ALLOWED,
            404 => condition::NOT_FOUND,
            408 => servicebus::TIMEOUT,
            409 => servicebus::ENTITY_ALREADY_EXISTS,
            410 => servicebus::MESSAGE_LOCK_LOST,
            429 | 503 => servicebus::SERVER_BUSY,
            400 => servicebus::ARGUMENT_ERROR,
            _ => condition::INTERNAL_ERROR,
        };
        let condition = named.unwrap_or(fallback);
        Error::of(kind_of(condition), condition, format!("{text} (status {status})"))
    }

    /// The kind of a refusal.
    pub fn kind(&self) -> Option<Kind> {
        match self {
            Error::Refused { kind, .. } => Some(*kind),
            _ => None,
        }
    }

    /// Whether the same may succeed later without anybody changing anything. What was lost may have happened: repeat
    /// a send only if the queue detects duplicates, or if twice does no harm.
    pub fn is_passing(&self) -> bool {
        match self {
            Error::Unreachable { .. } | Error::Lost(_) => true,
            Error::Refused { kind, .. } => {
                matches!(kind, Kind::Timeout | Kind::Busy | Kind::Released | Kind::Detached)
            }
            Error::Config(_) | Error::Closed | Error::Unreadable(_) | Error::TooMany(_) => false,
        }
    }

    /// Whether it is unknown if what was asked has happened.
    pub fn is_in_doubt(&self) -> bool {
        matches!(self, Error::Lost(_))
    }

    /// What becomes of something that was on its way when its link ended.
    pub(super) fn on_the_way(&self) -> Error {
        match self {
            // Only a message that was not taken ends a link in this way.
            Error::Refused { kind: Kind::MessageTooLarge, .. } | Error::Lost(_) => self.clone(),
            other => Error::Lost(other.to_string()),
        }
    }
}

fn kind_of(named: &str) -> Kind {
    match named {
        condition::NOT_FOUND | condition::RESOURCE_DELETED => Kind::EntityNotFound,
        condition::UNAUTHORIZED_ACCESS | servicebus::AUTH_FAILED => Kind::Unauthorized,
        condition::NOT_ALLOWED | condition::NOT_IMPLEMENTED | condition::RESOURCE_LOCKED => {
            Kind::NotAllowed
        }
        servicebus::SESSION_CANNOT_BE_LOCKED => Kind::SessionCannotBeLocked,
        servicebus::SESSION_LOCK_LOST => Kind::SessionLockLost,
        servicebus::MESSAGE_LOCK_LOST => Kind::MessageLockLost,
        servicebus::MESSAGE_NOT_FOUND | servicebus::SESSION_NOT_FOUND => Kind::MessageNotFound,
        servicebus::TIMEOUT => Kind::Timeout,
        servicebus::SERVER_BUSY => Kind::Busy,
        servicebus::ENTITY_DISABLED => Kind::EntityDisabled,
        servicebus::ENTITY_ALREADY_EXISTS => Kind::AlreadyExists,
        servicebus::ARGUMENT_ERROR
        | servicebus::ARGUMENT_OUT_OF_RANGE
        | condition::INVALID_FIELD
        | condition::DECODE_ERROR => Kind::BadArgument,
        condition::RESOURCE_LIMIT_EXCEEDED => Kind::QuotaExceeded,
        condition::MESSAGE_SIZE_EXCEEDED => Kind::MessageTooLarge,
        condition::DETACH_FORCED | condition::CONNECTION_FORCED => Kind::Detached,
        _ => Kind::Other,
    }
}

impl From<DecodeError> for Error {
    fn from(error: DecodeError) -> Error {
        Error::Unreadable(error.to_string())
    }
}

impl From<UseError> for Error {
    fn from(error: UseError) -> Error {
        match error {
            UseError::TooMany => Error::TooMany("links"),
            UseError::Gone | UseError::OutOfTurn => Error::Closed,
        }
    }
}

impl From<SendError> for Error {
    fn from(error: SendError) -> Error {
        match error {
            SendError::TooLarge { .. } => Error::of(
                Kind::MessageTooLarge,
                condition::MESSAGE_SIZE_EXCEEDED,
                error.to_string(),
            ),
            SendError::NotAttached => Error::Closed,
            // The driver waits for credit and room, and its tags are short.
            SendError::NoCredit | SendError::Full | SendError::Tag => {
                Error::of(Kind::Other, condition::INTERNAL_ERROR, error.to_string())
            }
        }
    }
}
