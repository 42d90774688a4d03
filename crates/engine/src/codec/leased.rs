//! The record of granted leases.

use malote_model::{LeaseToken, Timestamp};

use super::event::{VERSION, unzigzag, zigzag};
use super::read::{EncodeExt, Malformed, Reader};
use crate::event::LeasedEvent;

/// Grants messages of several sessions.
const LEASED_SESSIONS: u8 = 2;
/// Includes the time of the grant.
pub(super) const LEASED_AT: u8 = 3;

/// The tokens of one grant share the epoch, which is stored once.
pub(super) fn put_leased(out: &mut Vec<u8>, leased: &LeasedEvent) {
    out.put_queue(leased.queue);
    out.put_time(leased.at);
    out.put_time(leased.until);
    out.put_u8(
        u8::from(leased.bound)
            | u8::from(leased.hold.is_some()) << 1
            | u8::from(leased.deferred) << 2,
    );
    if let Some(hold) = leased.hold {
        out.extend_from_slice(&hold.to_bytes());
    }
    out.put_var(leased.sessions.len() as u64);
    for (session, count) in &leased.sessions {
        out.put_str(session.as_str());
        out.put_var(*count as u64);
    }
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

pub(super) fn get_leased(r: &mut Reader<'_>, version: u8) -> Result<LeasedEvent, Malformed> {
    let queue = r.queue()?;
    let at = if version == LEASED_AT { r.time()? } else { Timestamp(0) };
    let (until, flags) = (r.time()?, r.u8()?);
    let hold = if flags & 2 != 0 { Some(r.token()?) } else { None };
    let mut sessions = Vec::new();
    if version >= LEASED_SESSIONS {
        for _ in 0..r.count()? {
            sessions.push((r.session()?.ok_or(Malformed)?, r.count()?));
        }
    } else if let Some(session) = r.session()? {
        sessions.push((session, usize::MAX));
    }
    let n = r.count()?;
    if let ([(_, all)], VERSION) = (&mut sessions[..], version) {
        *all = n;
    }
    let epoch = r.var32()?;
    let mut items = Vec::with_capacity(n);
    let mut last = 0_u64;
    for _ in 0..n {
        last = last.wrapping_add(unzigzag(r.var()?));
        let (slot, grant) = (r.var32()?, r.var32()?);
        let random = u32::from_le_bytes(r.fixed()?);
        items.push((last, LeaseToken { epoch, slot, grant, random }));
    }
    Ok(LeasedEvent {
        queue,
        at,
        until,
        bound: flags & 1 != 0,
        hold,
        sessions,
        deferred: flags & 4 != 0,
        items,
    })
}
