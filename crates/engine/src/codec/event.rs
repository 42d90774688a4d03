//! Events as journal records. The frame's kind says which; the body begins with the version of that kind's layout.

use bytes::Bytes;
use malote_model::{DeadReason, LeaseToken, Seq, SessionId};

use super::message::{get_properties, put_properties};
use super::read::{Put, Reader, Truncated};
use super::spec::{get_spec, put_spec};
use super::stored::DeadLetter;
use crate::event::{Cause, Event, Kept, Leased, Moved, Over, Removal, Returned, Sent, Why};

pub(super) const VERSION: u8 = 1;
pub(super) const KIND_SENT: u8 = 7;
pub(super) const KIND_RETURNED: u8 = 11;
pub(super) const KIND_DEFERRED: u8 = 12;
pub(super) const KIND_MOVED: u8 = 13;
pub(super) const KIND_STATE: u8 = 16;
pub(super) const KIND_KEPT: u8 = 64;

/// The frame kind of an event.
pub(crate) fn kind_of(event: &Event) -> u8 {
    match event {
        Event::Booted { .. } => 1,
        Event::Declared { .. } => 2,
        Event::Updated { .. } => 3,
        Event::Deleted { .. } => 4,
        Event::Paused { .. } => 5,
        Event::Purged { .. } => 6,
        Event::Sent(_) => KIND_SENT,
        Event::Removed { .. } => 8,
        Event::Leased(_) => 9,
        Event::Renewed { .. } => 10,
        Event::Returned(_) => KIND_RETURNED,
        Event::Deferred { .. } => KIND_DEFERRED,
        Event::Moved(_) => KIND_MOVED,
        Event::Held { .. } => 14,
        Event::Unheld { .. } => 15,
        Event::State { .. } => KIND_STATE,
        Event::Kept(_) => KIND_KEPT,
    }
}

/// Appends the body of an event's record.
pub(crate) fn encode_event(out: &mut Vec<u8>, event: &Event) {
    out.put_u8(VERSION);
    match event {
        Event::Booted { epoch, at } => {
            out.put_var(u64::from(*epoch));
            out.put_time(*at);
        }
        Event::Declared { queue, dead, name, spec, at } => {
            out.put_queue(*queue);
            out.put_queue(*dead);
            out.put_str(name.as_str());
            out.put_time(*at);
            put_spec(out, spec);
        }
        Event::Updated { queue, spec } => {
            out.put_queue(*queue);
            put_spec(out, spec);
        }
        Event::Deleted { queue } => out.put_queue(*queue),
        Event::Paused { queue, paused } => {
            out.put_queue(*queue);
            out.put_bool(*paused);
        }
        Event::Purged { queue, below } => {
            out.put_queue(*queue);
            out.put_var(*below);
        }
        Event::Sent(sent) => {
            out.reserve(sent.size as usize + 64);
            out.put_queue(sent.queue);
            out.put_var(sent.seq);
            out.put_time(sent.at);
            out.put_time(sent.due);
            out.put_bool(sent.scheduled);
            out.put_session(sent.session.as_ref());
            out.extend_from_slice(&sent.head);
            out.extend_from_slice(&sent.body);
        }
        Event::Removed { queue, why, session, seqs } => {
            out.put_queue(*queue);
            out.put_u8(*why as u8);
            out.put_session(session.as_ref());
            put_seqs(out, seqs);
        }
        Event::Leased(leased) => put_leased(out, leased),
        Event::Renewed { leases, until } => {
            out.put_time(*until);
            out.put_var(leases.len() as u64);
            leases.iter().for_each(|lease| out.extend_from_slice(&lease.to_bytes()));
        }
        Event::Returned(Returned { queue, seq, cause, due, parked, over }) => {
            out.put_queue(*queue);
            out.put_var(*seq);
            put_over(out, over.as_ref());
            out.put_u8(*cause as u8);
            out.put_time(*due);
            out.put_bool(*parked);
        }
        Event::Deferred { queue, seq, over } => {
            out.put_queue(*queue);
            out.put_var(*seq);
            put_over(out, over.as_ref());
        }
        Event::Moved(moved) => put_moved(out, moved),
        Event::Held { queue, session, token, until, bound } => {
            out.put_queue(*queue);
            out.put_str(session.as_str());
            out.extend_from_slice(&token.to_bytes());
            out.put_time(*until);
            out.put_bool(*bound);
        }
        Event::Unheld { queue, session, lost } => {
            out.put_queue(*queue);
            out.put_str(session.as_str());
            out.put_bool(*lost);
        }
        Event::State { queue, session, state } => {
            out.put_queue(*queue);
            out.put_str(session.as_str());
            out.put_bool(state.is_some());
            out.extend_from_slice(state.as_deref().unwrap_or_default());
        }
        Event::Kept(kept) => put_kept(out, kept),
    }
}

