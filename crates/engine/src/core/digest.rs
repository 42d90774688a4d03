//! Digests of the state, written to the journal so that a replay can compare its own state with the live one.
//!
//! A record covers some queues, topics and leases, and continues where the last record ended: the work per record is
//! bounded, whatever the number of messages. The counters of a queue are always covered, so a missing message is
//! noticed in the first record about its queue.
//!
//! Some of the live state follows from the clock and is not journaled: the end of a delay, and the end of a
//! de-duplication window. The hashes exclude what differs for that reason alone: a message whose delay has ended at the
//! time of the digest counts as ready, and keys outside their window are ignored.

use std::ops::Bound;

use malote_model::{QueueName, SessionId, Timestamp, TopicName};
use xxhash_rust::xxh3::xxh3_64;

use super::dedup::DedupWindow;
use super::leases::{Lease, LeaseTarget};
use super::queue::Queue;
use super::sessions::Session;
use super::topic::Topic;
use super::tracked::{CarriedAttributes, MessageStatus, TrackedMessage};
use super::{Core, SMALL_ROOM, Turn};
use crate::codec::{encode_event, put_history, put_rule, put_spec, put_topic_spec};
use crate::event::{Digest, Event, LeaseDigest, QueueDigest, QueueId, SessionDigest, TopicDigest};
use crate::journal::{Divergence, Pos};

/// The version of the hash computation. Digests of other versions are not compared. Increase it whenever a hash
/// changes, for example with a new field of the settings.
const METHOD: u8 = 3;

/// The time between two digests, while something is journaled.
const EVERY_MS: u64 = 1000;

/// The maximum number of damaged parts in a record. After a start with more damage, no digests are written.
const DAMAGE: usize = 64;

/// The maximum that one record covers.
const QUEUES: usize = 32;
const TOPICS: usize = 8;
const MESSAGES: usize = 2048;
const SESSIONS: usize = 32;
const LEASES: u32 = 2048;
/// Messages of a session, from its front.
const LINE: usize = 64;
/// Rules of a topic. Of a topic with more, only their number is covered.
const RULES: usize = 64;

/// Where the live core's next digest continues.
#[derive(Debug, Default)]
pub(super) struct DigestProgress {
    /// The last queue that was covered completely, and the progress in the next one.
    queue: Option<QueueName>,
    seq: u64,
    session_slot: u32,
    topic: Option<TopicName>,
    lease_slot: u32,
    /// When the last digest was written, and where the journal ended then.
    at: u64,
    end: Pos,
}

/// The results of comparing digests in a replay.
#[derive(Debug, Default)]
pub(super) struct DigestChecks {
    compared: u64,
    /// Damaged parts that were skipped, so their records are missing. A broker that was started before the damage had
    /// them, so its digests are not compared.
    skipped: Vec<(Pos, Pos)>,
    first: Option<Divergence>,
}

impl DigestChecks {
    pub(super) fn damage_skipped(&mut self, from: Pos, to: Pos) {
        self.skipped.push((from, to));
    }

    pub(super) fn divergence(&self) -> Option<Divergence> {
        self.first.clone()
    }
}

/// An ordered hash of numbers.
#[derive(Clone, Copy)]
struct StateHasher(u64);

impl StateHasher {
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
    /// Writes a digest if one is due and the journal has grown since the last one.
    pub(super) fn digest_if_due(&mut self) {
        let (now, end) = (self.now.0, self.log.end_pos());
        let progress = &self.core.live().progress;
        if now >= progress.at.saturating_add(EVERY_MS) && end != progress.end {
            self.digest();
        }
    }

    /// Writes a digest, lazily. On a full disk it is omitted, because the last space is reserved for settling.
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
        let progress = &mut self.core.live().progress;
        (progress.at, progress.end) = (now, end);
    }
}

impl Core {
    /// The number of digests that a replay has compared.
    pub fn digests_compared(&self) -> u64 {
        self.checks.compared
    }

    pub(super) fn next_digest(&mut self, at: Timestamp) -> Digest {
        let mut progress = std::mem::take(&mut self.live().progress);
        let queues = self.next_queues(&mut progress, at.0);
        let topics = self.next_topics(&mut progress, at.0);
        let (from, slots) = (progress.lease_slot, self.leases.slots());
        let to = from.saturating_add(LEASES).min(slots);
        progress.lease_slot = if to < slots { to } else { 0 };
        let leases = LeaseDigest { from, to, hash: self.lease_hash(from, to) };
        self.live().progress = progress;
        let damage = self.checks.skipped.clone();
        Digest { method: METHOD, at, damage, totals: self.totals_hash(), queues, topics, leases }
    }

