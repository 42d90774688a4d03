//! How a lease can end by the holder's word, and why a message became a dead letter.

use std::fmt;

use crate::message::Properties;

/// What the holder of a message wants to happen to it.
#[derive(Clone, Debug, PartialEq)]
pub enum Settlement {
    /// The work is done: the message goes.
    Complete,
    /// It failed: counted, and available again after `delay_ms`, or dead-lettered at the queue's limit.
    Abandon {
        /// Not before so many milliseconds from now. 0 is at once.
        delay_ms: u64,
        /// Laid over the message.
        changes: Changes,
    },
    /// It was not tried: available again in its place after `delay_ms`, nothing counted.
    Release {
        /// Not before so many milliseconds from now.
        delay_ms: u64,
    },
    /// Set aside: found only by its sequence from now on.
    Defer {
        /// Laid over the message.
        changes: Changes,
    },
    /// It can never succeed.
    DeadLetter {
        /// A short, stable word for programs.
        reason: String,
        /// What happened, for people.
        text: String,
        /// Laid over the message.
        changes: Changes,
    },
}

impl Settlement {
    /// Its name, for logs.
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

/// Properties laid over a message: set, or replaced where the name exists.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Changes {
    /// Names and their new values.
    pub properties: Properties,
}

impl Changes {
    /// Nothing changes.
    pub fn is_empty(&self) -> bool {
        self.properties.is_empty()
    }

    /// Bytes that they take, roughly as encoded.
    pub fn size(&self) -> usize {
        let sizes = self.properties.iter().map(|(name, value)| name.len() + value.size());
        sizes.fold(0, usize::saturating_add)
    }
}

/// Why a message is among the dead letters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeadReason {
    /// A holder said so, with these words.
    Asked {
        /// The holder's word.
        reason: String,
        /// The holder's explanation.
        text: String,
    },
    /// `failed` reached the queue's limit.
    MaxFailed {
        /// How often it had failed.
        failed: u32,
        /// The queue's limit.
        failed_max: u32,
    },
    /// Receives (releases not counted) reached the queue's limit.
    MaxReceives {
        /// How often it had been received.
        receives: u32,
        /// The queue's limit.
        receives_max: u32,
    },
    /// Its time to live was over.
    Expired,
    /// It was the oldest when its queue overflowed.
    Overflowed,
    /// It has no session that the queue takes.
    NoSession,
    /// It was forwarded too often.
    TooManyHops,
    /// It came back, by itself, to where it had died before.
    Cycle,
    /// The topic of its queue's dead letters found nobody who wants it.
    Unroutable,
    /// The disk holds it no longer whole.
    Damaged {
        /// Which file, where in it, and what is wrong there.
        text: String,
    },
}

impl DeadReason {
    /// The stable word that programs compare: the holder's own, or Service Bus's name for a limit.
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

    /// The sentence for people; a limit names its counter.
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
                "the queue has sessions, and the message has none that it takes".into()
            }
            Self::TooManyHops => "it was forwarded too often: queues forward in a circle".into(),
            Self::Cycle => "its dead-letter targets lead back to a queue where it had died".into(),
            Self::Unroutable => {
                "the topic that takes the queue's dead letters knows no queue for it".into()
            }
        }
    }
}

impl fmt::Display for DeadReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.word(), self.text())
    }
}
