//! One queue: its messages by place and state. Changed only by `apply`.

use std::collections::{BTreeSet, VecDeque};

use hashbrown::HashMap;
use malote_model::{Durability, QueueName, QueueSpec, SessionId, Timestamp};

use super::index::Index;
use super::sessions::{NONE, Sessions};
use super::timers::TimerId;
use super::{FixedState, fixed};
use crate::command::{ConsumerId, MessageState, QueueFacts, Totals};
use crate::event::QueueId;
use crate::journal::Pos;

/// A queue. A message that was never delivered, delayed or set aside is only a place in the index.
#[derive(Debug)]
pub(super) struct Queue {
    pub name: QueueName,
    pub spec: QueueSpec,
    /// Its own dead-letter set; itself for a dead-letter set.
    pub dead: QueueId,
    /// The queue whose dead-letter set this is.
    pub owner: Option<QueueId>,
    pub created_at: Timestamp,
    pub paused: bool,
    pub index: Index,
    /// The newest record of messages that something was laid over.
    pub newest: HashMap<u64, Pos, FixedState>,
    pub next_seq: u64,
    /// Without sessions: what stands here or later was not delivered yet.
    pub cursor: u64,
    /// Without sessions: ready messages before the cursor.
    pub returned: BTreeSet<u64>,
    /// Messages that are more than a place in the index.
    pub touched: HashMap<u64, Touched, FixedState>,
    /// Sessions of messages that stand in no session's line: scheduled ones and dead letters.
    pub kept: HashMap<u64, SessionId, FixedState>,
    pub locked: u64,
    pub delayed: u64,
    pub scheduled: u64,
    pub deferred: u64,
    pub sessions: Option<Sessions>,
    pub sessions_held: u64,
    pub totals: Totals,
    /// Consumers that want something, in turn. Not part of the durable state, nor is what follows.
    pub waiting: VecDeque<ConsumerId>,
    pub consumers: u64,
    pub dirty: bool,
}

/// A message that was delivered, delayed or set aside.
#[derive(Debug, Clone)]
pub(super) struct Touched {
    pub place: Place,
    pub receives: u32,
    pub failed: u32,
    pub released: u32,
    pub lost: u32,
    /// When it is due, in the places that wait.
    pub due: u64,
    /// The session of a message set aside or parked.
    pub session: u32,
    pub timer: Option<TimerId>,
}

impl Default for Touched {
    fn default() -> Self {
        let place = Place::Ready;
        Self {
            place,
            receives: 0,
            failed: 0,
            released: 0,
            lost: 0,
            due: 0,
            session: NONE,
            timer: None,
        }
    }
}

/// Where a touched message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Ready,
    /// Out, under the lease in this slot.
    Locked(u32),
    /// Waits in its place.
    Delayed,
    /// Waits beside its session, which goes on.
    Parked,
    /// Holds no place yet.
    Scheduled,
    Deferred,
}

impl Place {
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

impl Queue {
    pub(super) fn new(
        name: QueueName,
        spec: QueueSpec,
        dead: QueueId,
        created_at: Timestamp,
        hash_seed: u64,
    ) -> Self {
        let sessions = spec.sessions.required().then(|| Sessions::new(hash_seed));
        Self {
            name,
            spec,
            dead,
            owner: None,
            created_at,
            paused: false,
            index: Index::default(),
            newest: fixed(),
            next_seq: 1,
            cursor: 1,
            returned: BTreeSet::new(),
            touched: fixed(),
            kept: fixed(),
            locked: 0,
            delayed: 0,
            scheduled: 0,
            deferred: 0,
            sessions,
            sessions_held: 0,
            totals: Totals::default(),
            waiting: VecDeque::new(),
            consumers: 0,
            dirty: false,
        }
    }

    /// Answers about it wait for the disk.
    pub(super) fn durable(&self) -> bool {
        self.spec.durability == Durability::Fsync
    }

    pub(super) fn place(&self, seq: u64) -> Place {
        self.touched.get(&seq).map_or(Place::Ready, |t| t.place)
    }

    /// Where the newest record of a message stands.
    pub(super) fn pos(&self, seq: u64) -> Option<Pos> {
        let (first, _) = self.index.get(seq)?;
        if self.newest.is_empty() {
            return Some(first);
        }
        Some(self.newest.get(&seq).copied().unwrap_or(first))
    }

    /// Counts a message out of the place it is in and into another; ready ones are what the rest leaves.
    pub(super) fn count(&mut self, from: Option<Place>, to: Option<Place>) {
        if let Some(counter) = from.and_then(|place| self.counter(place)) {
            *counter = counter.saturating_sub(1);
        }
        if let Some(counter) = to.and_then(|place| self.counter(place)) {
            *counter += 1;
        }
    }