    fn next_queues(&self, progress: &mut DigestProgress, at: u64) -> Vec<QueueDigest> {
        let (mut messages, mut sessions) = (MESSAGES, SESSIONS);
        let mut out = Vec::new();
        while out.len() < QUEUES.min(self.names.len()) {
            let after = progress.queue.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
            let Some((name, &id)) =
                self.names.range::<QueueName, _>((after, Bound::Unbounded)).next()
            else {
                (progress.queue, progress.seq, progress.session_slot) = (None, 0, 0);
                continue;
            };
            let Some(q) = self.queues.get(&id) else { break };
            let from = progress.seq;
            let to = q.window(from, &mut messages);
            let mut digest = q.digest(id, at, from, to);
            let next_slot = q.session_window(progress.session_slot, &mut sessions, |s| {
                let below = s.pending.get(LINE).unwrap_or(u64::MAX);
                let (session, hash) = (s.id.clone(), q.session_hash(s, below));
                digest.sessions.push(SessionDigest { session, below, hash });
            });
            out.push(digest);
            match next_slot {
                None if to == u64::MAX => {
                    let done = name.clone();
                    (progress.queue, progress.seq, progress.session_slot) = (Some(done), 0, 0);
                }
                next_slot => {
                    (progress.seq, progress.session_slot) = (to, next_slot.unwrap_or(u32::MAX));
                    break;
                }
            }
        }
        out
    }

    fn next_topics(&self, progress: &mut DigestProgress, at: u64) -> Vec<TopicDigest> {
        let mut out = Vec::new();
        while out.len() < TOPICS.min(self.topic_names.len()) {
            let after = progress.topic.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
            let Some((name, &id)) =
                self.topic_names.range::<TopicName, _>((after, Bound::Unbounded)).next()
            else {
                progress.topic = None;
                continue;
            };
            let Some(topic) = self.topics.get(&id) else { break };
            progress.topic = Some(name.clone());
            out.push(TopicDigest { topic: id, hash: self.topic_hash(id, topic, at) });
        }
        out
    }

    /// Compares a digest with this state, and keeps the first difference.
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

    /// The first difference to a digest.
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
        let mut hasher = StateHasher::new();
        for n in [
            self.queues.len(),
            self.topics.len(),
            self.rules,
            self.leases.len(),
            self.base_records.len(),
        ] {
            hasher.put(n as u64);
        }
        hasher.put(u64::from(self.epoch)).put(u64::from(self.next_queue)).put(self.last_at).0
    }

    fn topic_hash(&self, id: QueueId, topic: &Topic, at: u64) -> u64 {
        let mut hasher = StateHasher::new();
        let mut spec = Vec::new();
        put_topic_spec(&mut spec, &topic.spec);
        hasher.text(topic.name.as_str()).put(xxh3_64(&spec)).put(topic.created_at.0);
        hasher
            .put(u64::from(topic.had_rule))
            .put(topic.totals.copies)
            .put(topic.router.len() as u64);
        if topic.router.len() <= RULES {
            for queue in topic.router.targets() {
                for rule in topic.router.rules(queue) {
                    let mut bytes = Vec::new();
                    put_rule(&mut bytes, rule).expect("the rule was checked when it was decided");
                    hasher.put(u64::from(queue.0)).put(xxh3_64(&bytes));
                }
            }
        }
        let window_ms = topic.spec.dedup.map_or(0, |dedup| dedup.window_ms);
        hasher.put(keys_hash(topic.seen.as_deref(), window_ms, at));
        // The topic's inbox is a queue that is not listed by name.
        if let Some(inbox) = self.queues.get(&id) {
            let to = inbox.window(0, &mut { MESSAGES / TOPICS });
            let inbox = inbox.digest(id, at, 0, to);
            hasher.put(inbox.settings).put(inbox.counters).put(inbox.messages);
        }
        hasher.0
    }

    fn lease_hash(&self, from: u32, to: u32) -> u64 {
        let mut hasher = StateHasher::new();
        for slot in from..to {
            hasher.put(u64::from(self.leases.grants(slot)));
            let Some(lease) = self.leases.at(slot) else { continue };
            let Lease { token, queue, bound, what, .. } = lease;
            hasher
                .put(u64::from(token.epoch))
                .put(u64::from(token.grant))
                .put(u64::from(token.random));
            hasher.put(u64::from(queue.0)).put(self.leases.until(lease)).put(u64::from(*bound));
            let q = self.queues.get(queue);
            let session = |slot: u32| q.map_or(0, |q| q.session_id_hash(slot));
            match *what {
                LeaseTarget::Session { session: slot } => hasher.put(1).put(session(slot)),
                LeaseTarget::Message { seq, session: slot, hold, deferred } => {
                    hasher.put(2).put(seq).put(slot.map_or(0, session));
                    hasher.put(hold.map_or(0, |hold| u64::from(hold) + 1)).put(u64::from(deferred))
                }
            };
        }
        hasher.0
    }
}

impl Queue {
    /// The end of a range of live messages from `from`, exclusive; `u64::MAX` at the end of the queue. Reduces the
    /// budget by the number of messages.
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

