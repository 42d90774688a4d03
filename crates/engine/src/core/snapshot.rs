//! The core as bytes, and back: what a snapshot holds. Timers, consumers and connections are not part of it.
//!
//! A snapshot is not trusted with memory: what it restores to is at most a small multiple of its own size.

use std::io::Read;

use hashbrown::HashMap;
use malote_model::{DeadLetterTarget, LeaseToken, QueueName, SessionId, Timestamp};

use super::dedup::Seen;
use super::index::Index;
use super::leases::{Lease, Leased as Kind, Leases, NONE};
use super::queue::{Kept, Place, Queue, Touched};
use super::sessions::State;
use super::topic::Topic;
use super::{Core, FixedState, Under, fixed};
use crate::codec::{
    Put, Reader, Truncated, Window, get_rule, get_spec, get_topic_spec, get_way, put_rule,
    put_spec, put_topic_spec, put_way, understand_event,
};
use crate::command::Totals;
use crate::event::QueueId;
use crate::format::{NotUnderstood, SNAPSHOT_VERSION};
use crate::journal::{Divergence, Orphan, Pos, Replay};

/// 2 had no status of queues and topics, ids of duplicates, times of first grants and of session states; 3 had no
/// time from which keys are known.
const VERSION: u8 = SNAPSHOT_VERSION;
const VERSION_LEAST: u8 = 2;
/// The first with a status, and what else 2 did not have.
pub(super) const VERSION_MORE: u8 = 3;
/// The first with a time from which keys are known.
pub(super) const VERSION_KNOWN_FROM: u8 = 4;

/// Bytes that a session takes at least: nine numbers and an id.
const SESSION_BYTES_MIN: u64 = 10;

impl Replay for Core {
    fn restore(&mut self, mut snapshot: &[u8]) -> Result<(), String> {
        let bytes = snapshot.len() as u64;
        self.restore_from(&mut snapshot, bytes)
    }

