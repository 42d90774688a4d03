//! Serializing the core for a snapshot, and restoring it. Timers, consumers and connections are not included.
//!
//! A snapshot is not trusted with memory: restoring needs at most a small multiple of its size.

use std::io::Read;

use hashbrown::HashMap;
use malote_model::{DeadLetterTarget, LeaseToken, QueueName, SessionId, Timestamp};

use super::dedup::DedupWindow;
use super::index::Index;
use super::leases::{Lease, LeaseTarget, Leases, NONE};
use super::queue::Queue;
use super::sessions::StoredState;
use super::topic::Topic;
use super::tracked::{CarriedAttributes, MessageStatus, TrackedMessage};
use super::{BaseRecord, Core, FixedState, fixed};
use crate::codec::{
    EncodeExt, Malformed, Reader, StreamReader, get_history, get_rule, get_spec, get_topic_spec,
    put_history, put_rule, put_spec, put_topic_spec, understand_event,
};
use crate::event::QueueId;
use crate::facts::Totals;
use crate::format::{NotUnderstood, SNAPSHOT_VERSION};
use crate::journal::{Divergence, Orphan, Pos, Replay};

/// Version 2 had no status of queues and topics, ids of duplicates, times of first deliveries and of session states.
/// Version 3 had no `known_from` of keys. Version 4 had fewer settings of queues and topics.
/// Version 5 had no source of session ids.
const VERSION: u8 = SNAPSHOT_VERSION;
const VERSION_LEAST: u8 = 2;
/// The first version with a status, and with the other additions of version 3.
pub(super) const VERSION_MORE: u8 = 3;
/// The first version with `known_from`.
pub(super) const VERSION_KNOWN_FROM: u8 = 4;

/// The minimum size of a session: nine numbers and an id.
const SESSION_BYTES_MIN: u64 = 10;

impl Replay for Core {
    fn restore(&mut self, mut snapshot: &[u8]) -> Result<(), String> {
        let bytes = snapshot.len() as u64;
        self.restore_from(&mut snapshot, bytes)
    }

    fn restore_from(&mut self, snapshot: &mut dyn Read, bytes: u64) -> Result<(), String> {
        let mut window = StreamReader::new(snapshot, bytes);
        let restored = Self::read(&mut window, self.hash_seed).map_err(|e| e.to_string())?;
        *self = restored;
        Ok(())
    }

    fn apply(&mut self, pos: Pos, kind: u8, body: &[u8]) {
        if let Err(error) = self.try_apply(pos, kind, body) {
            self.checks.damage_skipped(pos, pos);
            tracing::error!(%pos, "a journal record {error}: it was not applied");
        }
    }

    fn try_apply(&mut self, pos: Pos, kind: u8, body: &[u8]) -> Result<(), NotUnderstood> {
        let event = understand_event(kind, body)?;
        self.recover_orphans(pos, &event);
        Core::apply(self, pos, &event);
        Ok(())
    }

    fn orphans(&self) -> Vec<Orphan> {
        self.orphans.report()
    }

    fn save(&self, out: &mut Vec<u8>) {
        out.put_u8(VERSION);
        out.put_var(u64::from(self.epoch));
        out.put_var(self.last_at);
        out.put_var(u64::from(self.next_queue));
        out.put_var(self.names.len() as u64);
        let mut ranks = fixed();
        for id in self.names.values() {
            let Some(q) = self.queues.get(id) else { continue };
            let here = SessionRanks::of(q);
            out.put_queue(*id);
            out.put_str(q.name.as_str());
            save_queue(out, q, &here);
            ranks.insert(*id, here);
        }
        out.put_var(self.topic_names.len() as u64);
        for id in self.topic_names.values() {
            let (Some(topic), Some(inbox)) = (self.topics.get(id), self.queues.get(id)) else {
                continue;
            };
            out.put_queue(*id);
            save_topic(out, topic);
            save_queue(out, inbox, &SessionRanks(Vec::new()));
            save_rules(out, topic);
        }
        let (slots, free) = self.leases.parts();
        out.put_var(slots.len() as u64);
        for (grant, lease) in slots {
            out.put_var(u64::from(grant));
            out.put_bool(lease.is_some());
            if let Some(lease) = lease {
                let until = Timestamp(self.leases.until(lease));
                save_lease(out, lease, until, ranks.get(&lease.queue));
            }
        }
        out.put_var(free.len() as u64);
        free.iter().for_each(|&slot| out.put_var(u64::from(slot)));
        let mut under: Vec<_> = self.base_records.iter().collect();
        under.sort_unstable_by_key(|(over, _)| **over);
        out.put_var(under.len() as u64);
        for (over, under) in under {
            out.put_pos(*over);
            out.put_pos(under.from);
            out.put_var(u64::from(under.users));
        }
    }