    /// Calls `each` for the sessions from a slot on and reduces the budget. Returns where to continue.
    fn session_window(
        &self,
        from: u32,
        budget: &mut usize,
        mut each: impl FnMut(&Session),
    ) -> Option<u32> {
        let sessions = self.sessions.as_ref()?;
        // Empty slots count as well: there may be many after a peak.
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
        let mut settings = StateHasher::new();
        let mut spec = Vec::new();
        put_spec(&mut spec, &self.spec);
        settings.text(self.name.as_str()).put(xxh3_64(&spec)).put(self.created_at.0);
        settings.put(u64::from(self.dead.0)).put(self.owner.map_or(0, |owner| u64::from(owner.0)));
        settings.put(u64::from(self.paused));
        let mut counters = StateHasher::new();
        let sessions = self.sessions.as_ref().map_or(0, |sessions| sessions.len() as u64);
        for n in [
            self.index.len(),
            self.index.bytes(),
            self.next_seq,
            self.locked,
            self.scheduled,
            self.deferred,
            self.newest.len() as u64,
            self.carried.len() as u64,
            self.sessions_held,
            sessions,
        ] {
            counters.put(n);
        }
        self.totals.values().iter().for_each(|&n| {
            counters.put(n);
        });
        let mut messages = StateHasher::new();
        for entry in self.index.entries_from(from).take_while(|entry| entry.seq < to) {
            let pos = self.newest.get(&entry.seq).copied().unwrap_or(entry.pos);
            messages.put(entry.seq).put(pos.get()).put(u64::from(entry.size));
            messages.put(entry.expires).put(u64::from(entry.priority));
            if let Some(tracked) = self.tracked.get(&entry.seq) {
                self.put_tracked(&mut messages, tracked, at);
            }
            if let Some(kept) = self.carried.get(&entry.seq) {
                put_relocated(&mut messages, kept);
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

    fn put_tracked(&self, hasher: &mut StateHasher, tracked: &TrackedMessage, at: u64) {
        let TrackedMessage {
            status, receives, failed, released, lost, first, due, session, ..
        } = tracked;
        let (tag, value) = match status {
            MessageStatus::Locked(slot) => (1, u64::from(*slot)),
            MessageStatus::Deferred => (2, self.session_id_hash(*session)),
            MessageStatus::Scheduled => (3, *due),
            // The end of a delay is not an event.
            MessageStatus::Delayed if *due > at => (4, *due ^ self.session_id_hash(*session)),
            MessageStatus::Parked if *due > at => (5, *due ^ self.session_id_hash(*session)),
            MessageStatus::Ready | MessageStatus::Delayed | MessageStatus::Parked => (0, 0),
        };
        if tag > 0 {
            hasher.put(tag).put(value);
        }
        if *receives > 0 {
            for n in [receives, failed, released, lost] {
                hasher.put(u64::from(*n));
            }
            hasher.put(*first);
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

    /// Hashes the number of leased messages, the hold, the state, and the front of the pending list.
    fn session_hash(&self, session: &Session, below: u64) -> u64 {
        let mut hasher = StateHasher::new();
        let rare = session.extras();
        hasher.put(u64::from(session.locked)).put(u64::from(rare.hold));
        if let Some(state) = rare.state {
            hasher.put(state.pos.get()).put(u64::from(state.bytes)).put(state.at);
        }
        // Messages that return after a delay are added by the clock, so they are not covered here.
        let in_line = |&seq: &u64| {
            self.index.contains(seq)
                && self.tracked.get(&seq).is_none_or(|t| match t.status {
                    MessageStatus::Ready => t.due == 0,
                    MessageStatus::Delayed => t.receives == 0,
                    MessageStatus::Locked(_)
                    | MessageStatus::Parked
                    | MessageStatus::Scheduled
                    | MessageStatus::Deferred => false,
                })
        };
        let front = session.pending.iter().take_while(|&seq| seq < below);
        for seq in front.filter(in_line) {
            hasher.put(seq);
        }
        hasher.0
    }
}

fn put_relocated(hasher: &mut StateHasher, kept: &CarriedAttributes) {
    let mut history = Vec::new();
    put_history(&mut history, &kept.history);
    let session = kept.session.as_ref().map_or(0, |s| xxh3_64(s.as_str().as_bytes()));
    hasher.put(session).put(u64::from(kept.priority));
    hasher.put(kept.ttl_ms.map_or(0, |ms| ms.saturating_add(1))).put(xxh3_64(&history));
}

/// Hashes the keys that are within their window at `at`.
fn keys_hash(seen: Option<&DedupWindow>, window_ms: u64, at: u64) -> u64 {
    let mut hasher = StateHasher::new();
    if let Some(seen) = seen {
        hasher.put(seen.known_from());
        seen.sums(window_ms, at, |begun, count, sum| {
            hasher.put(begun).put(count).put(sum);
        });
    }
    hasher.0
}
