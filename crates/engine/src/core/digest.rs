//! Digests of the state, written to the journal so that a replay can compare its own state with the live one.
//!
//! A record covers some queues, topics and leases and continues where the last record ended: the work per record is
//! bounded, whatever the number of messages. Counters of a queue are always covered, so a missing message is noticed
//! in the first record about its queue.
//!
//! Some of the live state follows from the clock and is not journaled: the end of a delay, and the end of a
//! de-duplication window. The hashes leave out what differs for that reason alone: a message whose delay is over at
//! the time of the digest counts as ready, and keys outside their window do not count.

use std::ops::Bound;

use malote_model::{QueueName, SessionId, Timestamp, TopicName};
use xxhash_rust::xxh3::xxh3_64;

use super::dedup::Seen;
use super::leases::{Lease, Leased as Kind};
use super::queue::{Kept, Place, Queue, Touched};
use super::sessions::Session;
use super::topic::Topic;
use super::{Core, SMALL_ROOM, Turn};
use crate::codec::{encode_event, put_rule, put_spec, put_topic_spec, put_way};
use crate::event::{Digest, Event, LeaseDigest, QueueDigest, QueueId, SessionDigest, TopicDigest};
use crate::journal::{Divergence, Pos};

/// How the hashes are computed. A digest of another method is not compared: change this number whenever a hash
/// changes, also by a new field of a specification.
const METHOD: u8 = 2;

/// Time from one digest to the next, while something is journaled.
const EVERY_MS: u64 = 1000;

/// Damaged parts that a record names at most. After a start with more, no digest is written: a disk that bad needs
/// other help.
const DAMAGE: usize = 64;

/// What one record covers at most.
const QUEUES: usize = 32;
const TOPICS: usize = 8;
const MESSAGES: usize = 2048;
const SESSIONS: usize = 32;
const LEASES: u32 = 2048;
/// Messages of a session's line, from its front.
const LINE: usize = 64;
/// Rules of a topic; of a topic with more, only their number.
const RULES: usize = 64;

/// The live core's progress: where the next digest continues.
#[derive(Debug, Default)]
pub(super) struct Rounds {
    /// The last queue that was covered completely, and how far the next one is covered.
    queue: Option<QueueName>,
    seq: u64,
    session_slot: u32,
    topic: Option<TopicName>,
    lease_slot: u32,
    /// When the last digest was written, and where the journal ended then.
    at: u64,
    end: Pos,
}

/// What a replay found out by comparing digests.
#[derive(Debug, Default)]
pub(super) struct Checks {
    compared: u64,
    /// Damaged parts of the journal that were skipped: records are missing. A broker that was started before the
    /// damage had them; its digests are not compared.
    skipped: Vec<(Pos, Pos)>,
    first: Option<Divergence>,
}

impl Checks {
    pub(super) fn damage_skipped(&mut self, from: Pos, to: Pos) {
        self.skipped.push((from, to));
    }

    pub(super) fn divergence(&self) -> Option<Divergence> {
        self.first.clone()
    }
}

/// An ordered hash of numbers.
#[derive(Clone, Copy)]
struct Mix(u64);

impl Mix {
    const fn new() -> Self {
        Self(0x51_7cc1_b727_2220)
    }

    fn put(&mut self, n: u64) -> &mut Self {
        let mixed = (self.0 ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 29);
        self
    }

    fn text(&mut self, text: &str) -> &mut Self {
        self.put(xxh3_64(text.as_bytes()))
    }
}

impl Turn<'_> {
    /// Writes a digest if it is time for one and something happened since the last.
    pub(super) fn digest_if_due(&mut self) {
        let (now, end) = (self.now.0, self.log.end_pos());
        let rounds = &self.core.live().rounds;
        if now >= rounds.at.saturating_add(EVERY_MS) && end != rounds.end {
            self.digest();
        }
    }

    /// Writes a digest. It is lazy: nobody waits for it. On a full disk it is left out, because the last room is kept
    /// for settling.
    pub fn digest(&mut self) {
        if !self.publish_allowed || self.core.checks.skipped.len() > DAMAGE {
            return;
        }
        let event = Event::Digest(Box::new(self.core.next_digest(self.now)));
        let mut bytes = Vec::new();
        encode_event(&mut bytes, &event);
        if self.begin(bytes.len() + SMALL_ROOM).is_err() {
            return;
        }
        self.commit(event, true);
        self.end();
        let (now, end) = (self.now.0, self.log.end_pos());
        let rounds = &mut self.core.live().rounds;
        (rounds.at, rounds.end) = (now, end);
    }
}

impl Core {
    /// How many digests a replay has compared.
    pub fn digests_compared(&self) -> u64 {
        self.checks.compared
    }