    fn live(&self, mark: &mut dyn FnMut(Pos, u64)) {
        self.live_records(mark);
    }

    fn damage_skipped(&mut self, from: Pos, to: Pos) {
        self.checks.damage_skipped(from, to);
    }

    fn divergence(&self) -> Option<Divergence> {
        self.checks.divergence()
    }
}

impl Core {
    fn read(r: &mut StreamReader<'_>, hash_seed: u64) -> Result<Self, Malformed> {
        let version = r.u8()?;
        if !(VERSION_LEAST..=VERSION).contains(&version) {
            return Err(Malformed);
        }
        let mut core = Self::new(hash_seed);
        core.epoch = r.var32()?;
        core.last_at = r.var()?;
        core.next_queue = r.var32()?;
        let mut ranks = fixed();
        for _ in 0..r.count()? {
            let (id, name) = (r.queue()?, r.item(|r| r.name())?);
            let (q, here) = read_queue(r, name, hash_seed, version)?;
            core.names.insert(q.name.clone(), id);
            if q.owner.is_none() {
                core.set_dead_letter_target(id, &DeadLetterTarget::Own, &q.spec.dead_letter);
            }
            core.dedup_keys += q.seen.as_ref().map_or(0, |seen| seen.len());
            core.queues.insert(id, Box::new(q));
            ranks.insert(id, here);
        }
        // A rule may lead to a topic that is read later.
        let mut bound = Vec::new();
        for _ in 0..r.count()? {
            let id = r.queue()?;
            let mut topic = read_topic(r, hash_seed, version)?;
            let (inbox, _) = read_queue(r, QueueName::inbox(&topic.name), hash_seed, version)?;
            for _ in 0..r.count()? {
                let (queue, rule) = (r.queue()?, r.item(get_rule)?);
                bound.push((queue, id));
                topic.router.insert(queue, rule);
            }
            core.queues.insert(id, Box::new(inbox));
            core.put_topic(id, topic);
        }
        for (queue, topic) in bound {
            core.queues.get_mut(&queue).ok_or(Malformed)?.bound_to.insert(topic);
        }
        let mut leases = Leases::default();
        for slot in 0..r.count()? {
            let grant = r.var32()?;
            let lease = match r.bool()? {
                true => Some(r.item(|r| read_lease(r, slot as u32, grant))?),
                false => None,
            };
            leases.push(grant, lease.map(|lease| with_rank(lease, &ranks)));
        }
        let free = (0..r.count()?).map(|_| r.var32()).collect::<Result<Vec<_>, _>>()?;
        leases.set_free(free);
        core.leases = leases;
        for _ in 0..r.count()? {
            let (over, from, users) = (r.pos()?, r.pos()?, r.var32()?);
            if users == 0 {
                return Err(Malformed);
            }
            core.base_records.insert(over, BaseRecord { from, users });
        }
        core.queues.values_mut().for_each(|q| {
            if q.needs_session_slots() {
                q.start_session_slots();
                q.prepare(&mut usize::MAX.clone());
            }
            let Some(sessions) = &q.sessions else { return };
            let first = |slot: u32| sessions.at(slot).and_then(|s| s.pending.first());
            let slots = 0..sessions.slots();
            // Usually they are in order. Then millions of them need not be sorted or collected.
            if slots.clone().is_sorted_by_key(first) {
                return slots.for_each(|slot| q.refresh_session(slot));
            }
            let mut slots: Vec<_> = slots.map(|slot| (first(slot), slot)).collect();
            slots.sort_unstable();
            slots.into_iter().for_each(|(_, slot)| q.refresh_session(slot));
        });
        Ok(core)
    }
}

/// The slots of a queue's sessions, in order. A snapshot refers to a session by its index among them, so that the
/// reader needs no more slots than there are sessions, whatever numbers the snapshot contains.
struct SessionRanks(Vec<u32>);

