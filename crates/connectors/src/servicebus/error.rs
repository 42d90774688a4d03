//! The errors of the client, grouped by what a caller can do about them.

use malote_wire_amqp::connection::{SendError, UseError};
use malote_wire_amqp::performative::{AmqpError, condition};
use malote_wire_amqp::types::DecodeError;

/// Error conditions of Service Bus.
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

/// The kind of a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The queue, topic or subscription does not exist.
    EntityNotFound,
    /// The credential does not allow it.
    Unauthorized,
    /// The entity does not support the operation.
    NotAllowed,
    /// Another receiver holds the session.
    SessionCannotBeLocked,
    /// The session's lock has ended; its messages will be delivered again.
    SessionLockLost,
    /// The message's lock has ended; it will be delivered again.
    MessageLockLost,
    /// No message has this sequence number.
    MessageNotFound,
    /// No session was free in time, or the server did not answer in time.
    Timeout,
    /// The server is busy; retry later.
    Busy,
    /// The entity is full.
    QuotaExceeded,
    /// The message is larger than the entity allows.
    MessageTooLarge,
    /// The entity is disabled.
    EntityDisabled,
    /// An entity with this name already exists.
    AlreadyExists,
    /// The request is invalid.
    BadArgument,
    /// The message was released by the server; send it again.
    Released,
    /// The server detached the link; attach again.
    Detached,
    /// A condition that this client does not know.
    Other,
}

/// Why an operation failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The connection string or a setting is invalid.
    #[error("invalid connection settings: {0}")]
    Config(String),
    /// The server cannot be reached.
    #[error("cannot connect to {to}: {why}")]
    Unreachable {
        /// Host and port.
        to: String,
        /// The error of the connection.
        why: String,
    },
    /// The server refused the operation.
    #[error("{text} ({condition})")]
    Refused {
        /// The kind of the refusal.
        kind: ErrorKind,
        /// The server's error condition.
        condition: String,
        /// The server's description.
        text: String,
    },
    /// The connection or link was lost. The outcome of pending operations is unknown.
    #[error("the connection or link was lost: {0}")]
    Lost(String),
    /// This side closed the link or the client.
    #[error("the link or client is closed")]
    Closed,
    /// The server's answer cannot be decoded.
    #[error("the server's answer cannot be decoded: {0}")]
    Unreadable(String),
    /// Too many links, requests or tokens on one connection.
    #[error("too many {0} on one connection")]
    TooMany(&'static str),
}

/// The result of an operation.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(super) fn refused(error: &AmqpError) -> Error {
        let condition = error.condition.as_str().to_owned();
        let text = error.description.as_deref().unwrap_or("the server gave no reason").to_owned();
        Error::Refused { kind: kind_of(&condition), condition, text }
    }

    /// The error of a link that the server detached.
    pub(super) fn detached(error: Option<&AmqpError>) -> Error {
        error.map_or_else(
            || Error::Refused {
                kind: ErrorKind::Detached,
                condition: condition::DETACH_FORCED.to_owned(),
                text: "the server detached the link".to_owned(),
            },
            Error::refused,
        )
    }

    pub(super) fn new(kind: ErrorKind, condition: &str, text: impl Into<String>) -> Error {
        Error::Refused { kind, condition: condition.to_owned(), text: text.into() }
    }

    pub(super) fn timeout(text: impl Into<String>) -> Error {
        Error::new(ErrorKind::Timeout, servicebus::TIMEOUT, text)
    }

    /// The error for a status code of a response.
    pub(super) fn from_status(status: i64, named: Option<&str>, text: &str) -> Error {
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
        Error::new(kind_of(condition), condition, format!("{text} (status {status})"))
    }

    /// The kind of a refusal.
    pub fn kind(&self) -> Option<ErrorKind> {
        match self {
            Error::Refused { kind, .. } => Some(*kind),
            _ => None,
        }
    }

    /// Whether a retry may succeed. After [`Error::Lost`] the operation may have succeeded: repeat a send only if the
    /// queue detects duplicates, or if a duplicate does no harm.
    pub fn is_transient(&self) -> bool {
        match self {
            Error::Unreachable { .. } | Error::Lost(_) => true,
            Error::Refused { kind, .. } => {
                matches!(
                    kind,
                    ErrorKind::Timeout
                        | ErrorKind::Busy
                        | ErrorKind::Released
                        | ErrorKind::Detached
                )
            }
            Error::Config(_) | Error::Closed | Error::Unreadable(_) | Error::TooMany(_) => false,
        }
    }

    /// Whether the outcome is unknown.
    pub fn is_in_doubt(&self) -> bool {
        matches!(self, Error::Lost(_))
    }

    /// The error of an operation that was in flight when its link ended with this error.
    pub(super) fn for_in_flight(&self) -> Error {
        match self {
            // A link ends with this error only because of the message itself.
            Error::Refused { kind: ErrorKind::MessageTooLarge, .. } | Error::Lost(_) => {
                self.clone()
            }
            other => Error::Lost(other.to_string()),
        }
    }
}

fn kind_of(named: &str) -> ErrorKind {
    match named {
        condition::NOT_FOUND | condition::RESOURCE_DELETED => ErrorKind::EntityNotFound,
        condition::UNAUTHORIZED_ACCESS | servicebus::AUTH_FAILED => ErrorKind::Unauthorized,
        condition::NOT_ALLOWED | condition::NOT_IMPLEMENTED | condition::RESOURCE_LOCKED => {
            ErrorKind::NotAllowed
        }
        servicebus::SESSION_CANNOT_BE_LOCKED => ErrorKind::SessionCannotBeLocked,
        servicebus::SESSION_LOCK_LOST => ErrorKind::SessionLockLost,
        servicebus::MESSAGE_LOCK_LOST => ErrorKind::MessageLockLost,
        servicebus::MESSAGE_NOT_FOUND | servicebus::SESSION_NOT_FOUND => ErrorKind::MessageNotFound,
        servicebus::TIMEOUT => ErrorKind::Timeout,
        servicebus::SERVER_BUSY => ErrorKind::Busy,
        servicebus::ENTITY_DISABLED => ErrorKind::EntityDisabled,
        servicebus::ENTITY_ALREADY_EXISTS => ErrorKind::AlreadyExists,
        servicebus::ARGUMENT_ERROR
        | servicebus::ARGUMENT_OUT_OF_RANGE
        | condition::INVALID_FIELD
        | condition::DECODE_ERROR => ErrorKind::BadArgument,
        condition::RESOURCE_LIMIT_EXCEEDED => ErrorKind::QuotaExceeded,
        condition::MESSAGE_SIZE_EXCEEDED => ErrorKind::MessageTooLarge,
        condition::DETACH_FORCED | condition::CONNECTION_FORCED => ErrorKind::Detached,
        _ => ErrorKind::Other,
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
            SendError::TooLarge { .. } => Error::new(
                ErrorKind::MessageTooLarge,
                condition::MESSAGE_SIZE_EXCEEDED,
                error.to_string(),
            ),
            SendError::NotAttached => Error::Closed,
            // The driver waits for credit and room, and its tags are short.
            SendError::NoCredit | SendError::Full | SendError::Tag => {
                Error::new(ErrorKind::Other, condition::INTERNAL_ERROR, error.to_string())
            }
        }
    }
}
