//! Events as journal records. The frame's kind is the type of the event; the body begins with the version of its
//! layout.

use bytes::Bytes;
use malote_model::{Filter, Seq, Timestamp, TopicName};

use super::digest::{get_digest, put_digest};
use super::leased::{LEASED_AT, get_leased, put_leased};
use super::message::{get_properties, has_more_keys, put_properties};
use super::moved::{get_moved, put_moved};
use super::read::{EncodeExt, Malformed, Reader};
use super::rule::{self, get_rule, get_topic_spec, put_rule, put_topic_spec};
use super::sent::{get_sent, get_session, put_sent};
use super::spec::{self, get_spec, put_spec};
use super::stored::DeadLetter;
use crate::event::{
    Event, LeaseEnd, MessageRef, MoveReason, MovedEvent, Overlay, QueueId, RelocatedMessage,
    Removal, ReturnedEvent, RouteHistory,
};
use crate::format::{NotUnderstood, is_known};

pub(super) const VERSION: u8 = 1;
/// Additions to version 1: the status in settings, purging leased messages, ids of moved and sent messages, the time of
/// a session state, the first sequence number of a copied message.
pub(super) const VERSION_MORE: u8 = 2;
/// A change of settings with its time.
const UPDATED_AT: u8 = 3;
/// Format 5: further settings of queues and topics, several routing keys, topics of dead letters, rules between topics.
pub(super) const VERSION_5: u8 = 3;
/// Format 5, of records that had a version 3 before.
const UPDATED_5: u8 = 4;
/// Format 6: a queue takes sessions from a field of its messages.
const DECLARED_6: u8 = 4;
const UPDATED_6: u8 = 5;
/// Format 5, of rules.
const BOUND_5: u8 = 2;
const KIND_BOUND: u8 = 19;
const KIND_DECLARED: u8 = 2;
const KIND_UPDATED: u8 = 3;
const KIND_PURGED: u8 = 6;
const KIND_LEASED: u8 = 9;
const KIND_TOPIC_DECLARED: u8 = 17;
const KIND_TOPIC_UPDATED: u8 = 21;
pub(super) const KIND_SENT: u8 = 7;
pub(super) const KIND_RETURNED: u8 = 11;
pub(super) const KIND_DEFERRED: u8 = 12;
pub(super) const KIND_MOVED: u8 = 13;
pub(super) const KIND_STATE: u8 = 16;
/// Versions that do not know digests must refuse a journal with one.
const KIND_DIGEST: u8 = 22;
pub(super) const KIND_RELOCATED: u8 = 64;

pub(crate) fn kind_of(event: &Event) -> u8 {
    match event {
        Event::Booted { .. } => 1,
        Event::Declared { .. } => KIND_DECLARED,
        Event::Updated { .. } => KIND_UPDATED,
        Event::Deleted { .. } => 4,
        Event::Paused { .. } => 5,
        Event::Purged { .. } => KIND_PURGED,
        Event::Sent(_) => KIND_SENT,
        Event::Removed { .. } => 8,
        Event::Leased(_) => KIND_LEASED,
        Event::Renewed { .. } => 10,
        Event::Returned(_) => KIND_RETURNED,
        Event::Deferred { .. } => KIND_DEFERRED,
        Event::Moved(_) => KIND_MOVED,
        Event::Held { .. } => 14,
        Event::Unheld { .. } => 15,
        Event::State { .. } => KIND_STATE,
        Event::TopicDeclared { .. } => KIND_TOPIC_DECLARED,
        Event::TopicUpdated { .. } => KIND_TOPIC_UPDATED,
        Event::TopicDeleted { .. } => 18,
        Event::Bound { .. } => KIND_BOUND,
        Event::Unbound { .. } => 20,
        Event::Relocated(_) => KIND_RELOCATED,
        Event::Digest(_) => KIND_DIGEST,
        Event::ClockStepped { .. } => 23,
    }
}

