//! The requests and answers of all clients, and the checks that follow from them.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash};

use bytes::Bytes;
use malote_engine::Delivery;
use malote_model::{Body, BodyKind, Message, SessionId, Timestamp};

use super::time::Clocks;
use crate::rng::Rng;
use crate::situations::Situations;

/// Streams of messages in one queue, each sent by one client at a time, in order.
pub(super) const STREAMS: u64 = 3;

/// At a start, a message that has been due for this long is in its subscription.
const ROUTED_MS: u64 = 100;

/// Index of a queue in [`super::clients::QUEUES`].
pub(super) type Queue = u64;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Which {
    pub queue: Queue,
    pub stream: u64,
    pub n: u64,
}

/// A message that a client holds.
struct Out {
    holder: u64,
    /// The grant's number: deliveries can reach clients in a different order than they were granted.
    grant: u32,
    /// The lease is certainly valid until this time of the monotonic clock.
    safe_until: u64,
}

pub(super) struct History {
    pub rng: Rng,
    pub clocks: Clocks,
    pub met: Situations,
    tried: BTreeSet<Which>,
    refused: BTreeSet<Which>,
    sent: BTreeSet<Which>,
    /// Number of settlements per message that may have taken effect: those not answered with a refusal.
    completing: BTreeMap<Which, u32>,
    completed: BTreeSet<Which>,
    /// The earliest delivery of scheduled messages.
    due: BTreeMap<Which, Timestamp>,
    out: BTreeMap<Which, Out>,
    next: BTreeMap<(Queue, u64), u64>,
    busy: BTreeSet<(Queue, u64)>,
    next_hand: u64,
    /// Clients stop as soon as they can.
    pub stopping: bool,
    pub producing: bool,
    /// Ids of messages that were stored by an earlier version.
    pub old: BTreeSet<String>,
    pub hasher: DefaultHasher,
    pub verbose: bool,
    pub trace: Vec<String>,
}

impl History {
    pub(super) fn new(rng: Rng, clocks: Clocks, verbose: bool) -> Self {
        Self {
            rng,
            clocks,
            met: Situations::default(),
            tried: BTreeSet::new(),
            refused: BTreeSet::new(),
            sent: BTreeSet::new(),
            completing: BTreeMap::new(),
            completed: BTreeSet::new(),
            due: BTreeMap::new(),
            out: BTreeMap::new(),
            next: BTreeMap::new(),
            busy: BTreeSet::new(),
            next_hand: 0,
            stopping: false,
            producing: true,
            old: BTreeSet::new(),
            hasher: DefaultHasher::new(),
            verbose,
            trace: Vec::new(),
        }
    }

    pub(super) fn say(&mut self, what: String) {
        what.hash(&mut self.hasher);
        if self.verbose {
            eprintln!("{what}");
        }
        if self.trace.len() >= 80 {
            self.trace.remove(0);
        }
        self.trace.push(what);
    }

    /// Reserves a stream, to which no other client sends.
    pub(super) fn take_stream(&mut self, queue: Queue) -> Option<u64> {
        let stream = self.rng.below(STREAMS);
        self.busy.insert((queue, stream)).then_some(stream)
    }

    pub(super) fn leave_stream(&mut self, queue: Queue, stream: u64) {
        self.busy.remove(&(queue, stream));
    }

    /// Reserves the next numbers of a stream, before they are sent.
    pub(super) fn trying(&mut self, queue: Queue, stream: u64, count: u64) -> Vec<Which> {
        let next = self.next.entry((queue, stream)).or_default();
        let these: Vec<_> = (*next..*next + count).map(|n| Which { queue, stream, n }).collect();
        *next += count;
        self.tried.extend(&these);
        self.say(format!("send {these:?}"));
        these
    }

    pub(super) fn is_due_at(&mut self, which: Which, at: Timestamp) {
        self.due.insert(which, at);
    }

    pub(super) fn sent(&mut self, these: &[Which]) {
        self.say(format!("sent {these:?}"));
        self.met.count("stepped: sent", these.len() as u64);
        self.sent.extend(these);
    }