    pub(super) fn next_digest(&mut self, at: Timestamp) -> Digest {
        let mut rounds = std::mem::take(&mut self.live().rounds);
        let queues = self.next_queues(&mut rounds, at.0);
        let topics = self.next_topics(&mut rounds, at.0);
        let (from, slots) = (rounds.lease_slot, self.leases.slots());
        let to = from.saturating_add(LEASES).min(slots);
        rounds.lease_slot = if to < slots { to } else { 0 };
        let leases = LeaseDigest { from, to, hash: self.lease_hash(from, to) };
        self.live().rounds = rounds;
        let damage = self.checks.skipped.clone();
        Digest { method: METHOD, at, damage, totals: self.totals_hash(), queues, topics, leases }
    }

    fn next_queues(&self, rounds: &mut Rounds, at: u64) -> Vec<QueueDigest> {
        let (mut messages, mut sessions) = (MESSAGES, SESSIONS);
        let mut out = Vec::new();
        while out.len() < QUEUES.min(self.names.len()) {
            let after = rounds.queue.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
            let Some((name, &id)) =
                self.names.range::<QueueName, _>((after, Bound::Unbounded)).next()
            else {
                (rounds.queue, rounds.seq, rounds.session_slot) = (None, 0, 0);
                continue;
            };
            let Some(q) = self.queues.get(&id) else { break };
            let from = rounds.seq;
            let to = q.window(from, &mut messages);
            let mut digest = q.digest(id, at, from, to);
            let next_slot = q.session_window(rounds.session_slot, &mut sessions, |s| {
                let below = s.line.get(LINE).unwrap_or(u64::MAX);
                let (session, hash) = (s.id.clone(), q.session_hash(s, below));
                digest.sessions.push(SessionDigest { session, below, hash });
            });
            out.push(digest);
            match next_slot {
                None if to == u64::MAX => {
                    let done = name.clone();
                    (rounds.queue, rounds.seq, rounds.session_slot) = (Some(done), 0, 0);
                }
                next_slot => {
                    (rounds.seq, rounds.session_slot) = (to, next_slot.unwrap_or(u32::MAX));
                    break;
                }
            }
        }
        out
    }

    fn next_topics(&self, rounds: &mut Rounds, at: u64) -> Vec<TopicDigest> {
        let mut out = Vec::new();
        while out.len() < TOPICS.min(self.topic_names.len()) {
            let after = rounds.topic.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
            let Some((name, &id)) =
                self.topic_names.range::<TopicName, _>((after, Bound::Unbounded)).next()
            else {
                rounds.topic = None;
                continue;
            };
            let Some(topic) = self.topics.get(&id) else { break };
            rounds.topic = Some(name.clone());
            out.push(TopicDigest { topic: id, hash: self.topic_hash(id, topic, at) });
        }
        out
    }

    /// Compares a digest with this state. The first difference is kept.
    pub(super) fn compare(&mut self, pos: Pos, digest: &Digest) {
        let known = |damage: &(Pos, Pos)| digest.damage.contains(damage);
        if self.live.is_some() || digest.method != METHOD || !self.checks.skipped.iter().all(known)
        {
            return;
        }
        self.checks.compared += 1;
        if self.checks.first.is_none()
            && let Some(what) = self.difference(digest)
        {
            self.checks.first = Some(Divergence { at: pos, what });
        }
    }

    /// What is different from what a digest says.
    fn difference(&self, digest: &Digest) -> Option<String> {
        let at = digest.at.0;
        for of in &digest.queues {
            let Some(q) = self.queues.get(&of.queue) else {
                return Some(format!("queue {} is missing", of.queue.0));
            };
            let own = q.digest(of.queue, at, of.from, of.to);
            let parts = [
                ("settings", own.settings, of.settings),
                ("counters", own.counters, of.counters),
                ("messages", own.messages, of.messages),
                ("de-duplication keys", own.keys, of.keys),
            ];
            if let Some((part, ..)) = parts.into_iter().find(|(_, own, other)| own != other) {
                let (name, from, to) = (&q.name, of.from, of.to);
                return Some(format!("{part} of queue {name}, sequences {from} to {to}"));
            }
            for SessionDigest { session, below, hash } in &of.sessions {
                if q.session_hash_of(session, *below) != Some(*hash) {
                    return Some(format!("session {session} of queue {}", q.name));
                }
            }
        }
        for of in &digest.topics {
            let Some(topic) = self.topics.get(&of.topic) else {
                return Some(format!("topic {} is missing", of.topic.0));
            };
            if self.topic_hash(of.topic, topic, at) != of.hash {
                return Some(format!("topic {}", topic.name));
            }
        }
        let LeaseDigest { from, to, hash } = digest.leases;
        if self.lease_hash(from, to) != hash {
            return Some(format!("leases in the slots {from} to {to}"));
        }
        (self.totals_hash() != digest.totals)
            .then(|| "the number of queues, topics, rules, leases or changed records".to_owned())
    }

