//! What a queue stores about single messages, besides their index entries: the status and counters of messages that were
//! delivered, delayed or deferred, and attributes that a message carries to another queue.

use malote_model::{SessionId, Timestamp};

use super::sessions::NONE;
use super::timers::TimerId;
use crate::command::MessageState;
use crate::event::RouteHistory;
use crate::journal::Pos;

/// Attributes that a message needs when it moves to another queue, or when it becomes due.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct CarriedAttributes {
    pub session: Option<SessionId>,
    pub priority: u8,
    pub ttl_ms: Option<u64>,
    pub history: RouteHistory,
}

/// A message that was delivered, delayed or deferred.
#[derive(Debug, Clone)]
pub(super) struct TrackedMessage {
    pub status: MessageStatus,
    pub receives: u32,
    pub failed: u32,
    pub released: u32,
    pub lost: u32,
    /// When it was first delivered; 0 if never or unknown.
    pub first: u64,
    /// When it becomes due, if it waits.
    pub due: u64,
    /// The session slot of a deferred or parked message.
    pub session: u32,
    pub timer: Option<TimerId>,
}

impl Default for TrackedMessage {
    fn default() -> Self {
        let status = MessageStatus::Ready;
        Self {
            status,
            receives: 0,
            failed: 0,
            released: 0,
            lost: 0,
            first: 0,
            due: 0,
            session: NONE,
            timer: None,
        }
    }
}

impl TrackedMessage {
    pub(super) fn first_at(&self) -> Option<Timestamp> {
        (self.first > 0).then_some(Timestamp(self.first))
    }
}

/// The status of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MessageStatus {
    Ready,
    /// Leased; the slot of the lease.
    Locked(u32),
    /// Waits in its position.
    Delayed,
    /// Waits outside its session, which continues without it.
    Parked,
    /// Not part of the order yet.
    Scheduled,
    Deferred,
}

impl MessageStatus {
    pub(super) fn state(self) -> MessageState {
        match self {
            Self::Ready => MessageState::Ready,
            Self::Locked(_) => MessageState::Locked,
            Self::Delayed | Self::Parked => MessageState::Delayed,
            Self::Scheduled => MessageState::Scheduled,
            Self::Deferred => MessageState::Deferred,
        }
    }
}

/// A message that is added to a queue.
#[derive(Debug, Clone, Copy)]
pub(super) struct Arrival<'a> {
    pub seq: u64,
    pub at: u64,
    pub due: u64,
    pub scheduled: bool,
    pub size: u32,
    pub session: Option<&'a SessionId>,
    /// The tenant, where tenants are used.
    pub tenant: Option<&'a SessionId>,
    pub priority: u8,
    pub ttl_ms: Option<u64>,
    /// Set if the message comes from another queue.
    pub history: Option<&'a RouteHistory>,
}

/// What remains of a removed message.
pub(super) struct RemovedMessage {
    pub newest: Option<Pos>,
    pub tracked: Option<TrackedMessage>,
}
