//! The reference model's answer to each request, and what it allows the engine to do without a request.
//!
//! The engine decides first; the model checks the answer and applies its effect. Where docs/concepts/model.md leaves
//! a choice (which consumer is served, which of two timers for the same time fires first), the model accepts the
//! engine's choice if it is allowed.

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
use crate::model::{Ev, State};
use crate::situations::Situations;

/// The journal positions that must be durable and written before an answer may be sent.
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

/// A consumer of messages, or a request that waits for a session. It ends with a restart.
#[derive(Clone, Debug)]
pub struct Consumer {
    pub queue: QueueName,
    pub connection: Option<u64>,
    /// Its leases do not end with the connection.
    pub free_standing: bool,
    /// `None`: waits for a session.
    pub wants: Option<Wants>,
    pub credit: u32,
    pub take: bool,
    pub lock_ms: Option<u64>,
    /// A single request, with the time at which it must be answered.
    pub once: Option<(u64, u64)>,
    /// No other consumer may attach.
    pub exclusive: bool,
}

/// A change, and the end of its journal group.
struct Entry {
    end: Pos,
    ev: Ev,
}

/// The current state, the durable state, and the changes between them.
#[derive(Default)]
pub struct Model {
    pub state: State,
    base: State,
    log: VecDeque<Entry>,
    pub consumers: BTreeMap<ConsumerId, Consumer>,
    /// Consumers that must be notified of their end in this step.
    pub ended: BTreeSet<ConsumerId>,
    /// Every token ever issued, with its queue.
    pub issued: BTreeMap<LeaseToken, QueueName>,
    /// End of the journal group of the current decision.
    end: Pos,
    /// Names of the engine's queues.
    pub names: BTreeMap<QueueId, QueueName>,
    pub topic_names: BTreeMap<QueueId, TopicName>,
    /// The expected journal of this step.
    noted: Vec<String>,
    /// Messages that expired in this group, according to the engine.
    said_expired: BTreeSet<(QueueName, u64)>,
    /// Since the last start: the use of each queue, and queues whose last consumer left.
    lives: BTreeMap<QueueName, Life>,
    leaving: BTreeSet<QueueName>,
    /// Queues and inboxes whose messages are blocked, with the time of the last attempt.
    stuck: BTreeMap<QueueName, u64>,
    /// The position of each queue before a step of several groups, which an answer within the step may depend on.
    before: Option<BTreeMap<QueueName, Pos>>,
    now: u64,
    /// Since the last start, a due action may have been postponed because the disk was full.
    tried_again: bool,
    /// When due actions were last performed.
    expired_at: u64,
    pub verbose: bool,
    /// Situations that only the model can detect.
    pub met: Situations,
}

impl Model {
    /// The engine makes a decision at `now`; its group ends at `end`.
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

    /// Everything up to `pos` is durable.
    pub fn durable(&mut self, pos: Pos) {
        while self.log.front().is_some_and(|entry| entry.end <= pos) {
            if let Some(Entry { end, ev }) = self.log.pop_front() {
                self.base.apply(&ev, end);
            }
        }
    }

    /// The journal was cut at `cut`, and the broker restarted at `now`.
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