/// The version of a record's layout: the oldest that can express the event.
fn version_of(event: &Event) -> u8 {
    match event {
        Event::Leased(_) => LEASED_AT,
        Event::Declared { spec, .. } if spec.session_from.is_some() => DECLARED_6,
        Event::Updated { spec, .. } if spec.session_from.is_some() => UPDATED_6,
        Event::Declared { spec, .. } if spec::has_more(spec) => VERSION_5,
        Event::TopicDeclared { spec, .. } if rule::has_more(spec) => VERSION_5,
        Event::Updated { spec, .. } if spec::has_more(spec) => UPDATED_5,
        Event::TopicUpdated { spec, .. } if rule::has_more(spec) => UPDATED_5,
        Event::Sent(sent) if has_more_keys(&sent.head) => VERSION_5,
        Event::Moved(moved) if names_topic(moved) => VERSION_5,
        Event::Relocated(kept) if names_topics(kept) => VERSION_5,
        Event::Bound { rule, .. } if matches!(rule.filter, Filter::Weight(_)) => BOUND_5,
        Event::Updated { .. } | Event::TopicUpdated { .. } => UPDATED_AT,
        Event::Declared { .. }
        | Event::Purged { leased: true, .. }
        | Event::State { .. }
        | Event::TopicDeclared { .. } => VERSION_MORE,
        Event::Sent(sent) if sent.known_as.is_some() => VERSION_MORE,
        Event::Moved(moved) if moved.message_id.is_some() => VERSION_MORE,
        Event::Relocated(kept) if kept.first_seq.is_some() => VERSION_MORE,
        _ => VERSION,
    }
}

/// Whether a move names the topic of a dead letter.
fn names_topic(moved: &MovedEvent) -> bool {
    matches!(&moved.why, MoveReason::DeadLettered { to: Some(_), .. })
}

/// Whether a copied message needs format 5: it was routed by a dead-letter topic, has several routing keys, or was
/// dead-lettered more often than its record lists.
fn names_topics(kept: &RelocatedMessage) -> bool {
    kept.routed_by.is_some()
        || has_more_keys(&kept.head)
        || kept.deaths.iter().any(|dead| dead.topic.is_some() || dead.count > 1)
}

