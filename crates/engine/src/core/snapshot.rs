//! The core as bytes, and back: what a snapshot holds. Timers, consumers and connections are not part of it.

use malote_model::{LeaseToken, SessionId, Timestamp};

use super::index::Index;
use super::leases::{Lease, Leased as Kind, NONE};
use super::queue::{Place, Queue, Touched};
use super::{Core, fixed};
use crate::codec::{Put, Reader, Truncated, decode_event, get_spec, put_spec};
use crate::command::Totals;
use crate::event::QueueId;
use crate::journal::{Pos, Replay};

const VERSION: u8 = 2;

impl Replay for Core {
    fn restore(&mut self, snapshot: &[u8]) -> Result<(), String> {
        let restored =
            Self::read(&mut Reader::new(snapshot), self.hash_seed).map_err(|e| e.to_string())?;
        *self = restored;
        Ok(())
    }

    fn apply(&mut self, pos: Pos, kind: u8, body: &[u8]) {
        match decode_event(kind, body) {
            Ok(event) => Core::apply(self, pos, &event),
            // The frame's checksum held, so this is a record of a newer version or a bug: never skipped in silence.
            Err(error) => {
                tracing::error!(%pos, kind, %error, "a journal record cannot be understood and is skipped")
            }
        }
    }

    fn save(&self, out: &mut Vec<u8>) {
        out.put_u8(VERSION);
        out.put_var(u64::from(self.epoch));
        out.put_var(self.last_at);
        out.put_var(u64::from(self.next_queue));
        out.put_var(self.names.len() as u64);
        for id in self.names.values() {
            let Some(q) = self.queues.get(id) else { continue };
            out.put_queue(*id);
            save_queue(out, q);
        }
        let (slots, free) = self.leases.parts();
        out.put_var(slots.len() as u64);
        for (grant, lease) in slots {
            out.put_var(u64::from(grant));
            out.put_bool(lease.is_some());
            if let Some(lease) = lease {
                save_lease(out, lease);
            }
        }
        out.put_var(free.len() as u64);
        free.iter().for_each(|&slot| out.put_var(u64::from(slot)));
        let mut under: Vec<_> = self.under.iter().collect();
        under.sort_unstable();
        out.put_var(under.len() as u64);
        for (over, from) in under {
            out.put_pos(*over);
            out.put_pos(*from);
        }
    }

    fn live(&self, mark: &mut dyn FnMut(Pos, u64)) {
        self.live_records(mark);
    }
}

impl Core {
    fn read(r: &mut Reader<'_>, hash_seed: u64) -> Result<Self, Truncated> {
        if r.u8()? != VERSION {
            return Err(Truncated);
        }
        let mut core = Self::new(hash_seed);
        core.epoch = r.var32()?;
        core.last_at = r.var()?;
        core.next_queue = r.var32()?;
        for _ in 0..r.count()? {
            let id = r.queue()?;
            let q = read_queue(r, hash_seed)?;
            core.names.insert(q.name.clone(), id);
            core.queues.insert(id, Box::new(q));
        }
        let mut slots = Vec::new();
        for slot in 0..r.count()? {
            let grant = r.var32()?;
            let lease = if r.bool()? { Some(read_lease(r, slot as u32, grant)?) } else { None };
            slots.push((grant, lease));
        }
        let free = (0..r.count()?).map(|_| r.var32()).collect::<Result<Vec<_>, _>>()?;
        core.leases = super::leases::Leases::of_parts(slots, free);
        for _ in 0..r.count()? {
            let (over, from) = (r.pos()?, r.pos()?);
            core.under.insert(over, from);
        }
        core.queues.values_mut().for_each(|q| {
            let mut slots: Vec<_> = q
                .sessions
                .iter()
                .flat_map(|s| s.iter())
                .map(|(slot, s)| (s.line.first(), slot))
                .collect();
            slots.sort_unstable();
            slots.into_iter().for_each(|(_, slot)| q.refresh_session(slot));
        });
        Ok(core)
    }
}

fn save_queue(out: &mut Vec<u8>, q: &Queue) {
    out.put_str(q.name.as_str());
    put_spec(out, &q.spec);
    out.put_queue(q.dead);
    out.put_queue(q.owner.unwrap_or_default());
    out.put_time(q.created_at);
    out.put_bool(q.paused);
    out.put_var(q.next_seq);
    out.put_var(q.cursor);
    let totals = totals_of(&q.totals);
    totals.iter().for_each(|&n| out.put_var(n));
    q.index.save(out);
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
    kept.sort_unstable();
    out.put_var(kept.len() as u64);
    for (seq, session) in kept {
        out.put_var(*seq);
        out.put_str(session.as_str());
    }
    let mut touched: Vec<_> = q.touched.iter().collect();
    touched.sort_unstable_by_key(|(seq, _)| **seq);
    out.put_var(touched.len() as u64);
    for (seq, t) in touched {
        out.put_var(*seq);
        save_touched(out, t);
    }
    let sessions: Vec<_> = q.sessions.iter().flat_map(|s| s.iter()).collect();
    out.put_var(sessions.len() as u64);
    for (slot, s) in sessions {
        out.put_var(u64::from(slot));
        out.put_str(s.id.as_str());
        out.put_var(s.cursor);
        out.put_var(u64::from(s.out));
        out.put_var(u64::from(s.hold));
        out.put_var(u64::from(s.aside));
        out.put_pos(s.state.map_or(Pos::ZERO, |(pos, _)| pos));
        out.put_var(s.state.map_or(0, |(_, bytes)| u64::from(bytes)));
        out.put_var(s.line.len() as u64);
        let mut last = 0;
        for seq in s.line.iter() {
            out.put_var(seq - last);
            last = seq;
        }
    }
}