    pub(super) fn refused(&mut self, these: &[Which], why: &str) {
        self.say(format!("refused {these:?}: {why}"));
        self.met.count("stepped: refused", 1);
        self.refused.extend(these);
    }

    pub(super) fn new_holder(&mut self) -> u64 {
        self.next_hand += 1;
        self.next_hand
    }

    /// A client ended, and so do its leases.
    pub(super) fn drop_holder(&mut self, holder: u64) {
        self.out.retain(|_, out| out.holder != holder);
    }

    /// A message reached a client, which holds it until its lease ends. Returns false if the lease may have ended
    /// already; then the client's state is unknown.
    pub(super) fn delivered(&mut self, holder: u64, delivery: &Delivery, now: Timestamp) -> bool {
        let which = Which::of(&delivery.stored.message);
        let elapsed = self.clocks.elapsed();
        self.say(format!("{} holder {holder} has {which:?} until {}", now.0, delivery.until.0));
        self.known(which, now);
        let grant = delivery.receives;
        let other = self.out.get(&which).filter(|out| elapsed < out.safe_until);
        if let Some(other) = other.filter(|other| delivery.until > now || grant > other.grant) {
            panic!(
                "{which:?} is held by {holder}, and by {} until {}",
                other.holder, other.safe_until
            );
        }
        if delivery.until <= now {
            self.met.count("stepped: delivered late", 1);
            if self.out.get(&which).is_none_or(|out| out.grant < grant) {
                self.out.insert(which, Out { holder, grant, safe_until: elapsed });
            }
            return false;
        }
        self.not_completed(which);
        self.met.count("stepped: delivered", 1);
        self.check_order(which, holder);
        // The core's clock runs at most a tenth too fast while it approaches the wall clock.
        let left = (delivery.until.0 - now.0).saturating_sub(100);
        self.out.insert(which, Out { holder, grant, safe_until: elapsed + left * 10 / 11 });
        true
    }

    /// A message reached a client by receive-and-delete.
    pub(super) fn taken(&mut self, holder: u64, delivery: &Delivery, now: Timestamp) {
        let which = Which::of(&delivery.stored.message);
        self.say(format!("{} holder {holder} took {which:?}", now.0));
        self.known(which, now);
        self.not_completed(which);
        self.met.count("stepped: taken", 1);
        self.completing.insert(which, 1);
        self.completed.insert(which);
    }

    fn known(&self, which: Which, now: Timestamp) {
        assert!(self.tried.contains(&which), "{which:?} was never sent");
        assert!(!self.refused.contains(&which), "{which:?} was refused, but exists");
        let early = self.due.get(&which).filter(|&&due| due > now);
        assert_eq!(early, None, "{which:?} was delivered early, at {now:?}");
    }

    fn not_completed(&self, which: Which) {
        assert!(!self.completed.contains(&which), "{which:?} was completed, but is delivered");
    }

    /// All earlier messages of the session are completed or held by the same client.
    fn check_order(&self, which: Which, holder: u64) {
        if !which.is_ordered() {
            return;
        }
        let mut earlier = self.sent.range(Which { n: 0, ..which }..which);
        let passed = earlier.find(|earlier| {
            let with = self.out.get(earlier).map(|out| out.holder);
            !self.completing.contains_key(earlier) && with != Some(holder)
        });
        assert_eq!(passed, None, "{which:?} was delivered to {holder} before an earlier message");
    }

    pub(super) fn completing(&mut self, which: Which) {
        *self.completing.entry(which).or_default() += 1;
    }

    pub(super) fn settled(&mut self, holder: u64, which: Which, ok: bool) {
        self.say(format!("holder {holder} completed {which:?}: {ok}"));
        if ok {
            self.met.count("stepped: completed", 1);
            assert!(self.completed.insert(which), "{which:?} was completed twice");
            self.unsure(holder, which);
        } else if let Some(count) = self.completing.get_mut(&which) {
            *count -= 1;
            if *count == 0 {
                self.completing.remove(&which);
            }
        }
    }

    /// A client is about to return a message or to renew its lease, so another client may get it soon. Earlier grants
    /// to the same client may still arrive after this.
    pub(super) fn unsure(&mut self, holder: u64, which: Which) {
        let elapsed = self.clocks.elapsed();
        if let Some(out) = self.out.get_mut(&which).filter(|out| out.holder == holder) {
            out.safe_until = elapsed;
        }
    }

