//! Maps refusals to AMQP conditions of Service Bus. No other file does.

use malote_engine::EngineError;
use malote_model::{Action, AuditOutcome, Denied, Refusal};
use malote_wire_amqp::performative::{AmqpError, condition};

/// Conditions that are specific to Service Bus.
pub mod servicebus {
    #![allow(missing_docs, reason = "the protocol's own names")]
    pub const SESSION_CANNOT_BE_LOCKED: &str = "com.microsoft:session-cannot-be-locked";
    pub const SESSION_LOCK_LOST: &str = "com.microsoft:session-lock-lost";
    pub const SESSION_NOT_FOUND: &str = "com.microsoft:session-not-found";
    pub const MESSAGE_LOCK_LOST: &str = "com.microsoft:message-lock-lost";
    pub const MESSAGE_NOT_FOUND: &str = "com.microsoft:message-not-found";
    pub const TIMEOUT: &str = "com.microsoft:timeout";
    pub const SERVER_BUSY: &str = "com.microsoft:server-busy";
    pub const ENTITY_DISABLED: &str = "com.microsoft:entity-disabled";
    pub const ENTITY_ALREADY_EXISTS: &str = "com.microsoft:entity-already-exists";
    pub const ARGUMENT_ERROR: &str = "com.microsoft:argument-error";
    pub const ARGUMENT_OUT_OF_RANGE: &str = "com.microsoft:argument-out-of-range";
    pub const DEAD_LETTER: &str = "com.microsoft:dead-letter";
}

use servicebus::*;

/// Kind of a lost lease. The protocol has a separate condition for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockKind {
    Message,
    /// The lock of a session, which covers all its messages.
    Session,
}

/// Maps an engine error to an AMQP error.
pub fn engine_error(error: EngineError, lock: LockKind) -> AmqpError {
    match error {
        EngineError::Refused(refusal) => refusal_error(&refusal, lock),
        // The outcome is unknown, so the client must retry.
        EngineError::Poisoned => AmqpError::new(condition::INTERNAL_ERROR, error.to_string()),
        EngineError::Stopping => AmqpError::new(SERVER_BUSY, error.to_string()),
        EngineError::Damaged { .. } => AmqpError::new(condition::INTERNAL_ERROR, error.to_string()),
    }
}

/// Wording of the service; people search for it.
const LOST_MESSAGE: &str = "The lock supplied is invalid. Either the lock expired, or the message has already been \
    removed from the queue";
const LOST_SESSION: &str = "The session lock has expired on the session";

/// Maps a refusal to an AMQP error.
pub fn refusal_error(refusal: &Refusal, lock: LockKind) -> AmqpError {
    let condition = match refusal {
        Refusal::QueueNotFound { .. } | Refusal::TopicNotFound { .. } => {
            // Clients match on this wording.
            let text = format!("The messaging entity could not be found: {refusal}.");
            return AmqpError::new(condition::NOT_FOUND, text);
        }
        Refusal::RuleNotFound { .. } => condition::NOT_FOUND,
        Refusal::QueueDiffers { .. }
        | Refusal::TopicDiffers { .. }
        | Refusal::RuleDiffers { .. } => ENTITY_ALREADY_EXISTS,
        Refusal::QueueFixed { .. }
        | Refusal::DeadLetterSet { .. }
        | Refusal::QueueInUse { .. }
        | Refusal::NoSessions { .. }
        | Refusal::HasSessions { .. }
        | Refusal::HoldRequired { .. }
        | Refusal::SessionNotListed { .. }
        | Refusal::TopicInternal { .. } => condition::NOT_ALLOWED,
        Refusal::SessionRequired { .. } => {
            let text = format!("The SessionId was not set on a message: {refusal}.");
            return AmqpError::new(condition::NOT_ALLOWED, text);
        }
        Refusal::BadSpec { .. }
        | Refusal::BadName { .. }
        | Refusal::BadSessionId { .. }
        | Refusal::BadToken { .. } => ARGUMENT_ERROR,
        Refusal::OutOfRange { .. } | Refusal::BatchTooLarge { .. } => ARGUMENT_OUT_OF_RANGE,
        Refusal::SessionHeld { .. } => SESSION_CANNOT_BE_LOCKED,
        Refusal::LeaseLost { .. } => {
            let (condition, text) = match lock {
                LockKind::Message => (MESSAGE_LOCK_LOST, LOST_MESSAGE),
                LockKind::Session => (SESSION_LOCK_LOST, LOST_SESSION),
            };
            return AmqpError::new(condition, format!("{text}: {refusal}."));
        }
        Refusal::MessageNotFound { .. } => MESSAGE_NOT_FOUND,
        Refusal::MessageTooLarge { .. } => condition::MESSAGE_SIZE_EXCEEDED,
        Refusal::QueueFull { .. } | Refusal::DiskFull | Refusal::NoSegment { .. } => {
            condition::RESOURCE_LIMIT_EXCEEDED
        }
        Refusal::QueueExclusive { .. } | Refusal::ConsumerExclusive { .. } => {
            condition::RESOURCE_LOCKED
        }
        Refusal::Disabled { .. } => ENTITY_DISABLED,
        Refusal::TransactionOver { .. } => "amqp:transaction:timeout",
        Refusal::BoundReached { .. } | Refusal::Busy => SERVER_BUSY,
    };
    AmqpError::new(condition, refusal.to_string())
}