fn read_queue(r: &mut Reader<'_>, hash_seed: u64) -> Result<Queue, Truncated> {
    let name = r.name()?;
    let spec = get_spec(r)?;
    let (dead, owner, created_at) = (r.queue()?, r.queue()?, r.time()?);
    let mut q = Queue::new(name, spec, dead, created_at, hash_seed);
    q.owner = (owner != QueueId::default()).then_some(owner);
    q.paused = r.bool()?;
    (q.next_seq, q.cursor) = (r.var()?, r.var()?);
    let mut totals = [0; 10];
    for n in &mut totals {
        *n = r.var()?;
    }
    q.totals = of_totals(totals);
    q.index = Index::restore(r)?;
    q.newest = fixed();
    for _ in 0..r.count()? {
        let (seq, pos) = (r.var()?, r.pos()?);
        q.newest.insert(seq, pos);
    }
    for _ in 0..r.count()? {
        q.returned.insert(r.var()?);
    }
    for _ in 0..r.count()? {
        let (seq, session) = (r.var()?, r.session()?.ok_or(Truncated)?);
        q.kept.insert(seq, session);
    }
    for _ in 0..r.count()? {
        let (seq, touched) = (r.var()?, read_touched(r)?);
        if q.index.contains(seq) {
            q.count(None, Some(touched.place));
            q.touched.insert(seq, touched);
        }
    }
    for _ in 0..r.count()? {
        let slot = r.var32()?;
        let id: SessionId = r.session()?.ok_or(Truncated)?;
        let (cursor, out, hold, aside) = (r.var()?, r.var32()?, r.var32()?, r.var32()?);
        let (state_at, state_bytes) = (r.pos()?, r.var32()?);
        let sessions = q.sessions.as_mut().ok_or(Truncated)?;
        // A slot is small: as many as there were sessions at once. A snapshot that says otherwise is none.
        let s = sessions.add_at(slot, &id).ok_or(Truncated)?;
        (s.cursor, s.out, s.hold, s.aside) = (cursor, out, hold, aside);
        s.state = (state_at != Pos::ZERO).then_some((state_at, state_bytes));
        let mut last = 0_u64;
        for _ in 0..r.count()? {
            last = last.checked_add(r.var()?).ok_or(Truncated)?;
            s.line.insert(last);
        }
        q.sessions_held += u64::from(hold != NONE);
    }
    if let Some(sessions) = q.sessions.as_mut() {
        sessions.rebuild_free();
    }
    Ok(q)
}

fn save_touched(out: &mut Vec<u8>, t: &Touched) {
    let (place, slot) = match t.place {
        Place::Ready => (0, 0),
        Place::Locked(slot) => (1, slot),
        Place::Delayed => (2, 0),
        Place::Parked => (3, 0),
        Place::Scheduled => (4, 0),
        Place::Deferred => (5, 0),
    };
    out.put_u8(place);
    for n in [slot, t.receives, t.failed, t.released, t.lost, t.session] {
        out.put_var(u64::from(n));
    }
    out.put_var(t.due);
}

fn read_touched(r: &mut Reader<'_>) -> Result<Touched, Truncated> {
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
    Ok(Touched { place, receives, failed, released, lost, due, session, timer: None })
}

fn save_lease(out: &mut Vec<u8>, lease: &Lease) {
    out.put_var(u64::from(lease.token.epoch));
    out.put_var(u64::from(lease.token.random));
    out.put_queue(lease.queue);
    out.put_time(Timestamp(lease.until));
    out.put_bool(lease.bound);
    match lease.what {
        Kind::Session { session } => {
            out.put_u8(0);
            out.put_var(u64::from(session));
        }
        Kind::Message { seq, session, hold, deferred } => {
            out.put_u8(1);
            out.put_var(seq);
            out.put_var(u64::from(session.unwrap_or(NONE)));
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

fn totals_of(t: &Totals) -> [u64; 10] {
    [
        t.sent,
        t.delivered,
        t.redelivered,
        t.completed,
        t.abandoned,
        t.dead_lettered,
        t.deferred,
        t.expired,
        t.lost,
        t.sessions_lost,
    ]
}

fn of_totals(n: [u64; 10]) -> Totals {
    let [
        sent,
        delivered,
        redelivered,
        completed,
        abandoned,
        dead_lettered,
        deferred,
        expired,
        lost,
        sessions_lost,
    ] = n;
    Totals {
        sent,
        delivered,
        redelivered,
        completed,
        abandoned,
        dead_lettered,
        deferred,
        expired,
        lost,
        sessions_lost,
    }
}
