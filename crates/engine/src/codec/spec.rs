//! Queue specifications.

use malote_model::{DeadLetterTarget, Durability, QueueSpec, RetryOrder, SessionId, Sessions};

use super::read::{Put, Reader, Truncated};

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
    // Limits are at least 1, so 0 stands for none.
    out.put_var(u64::from(spec.failed_max.unwrap_or(0)));
    out.put_var(u64::from(spec.receives_max.unwrap_or(0)));
    match &spec.dead_letter {
        DeadLetterTarget::Own => out.put_u8(0),
        DeadLetterTarget::Drop => out.put_u8(1),
        DeadLetterTarget::Queue(name) => {
            out.put_u8(2);
            out.put_str(name.as_str());
        }
    }
    out.put_bool(spec.durability == Durability::Relaxed);
    out.put_bool(spec.retry == RetryOrder::Skip);
    out.put_var(spec.delay_ms);
    out.put_var(spec.message_bytes_max);
    out.put_var(spec.backlog_warning);
}

pub(crate) fn get_spec(r: &mut Reader<'_>) -> Result<QueueSpec, Truncated> {
    let sessions = match r.u8()? {
        0 => Sessions::None,
        1 => Sessions::Dynamic,
        2 => {
            let n = r.count()?;
            let ids = (0..n).map(|_| SessionId::new(r.str()?).map_err(|_| Truncated));
            Sessions::Fixed(ids.collect::<Result<_, _>>()?)
        }
        _ => return Err(Truncated),
    };
    let lock_ms = r.var()?;
    let failed_max = Some(r.var32()?).filter(|&n| n > 0);
    let receives_max = Some(r.var32()?).filter(|&n| n > 0);
    let dead_letter = match r.u8()? {
        0 => DeadLetterTarget::Own,
        1 => DeadLetterTarget::Drop,
        2 => DeadLetterTarget::Queue(r.name()?),
        _ => return Err(Truncated),
    };
    let durability = if r.bool()? { Durability::Relaxed } else { Durability::Fsync };
    let retry = if r.bool()? { RetryOrder::Skip } else { RetryOrder::Hold };
    let (delay_ms, message_bytes_max, backlog_warning) = (r.var()?, r.var()?, r.var()?);
    Ok(QueueSpec {
        sessions,
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