/// Appends the body of an event's record.
pub(crate) fn encode_event(out: &mut Vec<u8>, event: &Event) {
    let version = version_of(event);
    debug_assert!(is_known(kind_of(event), version), "every record that is written is in a format");
    out.put_u8(version);
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
        Event::Updated { queue, spec, at } => {
            out.put_queue(*queue);
            out.put_time(*at);
            put_spec(out, spec);
        }
        Event::Deleted { queue } => out.put_queue(*queue),
        Event::Paused { queue, paused } => {
            out.put_queue(*queue);
            out.put_bool(*paused);
        }
        // The version says whether leased messages are included.
        Event::Purged { queue, below, .. } => {
            out.put_queue(*queue);
            out.put_var(*below);
        }
        Event::Sent(sent) => put_sent(out, sent, version),
        Event::Removed { queue, why, session, seqs } => {
            out.put_queue(*queue);
            out.put_u8(match why {
                Removal::Completed => 0,
                Removal::Taken => 1,
                Removal::Cancelled => 2,
                Removal::Dropped(LeaseEnd::Released) => 3,
                Removal::Replaced => 4,
                Removal::Dropped(LeaseEnd::Abandoned) => 5,
                Removal::Dropped(LeaseEnd::Lost) => 6,
                Removal::Expired => 7,
                Removal::Overflowed => 8,
                Removal::Unrouted => 9,
                Removal::Purged => 10,
            });
            out.put_session(session.as_ref());
            put_seqs(out, seqs);
        }
        Event::Leased(leased) => put_leased(out, leased),
        Event::Renewed { leases, until } => {
            out.put_time(*until);
            out.put_var(leases.len() as u64);
            leases.iter().for_each(|lease| out.extend_from_slice(&lease.to_bytes()));
        }
        Event::Returned(ReturnedEvent { queue, seq, cause, due, parked, overlay }) => {
            out.put_queue(*queue);
            out.put_var(*seq);
            put_overlay(out, overlay.as_ref());
            out.put_u8(*cause as u8);
            out.put_time(*due);
            out.put_bool(*parked);
        }
        Event::Deferred { queue, seq, overlay } => {
            out.put_queue(*queue);
            out.put_var(*seq);
            put_overlay(out, overlay.as_ref());
        }
        Event::Moved(moved) => put_moved(out, moved, version),
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
        Event::State { queue, session, state, at } => {
            out.put_queue(*queue);
            out.put_str(session.as_str());
            out.put_time(*at);
            out.put_bool(state.is_some());
            out.extend_from_slice(state.as_deref().unwrap_or_default());
        }
        Event::TopicDeclared { topic, name, spec, at } => {
            out.put_queue(*topic);
            out.put_str(name.as_str());
            out.put_time(*at);
            put_topic_spec(out, spec);
        }
        Event::TopicUpdated { topic, spec, at } => {
            out.put_queue(*topic);
            out.put_time(*at);
            put_topic_spec(out, spec);
        }
        Event::TopicDeleted { topic } => out.put_queue(*topic),
        Event::Bound { topic, queue, rule } => {
            out.put_queue(*topic);
            out.put_queue(*queue);
            put_rule(out, rule).expect("the rule was checked when it was decided");
        }
        Event::Unbound { topic, queue, rule } => {
            out.put_queue(*topic);
            out.put_queue(*queue);
            out.put_str(rule);
        }
        Event::Relocated(kept) => put_relocated(out, kept, version),
        Event::Digest(digest) => put_digest(out, digest),
        Event::ClockStepped { by_ms, at } => {
            out.put_time(*at);
            out.put_var(*by_ms);
        }
    }
}

fn put_relocated(out: &mut Vec<u8>, kept: &RelocatedMessage, version: u8) {
    out.reserve(kept.head.len() + kept.body.len() + 64);
    out.put_var(kept.places.len() as u64);
    for &MessageRef { queue, seq } in &kept.places {
        out.put_queue(queue);
        out.put_var(seq);
    }
    out.put_time(kept.at);
    out.put_time(kept.sent_at);
    out.put_bool(kept.dead);
    out.put_var(kept.deaths.len() as u64);
    for dead in &kept.deaths {
        out.put_str(&dead.reason);
        out.put_str(&dead.text);
        out.put_time(dead.at);
        out.put_str(dead.from.as_str());
        out.put_var(dead.from_seq.0);
        out.put_var(u64::from(dead.receives));
        out.put_var(u64::from(dead.failed));
        if version >= VERSION_5 {
            out.put_var(u64::from(dead.count));
            out.put_time(dead.first_at);
            out.put_str(dead.topic.as_ref().map_or("", |topic| topic.as_str()));
            out.put_var(dead.keys.len() as u64);
            dead.keys.iter().for_each(|key| out.put_str(key));
        }
    }
    if version >= VERSION_5 {
        out.put_bool(kept.first_seq.is_some());
        out.put_str(kept.routed_by.as_ref().map_or("", |topic| topic.as_str()));
    }
    kept.first_seq.iter().for_each(|&seq| out.put_var(seq));
    out.extend_from_slice(&kept.head);
    out.extend_from_slice(&kept.body);
}