    fn totals_hash(&self) -> u64 {
        let mut mix = Mix::new();
        for n in
            [self.queues.len(), self.topics.len(), self.rules, self.leases.len(), self.under.len()]
        {
            mix.put(n as u64);
        }
        mix.put(u64::from(self.epoch)).put(u64::from(self.next_queue)).put(self.last_at).0
    }

    fn topic_hash(&self, id: QueueId, topic: &Topic, at: u64) -> u64 {
        let mut mix = Mix::new();
        let mut spec = Vec::new();
        put_topic_spec(&mut spec, &topic.spec);
        mix.text(topic.name.as_str()).put(xxh3_64(&spec)).put(topic.created_at.0);
        mix.put(u64::from(topic.had_rule)).put(topic.totals.copies).put(topic.router.len() as u64);
        if topic.router.len() <= RULES {
            for queue in topic.router.targets() {
                for rule in topic.router.rules(queue) {
                    let mut bytes = Vec::new();
                    put_rule(&mut bytes, rule).expect("the rule was checked when it was decided");
                    mix.put(u64::from(queue.0)).put(xxh3_64(&bytes));
                }
            }
        }
        let window_ms = topic.spec.dedup.map_or(0, |dedup| dedup.window_ms);
        mix.put(keys_hash(topic.seen.as_deref(), window_ms, at));
        // What the topic has not routed yet is a queue without a name of its own.
        if let Some(inbox) = self.queues.get(&id) {
            let to = inbox.window(0, &mut { MESSAGES / TOPICS });
            let inbox = inbox.digest(id, at, 0, to);
            mix.put(inbox.settings).put(inbox.counters).put(inbox.messages);
        }
        mix.0
    }

    fn lease_hash(&self, from: u32, to: u32) -> u64 {
        let mut mix = Mix::new();
        for slot in from..to {
            mix.put(u64::from(self.leases.grants(slot)));
            let Some(lease) = self.leases.at(slot) else { continue };
            let Lease { token, queue, until, bound, what, .. } = lease;
            mix.put(u64::from(token.epoch))
                .put(u64::from(token.grant))
                .put(u64::from(token.random));
            mix.put(u64::from(queue.0)).put(*until).put(u64::from(*bound));
            let q = self.queues.get(queue);
            let session = |slot: u32| q.map_or(0, |q| q.session_id_hash(slot));
            match *what {
                Kind::Session { session: slot } => mix.put(1).put(session(slot)),
                Kind::Message { seq, session: slot, hold, deferred } => {
                    mix.put(2).put(seq).put(slot.map_or(0, session));
                    mix.put(hold.map_or(0, |hold| u64::from(hold) + 1)).put(u64::from(deferred))
                }
            };
        }
        mix.0
    }
}

impl Queue {
    /// Where a window of live messages from `from` ends, exclusive; the end of the queue is `u64::MAX`. Takes the
    /// messages off the budget.
    fn window(&self, from: u64, budget: &mut usize) -> u64 {
        if from == u64::MAX {
            return from;
        }
        for entry in self.index.entries_from(from) {
            if *budget == 0 {
                return entry.seq;
            }
            *budget -= 1;
        }
        u64::MAX
    }

    /// Gives the sessions from a slot on and takes them off the budget. Tells where to continue, none at the end.
    fn session_window(
        &self,
        from: u32,
        budget: &mut usize,
        mut each: impl FnMut(&Session),
    ) -> Option<u32> {
        let sessions = self.sessions.as_ref()?;
        // Slots without a session count as well: there may be many after a peak.
        let mut looked = 64 * *budget;
        for slot in from..sessions.slots() {
            if *budget == 0 || looked == 0 {
                return Some(slot);
            }
            looked -= 1;
            if let Some(session) = sessions.at(slot) {
                each(session);
                *budget -= 1;
            }
        }
        None
    }

