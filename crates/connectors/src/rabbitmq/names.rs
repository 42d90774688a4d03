//! How the parts of a queue are called in RabbitMQ.

use lapin::types::ShortString;
use malote_model::QueueName;

use super::refused;
use crate::broker::BrokerError;

/// RabbitMQ's names have at most 255 bytes, and the longest part of a queue's adds this much.
const NAME_BYTES_MAX: usize = 255 - ".wait.4294967295".len();

/// The parts of one queue.
#[derive(Clone, Debug)]
pub(super) struct Names {
    base: String,
    letters: bool,
}

impl Names {
    pub(super) fn of(queue: &QueueName) -> Result<Self, BrokerError> {
        let (base, letters) = match queue.owner() {
            Some(owner) => (owner, true),
            None => (queue.as_str(), false),
        };
        if base.len() > NAME_BYTES_MAX {
            let text = format!(
                "`{queue}` has {} bytes: with RabbitMQ a queue's name has at most {NAME_BYTES_MAX}",
                base.len()
            );
            return Err(refused("bad_name", text));
        }
        Ok(Self { base: base.to_owned(), letters })
    }

    /// Whether it is the dead letters that are meant.
    pub(super) fn is_letters(&self) -> bool {
        self.letters
    }

    /// The queue without sessions, or the exchange of one with.
    pub(super) fn queue(&self) -> ShortString {
        if self.letters { self.letters() } else { self.part("") }
    }

    pub(super) fn partition(&self, number: usize) -> ShortString {
        self.part(&format!(".{number}"))
    }

    pub(super) fn letters(&self) -> ShortString {
        self.part(".dlq")
    }

    /// A stream whose first message says what the queue is.
    pub(super) fn spec(&self) -> ShortString {
        self.part(".spec")
    }

    /// Has no messages: whoever works on the sessions consumes from it, and so all are counted.
    pub(super) fn members(&self) -> ShortString {
        self.part(".members")
    }

    /// Where messages wait for so long: an exchange and a queue.
    pub(super) fn wait(&self, ms: u64) -> ShortString {
        self.part(&format!(".wait.{ms}"))
    }

    fn part(&self, suffix: &str) -> ShortString {
        // `of` has left room for every suffix.
        ShortString::try_new(format!("{}{suffix}", self.base)).unwrap_or_default()
    }
}
