//! The record of a message that was sent: a byte of flags, the fields that they announce, and the message.

use bytes::Bytes;
use malote_model::SessionId;
use smallvec::SmallVec;

use super::event::{VERSION_5, VERSION_MORE, get_history, put_history};
use super::read::{EncodeExt, Malformed, Reader};
use crate::event::{Placement, RouteHistory, SentEvent};

const SCHEDULED: u8 = 1;
const PRIORITY: u8 = 2;
const TTL: u8 = 4;
const DEDUP: u8 = 8;
const SESSION: u8 = 16;
const TOPIC: u8 = 32;
const BODY_AT: u8 = 64;
const HISTORY: u8 = 128;

pub(super) fn put_places(out: &mut Vec<u8>, places: &[Placement]) {
    out.put_var(places.len() as u64);
    for place in places {
        out.put_queue(place.queue);
        out.put_var(place.seq);
        out.put_time(place.due);
    }
}

pub(super) fn get_places(r: &mut Reader<'_>) -> Result<SmallVec<[Placement; 1]>, Malformed> {
    let n = r.count()?;
    let place = |_| Ok(Placement { queue: r.queue()?, seq: r.var()?, due: r.time()? });
    (0..n).map(place).collect()
}

pub(super) fn put_sent(out: &mut Vec<u8>, sent: &SentEvent, version: u8) {
    out.reserve(sent.size as usize + 64);
    put_places(out, &sent.places);
    out.put_time(sent.at);
    let flags = [
        (SCHEDULED, sent.scheduled),
        (PRIORITY, sent.priority > 0),
        (TTL, sent.ttl_ms.is_some()),
        (DEDUP, sent.dedup.is_some()),
        (SESSION, sent.session.is_some()),
        (TOPIC, sent.topic.is_some()),
        (BODY_AT, sent.body_at.is_some()),
        (HISTORY, sent.history != RouteHistory::default()),
    ];
    out.put_u8(flags.iter().filter(|(_, set)| *set).fold(0, |all, (flag, _)| all | flag));
    if sent.priority > 0 {
        out.put_u8(sent.priority);
    }
    if let Some(ttl_ms) = sent.ttl_ms {
        out.put_var(ttl_ms);
    }
    if let Some(dedup) = sent.dedup {
        out.extend_from_slice(&dedup.to_le_bytes());
    }
    if version >= VERSION_5 {
        out.put_bool(sent.known_as.is_some());
    }
    if let Some(id) = sent.known_as {
        out.extend_from_slice(&id.to_be_bytes());
    }
    if let Some(session) = &sent.session {
        out.put_str(session.as_str());
    }
    if let Some(topic) = sent.topic {
        out.put_queue(topic);
    }
    if sent.history != RouteHistory::default() {
        put_history(out, &sent.history);
    }
    match sent.body_at {
        // The size is counted as if the body were here.
        Some(body_at) => {
            out.put_pos(body_at);
            out.put_var(u64::from(sent.size));
            out.extend_from_slice(&sent.head);
        }
        None => {
            out.extend_from_slice(&sent.head);
            out.extend_from_slice(&sent.body);
        }
    }
}

/// Leaves the reader at the message's headers.
pub(super) fn get_sent(r: &mut Reader<'_>, version: u8) -> Result<SentEvent, Malformed> {
    let places = get_places(r)?;
    let (at, flags) = (r.time()?, r.u8()?);
    let priority = if flags & PRIORITY != 0 { r.u8()? } else { 0 };
    let ttl_ms = if flags & TTL != 0 { Some(r.var()?) } else { None };
    let dedup = if flags & DEDUP != 0 { Some(u128::from_le_bytes(r.fixed()?)) } else { None };
    let has_id = if version >= VERSION_5 { r.bool()? } else { version == VERSION_MORE };
    let known_as = if has_id { Some(u128::from_be_bytes(r.fixed()?)) } else { None };
    let session = if flags & SESSION != 0 { Some(get_session(r)?) } else { None };
    let topic = if flags & TOPIC != 0 { Some(r.queue()?) } else { None };
    let history = if flags & HISTORY != 0 { get_history(r)? } else { RouteHistory::default() };
    let (body_at, size) = match flags & BODY_AT {
        0 => (None, u32::try_from(r.rest().len()).map_err(|_| Malformed)?),
        _ => (Some(r.pos()?), r.var32()?),
    };
    Ok(SentEvent {
        topic,
        body_at,
        history,
        places,
        at,
        scheduled: flags & SCHEDULED != 0,
        session,
        priority,
        ttl_ms,
        dedup,
        known_as,
        head: Bytes::new(),
        body: Bytes::new(),
        size,
    })
}

pub(super) fn get_session(r: &mut Reader<'_>) -> Result<SessionId, Malformed> {
    SessionId::new(r.str()?).map_err(|_| Malformed)
}
