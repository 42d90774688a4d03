//! Errors reported to the peer.

use crate::types::{DecodeError, Map, Str, Symbol};

use super::composite::composite;

/// Error conditions (part 2, section 2.8.15 and following).
#[allow(missing_docs, reason = "the specification's own names")]
pub mod condition {
    pub const INTERNAL_ERROR: &str = "amqp:internal-error";
    pub const NOT_FOUND: &str = "amqp:not-found";
    pub const UNAUTHORIZED_ACCESS: &str = "amqp:unauthorized-access";
    pub const DECODE_ERROR: &str = "amqp:decode-error";
    pub const RESOURCE_LIMIT_EXCEEDED: &str = "amqp:resource-limit-exceeded";
    pub const NOT_ALLOWED: &str = "amqp:not-allowed";
    pub const INVALID_FIELD: &str = "amqp:invalid-field";
    pub const NOT_IMPLEMENTED: &str = "amqp:not-implemented";
    pub const RESOURCE_LOCKED: &str = "amqp:resource-locked";
    pub const PRECONDITION_FAILED: &str = "amqp:precondition-failed";
    pub const RESOURCE_DELETED: &str = "amqp:resource-deleted";
    pub const ILLEGAL_STATE: &str = "amqp:illegal-state";
    pub const FRAME_SIZE_TOO_SMALL: &str = "amqp:frame-size-too-small";
    pub const CONNECTION_FORCED: &str = "amqp:connection:forced";
    pub const FRAMING_ERROR: &str = "amqp:connection:framing-error";
    pub const WINDOW_VIOLATION: &str = "amqp:session:window-violation";
    pub const HANDLE_IN_USE: &str = "amqp:session:handle-in-use";
    pub const UNATTACHED_HANDLE: &str = "amqp:session:unattached-handle";
    pub const DETACH_FORCED: &str = "amqp:link:detach-forced";
    pub const TRANSFER_LIMIT_EXCEEDED: &str = "amqp:link:transfer-limit-exceeded";
    pub const MESSAGE_SIZE_EXCEEDED: &str = "amqp:link:message-size-exceeded";
    pub const STOLEN: &str = "amqp:link:stolen";
}

composite! {
    /// Why something was refused or ended.
    AmqpError = "amqp:error:list", 0x1d, fields_min 3 {
        /// The kind of error, for programs.
        required condition: Symbol,
        /// The text, for people.
        optional description: Str,
        optional info: Map,
    }
}

impl AmqpError {
    pub fn new(condition: &'static str, description: impl Into<Str>) -> AmqpError {
        AmqpError {
            condition: Symbol::from_static(condition),
            description: Some(description.into()),
            info: None,
        }
    }
}

impl From<DecodeError> for AmqpError {
    fn from(error: DecodeError) -> AmqpError {
        AmqpError::new(error.condition(), error.to_string())
    }
}

impl std::fmt::Display for AmqpError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.condition)?;
        match &self.description {
            Some(description) => write!(f, ": {description}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for AmqpError {}