fn put_kept(out: &mut Vec<u8>, kept: &Kept) {
    out.reserve(kept.head.len() + kept.body.len() + 64);
    out.put_var(kept.places.len() as u64);
    for &(queue, seq) in &kept.places {
        out.put_queue(queue);
        out.put_var(seq);
    }
    out.put_time(kept.at);
    out.put_bool(kept.dead.is_some());
    if let Some(dead) = &kept.dead {
        out.put_str(&dead.reason);
        out.put_str(&dead.text);
        out.put_time(dead.at);
        out.put_str(dead.from.as_str());
        out.put_var(dead.from_seq.0);
        out.put_var(u64::from(dead.receives));
        out.put_var(u64::from(dead.failed));
    }
    out.extend_from_slice(&kept.head);
    out.extend_from_slice(&kept.body);
}

/// Leaves the reader at the message's headers.
pub(super) fn get_kept(r: &mut Reader<'_>) -> Result<Kept, Truncated> {
    let n = r.count()?;
    let places = (0..n).map(|_| Ok((r.queue()?, r.var()?))).collect::<Result<_, _>>()?;
    let at = r.time()?;
    let dead = if r.bool()? {
        let (reason, text) = (r.str()?.to_owned(), r.str()?.to_owned());
        let (at, from, from_seq) = (r.time()?, r.name()?, Seq(r.var()?));
        let (receives, failed) = (r.var32()?, r.var32()?);
        Some(DeadLetter { reason, text, at, from, from_seq, receives, failed })
    } else {
        None
    };
    Ok(Kept { places, at, dead, head: Bytes::new(), body: Bytes::new() })
}

/// Zigzag differences: sequences of one event are neighbours.
fn put_seqs(out: &mut Vec<u8>, seqs: &[u64]) {
    out.put_var(seqs.len() as u64);
    let mut last = 0_u64;
    for &seq in seqs {
        out.put_var(zigzag(seq.wrapping_sub(last)));
        last = seq;
    }
}

const fn zigzag(difference: u64) -> u64 {
    (difference << 1) ^ (((difference as i64) >> 63) as u64)
}

const fn unzigzag(coded: u64) -> u64 {
    (coded >> 1) ^ (coded & 1).wrapping_neg()
}

fn get_seqs(r: &mut Reader<'_>) -> Result<Vec<u64>, Truncated> {
    let n = r.count()?;
    let mut last = 0_u64;
    let each = |_| {
        last = last.wrapping_add(unzigzag(r.var()?));
        Ok(last)
    };
    (0..n).map(each).collect()
}

/// The tokens of one grant differ in slot, grant and random part: the epoch stands once.
fn put_leased(out: &mut Vec<u8>, leased: &Leased) {
    out.put_queue(leased.queue);
    out.put_time(leased.until);
    out.put_u8(
        u8::from(leased.bound)
            | u8::from(leased.hold.is_some()) << 1
            | u8::from(leased.deferred) << 2,
    );
    if let Some(hold) = leased.hold {
        out.extend_from_slice(&hold.to_bytes());
    }
    out.put_session(leased.session.as_ref());
    out.put_var(leased.items.len() as u64);
    out.put_var(leased.items.first().map_or(0, |(_, token)| u64::from(token.epoch)));
    let mut last = 0_u64;
    for (seq, token) in &leased.items {
        out.put_var(zigzag(seq.wrapping_sub(last)));
        last = *seq;
        out.put_var(u64::from(token.slot));
        out.put_var(u64::from(token.grant));
        out.extend_from_slice(&token.random.to_le_bytes());
    }
}

