//! Encoding of queue settings.

use malote_model::{
    Address, DeadLetterTarget, Dedup, Durability, OnExpiry, Overflow, QueueSpec, RetryOrder,
    SessionFrom, SessionId, Sessions, Status,
};

use super::read::{EncodeExt, Malformed, Reader};

pub(crate) fn put_spec(out: &mut Vec<u8>, spec: &QueueSpec) {
    match &spec.sessions {
        Sessions::None => out.put_u8(0),
        Sessions::Dynamic => out.put_u8(1),
        Sessions::Fixed(ids) => {
            out.put_u8(2);
            out.put_var(ids.len() as u64);
            ids.iter().for_each(|id| out.put_str(id.as_str()));
        }
    }
    out.put_var(spec.lock_ms);
    // Limits are at least 1, so 0 means none.
    out.put_var(u64::from(spec.failed_max.unwrap_or(0)));
    out.put_var(u64::from(spec.receives_max.unwrap_or(0)));
    match &spec.dead_letter {
        DeadLetterTarget::Own => out.put_u8(0),
        DeadLetterTarget::Drop => out.put_u8(1),
        DeadLetterTarget::Queue(name) => {
            out.put_u8(2);
            out.put_str(name.as_str());
        }
        DeadLetterTarget::Topic { topic, key } => {
            out.put_u8(if key.is_some() { 4 } else { 3 });
            out.put_str(topic.as_str());
            key.iter().for_each(|key| out.put_str(key));
        }
    }
    out.put_bool(spec.durability == Durability::Relaxed);
    out.put_bool(spec.retry == RetryOrder::Skip);
    out.put_var(spec.delay_ms);
    out.put_var(spec.message_bytes_max);
    out.put_var(spec.backlog_warning);
    for limit in [spec.ttl_ms, spec.length_max, spec.bytes_max, spec.idle_ms_max] {
        out.put_var(limit.unwrap_or(0));
    }
    out.put_bool(spec.on_expiry == OnExpiry::DeadLetter);
    out.put_u8(spec.priority_max);
    put_dedup(out, spec.dedup);
    out.put_u8(match spec.overflow {
        Overflow::Reject => 0,
        Overflow::DropOldest => 1,
        Overflow::DeadLetterOldest => 2,
        Overflow::DeadLetterNewest => 3,
    });
    out.put_bool(spec.auto_delete);
    out.put_bool(spec.exclusive);
    match &spec.forward_to {
        None => out.put_u8(0),
        Some(Address::Queue(name)) => {
            out.put_u8(1);
            out.put_str(name.as_str());
        }
        Some(Address::Topic(name)) => {
            out.put_u8(2);
            out.put_str(name.as_str());
        }
    }
    out.put_var(spec.labels.len() as u64);
    for (name, text) in &spec.labels {
        out.put_str(name);
        out.put_str(text);
    }
    put_status(out, spec.status);
    let more = more_flags(spec);
    let flags = u8::from(spec.dead_letters_keep_age) | u8::from(spec.fair) << 1;
    out.put_u8(if more == 0 { flags } else { flags | MORE });
    if more != 0 {
        out.put_u8(more);
    }
    if let Some(from) = &spec.session_from {
        put_session_from(out, from);
    }
}

/// In the byte of the flags: another byte of flags follows. Formats up to 4 never set it.
const MORE: u8 = 0b100;

fn more_flags(spec: &QueueSpec) -> u8 {
    u8::from(spec.single_active)
        | u8::from(spec.transient) << 1
        | u8::from(spec.discard_unroutable) << 2
        | if spec.session_from.is_some() { SESSION_FROM } else { 0 }
}

/// In the second byte of flags: the source of session ids follows. Formats up to 5 never set it.
const SESSION_FROM: u8 = 0b1000;

fn put_session_from(out: &mut Vec<u8>, from: &SessionFrom) {
    match from {
        SessionFrom::Key => out.put_u8(0),
        SessionFrom::CorrelationId => out.put_u8(1),
        SessionFrom::Property(name) => {
            out.put_u8(2);
            out.put_str(name);
        }
    }
}

fn get_session_from(r: &mut Reader<'_>) -> Result<SessionFrom, Malformed> {
    Ok(match r.u8()? {
        0 => SessionFrom::Key,
        1 => SessionFrom::CorrelationId,
        2 => SessionFrom::Property(r.str()?.to_owned()),
        _ => return Err(Malformed),
    })
}

/// Whether the encoding of these settings needs format 5 or later.
pub(super) fn has_more(spec: &QueueSpec) -> bool {
    more_flags(spec) != 0 || spec.overflow == Overflow::DeadLetterNewest
}

pub(super) fn put_status(out: &mut Vec<u8>, status: Status) {
    out.put_u8(match status {
        Status::Active => 0,
        Status::SendDisabled => 1,
        Status::ReceiveDisabled => 2,
        Status::Disabled => 3,
    });
}

pub(super) fn get_status(r: &mut Reader<'_>) -> Result<Status, Malformed> {
    Ok(match r.u8()? {
        0 => Status::Active,
        1 => Status::SendDisabled,
        2 => Status::ReceiveDisabled,
        3 => Status::Disabled,
        _ => return Err(Malformed),
    })
}