    /// Whether all sent messages were completed.
    pub(super) fn all_done(&self) -> bool {
        self.left().next().is_none()
    }

    /// Messages that were sent and must still exist.
    pub(super) fn left(&self) -> impl Iterator<Item = &Which> {
        self.sent.iter().filter(|which| which.stays() && !self.completing.contains_key(which))
    }

    /// The engine was opened again, and `found` is in its queues. After power loss, relaxed queues may have lost
    /// their last changes.
    pub(super) fn reopened(&mut self, found: &[Which], power: bool, now: Timestamp) {
        self.out.clear();
        self.busy.clear();
        let all: BTreeSet<Which> = found.iter().copied().collect();
        assert_eq!(all.len(), found.len(), "a message is in its queue twice: {found:?}");
        if power {
            self.forget_relaxed(&all);
        }
        for which in &all {
            assert!(self.tried.contains(which), "{which:?} was never sent");
            assert!(!self.refused.contains(which), "{which:?} was refused, but exists");
            assert!(!self.completed.contains(which), "{which:?} was completed, but exists");
        }
        // Messages that are not due, or not yet routed, are in their topic, where clients cannot see them.
        let waits =
            |which: &Which| self.due.get(which).is_some_and(|due| due.0 + ROUTED_MS > now.0);
        let is_lost = |which: &&Which| !all.contains(which) && !waits(which);
        let lost: Vec<_> = self.left().filter(is_lost).collect();
        assert!(lost.is_empty(), "acknowledged, but lost: {lost:?}");
        for (queue, stream) in (0..3).flat_map(|q| (0..STREAMS).map(move |s| (q, s))) {
            let of_it = |which: &&Which| which.queue == queue && which.stream == stream;
            let seen: Vec<u64> = found.iter().filter(of_it).map(|which| which.n).collect();
            assert!(seen.is_sorted(), "stream {stream} of {queue} is out of order: {seen:?}");
        }
    }

    /// A relaxed queue may lose only the last messages and settlements.
    fn forget_relaxed(&mut self, all: &BTreeSet<Which>) {
        let is_relaxed = |which: &&Which| which.is_relaxed();
        for which in all.iter().filter(is_relaxed) {
            self.completed.remove(which);
            self.completing.remove(which);
        }
        let lost: Vec<_> = self
            .left()
            .filter(|which| which.is_relaxed() && !all.contains(which))
            .copied()
            .collect();
        for which in lost {
            let later = all.range(which..Which { n: u64::MAX, ..which }).next();
            assert_eq!(later, None, "{which:?} was lost, but a later message was not");
            self.met.count("stepped: relaxed and lost", 1);
            self.sent.remove(&which);
        }
    }
}

impl Which {
    /// A message with a body of at least this many bytes.
    pub(super) fn message(self, bytes: usize) -> Message {
        let mut body = Vec::with_capacity(bytes.max(24));
        for number in [self.queue, self.stream, self.n] {
            body.extend_from_slice(&number.to_le_bytes());
        }
        body.resize(bytes.max(24), 7);
        let session = SessionId::new(&format!("s{}", self.stream)).ok();
        Message {
            session: session.filter(|_| self.is_ordered()),
            body: Body { bytes: Bytes::from(body), kind: BodyKind::Bytes },
            ..Message::default()
        }
    }

    pub(super) fn of(message: &Message) -> Self {
        let number = |at: usize| {
            let bytes = message.body.bytes.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
            u64::from_le_bytes(
                bytes.unwrap_or_else(|| panic!("not sent by this simulation: {message:?}")),
            )
        };
        Self { queue: number(0), stream: number(8), n: number(16) }
    }

    fn is_ordered(self) -> bool {
        matches!(self.queue, super::clients::LINE | super::clients::RELAXED)
    }

    fn is_relaxed(self) -> bool {
        self.queue == super::clients::RELAXED
    }

    /// It exists until a client completes it.
    fn stays(self) -> bool {
        self.queue != super::clients::TAKEN
    }
}