/// Maps a missing permission to an AMQP error. The text starts with the wording of the service.
pub fn denied_error(denied: &Denied) -> AmqpError {
    let claim = match denied.action {
        Action::Send => "Send",
        Action::Receive => "Listen",
        _ => "Manage",
    };
    let text = format!(
        "Unauthorized access. '{claim}' claim(s) are required to perform this operation: {denied}."
    );
    AmqpError::new(condition::UNAUTHORIZED_ACCESS, text)
}

/// The error for a caller that has not authenticated.
pub fn unauthenticated() -> AmqpError {
    let text = "Unauthorized access. Put a token at $cbs or authenticate with SASL PLAIN before attaching other links.";
    AmqpError::new(condition::UNAUTHORIZED_ACCESS, text)
}

/// The status code of a failed `$management` request.
pub fn status_of(error: &AmqpError) -> i32 {
    match error.condition.as_str() {
        MESSAGE_LOCK_LOST | SESSION_LOCK_LOST => 410,
        condition::NOT_FOUND | MESSAGE_NOT_FOUND => 404,
        SESSION_NOT_FOUND => 204,
        ENTITY_ALREADY_EXISTS => 409,
        condition::UNAUTHORIZED_ACCESS => 401,
        condition::RESOURCE_LIMIT_EXCEEDED | condition::NOT_ALLOWED | ENTITY_DISABLED => 403,
        condition::NOT_IMPLEMENTED => 501,
        SERVER_BUSY => 503,
        TIMEOUT => 408,
        condition::INTERNAL_ERROR => 500,
        _ => 400,
    }
}

/// Outcome of an operation for the audit log. It contains the condition, never text from a client.
pub(crate) fn audit_outcome(error: Option<&AmqpError>) -> AuditOutcome {
    match error {
        None => AuditOutcome::Done,
        Some(error) => {
            let reason = error.condition.as_str().to_owned().into();
            match status_of(error) {
                500.. => AuditOutcome::Unknown(reason),
                _ => AuditOutcome::Refused(reason),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use malote_model::{LeaseToken, QueueName};

    #[test]
    fn a_lost_lease_has_one_condition_per_kind_of_lock() {
        let refusal = Refusal::LeaseLost { lease: LeaseToken::default() };
        for (lock, condition) in [
            (LockKind::Message, "com.microsoft:message-lock-lost"),
            (LockKind::Session, "com.microsoft:session-lock-lost"),
        ] {
            let error = refusal_error(&refusal, lock);
            assert_eq!((error.condition.as_str(), status_of(&error)), (condition, 410));
        }
    }

    #[test]
    fn errors_have_the_wording_that_clients_match() {
        let queue = QueueName::new("q").unwrap();
        let missing =
            refusal_error(&Refusal::QueueNotFound { queue: queue.clone() }, LockKind::Message);
        assert!(missing.description.as_deref().unwrap().contains("could not be found"));
        let unset = refusal_error(&Refusal::SessionRequired { queue }, LockKind::Message);
        assert!(unset.description.as_deref().unwrap().starts_with("The SessionId was not set"));
        assert_eq!(status_of(&missing), 404);
    }
}
