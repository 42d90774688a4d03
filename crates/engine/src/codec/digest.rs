//! The body of a digest record: numbers, then hashes of eight bytes.

use super::read::{EncodeExt, Malformed, Reader};
use crate::event::{Digest, LeaseDigest, QueueDigest, SessionDigest, TopicDigest};

pub(super) fn put_digest(out: &mut Vec<u8>, digest: &Digest) {
    let Digest { method, at, damage, totals, queues, topics, leases } = digest;
    out.put_u8(*method);
    out.put_time(*at);
    out.put_var(damage.len() as u64);
    for &(from, to) in damage {
        out.put_pos(from);
        out.put_pos(to);
    }
    put_hash(out, *totals);
    out.put_var(queues.len() as u64);
    for of in queues {
        out.put_queue(of.queue);
        put_hash(out, of.settings);
        put_hash(out, of.counters);
        out.put_var(0); // digests of method 1 omitted some keys
        put_hash(out, of.keys);
        out.put_var(of.from);
        out.put_var(of.to);
        put_hash(out, of.messages);
        out.put_var(of.sessions.len() as u64);
        for SessionDigest { session, below, hash } in &of.sessions {
            out.put_str(session.as_str());
            out.put_var(*below);
            put_hash(out, *hash);
        }
    }
    out.put_var(topics.len() as u64);
    for TopicDigest { topic, hash } in topics {
        out.put_queue(*topic);
        out.put_var(0);
        put_hash(out, *hash);
    }
    out.put_var(u64::from(leases.from));
    out.put_var(u64::from(leases.to));
    put_hash(out, leases.hash);
}

pub(super) fn get_digest(r: &mut Reader<'_>) -> Result<Digest, Malformed> {
    let (method, at) = (r.u8()?, r.time()?);
    let damage = (0..r.count()?).map(|_| Ok((r.pos()?, r.pos()?))).collect::<Result<_, _>>()?;
    let totals = hash(r)?;
    let queues = (0..r.count()?).map(|_| get_queue(r)).collect::<Result<_, _>>()?;
    let topic = |r: &mut Reader<'_>| {
        let (topic, _) = (r.queue()?, r.var()?);
        Ok(TopicDigest { topic, hash: hash(r)? })
    };
    let topics = (0..r.count()?).map(|_| topic(r)).collect::<Result<_, _>>()?;
    let leases = LeaseDigest { from: r.var32()?, to: r.var32()?, hash: hash(r)? };
    Ok(Digest { method, at, damage, totals, queues, topics, leases })
}

fn get_queue(r: &mut Reader<'_>) -> Result<QueueDigest, Malformed> {
    let (queue, settings, counters) = (r.queue()?, hash(r)?, hash(r)?);
    let (_, keys) = (r.var()?, hash(r)?);
    let (from, to, messages) = (r.var()?, r.var()?, hash(r)?);
    let session = |r: &mut Reader<'_>| {
        let session = r.session()?.ok_or(Malformed)?;
        Ok(SessionDigest { session, below: r.var()?, hash: hash(r)? })
    };
    let sessions = (0..r.count()?).map(|_| session(r)).collect::<Result<_, _>>()?;
    Ok(QueueDigest { queue, settings, counters, keys, from, to, messages, sessions })
}

fn put_hash(out: &mut Vec<u8>, hash: u64) {
    out.extend_from_slice(&hash.to_le_bytes());
}

fn hash(r: &mut Reader<'_>) -> Result<u64, Malformed> {
    r.fixed().map(u64::from_le_bytes)
}