    fn counter(&mut self, place: Place) -> Option<&mut u64> {
        match place {
            Place::Ready => None,
            Place::Locked(_) => Some(&mut self.locked),
            Place::Delayed | Place::Parked => Some(&mut self.delayed),
            Place::Scheduled => Some(&mut self.scheduled),
            Place::Deferred => Some(&mut self.deferred),
        }
    }

    pub(super) fn ready(&self) -> u64 {
        self.index.len().saturating_sub(self.locked + self.delayed + self.scheduled + self.deferred)
    }

    /// Without sessions: moves the cursor past messages that wait or were set aside; when they are ready again they
    /// are found among those that returned. So a million delayed messages are passed once and not at every receive.
    pub(super) fn settle_cursor(&mut self) {
        if self.sessions.is_some() || self.delayed + self.scheduled + self.deferred == 0 {
            return;
        }
        while let Some(seq) =
            self.index.next(self.cursor).filter(|&seq| self.place(seq) != Place::Ready)
        {
            self.cursor = seq + 1;
        }
    }

    /// Without sessions: the next message to deliver after `after`, or the first.
    pub(super) fn next_ready(&self, after: Option<u64>) -> Option<u64> {
        let floor = after.map_or(0, |seq| seq + 1);
        if let Some(&seq) = self.returned.range(floor..).next() {
            return Some(seq);
        }
        let mut seq = self.index.next(self.cursor.max(floor))?;
        // Only messages that wait or were set aside before their turn are skipped.
        if self.delayed + self.scheduled + self.deferred > 0 {
            while self.place(seq) != Place::Ready {
                seq = self.index.next(seq + 1)?;
            }
        }
        Some(seq)
    }

    /// Of a session: the next message for its holder at or after its cursor.
    pub(super) fn next_of(&self, slot: u32, after: Option<u64>) -> Option<u64> {
        let session = self.sessions.as_ref()?.at(slot)?;
        let from = after.map_or(session.cursor, |seq| seq + 1);
        for i in session.line.place(from)..session.line.len() {
            let seq = session.line.get(i)?;
            if !self.index.contains(seq) {
                continue;
            }
            match self.place(seq) {
                Place::Ready => return Some(seq),
                Place::Delayed => return None,
                Place::Locked(_) | Place::Parked | Place::Scheduled | Place::Deferred => {}
            }
        }
        None
    }

    /// The session in whose line a message stands. Looks through all of them: for an operator's hand only.
    pub(super) fn session_with(&self, seq: u64) -> Option<u32> {
        let has = |s: &super::sessions::Session| s.line.get(s.line.place(seq)) == Some(seq);
        self.sessions.as_ref()?.iter().find(|(_, s)| has(s)).map(|(slot, _)| slot)
    }

    /// Drops what is gone from the front of a session's line, and puts the session into the ready ring or takes it out.
    pub(super) fn refresh_session(&mut self, slot: u32) {
        let Some(sessions) = self.sessions.as_mut() else { return };
        let Some(session) = sessions.at_mut(slot) else { return };
        let mut ready = false;
        while let Some(seq) = session.line.first() {
            let place = self.touched.get(&seq).map_or(Place::Ready, |t| t.place);
            if !self.index.contains(seq) || matches!(place, Place::Deferred | Place::Parked) {
                session.line.pop();
                continue;
            }
            ready = place == Place::Ready && session.out == 0 && session.hold == NONE;
            break;
        }
        sessions.set_ready(slot, ready);
        sessions.forget_if_idle(slot);
    }

    pub(super) fn facts(&self, dead_lettered: u64) -> QueueFacts {
        let sessions = self.sessions.as_ref();
        let oldest =
            if self.sessions.is_some() { self.index.next(0) } else { self.next_ready(None) };
        QueueFacts {
            name: self.name.clone(),
            spec: self.spec.clone(),
            created_at: self.created_at,
            paused: self.paused,
            ready: self.ready(),
            locked: self.locked,
            delayed: self.delayed,
            scheduled: self.scheduled,
            deferred: self.deferred,
            dead_lettered,
            bytes: self.index.bytes(),
            oldest_at: oldest.and_then(|seq| self.index.about_when(seq)).map(Timestamp),
            consumers: self.consumers,
            sessions: sessions.map_or(0, |s| s.len() as u64),
            sessions_held: self.sessions_held,
            sessions_ready: sessions.map_or(0, |s| s.ready() as u64),
            totals: self.totals,
        }
    }
}