fn get_leased(r: &mut Reader<'_>) -> Result<Leased, Truncated> {
    let (queue, until, flags) = (r.queue()?, r.time()?, r.u8()?);
    let hold = if flags & 2 != 0 { Some(r.token()?) } else { None };
    let session = r.session()?;
    let n = r.count()?;
    let epoch = r.var32()?;
    let mut items = Vec::with_capacity(n);
    let mut last = 0_u64;
    for _ in 0..n {
        last = last.wrapping_add(unzigzag(r.var()?));
        let (slot, grant) = (r.var32()?, r.var32()?);
        let random = u32::from_le_bytes(r.fixed()?);
        items.push((last, LeaseToken { epoch, slot, grant, random }));
    }
    Ok(Leased {
        queue,
        until,
        bound: flags & 1 != 0,
        hold,
        session,
        deferred: flags & 4 != 0,
        items,
    })
}

fn put_over(out: &mut Vec<u8>, over: Option<&Over>) {
    // No record stands at position 0.
    out.put_var(over.map_or(0, |over| over.from.get()));
    if let Some(over) = over {
        put_checked_properties(out, &over.properties);
    }
}

fn put_checked_properties(out: &mut Vec<u8>, properties: &malote_model::Properties) {
    put_properties(out, properties)
        .expect("the command's properties were checked when it was decided");
}

pub(super) fn get_over(r: &mut Reader<'_>) -> Result<Option<Over>, Truncated> {
    let from = r.pos()?;
    if from.get() == 0 {
        return Ok(None);
    }
    Ok(Some(Over { from, properties: get_properties(r)? }))
}

fn put_moved(out: &mut Vec<u8>, moved: &Moved) {
    out.put_queue(moved.from_queue);
    out.put_var(moved.from_seq);
    out.put_pos(moved.from);
    out.put_queue(moved.queue);
    out.put_var(moved.seq);
    out.put_time(moved.at);
    out.put_session(moved.session.as_ref());
    out.put_var(u64::from(moved.size));
    match &moved.why {
        Why::Due => out.put_u8(0),
        Why::Redriven => out.put_u8(1),
        Why::Dead { reason, source, receives, failed } => {
            out.put_u8(2);
            match reason {
                DeadReason::Asked { reason, text } => {
                    out.put_u8(0);
                    out.put_str(reason);
                    out.put_str(text);
                }
                DeadReason::MaxFailed { failed, failed_max } => {
                    out.put_u8(1);
                    out.put_var(u64::from(*failed));
                    out.put_var(u64::from(*failed_max));
                }
                DeadReason::MaxReceives { receives, receives_max } => {
                    out.put_u8(2);
                    out.put_var(u64::from(*receives));
                    out.put_var(u64::from(*receives_max));
                }
            }
            out.put_str(source.as_str());
            out.put_var(u64::from(*receives));
            out.put_var(u64::from(*failed));
        }
    }
    put_checked_properties(out, &moved.properties);
}

pub(super) fn get_moved(r: &mut Reader<'_>) -> Result<Moved, Truncated> {
    let (from_queue, from_seq, from) = (r.queue()?, r.var()?, r.pos()?);
    let (queue, seq, at) = (r.queue()?, r.var()?, r.time()?);
    let (session, size) = (r.session()?, r.var32()?);
    let why = match r.u8()? {
        0 => Why::Due,
        1 => Why::Redriven,
        2 => {
            let reason = match r.u8()? {
                0 => DeadReason::Asked { reason: r.str()?.to_owned(), text: r.str()?.to_owned() },
                1 => DeadReason::MaxFailed { failed: r.var32()?, failed_max: r.var32()? },
                2 => DeadReason::MaxReceives { receives: r.var32()?, receives_max: r.var32()? },
                _ => return Err(Truncated),
            };
            Why::Dead { reason, source: r.name()?, receives: r.var32()?, failed: r.var32()? }
        }
        _ => return Err(Truncated),
    };
    let properties = get_properties(r)?;
    Ok(Moved { from_queue, from_seq, from, queue, seq, at, session, size, why, properties })
}

