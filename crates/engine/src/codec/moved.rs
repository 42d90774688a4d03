//! The record of a moved message: due, redriven, routed, forwarded or dead-lettered.

use malote_model::DeadReason;

use super::event::{VERSION_5, VERSION_MORE, get_history, put_checked_properties, put_history};
use super::message::get_properties;
use super::read::{EncodeExt, Malformed, Reader};
use super::sent::{get_places, put_places};
use crate::event::{LeaseEnd, MoveReason, MovedEvent};

pub(super) fn put_moved(out: &mut Vec<u8>, moved: &MovedEvent, version: u8) {
    out.put_queue(moved.from_queue);
    out.put_var(moved.from_seq);
    out.put_pos(moved.from);
    put_places(out, &moved.places);
    out.put_time(moved.at);
    out.put_session(moved.session.as_ref());
    out.put_var(u64::from(moved.size));
    out.put_u8(moved.priority);
    out.put_var(moved.ttl_ms.map_or(0, |ms| ms + 1));
    put_history(out, &moved.history);
    out.put_bool(moved.key.is_some());
    moved.key.iter().for_each(|key| out.put_str(key));
    if version >= VERSION_5 {
        out.put_bool(moved.message_id.is_some());
    }
    moved.message_id.iter().for_each(|id| out.put_str(id));
    match &moved.why {
        MoveReason::Due => out.put_u8(0),
        MoveReason::Redriven => out.put_u8(1),
        MoveReason::Routed => out.put_u8(5),
        MoveReason::Forwarded => out.put_u8(6),
        MoveReason::DeadLettered { reason, source, receives, failed, cause, to } => {
            out.put_u8(match cause {
                LeaseEnd::Released => 2,
                LeaseEnd::Abandoned => 3,
                LeaseEnd::Lost => 4,
            });
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
                DeadReason::Damaged { text } => {
                    out.put_u8(3);
                    out.put_str(text);
                }
                DeadReason::Expired => out.put_u8(4),
                DeadReason::Overflowed => out.put_u8(5),
                DeadReason::NoSession => out.put_u8(6),
                DeadReason::TooManyHops => out.put_u8(7),
                DeadReason::Cycle => out.put_u8(8),
                DeadReason::Unroutable => out.put_u8(9),
            }
            out.put_str(source.as_str());
            out.put_var(u64::from(*receives));
            out.put_var(u64::from(*failed));
            to.iter().for_each(|topic| out.put_str(topic.as_str()));
        }
    }
    put_checked_properties(out, &moved.properties);
}

pub(super) fn get_moved(r: &mut Reader<'_>, version: u8) -> Result<MovedEvent, Malformed> {
    let (from_queue, from_seq, from) = (r.queue()?, r.var()?, r.pos()?);
    let (places, at) = (get_places(r)?, r.time()?);
    let (session, size) = (r.session()?, r.var32()?);
    let (priority, ttl_ms) = (r.u8()?, r.var()?.checked_sub(1));
    let history = get_history(r)?;
    let key = if r.bool()? { Some(r.str()?.to_owned()) } else { None };
    let has_id = if version >= VERSION_5 { r.bool()? } else { version == VERSION_MORE };
    let message_id = if has_id { Some(r.str()?.to_owned()) } else { None };
    let why = match r.u8()? {
        0 => MoveReason::Due,
        1 => MoveReason::Redriven,
        5 => MoveReason::Routed,
        6 => MoveReason::Forwarded,
        dead @ 2..=4 => {
            let cause =
                [LeaseEnd::Released, LeaseEnd::Abandoned, LeaseEnd::Lost][usize::from(dead - 2)];
            let reason = match r.u8()? {
                0 => DeadReason::Asked { reason: r.str()?.to_owned(), text: r.str()?.to_owned() },
                1 => DeadReason::MaxFailed { failed: r.var32()?, failed_max: r.var32()? },
                2 => DeadReason::MaxReceives { receives: r.var32()?, receives_max: r.var32()? },
                3 => DeadReason::Damaged { text: r.str()?.to_owned() },
                4 => DeadReason::Expired,
                5 => DeadReason::Overflowed,
                6 => DeadReason::NoSession,
                7 => DeadReason::TooManyHops,
                8 => DeadReason::Cycle,
                9 => DeadReason::Unroutable,
                _ => return Err(Malformed),
            };
            let (source, receives, failed) = (r.name()?, r.var32()?, r.var32()?);
            let to = if version >= VERSION_5 { Some(r.topic()?) } else { None };
            MoveReason::DeadLettered { reason, source, receives, failed, cause, to }
        }
        _ => return Err(Malformed),
    };
    let properties = get_properties(r)?;
    Ok(MovedEvent {
        from_queue,
        from_seq,
        from,
        places,
        at,
        session,
        size,
        priority,
        ttl_ms,
        history,
        key,
        message_id,
        why,
        properties,
    })
}