impl SessionRanks {
    fn of(q: &Queue) -> Self {
        Self(q.sessions.iter().flat_map(|s| s.iter()).map(|(slot, _)| slot).collect())
    }

    /// The index of a slot; `NONE` if it has no session.
    fn rank(&self, slot: u32) -> u32 {
        if self.0.get(slot as usize) == Some(&slot) {
            return slot; // no slot before it is missing
        }
        self.0.binary_search(&slot).map_or(NONE, |rank| rank as u32)
    }
}

fn save_queue(out: &mut Vec<u8>, q: &Queue, ranks: &SessionRanks) {
    put_spec(out, &q.spec);
    out.put_queue(q.dead);
    out.put_queue(q.owner.unwrap_or_default());
    out.put_time(q.created_at);
    out.put_bool(q.paused);
    out.put_var(q.next_seq);
    out.put_var(q.cursor);
    q.totals.values().iter().for_each(|&n| out.put_var(n));
    // Without sessions, the column contains tenants.
    q.index.save(out, |slot| if q.sessions.is_some() { ranks.rank(slot) } else { slot });
    let mut newest: Vec<_> = q.newest.iter().collect();
    newest.sort_unstable();
    out.put_var(newest.len() as u64);
    for (seq, pos) in newest {
        out.put_var(*seq);
        out.put_pos(*pos);
    }
    out.put_var(q.returned.len() as u64);
    q.returned.iter().for_each(|&seq| out.put_var(seq));
    let mut kept: Vec<_> = q.carried.iter().collect();
    kept.sort_unstable_by_key(|(seq, _)| **seq);
    out.put_var(kept.len() as u64);
    for (seq, kept) in kept {
        out.put_var(*seq);
        out.put_session(kept.session.as_ref());
        out.put_u8(kept.priority);
        out.put_var(kept.ttl_ms.map_or(0, |ms| ms + 1));
        put_history(out, &kept.history);
    }
    if let Some(seen) = &q.seen {
        seen.save(out);
    }
    let mut tracked: Vec<_> = q.tracked.iter().collect();
    tracked.sort_unstable_by_key(|(seq, _)| **seq);
    out.put_var(tracked.len() as u64);
    for (seq, t) in tracked {
        out.put_var(*seq);
        save_tracked(out, t, ranks);
    }
    out.put_var(ranks.0.len() as u64);
    for (slot, s) in q.sessions.iter().flat_map(|s| s.iter()) {
        out.put_var(u64::from(ranks.rank(slot)));
        out.put_str(s.id.as_str());
        out.put_var(s.cursor);
        out.put_var(u64::from(s.locked));
        out.put_var(u64::from(s.extras().hold));
        out.put_var(u64::from(s.extras().aside));
        let none = StoredState { pos: Pos::ZERO, bytes: 0, at: 0 };
        let StoredState { pos, bytes, at } = s.extras().state.unwrap_or(none);
        out.put_pos(pos);
        out.put_var(u64::from(bytes));
        out.put_var(at);
        out.put_var(s.pending.len() as u64);
        let mut last = 0;
        for seq in s.pending.iter() {
            out.put_var(seq - last);
            last = seq;
        }
    }
}

fn save_topic(out: &mut Vec<u8>, topic: &Topic) {
    out.put_str(topic.name.as_str());
    put_topic_spec(out, &topic.spec);
    out.put_time(topic.created_at);
    out.put_bool(topic.had_rule);
    out.put_var(topic.totals.copies);
    if let Some(seen) = &topic.seen {
        seen.save(out);
    }
}

fn save_rules(out: &mut Vec<u8>, topic: &Topic) {
    out.put_var(topic.router.len() as u64);
    for queue in topic.router.targets() {
        for rule in topic.router.rules(queue) {
            out.put_queue(queue);
            put_rule(out, rule).expect("the rule was checked when it was decided");
        }
    }
}

fn read_topic(r: &mut StreamReader<'_>, hash_seed: u64, version: u8) -> Result<Topic, Malformed> {
    let more = version >= VERSION_MORE;
    let (name, spec) = (r.item(|r| r.topic())?, r.item(|r| get_topic_spec(r, more))?);
    let created_at = r.item(|r| r.time())?;
    let mut topic = Topic::new(name, spec, created_at, hash_seed);
    topic.had_rule = r.bool()?;
    topic.totals.copies = r.var()?;
    if topic.seen.is_some() {
        topic.seen = Some(Box::new(DedupWindow::restore(r, version)?));
    }
    Ok(topic)
}