/// Leaves the reader at the message's headers.
pub(super) fn get_relocated(
    r: &mut Reader<'_>,
    version: u8,
) -> Result<RelocatedMessage, Malformed> {
    let n = r.count()?;
    let place = |_| Ok(MessageRef { queue: r.queue()?, seq: r.var()? });
    let places = (0..n).map(place).collect::<Result<_, _>>()?;
    let (at, sent_at) = (r.time()?, r.time()?);
    let (dead, n) = (r.bool()?, r.count()?);
    let mut deaths = Vec::new();
    for _ in 0..n {
        let (reason, text) = (r.str()?.to_owned(), r.str()?.to_owned());
        let (at, from, from_seq) = (r.time()?, r.name()?, Seq(r.var()?));
        let (receives, failed) = (r.var32()?, r.var32()?);
        let mut death = DeadLetter::once(reason, text, at, from);
        (death.from_seq, death.receives, death.failed) = (from_seq, receives, failed);
        if version >= VERSION_5 {
            (death.count, death.first_at) = (r.var32()?, r.time()?);
            death.topic = get_optional_topic(r)?;
            let n = r.count()?;
            death.keys =
                (0..n).map(|_| Ok(r.str()?.to_owned())).collect::<Result<_, Malformed>>()?;
        }
        deaths.push(death);
    }
    let (has_first, routed_by) = match version {
        VERSION_5.. => (r.bool()?, get_optional_topic(r)?),
        _ => (version == VERSION_MORE, None),
    };
    let first_seq = if has_first { Some(r.var()?) } else { None };
    let (head, body) = (Bytes::new(), Bytes::new());
    Ok(RelocatedMessage { places, at, sent_at, dead, deaths, first_seq, routed_by, head, body })
}

fn get_optional_topic(r: &mut Reader<'_>) -> Result<Option<TopicName>, Malformed> {
    match r.str()? {
        "" => Ok(None),
        name => TopicName::new(name).map(Some).map_err(|_| Malformed),
    }
}

/// Zigzag-encoded differences, because the sequence numbers of one event are close together.
fn put_seqs(out: &mut Vec<u8>, seqs: &[u64]) {
    out.put_var(seqs.len() as u64);
    let mut last = 0_u64;
    for &seq in seqs {
        out.put_var(zigzag(seq.wrapping_sub(last)));
        last = seq;
    }
}

pub(super) const fn zigzag(difference: u64) -> u64 {
    (difference << 1) ^ (((difference as i64) >> 63) as u64)
}

pub(super) const fn unzigzag(coded: u64) -> u64 {
    (coded >> 1) ^ (coded & 1).wrapping_neg()
}

fn get_seqs(r: &mut Reader<'_>) -> Result<Vec<u64>, Malformed> {
    let n = r.count()?;
    let mut last = 0_u64;
    let each = |_| {
        last = last.wrapping_add(unzigzag(r.var()?));
        Ok(last)
    };
    (0..n).map(each).collect()
}

fn put_overlay(out: &mut Vec<u8>, overlay: Option<&Overlay>) {
    // No record is at position 0.
    out.put_var(overlay.map_or(0, |overlay| overlay.from.get()));
    if let Some(overlay) = overlay {
        put_checked_properties(out, &overlay.properties);
    }
}

pub(super) fn put_checked_properties(out: &mut Vec<u8>, properties: &malote_model::Properties) {
    put_properties(out, properties)
        .expect("the command's properties were checked when it was decided");
}

pub(super) fn get_overlay(r: &mut Reader<'_>) -> Result<Option<Overlay>, Malformed> {
    let from = r.pos()?;
    if from.get() == 0 {
        return Ok(None);
    }
    Ok(Some(Overlay { from, properties: get_properties(r)? }))
}

pub(crate) fn put_history(out: &mut Vec<u8>, history: &RouteHistory) {
    out.put_var(history.dead_lettered_in.len() as u64);
    history.dead_lettered_in.iter().for_each(|&queue| out.put_queue(queue));
    out.put_u8(history.hops);
    out.put_queue(history.dead_lettered_from.unwrap_or_default());
}

pub(crate) fn get_history(r: &mut Reader<'_>) -> Result<RouteHistory, Malformed> {
    let n = r.count()?;
    let dead_lettered_in = (0..n).map(|_| r.queue()).collect::<Result<_, _>>()?;
    let hops = r.u8()?;
    // No queue has the id 0.
    let dead_lettered_from = Some(r.queue()?).filter(|&home| home != QueueId::default());
    Ok(RouteHistory { dead_lettered_in, hops, dead_lettered_from })
}

