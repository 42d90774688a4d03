//! Looking without touching; dead letters, redrive and resend; small answers about a queue.

use malote_engine::MessageState;
use serde::{Deserialize, Serialize};

use super::message::{NewMessage, Received};

/// Which messages to look at.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeekQuery {
    /// From this sequence on.
    pub from: Option<u64>,
    /// At most so many.
    pub max: Option<u64>,
    /// Only of this session.
    pub session: Option<String>,
    /// Only in this state.
    pub state: Option<StateWord>,
}

/// Where a message stands in its life.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StateWord {
    /// Waiting for a receiver.
    Ready,
    /// Out to a receiver.
    Locked,
    /// In its place, not yet due.
    Delayed,
    /// To be sent later.
    Scheduled,
    /// Set aside.
    Deferred,
}

impl From<StateWord> for MessageState {
    fn from(word: StateWord) -> Self {
        match word {
            StateWord::Ready => Self::Ready,
            StateWord::Locked => Self::Locked,
            StateWord::Delayed => Self::Delayed,
            StateWord::Scheduled => Self::Scheduled,
            StateWord::Deferred => Self::Deferred,
        }
    }
}

/// The word for a state.
pub fn state_word(state: MessageState) -> &'static str {
    match state {
        MessageState::Ready => "ready",
        MessageState::Locked => "locked",
        MessageState::Delayed => "delayed",
        MessageState::Scheduled => "scheduled",
        MessageState::Deferred => "deferred",
    }
}

/// What was seen; `next` is the `from` of the next page.
#[derive(Debug, Serialize)]
pub struct PeekOut {
    /// In order.
    pub messages: Vec<Received>,
    /// Where to go on.
    pub next: Option<u64>,
}

/// Which dead letters to move.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RedriveIn {
    /// Exactly these; all, up to `limit`, if absent.
    pub seqs: Option<Vec<u64>>,
    /// Where to; where each came from if absent.
    pub to: Option<String>,
    /// At most so many of the oldest.
    pub limit: Option<u64>,
    /// Count, and move nothing.
    pub dry_run: bool,
}

/// What was, or would be, moved.
#[derive(Debug, Serialize)]
pub struct RedriveOut {
    /// So many moved.
    pub moved: u64,
    /// So many are still there.
    pub left: u64,
}

/// A dead letter, corrected.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResendIn {
    /// What is sent in its stead.
    pub message: NewMessage,
    /// Where to; where it came from if absent.
    pub to: Option<String>,
}

/// Which key to place.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartitionQuery {
    /// Any text.
    pub key: String,
}

/// Where a key belongs.
#[derive(Debug, Serialize)]
pub struct PartitionOut {
    /// The session of the fixed list.
    pub session: String,
    /// Its place in the list.
    pub index: u32,
    /// How long the list is.
    pub of: u32,
}

/// What a scaler looks at.
#[derive(Debug, Serialize)]
pub struct ScaleOut {
    /// Waiting and being worked on: counting only those that wait would stop workers in the middle of their work.
    pub backlog: u64,
    /// Being worked on.
    pub in_flight: u64,
    /// Sessions with work.
    pub sessions: u64,
}

/// Who answers.
#[derive(Debug, Serialize)]
pub struct VersionOut {
    /// Always `malote`.
    pub name: &'static str,
    /// Its version.
    pub version: &'static str,
    /// The version of this API.
    pub api: &'static str,
}
