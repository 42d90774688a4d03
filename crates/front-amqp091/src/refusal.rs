//! Refusals of the engine → exceptions of the protocol, with RabbitMQ's codes and texts.

use malote_engine::EngineError;
use malote_model::{Address, Refusal};

use crate::names::VirtualHost;
use crate::wire::error::{Exception, ReplyCode};

/// `no queue 'q' in vhost '/'`.
pub fn no_queue(host: &VirtualHost, queue: &str) -> Exception {
    let detail = format!("no queue '{queue}' in vhost '{}'", host.name());
    Exception::new(ReplyCode::NotFound, detail)
}

/// `no exchange 'x' in vhost '/'`.
pub fn no_exchange(host: &VirtualHost, exchange: &str) -> Exception {
    let detail = format!("no exchange '{exchange}' in vhost '{}'", host.name());
    Exception::new(ReplyCode::NotFound, detail)
}

pub fn locked(host: &VirtualHost, queue: &str) -> Exception {
    let detail = format!(
        "cannot obtain exclusive access to locked queue '{queue}' in vhost '{}'. It could be originally declared on \
         another connection or the exclusive property value does not match that of the original declaration.",
        host.name()
    );
    Exception::new(ReplyCode::ResourceLocked, detail)
}

/// `queue 'q' in vhost '/' in exclusive use`.
pub fn in_exclusive_use(host: &VirtualHost, queue: &str) -> Exception {
    let detail = format!("queue '{queue}' in vhost '{}' in exclusive use", host.name());
    Exception::new(ReplyCode::AccessRefused, detail)
}

pub fn precondition(detail: impl Into<String>) -> Exception {
    Exception::new(ReplyCode::PreconditionFailed, detail.into())
}

/// Maps a refusal.
pub fn refused(host: &VirtualHost, refusal: &Refusal) -> Exception {
    let name = host.name();
    match refusal {
        Refusal::QueueNotFound { queue } => no_queue(host, &host.shown(queue.as_str())),
        Refusal::TopicNotFound { topic } => no_exchange(host, &host.shown(topic.as_str())),
        Refusal::ConsumerExclusive { queue, .. } => {
            in_exclusive_use(host, &host.shown(queue.as_str()))
        }
        Refusal::QueueExclusive { queue } => locked(host, &host.shown(queue.as_str())),
        Refusal::TopicInternal { topic } => {
            let topic = host.shown(topic.as_str());
            let detail = format!("cannot publish to internal exchange '{topic}' in vhost '{name}'");
            Exception::new(ReplyCode::AccessRefused, detail)
        }
        Refusal::QueueDiffers { queue, field, is, asked } => {
            let queue = host.shown(queue.as_str());
            precondition(format!(
                "inequivalent arg '{field}' for queue '{queue}' in vhost '{name}': received '{asked}' but current is '{is}'"
            ))
        }
        Refusal::TopicDiffers { topic, field, is, asked } => {
            let topic = host.shown(topic.as_str());
            precondition(format!(
                "inequivalent arg '{field}' for exchange '{topic}' in vhost '{name}': received '{asked}' but current is '{is}'"
            ))
        }
        Refusal::RuleNotFound { target, .. } => {
            let (what, target) = match target {
                Address::Queue(queue) => ("queue", queue.as_str()),
                Address::Topic(topic) => ("exchange", topic.as_str()),
            };
            let detail = format!("no binding of {what} '{}' in vhost '{name}'", host.shown(target));
            Exception::new(ReplyCode::NotFound, detail)
        }
        Refusal::MessageTooLarge { size_bytes, size_bytes_max, .. } => precondition(format!(
            "message size {size_bytes} is larger than configured max size {size_bytes_max}"
        )),
        Refusal::QueueInUse { queue, .. } => {
            let queue = host.shown(queue.as_str());
            precondition(format!("queue '{queue}' in vhost '{name}' in use"))
        }
        Refusal::Busy
        | Refusal::DiskFull
        | Refusal::NoSegment { .. }
        | Refusal::BoundReached { .. } => {
            Exception::new(ReplyCode::ResourceError, refusal.to_string())
        }
        Refusal::QueueFixed { .. }
        | Refusal::RuleDiffers { .. }
        | Refusal::BadSpec { .. }
        | Refusal::BadName { .. }
        | Refusal::DeadLetterSet { .. }
        | Refusal::BadSessionId { .. }
        | Refusal::SessionRequired { .. }
        | Refusal::NoSessions { .. }
        | Refusal::SessionNotListed { .. }
        | Refusal::SessionHeld { .. }
        | Refusal::HoldRequired { .. }
        | Refusal::LeaseLost { .. }
        | Refusal::BadToken { .. }
        | Refusal::MessageNotFound { .. }
        | Refusal::QueueFull { .. }
        | Refusal::Disabled { .. }
        | Refusal::HasSessions { .. }
        | Refusal::TransactionOver { .. }
        | Refusal::OutOfRange { .. }
        | Refusal::BatchTooLarge { .. } => precondition(refusal.to_string()),
    }
}

/// Maps an error of the engine.
pub fn failed(host: &VirtualHost, error: &EngineError) -> Exception {
    match error {
        EngineError::Refused(refusal) => refused(host, refusal),
        EngineError::Poisoned | EngineError::Damaged { .. } => {
            Exception::new(ReplyCode::InternalError, error.to_string())
        }
        EngineError::Stopping => stopping(),
    }
}

/// The broker stops.
pub fn stopping() -> Exception {
    let detail = "broker forced connection closure with reason 'shutdown'";
    Exception::new(ReplyCode::ConnectionForced, detail)
}
