//! What the reference model says to each question, and what it allows the engine to do by itself.
//!
//! The engine decides first; here its answer is checked and its effect noted. Where docs/concepts/model.md leaves a choice (which
//! consumer is served, which of two timers of one moment comes first) the engine's choice is taken over if it is legal.

mod answer;
mod ask;
mod check;
mod forward;
mod happen;
mod journal;
mod life;
pub(crate) mod matching;
mod send;
mod serve;
mod time;
mod together;
mod topic_admin;
mod topics;

pub use ask::{Ask, REDRIVE};
pub use journal::Group;
pub use together::{SetState, Settle};
pub use topic_admin::TopicAsk;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use malote_engine::event::QueueId;
use malote_engine::journal::Pos;
use malote_engine::{ConsumerId, Wants};
use malote_model::{LeaseToken, QueueName, TopicName};

use self::life::Life;
use crate::met::Met;
use crate::model::{Ev, State};

/// What must be so before an answer may leave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Need {
    pub durable: Pos,
    pub written: Pos,
}

impl Need {
    fn and(self, other: Need) -> Need {
        let durable = self.durable.max(other.durable);
        Need { durable, written: self.written.max(other.written) }
    }
}

/// Somebody who waits for messages or for a session. Over with a restart.
#[derive(Clone, Debug)]
pub struct Consumer {
    pub queue: QueueName,
    pub connection: Option<u64>,
    /// Its leases do not end with the connection.
    pub free_standing: bool,
    /// None waits for a session.
    pub wants: Option<Wants>,
    pub credit: u32,
    pub take: bool,
    pub lock_ms: Option<u64>,
    /// Answers this request, at this time at the latest.
    pub once: Option<(u64, u64)>,
}

/// A change, and where the group ends that it stands in.
struct Entry {
    end: Pos,
    ev: Ev,
}

/// The state now, the state that is durable, and what lies between.
#[derive(Default)]
pub struct Model {
    pub state: State,
    base: State,
    log: VecDeque<Entry>,
    pub consumers: BTreeMap<ConsumerId, Consumer>,
    /// Consumers that must hear that they ended, in this step.
    pub ended: BTreeSet<ConsumerId>,
    /// Every token ever issued, and for which queue.
    pub issued: BTreeMap<LeaseToken, QueueName>,
    /// Where the group of what is decided now ends.
    end: Pos,
    /// Names of the engine's queues.
    pub names: BTreeMap<QueueId, QueueName>,
    pub topic_names: BTreeMap<QueueId, TopicName>,
    /// What must stand in the journal of this step.
    noted: Vec<String>,
    /// What expired in this group, by the engine's word.
    said_expired: BTreeSet<(QueueName, u64)>,
    /// Since the last start: who used which queue when, and queues whose last consumer left.
    lives: BTreeMap<QueueName, Life>,
    leaving: BTreeSet<QueueName>,
    /// Queues and inboxes whose messages could not go on, and when that was last so.
    stuck: BTreeMap<QueueName, u64>,
    /// Where each queue stood before a step of many groups: an answer in it may rest on that.
    before: Option<BTreeMap<QueueName, Pos>>,
    now: u64,
    /// Since the last start, something that was due may have found no room.
    tried_again: bool,
    /// When what is due was last done.
    expired_at: u64,
    pub verbose: bool,
    /// What a run went through that only the model can tell.
    pub met: Met,
}

impl Model {
    /// Something happens in the engine at `now`; its group ends there.
    pub fn begin(&mut self, now: u64, end: Pos) {
        (self.now, self.end) = (now, end);
        self.said_expired.clear();
    }

    fn note(&mut self, ev: Ev) {
        if self.verbose {
            eprintln!("    model: {ev:?}");
        }
        self.noted.extend(journal::words(&self.state, &ev));
        self.state.apply(&ev, self.end);
        self.log.push_back(Entry { end: self.end, ev });
    }

    /// Everything up to here is durable.
    pub fn durable(&mut self, pos: Pos) {
        while self.log.front().is_some_and(|entry| entry.end <= pos) {
            if let Some(Entry { end, ev }) = self.log.pop_front() {
                self.base.apply(&ev, end);
            }
        }
    }

    /// The journal was cut here, and the broker started again at `now`.
    pub fn crash(&mut self, cut: Pos, now: u64) {
        let mut state = std::mem::take(&mut self.base);
        for Entry { end, ev } in self.log.drain(..).filter(|entry| entry.end <= cut) {
            state.apply(&ev, end);
        }
        state.apply(&Ev::Boot, cut);
        self.base = state.clone();
        self.state = state;
        self.consumers.clear();
        self.ended.clear();
        self.noted.clear();
        self.stuck.clear();
        self.tried_again = false;
        self.begin_lives(now);
        for q in self.state.queues.values_mut() {
            q.loose = true;
        }
    }

    fn eager(&self, queue: &QueueName) -> Need {
        let now = || self.state.queues.get(queue).map(|q| q.eager);
        let before = self.before.as_ref().map(|before| before.get(queue).copied());
        let durable = before.unwrap_or_else(now).unwrap_or(Pos::ZERO);
        Need { durable, written: Pos::ZERO }
    }

    fn done(&self, queue: &QueueName) -> Need {
        let hi = self.end;
        match self.state.queues.get(queue).is_none_or(|q| q.durable()) {
            true => Need { durable: hi, written: hi },
            false => Need { durable: Pos::ZERO, written: hi },
        }
    }

    fn eager_of_tokens(&self, tokens: &[LeaseToken]) -> Need {
        let queues = tokens.iter().filter_map(|token| self.issued.get(token));
        queues.map(|queue| self.eager(queue)).max_by_key(|need| need.durable).unwrap_or_default()
    }
}
