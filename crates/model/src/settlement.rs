//! How a holder settles a message, and why messages are dead-lettered.

use std::fmt;

use crate::message::Properties;

/// What the holder of a lease wants to happen to the message.
#[derive(Clone, Debug, PartialEq)]
pub enum Settlement {
    /// The work is done: remove the message.
    Complete,
    /// The work failed. Counts as a failed delivery. The message is available again after `delay_ms`, or is
    /// dead-lettered at the queue's limit.
    Abandon {
        /// Milliseconds before the message is delivered again; 0 for immediately.
        delay_ms: u64,
        /// Properties to change.
        changes: Changes,
    },
    /// The message was not processed. It is available again after `delay_ms`, in its old position, and nothing is
    /// counted.
    Release {
        /// Milliseconds before the message is delivered again; 0 for immediately.
        delay_ms: u64,
    },
    /// Set the message aside. It can then be received only by its sequence number.
    Defer {
        /// Properties to change.
        changes: Changes,
    },
    /// Processing can never succeed: dead-letter the message.
    DeadLetter {
        /// A short, stable identifier for programs.
        reason: String,
        /// An explanation for people.
        text: String,
        /// Properties to change.
        changes: Changes,
    },
}

impl Settlement {
    /// The name of the settlement, for logs.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::Abandon { .. } => "abandon",
            Self::Release { .. } => "release",
            Self::Defer { .. } => "defer",
            Self::DeadLetter { .. } => "dead_letter",
        }
    }
}

/// Changes to the properties of a message: existing ones are replaced, others are added.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Changes {
    /// The names and their new values.
    pub properties: Properties,
}

impl Changes {
    /// Whether nothing changes.
    pub fn is_empty(&self) -> bool {
        self.properties.is_empty()
    }

    /// The approximate encoded size in bytes.
    pub fn size(&self) -> usize {
        let sizes = self.properties.iter().map(|(name, value)| name.len() + value.size());
        sizes.fold(0, usize::saturating_add)
    }
}

/// Why a message was dead-lettered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeadReason {
    /// A receiver asked for it.
    Asked {
        /// The receiver's reason.
        reason: String,
        /// The receiver's explanation.
        text: String,
    },
    /// The number of failed deliveries reached the queue's limit.
    MaxFailed {
        /// The number of failed deliveries.
        failed: u32,
        /// The queue's limit.
        failed_max: u32,
    },
    /// The number of receives, without releases, reached the queue's limit.
    MaxReceives {
        /// Receives, without releases.
        receives: u32,
        /// The queue's limit.
        receives_max: u32,
    },
    /// Its time to live expired.
    Expired,
    /// It was the oldest message when its queue overflowed.
    Overflowed,
    /// It has no session id that the queue accepts.
    NoSession,
    /// It was forwarded too often.
    TooManyHops,
    /// Dead-letter targets led it back to a queue that it was dead-lettered from before.
    Cycle,
    /// No rule of the dead-letter topic matched it.
    Unroutable,
    /// It is damaged on disk.
    Damaged {
        /// The file, the position and the error.
        text: String,
    },
}

impl DeadReason {
    /// The stable identifier that programs compare: the receiver's own, or Service Bus's name for a limit.
    pub fn word(&self) -> &str {
        match self {
            Self::Asked { reason, .. } => reason,
            Self::MaxFailed { .. } | Self::MaxReceives { .. } => "MaxDeliveryCountExceeded",
            Self::Expired => "TTLExpiredException",
            Self::Overflowed => "MaxLengthExceeded",
            Self::NoSession => "Session ID is null.",
            Self::TooManyHops => "MaxTransferHopCountExceeded",
            Self::Cycle => "DeadLetterCycle",
            Self::Unroutable => "DeadLetterUnroutable",
            Self::Damaged { .. } => "Damaged",
        }
    }

    /// The explanation for people. For a limit, it names the counter.
    pub fn text(&self) -> String {
        match self {
            Self::Asked { text, .. } | Self::Damaged { text } => text.clone(),
            Self::MaxFailed { failed, failed_max } => {
                format!("failed {failed} times; the queue allows {failed_max} (failed_max)")
            }
            Self::MaxReceives { receives, receives_max } => {
                format!("received {receives} times; the queue allows {receives_max} (receives_max)")
            }
            Self::Expired => "its time to live was over".into(),
            Self::Overflowed => "the queue was full and it was the oldest".into(),
            Self::NoSession => {
                "the queue has sessions, and the message has no session id that it accepts".into()
            }
            Self::TooManyHops => "it was forwarded too often: the queues forward in a cycle".into(),
            Self::Cycle => {
                "its dead-letter targets lead back to a queue that it was dead-lettered from before"
                    .into()
            }
            Self::Unroutable => "no rule of the dead-letter topic matches it".into(),
        }
    }
}

impl fmt::Display for DeadReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.word(), self.text())
    }
}