fn get_updated_at(r: &mut Reader<'_>, version: u8) -> Result<Timestamp, Malformed> {
    if version >= UPDATED_AT { r.time() } else { Ok(Timestamp(0)) }
}

impl Event {
    /// Decodes a journal frame, for inspecting a journal. The body of a message is omitted.
    pub fn decode(kind: u8, body: &[u8]) -> Option<Event> {
        decode_event(kind, body).ok()
    }
}

/// Decodes a journal record, or returns why it cannot be decoded.
pub(crate) fn understand_event(kind: u8, body: &[u8]) -> Result<Event, NotUnderstood> {
    let version = body.first().copied().unwrap_or(0);
    decode_event(kind, body).map_err(|_| match is_known(kind, version) {
        true => NotUnderstood::Malformed { kind, version },
        false => NotUnderstood::Unknown { kind, version },
    })
}

/// Decodes a record, except for the body of a message: a replay needs only its size.
pub(crate) fn decode_event(kind: u8, body: &[u8]) -> Result<Event, Malformed> {
    let r = &mut Reader::new(body);
    let version = r.u8()?;
    if !is_known(kind, version) {
        return Err(Malformed);
    }
    let more = version == VERSION_MORE;
    Ok(match kind {
        1 => Event::Booted { epoch: r.var32()?, at: r.time()? },
        KIND_DECLARED => {
            let (queue, dead, name, at) = (r.queue()?, r.queue()?, r.name()?, r.time()?);
            let spec = Box::new(get_spec(r, version >= VERSION_MORE)?);
            Event::Declared { queue, dead, name, spec, at }
        }
        KIND_UPDATED => {
            let (queue, at) = (r.queue()?, get_updated_at(r, version)?);
            let spec = Box::new(get_spec(r, version >= VERSION_MORE)?);
            Event::Updated { queue, spec, at }
        }
        4 => Event::Deleted { queue: r.queue()? },
        5 => Event::Paused { queue: r.queue()?, paused: r.bool()? },
        KIND_PURGED => Event::Purged { queue: r.queue()?, below: r.var()?, leased: more },
        KIND_SENT => Event::Sent(get_sent(r, version)?),
        8 => {
            let queue = r.queue()?;
            let why = match r.u8()? {
                0 => Removal::Completed,
                1 => Removal::Taken,
                2 => Removal::Cancelled,
                3 => Removal::Dropped(LeaseEnd::Released),
                4 => Removal::Replaced,
                5 => Removal::Dropped(LeaseEnd::Abandoned),
                6 => Removal::Dropped(LeaseEnd::Lost),
                7 => Removal::Expired,
                8 => Removal::Overflowed,
                9 => Removal::Unrouted,
                10 => Removal::Purged,
                _ => return Err(Malformed),
            };
            Event::Removed { queue, why, session: r.session()?, seqs: get_seqs(r)? }
        }
        KIND_LEASED => Event::Leased(get_leased(r, version)?),
        10 => {
            let until = r.time()?;
            let n = r.count()?;
            Event::Renewed { until, leases: (0..n).map(|_| r.token()).collect::<Result<_, _>>()? }
        }
        KIND_RETURNED => {
            let (queue, seq, overlay) = (r.queue()?, r.var()?, get_overlay(r)?);
            let cause = match r.u8()? {
                0 => LeaseEnd::Released,
                1 => LeaseEnd::Abandoned,
                2 => LeaseEnd::Lost,
                _ => return Err(Malformed),
            };
            Event::Returned(ReturnedEvent {
                queue,
                seq,
                cause,
                due: r.time()?,
                parked: r.bool()?,
                overlay,
            })
        }
        KIND_DEFERRED => {
            Event::Deferred { queue: r.queue()?, seq: r.var()?, overlay: get_overlay(r)? }
        }
        KIND_MOVED => Event::Moved(Box::new(get_moved(r, version)?)),
        14 => {
            let (queue, session, token) = (r.queue()?, get_session(r)?, r.token()?);
            Event::Held { queue, session, token, until: r.time()?, bound: r.bool()? }
        }
        15 => Event::Unheld { queue: r.queue()?, session: get_session(r)?, lost: r.bool()? },
        KIND_STATE => {
            let (queue, session) = (r.queue()?, get_session(r)?);
            let at = if more { r.time()? } else { Timestamp(0) };
            let state = r.bool()?.then(|| Bytes::copy_from_slice(r.rest()));
            Event::State { queue, session, state, at }
        }
        KIND_TOPIC_DECLARED => {
            let (topic, name, at) = (r.queue()?, r.topic()?, r.time()?);
            let spec = Box::new(get_topic_spec(r, version >= VERSION_MORE)?);
            Event::TopicDeclared { topic, name, spec, at }
        }
        KIND_TOPIC_UPDATED => {
            let (topic, at) = (r.queue()?, get_updated_at(r, version)?);
            let spec = Box::new(get_topic_spec(r, version >= VERSION_MORE)?);
            Event::TopicUpdated { topic, spec, at }
        }
        18 => Event::TopicDeleted { topic: r.queue()? },
        KIND_BOUND => {
            let (topic, queue) = (r.queue()?, r.queue()?);
            Event::Bound { topic, queue, rule: Box::new(get_rule(r)?) }
        }
        20 => {
            let (topic, queue) = (r.queue()?, r.queue()?);
            Event::Unbound { topic, queue, rule: r.str()?.to_owned() }
        }
        KIND_RELOCATED => Event::Relocated(Box::new(get_relocated(r, version)?)),
        KIND_DIGEST => Event::Digest(Box::new(get_digest(r)?)),
        23 => Event::ClockStepped { at: r.time()?, by_ms: r.var()? },
        _ => return Err(Malformed),
    })
}

