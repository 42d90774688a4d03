//! Our refusals → the conditions of Service Bus. The one place that knows them.

use malote_engine::EngineError;
use malote_model::{Action, AuditOutcome, Denied, Refusal};
use malote_wire_amqp::performative::{AmqpError, condition};

/// Conditions that only Service Bus has.
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

/// What a lease that is over was: the protocol has two words for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lock {
    /// Of a message.
    Message,
    /// Of a session, with all its messages.
    Session,
}

/// What the client is told.
pub fn error_of(error: EngineError, lock: Lock) -> AmqpError {
    match error {
        EngineError::Refused(refusal) => of_refusal(&refusal, lock),
        // The outcome is unknown: the client must ask again, not give up.
        EngineError::Poisoned => AmqpError::new(condition::INTERNAL_ERROR, error.to_string()),
        EngineError::Stopping => AmqpError::new(SERVER_BUSY, error.to_string()),
        EngineError::Damaged { .. } => AmqpError::new(condition::INTERNAL_ERROR, error.to_string()),
    }
}

/// In the service's own words, which people look for.
const LOST_MESSAGE: &str = "The lock supplied is invalid. Either the lock expired, or the message has already been \
    removed from the queue";
const LOST_SESSION: &str = "The session lock has expired on the session";

/// What the client is told of a refusal.
pub fn of_refusal(refusal: &Refusal, lock: Lock) -> AmqpError {
    let condition = match refusal {
        Refusal::QueueNotFound { .. } | Refusal::TopicNotFound { .. } => {
            // Clients look for these words.
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
                Lock::Message => (MESSAGE_LOCK_LOST, LOST_MESSAGE),
                Lock::Session => (SESSION_LOCK_LOST, LOST_SESSION),
            };
            return AmqpError::new(condition, format!("{text}: {refusal}."));
        }
        Refusal::MessageNotFound { .. } => MESSAGE_NOT_FOUND,
        Refusal::MessageTooLarge { .. } => condition::MESSAGE_SIZE_EXCEEDED,
        Refusal::QueueFull { .. } | Refusal::DiskFull | Refusal::NoSegment { .. } => {
            condition::RESOURCE_LIMIT_EXCEEDED
        }
        Refusal::QueueExclusive { .. } => condition::RESOURCE_LOCKED,
        Refusal::Disabled { .. } => ENTITY_DISABLED,
        Refusal::TransactionOver { .. } => "amqp:transaction:timeout",
        Refusal::BoundReached { .. } | Refusal::Busy => SERVER_BUSY,
    };
    AmqpError::new(condition, refusal.to_string())
}

/// What a caller without the grant is told: first in the service's own words.
pub fn of_denied(denied: &Denied) -> AmqpError {
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

/// What a caller is told that has put no token and has not signed in.
pub fn of_unknown() -> AmqpError {
    let text = "Unauthorized access. Put a token at $cbs, or sign in by SASL PLAIN, before any other link is attached.";
    AmqpError::new(condition::UNAUTHORIZED_ACCESS, text)
}

/// The status of a failed request to `$management`.
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

/// How an operation ended, for the audit log: by its condition, which is never a client's text.
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
    fn a_lost_lease_has_two_names() {
        let refusal = Refusal::LeaseLost { lease: LeaseToken::default() };
        for (lock, condition) in [
            (Lock::Message, "com.microsoft:message-lock-lost"),
            (Lock::Session, "com.microsoft:session-lock-lost"),
        ] {
            let error = of_refusal(&refusal, lock);
            assert_eq!((error.condition.as_str(), status_of(&error)), (condition, 410));
        }
    }

    #[test]
    fn clients_find_the_words_they_look_for() {
        let queue = QueueName::new("q").unwrap();
        let missing = of_refusal(&Refusal::QueueNotFound { queue: queue.clone() }, Lock::Message);
        assert!(missing.description.as_deref().unwrap().contains("could not be found"));
        let unset = of_refusal(&Refusal::SessionRequired { queue }, Lock::Message);
        assert!(unset.description.as_deref().unwrap().starts_with("The SessionId was not set"));
        assert_eq!(status_of(&missing), 404);
    }
}
