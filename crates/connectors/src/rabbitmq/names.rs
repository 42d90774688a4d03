//! The names of a queue's parts in RabbitMQ.

use lapin::types::ShortString;
use malote_model::QueueName;

use super::refused;
use crate::broker::BrokerError;

/// RabbitMQ allows names of 255 bytes; the longest suffix needs part of that.
const NAME_BYTES_MAX: usize = 255 - ".wait.4294967295".len();

#[derive(Clone, Debug)]
pub(super) struct QueueNames {
    base: String,
    dead_letters: bool,
}

impl QueueNames {
    pub(super) fn of(queue: &QueueName) -> Result<Self, BrokerError> {
        let (base, dead_letters) = match queue.owner() {
            Some(owner) => (owner, true),
            None => (queue.as_str(), false),
        };
        if base.len() > NAME_BYTES_MAX {
            let text = format!(
                "the name `{queue}` has {} bytes; RabbitMQ allows {NAME_BYTES_MAX} for a queue of Malote: shorten it",
                base.len()
            );
            return Err(refused("bad_name", text));
        }
        Ok(Self { base: base.to_owned(), dead_letters })
    }

    /// Whether the name means the dead letters of a queue.
    pub(super) fn is_dead_letters(&self) -> bool {
        self.dead_letters
    }

    /// The queue; for a queue with sessions, its exchange.
    pub(super) fn queue(&self) -> ShortString {
        if self.dead_letters { self.dead_letters() } else { self.part("") }
    }

    pub(super) fn partition(&self, number: usize) -> ShortString {
        self.part(&format!(".{number}"))
    }

    pub(super) fn dead_letters(&self) -> ShortString {
        self.part(".dlq")
    }

    /// A stream whose first message is the queue's record.
    pub(super) fn spec(&self) -> ShortString {
        self.part(".spec")
    }

    /// A queue without messages. Each process that works on the sessions consumes from it, so that RabbitMQ counts
    /// them.
    pub(super) fn members(&self) -> ShortString {
        self.part(".members")
    }

    /// The delay queue with this TTL, and its exchange.
    pub(super) fn delay_queue(&self, ms: u64) -> ShortString {
        self.part(&format!(".wait.{ms}"))
    }

    fn part(&self, suffix: &str) -> ShortString {
        // `of` has reserved room for every suffix.
        ShortString::try_new(format!("{}{suffix}", self.base)).unwrap_or_default()
    }
}