/// What a record says, but for the body of a message: a replay needs only its size.
pub(crate) fn decode_event(kind: u8, body: &[u8]) -> Result<Event, Truncated> {
    let r = &mut Reader::new(body);
    if r.u8()? != VERSION {
        return Err(Truncated);
    }
    let named = |r: &mut Reader<'_>| SessionId::new(r.str()?).map_err(|_| Truncated);
    Ok(match kind {
        1 => Event::Booted { epoch: r.var32()?, at: r.time()? },
        2 => {
            let (queue, dead, name, at) = (r.queue()?, r.queue()?, r.name()?, r.time()?);
            Event::Declared { queue, dead, name, spec: Box::new(get_spec(r)?), at }
        }
        3 => Event::Updated { queue: r.queue()?, spec: Box::new(get_spec(r)?) },
        4 => Event::Deleted { queue: r.queue()? },
        5 => Event::Paused { queue: r.queue()?, paused: r.bool()? },
        6 => Event::Purged { queue: r.queue()?, below: r.var()? },
        KIND_SENT => Event::Sent(get_sent(r)?),
        8 => {
            let queue = r.queue()?;
            let why = match r.u8()? {
                0 => Removal::Completed,
                1 => Removal::Taken,
                2 => Removal::Cancelled,
                3 => Removal::Dropped,
                4 => Removal::Replaced,
                _ => return Err(Truncated),
            };
            Event::Removed { queue, why, session: r.session()?, seqs: get_seqs(r)? }
        }
        9 => Event::Leased(get_leased(r)?),
        10 => {
            let until = r.time()?;
            let n = r.count()?;
            Event::Renewed { until, leases: (0..n).map(|_| r.token()).collect::<Result<_, _>>()? }
        }
        KIND_RETURNED => {
            let (queue, seq, over) = (r.queue()?, r.var()?, get_over(r)?);
            let cause = match r.u8()? {
                0 => Cause::Released,
                1 => Cause::Abandoned,
                2 => Cause::Lost,
                _ => return Err(Truncated),
            };
            Event::Returned(Returned { queue, seq, cause, due: r.time()?, parked: r.bool()?, over })
        }
        KIND_DEFERRED => Event::Deferred { queue: r.queue()?, seq: r.var()?, over: get_over(r)? },
        KIND_MOVED => Event::Moved(Box::new(get_moved(r)?)),
        14 => {
            let (queue, session, token) = (r.queue()?, named(r)?, r.token()?);
            Event::Held { queue, session, token, until: r.time()?, bound: r.bool()? }
        }
        15 => Event::Unheld { queue: r.queue()?, session: named(r)?, lost: r.bool()? },
        KIND_STATE => {
            let (queue, session, set) = (r.queue()?, named(r)?, r.bool()?);
            Event::State { queue, session, state: set.then(|| Bytes::copy_from_slice(r.rest())) }
        }
        KIND_KEPT => Event::Kept(Box::new(get_kept(r)?)),
        _ => return Err(Truncated),
    })
}

/// Leaves the reader at the message's headers.
pub(super) fn get_sent(r: &mut Reader<'_>) -> Result<Sent, Truncated> {
    let (queue, seq, at, due) = (r.queue()?, r.var()?, r.time()?, r.time()?);
    let (scheduled, session) = (r.bool()?, r.session()?);
    let size = u32::try_from(r.rest().len()).map_err(|_| Truncated)?;
    Ok(Sent {
        queue,
        seq,
        at,
        due,
        scheduled,
        session,
        head: Bytes::new(),
        body: Bytes::new(),
        size,
    })
}