fn read_queue(
    r: &mut StreamReader<'_>,
    name: QueueName,
    hash_seed: u64,
    version: u8,
) -> Result<(Queue, SessionRanks), Malformed> {
    let more = version >= VERSION_MORE;
    let spec = r.item(|r| get_spec(r, more))?;
    let (dead, owner, created_at) = (r.queue()?, r.queue()?, r.item(|r| r.time())?);
    let mut q = Queue::new(name, spec, dead, created_at, hash_seed);
    q.owner = (owner != QueueId::default()).then_some(owner);
    q.paused = r.bool()?;
    (q.next_seq, q.cursor) = (r.var()?, r.var()?);
    let mut totals = Totals::default().values();
    for n in &mut totals {
        *n = r.var()?;
    }
    q.totals = Totals::of_values(totals);
    q.index = Index::restore(r)?;
    q.restore_tenants();
    q.newest = fixed();
    for _ in 0..r.count()? {
        let (seq, pos) = (r.var()?, r.pos()?);
        q.newest.insert(seq, pos);
    }
    for _ in 0..r.count()? {
        q.returned.insert(r.var()?);
    }
    for _ in 0..r.count()? {
        let (seq, session) = (r.var()?, r.session()?);
        let (priority, ttl_ms) = (r.u8()?, r.var()?.checked_sub(1));
        q.carried.insert(
            seq,
            CarriedAttributes { session, priority, ttl_ms, history: r.item(get_history)? },
        );
    }
    if q.seen.is_some() {
        let seen = DedupWindow::restore(r, version)?;
        q.seen = Some(Box::new(match cfg!(feature = "mutate-forget-keys") {
            true => DedupWindow::default(),
            false => seen,
        }));
    }
    for _ in 0..r.count()? {
        let (seq, tracked) = (r.var()?, r.item(|r| read_tracked(r, more))?);
        if q.index.contains(seq) {
            q.recount(seq, None, Some(tracked.status));
            q.tracked.insert(seq, tracked);
        }
    }
    q.restore_order();
    let count = r.count()?;
    if count as u64 > r.rest() / SESSION_BYTES_MIN {
        return Err(Malformed);
    }
    if let Some(sessions) = &mut q.sessions {
        sessions.expect(count);
    }
    let mut ranks = SessionRanks(Vec::with_capacity(count));
    for _ in 0..count {
        let slot = r.var32()?;
        if ranks.0.last().is_some_and(|&last| slot <= last) {
            return Err(Malformed);
        }
        ranks.0.push(slot);
        let id: SessionId = r.session()?.ok_or(Malformed)?;
        let (cursor, out, hold, aside) = (r.var()?, r.var32()?, r.var32()?, r.var32()?);
        let (pos, bytes) = (r.pos()?, r.var32()?);
        let at = if more { r.var()? } else { 0 };
        let sessions = q.sessions.as_mut().ok_or(Malformed)?;
        let s = sessions.add_last(&id).ok_or(Malformed)?;
        (s.cursor, s.locked) = (cursor, out);
        let state = (pos != Pos::ZERO).then_some(StoredState { pos, bytes, at });
        if hold != NONE || aside > 0 || state.is_some() {
            let rare = s.extras_mut();
            (rare.hold, rare.aside, rare.state) = (hold, aside, state);
        }
        let (mut last, length) = (0_u64, r.count()?);
        s.pending.expect(length);
        for _ in 0..length {
            last = last.checked_add(r.var()?).ok_or(Malformed)?;
            s.pending.insert(last);
        }
        q.sessions_held += u64::from(hold != NONE);
        q.state_bytes += state.map_or(0, |state| u64::from(state.bytes));
    }
    q.tracked.values_mut().for_each(|t| t.session = ranks.rank(t.session));
    Ok((q, ranks))
}

fn save_tracked(out: &mut Vec<u8>, t: &TrackedMessage, ranks: &SessionRanks) {
    let (place, slot) = match t.status {
        MessageStatus::Ready => (0, 0),
        MessageStatus::Locked(slot) => (1, slot),
        MessageStatus::Delayed => (2, 0),
        MessageStatus::Parked => (3, 0),
        MessageStatus::Scheduled => (4, 0),
        MessageStatus::Deferred => (5, 0),
    };
    out.put_u8(place);
    for n in [slot, t.receives, t.failed, t.released, t.lost, ranks.rank(t.session)] {
        out.put_var(u64::from(n));
    }
    out.put_var(t.due);
    out.put_var(t.first);
}