#[cfg(test)]
mod tests {
    use malote_model::{DeadReason, LeaseToken, SessionId};

    use super::*;
    use crate::event::{LeasedEvent, Placement, QueueId};

    fn leased(at: u64, sessions: &[(&str, usize)]) -> Event {
        let token = |slot| LeaseToken { epoch: 3, slot, grant: 1, random: 0xa1b2_c3d4 };
        Event::Leased(LeasedEvent {
            queue: QueueId(5),
            at: Timestamp(at),
            until: Timestamp(7),
            bound: true,
            hold: None,
            sessions: sessions.iter().map(|(id, n)| (SessionId::new(id).unwrap(), *n)).collect(),
            deferred: false,
            items: vec![(9, token(0)), (11, token(1))],
        })
    }

    #[test]
    fn a_grant_record_names_zero_one_or_several_sessions() {
        for sessions in [&[][..], &[("one", 2)], &[("one", 1), ("two", 1)]] {
            let (event, mut bytes) = (leased(6, sessions), Vec::new());
            encode_event(&mut bytes, &event);
            assert_eq!(bytes[0], LEASED_AT);
            assert_eq!(decode_event(KIND_LEASED, &bytes).unwrap(), event);
            for cut in 0..bytes.len() {
                assert!(decode_event(KIND_LEASED, &bytes[..cut]).is_err());
            }
        }
    }

    const ITEMS: &[u8] = &[2, 3, 18, 0, 1, 0xd4, 0xc3, 0xb2, 0xa1, 4, 1, 1, 0xd4, 0xc3, 0xb2, 0xa1];