    fn digest(&self, id: QueueId, at: u64, from: u64, to: u64) -> QueueDigest {
        let mut settings = Mix::new();
        let mut spec = Vec::new();
        put_spec(&mut spec, &self.spec);
        settings.text(self.name.as_str()).put(xxh3_64(&spec)).put(self.created_at.0);
        settings.put(u64::from(self.dead.0)).put(self.owner.map_or(0, |owner| u64::from(owner.0)));
        settings.put(u64::from(self.paused));
        let mut counters = Mix::new();
        let sessions = self.sessions.as_ref().map_or(0, |sessions| sessions.len() as u64);
        for n in [
            self.index.len(),
            self.index.bytes(),
            self.next_seq,
            self.locked,
            self.scheduled,
            self.deferred,
            self.newest.len() as u64,
            self.kept.len() as u64,
            self.sessions_held,
            sessions,
        ] {
            counters.put(n);
        }
        self.totals.values().iter().for_each(|&n| {
            counters.put(n);
        });
        let mut messages = Mix::new();
        for entry in self.index.entries_from(from).take_while(|entry| entry.seq < to) {
            let pos = self.newest.get(&entry.seq).copied().unwrap_or(entry.pos);
            messages.put(entry.seq).put(pos.get()).put(u64::from(entry.size));
            messages.put(entry.expires).put(u64::from(entry.priority));
            if let Some(touched) = self.touched.get(&entry.seq) {
                self.put_touched(&mut messages, touched, at);
            }
            if let Some(kept) = self.kept.get(&entry.seq) {
                put_kept(&mut messages, kept);
            }
        }
        let window_ms = self.spec.dedup.map_or(0, |dedup| dedup.window_ms);
        let keys = keys_hash(self.seen.as_deref(), window_ms, at);
        let (settings, counters, messages) = (settings.0, counters.0, messages.0);
        QueueDigest {
            queue: id,
            settings,
            counters,
            keys,
            from,
            to,
            messages,
            sessions: Vec::new(),
        }
    }

    fn put_touched(&self, mix: &mut Mix, touched: &Touched, at: u64) {
        let Touched { place, receives, failed, released, lost, first, due, session, .. } = touched;
        let (tag, value) = match place {
            Place::Locked(slot) => (1, u64::from(*slot)),
            Place::Deferred => (2, self.session_id_hash(*session)),
            Place::Scheduled => (3, *due),
            // A delay that is over is no event.
            Place::Delayed if *due > at => (4, *due ^ self.session_id_hash(*session)),
            Place::Parked if *due > at => (5, *due ^ self.session_id_hash(*session)),
            Place::Ready | Place::Delayed | Place::Parked => (0, 0),
        };
        if tag > 0 {
            mix.put(tag).put(value);
        }
        if *receives > 0 {
            for n in [receives, failed, released, lost] {
                mix.put(u64::from(*n));
            }
            mix.put(*first);
        }
    }

    fn session_id_hash(&self, slot: u32) -> u64 {
        let session = self.sessions.as_ref().and_then(|sessions| sessions.at(slot));
        session.map_or(0, |s| xxh3_64(s.id.as_str().as_bytes()))
    }

    fn session_hash_of(&self, id: &SessionId, below: u64) -> Option<u64> {
        let sessions = self.sessions.as_ref()?;
        sessions.at(sessions.find(id)?).map(|s| self.session_hash(s, below))
    }

    /// What is out, who holds it, its state, and the front of its line.
    fn session_hash(&self, session: &Session, below: u64) -> u64 {
        let mut mix = Mix::new();
        let rare = session.rare();
        mix.put(u64::from(session.out)).put(u64::from(rare.hold));
        if let Some(state) = rare.state {
            mix.put(state.pos.get()).put(u64::from(state.bytes)).put(state.at);
        }
        // Messages that came back after a delay enter the line by the clock: not covered here.
        let in_line = |&seq: &u64| {
            self.index.contains(seq)
                && self.touched.get(&seq).is_none_or(|t| match t.place {
                    Place::Ready => t.due == 0,
                    Place::Delayed => t.receives == 0,
                    Place::Locked(_) | Place::Parked | Place::Scheduled | Place::Deferred => false,
                })
        };
        let front = session.line.iter().take_while(|&seq| seq < below);
        for seq in front.filter(in_line) {
            mix.put(seq);
        }
        mix.0
    }
}

fn put_kept(mix: &mut Mix, kept: &Kept) {
    let mut way = Vec::new();
    put_way(&mut way, &kept.way);
    let session = kept.session.as_ref().map_or(0, |s| xxh3_64(s.as_str().as_bytes()));
    mix.put(session).put(u64::from(kept.priority));
    mix.put(kept.ttl_ms.map_or(0, |ms| ms.saturating_add(1))).put(xxh3_64(&way));
}

/// Keys that are within their window at `at`, in buckets begun after `from`.
fn keys_hash(seen: Option<&Seen>, window_ms: u64, at: u64) -> u64 {
    let mut mix = Mix::new();
    if let Some(seen) = seen {
        mix.put(seen.known_from());
        seen.sums(window_ms, at, |begun, count, sum| {
            mix.put(begun).put(count).put(sum);
        });
    }
    mix.0
}