fn read_tracked(r: &mut Reader<'_>, more: bool) -> Result<TrackedMessage, Malformed> {
    let (status, slot) = (r.u8()?, r.var32()?);
    let status = match status {
        0 => MessageStatus::Ready,
        1 => MessageStatus::Locked(slot),
        2 => MessageStatus::Delayed,
        3 => MessageStatus::Parked,
        4 => MessageStatus::Scheduled,
        5 => MessageStatus::Deferred,
        _ => return Err(Malformed),
    };
    let (receives, failed, released, lost) = (r.var32()?, r.var32()?, r.var32()?, r.var32()?);
    let (session, due) = (r.var32()?, r.var()?);
    let first = if more { r.var()? } else { 0 };
    Ok(TrackedMessage {
        status,
        receives,
        failed,
        released,
        lost,
        first,
        due,
        session,
        timer: None,
    })
}

fn save_lease(out: &mut Vec<u8>, lease: &Lease, until: Timestamp, ranks: Option<&SessionRanks>) {
    let rank = |slot: u32| u64::from(ranks.map_or(NONE, |ranks| ranks.rank(slot)));
    out.put_var(u64::from(lease.token.epoch));
    out.put_var(u64::from(lease.token.random));
    out.put_queue(lease.queue);
    out.put_time(until);
    out.put_bool(lease.bound);
    match lease.what {
        LeaseTarget::Session { session } => {
            out.put_u8(0);
            out.put_var(rank(session));
        }
        LeaseTarget::Message { seq, session, hold, deferred } => {
            out.put_u8(1);
            out.put_var(seq);
            out.put_var(rank(session.unwrap_or(NONE)));
            out.put_var(u64::from(hold.unwrap_or(NONE)));
            out.put_bool(deferred);
        }
    }
    for link in [lease.first, lease.prev, lease.next] {
        out.put_var(u64::from(link));
    }
}

fn read_lease(r: &mut Reader<'_>, slot: u32, grant: u32) -> Result<Lease, Malformed> {
    let token = LeaseToken { epoch: r.var32()?, slot, grant, random: r.var32()? };
    let (queue, until, bound) = (r.queue()?, r.time()?, r.bool()?);
    let some = |n: u32| (n != NONE).then_some(n);
    let what = match r.u8()? {
        0 => LeaseTarget::Session { session: r.var32()? },
        1 => {
            let (seq, session, hold) = (r.var()?, some(r.var32()?), some(r.var32()?));
            LeaseTarget::Message { seq, session, hold, deferred: r.bool()? }
        }
        _ => return Err(Malformed),
    };
    let mut lease = Lease::new(token, queue, until.0, bound, what);
    (lease.first, lease.prev, lease.next) = (r.var32()?, r.var32()?, r.var32()?);
    // The list of a connection ended with the connection.
    if matches!(what, LeaseTarget::Message { hold: None, .. } | LeaseTarget::Session { .. }) {
        (lease.prev, lease.next) = (NONE, NONE);
    }
    Ok(lease)
}

/// Maps the session slot of a lease.
fn with_rank(mut lease: Lease, ranks: &HashMap<QueueId, SessionRanks, FixedState>) -> Lease {
    let rank = |slot: u32| ranks.get(&lease.queue).map_or(NONE, |ranks| ranks.rank(slot));
    match &mut lease.what {
        LeaseTarget::Session { session } => *session = rank(*session),
        LeaseTarget::Message { session, .. } => {
            *session = session.map(rank).filter(|&session| session != NONE);
        }
    }
    lease
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_identified_by_its_slot() {
        let dense = SessionRanks(vec![0, 1, 2]);
        assert_eq!([0, 2, 3, NONE].map(|slot| dense.rank(slot)), [0, 2, NONE, NONE]);
        // Slots that are far apart cost no more than adjacent ones.
        let sparse = SessionRanks(vec![1, 7, 4_000_000_000]);
        assert_eq!([0, 1, 7, 4_000_000_000].map(|slot| sparse.rank(slot)), [NONE, 0, 1, 2]);
    }
}