    #[test]
    fn grants_of_the_format_without_a_time_are_read() {
        let one = [&[1, 5, 7, 1, 3][..], b"one", ITEMS].concat();
        assert_eq!(decode_event(KIND_LEASED, &one).unwrap(), leased(0, &[("one", 2)]));
        let two = [&[2, 5, 7, 1, 2, 3][..], b"one", &[1, 3], b"two", &[1], ITEMS].concat();
        assert_eq!(decode_event(KIND_LEASED, &two).unwrap(), leased(0, &[("one", 1), ("two", 1)]));
        assert!(decode_event(KIND_SENT, &[VERSION_MORE]).is_err());
        assert!(decode_event(KIND_RETURNED, &[VERSION_MORE]).is_err());
    }

    #[test]
    fn records_of_format_5_are_read_as_they_were_written() {
        let (queue, topic) = (QueueId(5), malote_model::TopicName::new("dlx").unwrap());
        let source = malote_model::QueueName::new("work").unwrap();
        let moved = |message_id: Option<&str>, to| MovedEvent {
            from_queue: queue,
            from_seq: 3,
            from: crate::journal::Pos::from_u64(64),
            places: smallvec::smallvec![Placement { queue, seq: 1, due: Timestamp(0) }],
            at: Timestamp(9),
            session: None,
            size: 10,
            priority: 0,
            ttl_ms: None,
            history: RouteHistory::default(),
            key: Some("k".into()),
            message_id: message_id.map(Into::into),
            why: MoveReason::DeadLettered {
                reason: DeadReason::Expired,
                source: source.clone(),
                receives: 1,
                failed: 0,
                cause: LeaseEnd::Released,
                to,
            },
            properties: Default::default(),
        };
        let mut death = DeadLetter::once("r".into(), "t".into(), Timestamp(4), source.clone());
        (death.count, death.first_at) = (7, Timestamp(2));
        (death.topic, death.keys) = (Some(topic.clone()), vec!["a".into(), "b".into()]);
        let relocated = |first_seq, routed_by| RelocatedMessage {
            places: vec![MessageRef { queue, seq: 1 }],
            at: Timestamp(8),
            sent_at: Timestamp(1),
            dead: true,
            deaths: vec![death.clone()],
            first_seq,
            routed_by,
            head: Bytes::new(),
            body: Bytes::new(),
        };
        let events = [
            (Event::Moved(Box::new(moved(None, Some(topic.clone())))), VERSION_5),
            (Event::Moved(Box::new(moved(Some("id"), Some(topic.clone())))), VERSION_5),
            (Event::Moved(Box::new(moved(Some("id"), None))), VERSION_MORE),
            (Event::Relocated(Box::new(relocated(None, Some(topic)))), VERSION_5),
            (Event::Relocated(Box::new(relocated(Some(3), None))), VERSION_5),
        ];
        for (event, version) in events {
            let mut bytes = Vec::new();
            encode_event(&mut bytes, &event);
            assert_eq!(bytes[0], version);
            assert_eq!(decode_event(kind_of(&event), &bytes).unwrap(), event);
            for cut in 0..bytes.len() {
                assert!(decode_event(kind_of(&event), &bytes[..cut]).is_err());
            }
        }
    }

    #[test]
    fn records_of_all_versions_are_read() {
        let (queue, session) = (QueueId(5), SessionId::new("one").unwrap());
        let purged = Event::Purged { queue, below: 9, leased: false };
        assert_eq!(decode_event(KIND_PURGED, &[1, 5, 9]).unwrap(), purged);
        let state = Some(Bytes::from_static(b"s"));
        let old = [&[1, 5, 3][..], b"one", &[1], b"s"].concat();
        let set = |at| Event::State {
            queue,
            session: session.clone(),
            state: state.clone(),
            at: Timestamp(at),
        };
        assert_eq!(decode_event(KIND_STATE, &old).unwrap(), set(0));
        for event in [Event::Purged { queue, below: 9, leased: true }, purged, set(8)] {
            let mut bytes = Vec::new();
            encode_event(&mut bytes, &event);
            assert_eq!(decode_event(kind_of(&event), &bytes).unwrap(), event);
        }
    }
}