pub(super) fn put_dedup(out: &mut Vec<u8>, dedup: Option<Dedup>) {
    out.put_var(dedup.map_or(0, |dedup| dedup.window_ms));
    if let Some(dedup) = dedup {
        out.put_bool(dedup.per_session);
        out.put_bool(dedup.content);
    }
}

pub(super) fn get_dedup(r: &mut Reader<'_>) -> Result<Option<Dedup>, Malformed> {
    Ok(match r.var()? {
        0 => None,
        window_ms => Some(Dedup { window_ms, per_session: r.bool()?, content: r.bool()? }),
    })
}

/// Without `more`, the encoding has no status.
pub(crate) fn get_spec(r: &mut Reader<'_>, more: bool) -> Result<QueueSpec, Malformed> {
    let sessions = match r.u8()? {
        0 => Sessions::None,
        1 => Sessions::Dynamic,
        2 => {
            let n = r.count()?;
            let ids = (0..n).map(|_| SessionId::new(r.str()?).map_err(|_| Malformed));
            Sessions::Fixed(ids.collect::<Result<_, _>>()?)
        }
        _ => return Err(Malformed),
    };
    let lock_ms = r.var()?;
    let failed_max = Some(r.var32()?).filter(|&n| n > 0);
    let receives_max = Some(r.var32()?).filter(|&n| n > 0);
    let dead_letter = match r.u8()? {
        0 => DeadLetterTarget::Own,
        1 => DeadLetterTarget::Drop,
        2 => DeadLetterTarget::Queue(r.name()?),
        3 => DeadLetterTarget::Topic { topic: r.topic()?, key: None },
        4 => DeadLetterTarget::Topic { topic: r.topic()?, key: Some(r.str()?.to_owned()) },
        _ => return Err(Malformed),
    };
    let durability = if r.bool()? { Durability::Relaxed } else { Durability::Fsync };
    let retry = if r.bool()? { RetryOrder::Skip } else { RetryOrder::Hold };
    let (delay_ms, message_bytes_max, backlog_warning) = (r.var()?, r.var()?, r.var()?);
    let mut limit = || Ok(Some(r.var()?).filter(|&n| n > 0));
    let (ttl_ms, length_max, bytes_max, idle_ms_max) = (limit()?, limit()?, limit()?, limit()?);
    let on_expiry = if r.bool()? { OnExpiry::DeadLetter } else { OnExpiry::Drop };
    let priority_max = r.u8()?;
    let dedup = get_dedup(r)?;
    let overflow = match r.u8()? {
        0 => Overflow::Reject,
        1 => Overflow::DropOldest,
        2 => Overflow::DeadLetterOldest,
        3 => Overflow::DeadLetterNewest,
        _ => return Err(Malformed),
    };
    let (auto_delete, exclusive) = (r.bool()?, r.bool()?);
    let forward_to = match r.u8()? {
        0 => None,
        1 => Some(Address::Queue(r.name()?)),
        2 => Some(Address::Topic(r.topic()?)),
        _ => return Err(Malformed),
    };
    let n = r.count()?;
    let label = |_| Ok((r.str()?.to_owned(), r.str()?.to_owned()));
    let labels = (0..n).map(label).collect::<Result<_, Malformed>>()?;
    let (status, flags) = if more { (get_status(r)?, r.u8()?) } else { (Status::Active, 0) };
    let more = if flags & MORE != 0 { r.u8()? } else { 0 };
    if flags > 0b111 || more > 0b1111 || (flags & MORE != 0 && more == 0) {
        return Err(Malformed);
    }
    let session_from = if more & SESSION_FROM != 0 { Some(get_session_from(r)?) } else { None };
    Ok(QueueSpec {
        labels,
        status,
        dead_letters_keep_age: flags & 0b01 != 0,
        fair: flags & 0b10 != 0,
        single_active: more & 0b001 != 0,
        transient: more & 0b010 != 0,
        discard_unroutable: more & 0b100 != 0,
        ttl_ms,
        on_expiry,
        priority_max,
        dedup,
        length_max,
        bytes_max,
        overflow,
        auto_delete,
        idle_ms_max,
        exclusive,
        forward_to,
        sessions,
        session_from,
        lock_ms,
        failed_max,
        receives_max,
        dead_letter,
        durability,
        retry,
        delay_ms,
        message_bytes_max,
        backlog_warning,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newer_settings_round_trip() {
        let property = SessionFrom::Property("customer".into());
        let sources =
            [None, Some(SessionFrom::Key), Some(SessionFrom::CorrelationId), Some(property)];
        for flags in 0..64_u8 {
            let session_from = sources[usize::from(flags >> 4)].clone();
            let spec = QueueSpec {
                session_from,
                single_active: flags & 1 != 0,
                transient: flags & 2 != 0,
                discard_unroutable: flags & 4 != 0,
                fair: flags & 8 != 0,
                overflow: if flags & 8 != 0 {
                    Overflow::DeadLetterNewest
                } else {
                    Overflow::Reject
                },
                ..QueueSpec::default()
            };
            let mut bytes = Vec::new();
            put_spec(&mut bytes, &spec);
            assert_eq!(has_more(&spec), flags != 0);
            assert!(get_spec(&mut Reader::new(&bytes), true).is_ok_and(|read| read == spec));
            for cut in 0..bytes.len() {
                assert!(get_spec(&mut Reader::new(&bytes[..cut]), true).is_err());
            }
        }
    }
}