    fn restore_from(&mut self, snapshot: &mut dyn Read, bytes: u64) -> Result<(), String> {
        let mut window = Window::new(snapshot, bytes);
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
            let here = Ranks::of(q);
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
            save_queue(out, inbox, &Ranks(Vec::new()));
            save_rules(out, topic);
        }
        let (slots, free) = self.leases.parts();
        out.put_var(slots.len() as u64);
        for (grant, lease) in slots {
            out.put_var(u64::from(grant));
            out.put_bool(lease.is_some());
            if let Some(lease) = lease {
                save_lease(out, lease, ranks.get(&lease.queue));
            }
        }
        out.put_var(free.len() as u64);
        free.iter().for_each(|&slot| out.put_var(u64::from(slot)));
        let mut under: Vec<_> = self.under.iter().collect();
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
    fn read(r: &mut Window<'_>, hash_seed: u64) -> Result<Self, Truncated> {
        let version = r.u8()?;
        if !(VERSION_LEAST..=VERSION).contains(&version) {
            return Err(Truncated);
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
                core.aim(id, &DeadLetterTarget::Own, &q.spec.dead_letter);
            }
            core.seen_keys += q.seen.as_ref().map_or(0, |seen| seen.len());
            core.queues.insert(id, Box::new(q));
            ranks.insert(id, here);
        }
        for _ in 0..r.count()? {
            let id = r.queue()?;
            let mut topic = read_topic(r, hash_seed, version)?;
            let (inbox, _) = read_queue(r, QueueName::inbox(&topic.name), hash_seed, version)?;
            for _ in 0..r.count()? {
                let (queue, rule) = (r.queue()?, r.item(get_rule)?);
                let q = core.queues.get_mut(&queue).ok_or(Truncated)?;
                q.bound_to.insert(id);
                topic.router.insert(queue, rule);
            }
            core.queues.insert(id, Box::new(inbox));
            core.put_topic(id, topic);
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
                return Err(Truncated);
            }
            core.under.insert(over, Under { from, users });
        }
        core.queues.values_mut().for_each(|q| {
            if q.finds_sessions() {
                q.must_find_sessions();
                q.prepare(&mut usize::MAX.clone());
            }
            let Some(sessions) = &q.sessions else { return };
            let first = |slot: u32| sessions.at(slot).and_then(|s| s.line.first());
            let slots = 0..sessions.slots();
            // Mostly they stand in order: then millions of them need not be sorted, nor be listed.
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

/// The slots of a queue's sessions, in order. In a snapshot a session is named by its place among them, so that the
/// reader needs no more slots than there are sessions, whatever numbers the snapshot holds.
struct Ranks(Vec<u32>);

impl Ranks {
    fn of(q: &Queue) -> Self {
        Self(q.sessions.iter().flat_map(|s| s.iter()).map(|(slot, _)| slot).collect())
    }

    /// The place of a slot; none if there is no session in it.
    fn rank(&self, slot: u32) -> u32 {
        if self.0.get(slot as usize) == Some(&slot) {
            return slot; // nothing is missing before it
        }
        self.0.binary_search(&slot).map_or(NONE, |rank| rank as u32)
    }
}

fn save_queue(out: &mut Vec<u8>, q: &Queue, ranks: &Ranks) {
    put_spec(out, &q.spec);
    out.put_queue(q.dead);
    out.put_queue(q.owner.unwrap_or_default());
    out.put_time(q.created_at);
    out.put_bool(q.paused);
    out.put_var(q.next_seq);
    out.put_var(q.cursor);
    q.totals.values().iter().for_each(|&n| out.put_var(n));
    // Without sessions, tenants stand there.
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
    let mut kept: Vec<_> = q.kept.iter().collect();
    kept.sort_unstable_by_key(|(seq, _)| **seq);
    out.put_var(kept.len() as u64);
    for (seq, kept) in kept {
        out.put_var(*seq);
        out.put_session(kept.session.as_ref());
        out.put_u8(kept.priority);
        out.put_var(kept.ttl_ms.map_or(0, |ms| ms + 1));
        put_way(out, &kept.way);
    }
    if let Some(seen) = &q.seen {
        seen.save(out);
    }
    let mut touched: Vec<_> = q.touched.iter().collect();
    touched.sort_unstable_by_key(|(seq, _)| **seq);
    out.put_var(touched.len() as u64);
    for (seq, t) in touched {
        out.put_var(*seq);
        save_touched(out, t, ranks);
    }
    out.put_var(ranks.0.len() as u64);
    for (slot, s) in q.sessions.iter().flat_map(|s| s.iter()) {
        out.put_var(u64::from(ranks.rank(slot)));
        out.put_str(s.id.as_str());
        out.put_var(s.cursor);
        out.put_var(u64::from(s.out));
        out.put_var(u64::from(s.rare().hold));
        out.put_var(u64::from(s.rare().aside));
        let none = State { pos: Pos::ZERO, bytes: 0, at: 0 };
        let State { pos, bytes, at } = s.rare().state.unwrap_or(none);
        out.put_pos(pos);
        out.put_var(u64::from(bytes));
        out.put_var(at);
        out.put_var(s.line.len() as u64);
        let mut last = 0;
        for seq in s.line.iter() {
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

fn read_topic(r: &mut Window<'_>, hash_seed: u64, version: u8) -> Result<Topic, Truncated> {
    let more = version >= VERSION_MORE;
    let (name, spec) = (r.item(|r| r.topic())?, r.item(|r| get_topic_spec(r, more))?);
    let created_at = r.item(|r| r.time())?;
    let mut topic = Topic::new(name, spec, created_at, hash_seed);
    topic.had_rule = r.bool()?;
    topic.totals.copies = r.var()?;
    if topic.seen.is_some() {
        topic.seen = Some(Box::new(Seen::restore(r, version)?));
    }
    Ok(topic)
}

fn read_queue(
    r: &mut Window<'_>,
    name: QueueName,
    hash_seed: u64,
    version: u8,
) -> Result<(Queue, Ranks), Truncated> {
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
        q.kept.insert(seq, Kept { session, priority, ttl_ms, way: r.item(get_way)? });
    }
    if q.seen.is_some() {
        let seen = Seen::restore(r, version)?;
        q.seen = Some(Box::new(match cfg!(feature = "mutate-forget-keys") {
            true => Seen::default(),
            false => seen,
        }));
    }
    for _ in 0..r.count()? {
        let (seq, touched) = (r.var()?, r.item(|r| read_touched(r, more))?);
        if q.index.contains(seq) {
            q.recount(seq, None, Some(touched.place));
            q.touched.insert(seq, touched);
        }
    }
    q.restore_order();
    let count = r.count()?;
    if count as u64 > r.rest() / SESSION_BYTES_MIN {
        return Err(Truncated);
    }
    if let Some(sessions) = &mut q.sessions {
        sessions.expect(count);
    }
    let mut ranks = Ranks(Vec::with_capacity(count));
    for _ in 0..count {
        let slot = r.var32()?;
        if ranks.0.last().is_some_and(|&last| slot <= last) {
            return Err(Truncated);
        }
        ranks.0.push(slot);
        let id: SessionId = r.session()?.ok_or(Truncated)?;
        let (cursor, out, hold, aside) = (r.var()?, r.var32()?, r.var32()?, r.var32()?);
        let (pos, bytes) = (r.pos()?, r.var32()?);
        let at = if more { r.var()? } else { 0 };
        let sessions = q.sessions.as_mut().ok_or(Truncated)?;
        let s = sessions.add_last(&id).ok_or(Truncated)?;
        (s.cursor, s.out) = (cursor, out);
        let state = (pos != Pos::ZERO).then_some(State { pos, bytes, at });
        if hold != NONE || aside > 0 || state.is_some() {
            let rare = s.rare_mut();
            (rare.hold, rare.aside, rare.state) = (hold, aside, state);
        }
        let (mut last, length) = (0_u64, r.count()?);
        s.line.expect(length);
        for _ in 0..length {
            last = last.checked_add(r.var()?).ok_or(Truncated)?;
            s.line.insert(last);
        }
        q.sessions_held += u64::from(hold != NONE);
        q.state_bytes += state.map_or(0, |state| u64::from(state.bytes));
    }
    q.touched.values_mut().for_each(|t| t.session = ranks.rank(t.session));
    Ok((q, ranks))
}

fn save_touched(out: &mut Vec<u8>, t: &Touched, ranks: &Ranks) {
    let (place, slot) = match t.place {
        Place::Ready => (0, 0),
        Place::Locked(slot) => (1, slot),
        Place::Delayed => (2, 0),
        Place::Parked => (3, 0),
        Place::Scheduled => (4, 0),
        Place::Deferred => (5, 0),
    };
    out.put_u8(place);
    for n in [slot, t.receives, t.failed, t.released, t.lost, ranks.rank(t.session)] {
        out.put_var(u64::from(n));
    }
    out.put_var(t.due);
    out.put_var(t.first);
}

fn read_touched(r: &mut Reader<'_>, more: bool) -> Result<Touched, Truncated> {
    let (place, slot) = (r.u8()?, r.var32()?);
    let place = match place {
        0 => Place::Ready,
        1 => Place::Locked(slot),
        2 => Place::Delayed,
        3 => Place::Parked,
        4 => Place::Scheduled,
        5 => Place::Deferred,
        _ => return Err(Truncated),
    };
    let (receives, failed, released, lost) = (r.var32()?, r.var32()?, r.var32()?, r.var32()?);
    let (session, due) = (r.var32()?, r.var()?);
    let first = if more { r.var()? } else { 0 };
    Ok(Touched { place, receives, failed, released, lost, first, due, session, timer: None })
}

fn save_lease(out: &mut Vec<u8>, lease: &Lease, ranks: Option<&Ranks>) {
    let rank = |slot: u32| u64::from(ranks.map_or(NONE, |ranks| ranks.rank(slot)));
    out.put_var(u64::from(lease.token.epoch));
    out.put_var(u64::from(lease.token.random));
    out.put_queue(lease.queue);
    out.put_time(Timestamp(lease.until));
    out.put_bool(lease.bound);
    match lease.what {
        Kind::Session { session } => {
            out.put_u8(0);
            out.put_var(rank(session));
        }
        Kind::Message { seq, session, hold, deferred } => {
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

fn read_lease(r: &mut Reader<'_>, slot: u32, grant: u32) -> Result<Lease, Truncated> {
    let token = LeaseToken { epoch: r.var32()?, slot, grant, random: r.var32()? };
    let (queue, until, bound) = (r.queue()?, r.time()?, r.bool()?);
    let some = |n: u32| (n != NONE).then_some(n);
    let what = match r.u8()? {
        0 => Kind::Session { session: r.var32()? },
        1 => {
            let (seq, session, hold) = (r.var()?, some(r.var32()?), some(r.var32()?));
            Kind::Message { seq, session, hold, deferred: r.bool()? }
        }
        _ => return Err(Truncated),
    };
    let mut lease = Lease::new(token, queue, until.0, bound, what);
    (lease.first, lease.prev, lease.next) = (r.var32()?, r.var32()?, r.var32()?);
    // Links of a connection's list are over with the connection.
    if matches!(what, Kind::Message { hold: None, .. } | Kind::Session { .. }) {
        (lease.prev, lease.next) = (NONE, NONE);
    }
    Ok(lease)
}

/// A lease with the slot that its session has here.
fn with_rank(mut lease: Lease, ranks: &HashMap<QueueId, Ranks, FixedState>) -> Lease {
    let rank = |slot: u32| ranks.get(&lease.queue).map_or(NONE, |ranks| ranks.rank(slot));
    match &mut lease.what {
        Kind::Session { session } => *session = rank(*session),
        Kind::Message { session, .. } => {
            *session = session.map(rank).filter(|&session| session != NONE);
        }
    }
    lease
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_named_by_its_place_among_the_slots() {
        let dense = Ranks(vec![0, 1, 2]);
        assert_eq!([0, 2, 3, NONE].map(|slot| dense.rank(slot)), [0, 2, NONE, NONE]);
        // Slots as far apart as a number can say cost no more than near ones.
        let sparse = Ranks(vec![1, 7, 4_000_000_000]);
        assert_eq!([0, 1, 7, 4_000_000_000].map(|slot| sparse.rank(slot)), [NONE, 0, 1, 2]);
    }
}
