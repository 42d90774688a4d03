//! Keeping house: what is due, what ran out, who is gone. Every process does it, a slice at a time.

use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::anchor::LOCKS;
use super::bells::POLL;
use super::error::unreadable;
use super::link::{Link, Sql, Values};
use super::send::{self, NewRow};
use super::write::{RELEASE, SWEEP};
use super::{Shared, message, queues};
use crate::broker::BrokerError;

/// Rows of one statement.
const SLICE: i64 = 1000;
/// Messages that are appended by one transaction: they come here and go back.
const FRESH: i64 = 100;
/// Sessions that one transaction takes from those who are gone.
const SESSIONS: i64 = 100;

/// An owner whose lock is free is gone, unless it comes back within the grace of a second. Our own would be free to us.
const GONE: Sql = Sql {
    text: "update malote.owners set gone_at = now() where id in (
            select id from malote.owners
            where bound and gone_at is null and id <> $2 and pg_try_advisory_xact_lock($1, id)
            limit 100 for update skip locked)",
    types: &[Type::INT4, Type::INT4],
};
/// One that is not bound is gone when nothing that it leased can be its own any more.
const DEAD: Sql = Sql {
    text: "select id from malote.owners where gone_at < now() - interval '1 s' or seen_at < now() - interval '1 day'
        limit 100",
    types: &[],
};
const HERE: Sql = Sql {
    text: "update malote.owners set seen_at = now() where id = $1 and seen_at < now() - interval '10 min'",
    types: &[Type::INT4],
};
/// Sessions that ran out, and those of the dead.
const LAPSED: Sql = Sql {
    text: "select num, lease, fetched from malote.sessions where lease is not null and held_until <= now()
        order by held_until limit $1 for no key update skip locked",
    types: &[Type::INT8],
};
const OF_THE_DEAD: Sql = Sql {
    text:
        "select num, lease, fetched from malote.sessions where lease is not null and owner = any($2)
        order by held_until limit $1 for no key update skip locked",
    types: &[Type::INT8, Type::INT4_ARRAY],
};
/// What was out with a session counts as failed.
const FAILED: Sql = Sql {
    text: "with r as (
            select m.seq, m.failed + 1 as failed, q.spec ->> 'failed_max' as failed_max,
                m.failed + 1 >= (q.spec ->> 'failed_max')::int as dead
            from unnest($1::int8[], $2::int8[]) as w (num, fetched)
                join malote.messages m on m.session = w.num and m.seq <= w.fetched
                left join malote.queues q on q.id = m.queue
            where m.due is null or m.due <= now() for no key update of m)
        update malote.messages m set failed = r.failed, receives = m.receives + 1,
            seq = case when r.dead then nextval('malote.seqs') else m.seq end,
            queue = case when r.dead then -abs(m.queue) else m.queue end,
            session = case when r.dead then null else m.session end,
            expires = case when r.dead then null else m.expires end,
            due = case when r.dead then null else m.due end,
            reason = case when r.dead then 'MaxDeliveryCountExceeded' else m.reason end,
            explanation = case when r.dead then
                format('failed %s times; the queue allows %s (failed_max)', r.failed, r.failed_max)
                else m.explanation end
        from r where m.seq = r.seq returning m.queue, m.session",
    types: &[Type::INT8_ARRAY, Type::INT8_ARRAY],
};
/// Leases of the dead run out now. One walk over all that is leased, once for each who died.
const UNLOCK: Sql = Sql {
    text: "update malote.messages set locked_until = now()
        where lease is not null and (lease >> 32)::int = any($1) and locked_until > now()",
    types: &[Type::INT4_ARRAY],
};
/// Not before all its sessions are taken back: nobody would look for those of an owner that is not there. One that somebody
/// is about to change was left out.
const BURY: Sql = Sql {
    text: "delete from malote.owners o where o.id = any($1) and not exists (
            select 1 from malote.sessions s where s.lease is not null and s.owner = o.id)",
    types: &[Type::INT4_ARRAY],
};
const DUE_MESSAGES: Sql = Sql {
    text: "update malote.messages set due = null where seq in (
            select seq from malote.messages where due <= now() and session is null and not fresh
            order by due limit $1 for no key update skip locked) returning queue, null::int8",
    types: &[Type::INT8],
};
const DUE_SESSIONS: Sql = Sql {
    text: "update malote.sessions s set due = null, turn = nextval('malote.turns') << 16 where num in (
            select num from malote.sessions where due <= now() order by due limit $1 for no key update skip locked)
        returning queue, num",
    types: &[Type::INT8],
};
/// What was sent for now: it is appended.
const DUE_FRESH: Sql = Sql {
    text: "delete from malote.messages m using malote.queues q where q.id = m.queue and m.seq in (
            select seq from malote.messages where due <= now() and session is null and fresh
            order by due limit $1 for update skip locked)
        returning q.name, m.lane, m.meta, m.body, m.seq",
    types: &[Type::INT8],
};
const HAS_FRESH: Sql = Sql {
    text: "select 1 from malote.messages where due <= now() and session is null and fresh limit 1",
    types: &[],
};
/// Nobody has it in hand, and its time is over.
const EXPIRED: Sql = Sql {
    text: "with old as materialized (
            select m.seq, m.queue, (q.spec ->> 'expired_are_dead_letters')::boolean as dead, m.session
            from malote.messages m left join malote.queues q on q.id = m.queue
            where m.expires <= now() and (m.lease is null or m.locked_until <= now()) and not exists (
                select 1 from malote.sessions s where s.num = m.session and s.lease is not null)
            order by m.expires limit $1 for update of m skip locked),
        dropped as (
            delete from malote.messages m using old where m.seq = old.seq and not coalesce(old.dead, false)),
        moved as (
            update malote.messages m set queue = -abs(m.queue), seq = nextval('malote.seqs'), session = null, lane = 0,
                expires = null, due = null, lease = null, locked_until = null,
                reason = 'TTLExpiredException', explanation = 'its time to live was over'
            from old where m.seq = old.seq and old.dead)
        select -abs(queue), session from old",
    types: &[Type::INT8],
};
const FORGET_KEYS: Sql = Sql {
    text: "delete from malote.sent_before where (queue, key) in (
            select queue, key from malote.sent_before where until <= now() limit $1 for update skip locked) returning queue",
    types: &[Type::INT8],
};
/// Milliseconds until something is due.
const NEXT: Sql = Sql {
    text: "select (extract(epoch from least(
            (select min(due) from malote.messages where due is not null and session is null),
            (select min(due) from malote.sessions where due is not null)) - clock_timestamp()) * 1000)::float8",
    types: &[],
};

pub(super) const STATEMENTS: &[&Sql] = &[
    &GONE,
    &DEAD,
    &HERE,
    &LAPSED,
    &OF_THE_DEAD,
    &FAILED,
    &UNLOCK,
    &BURY,
    &DUE_MESSAGES,
    &DUE_SESSIONS,
    &HAS_FRESH,
    &EXPIRED,
    &FORGET_KEYS,
    &NEXT,
    &RELEASE,
    &SWEEP,
];

/// One round; tells when the next should be.
pub(super) async fn keep(
    shared: &Arc<Shared>,
    link: &Link,
) -> Result<Duration, tokio_postgres::Error> {
    let owner = shared.owner.load(std::sync::atomic::Ordering::Acquire);
    let (locks, of_owner): (i32, Values<'_>) = (LOCKS, &[&owner]);
    let of_locks: Values<'_> = &[&locks, &owner];
    let (gone, here, dead, due, sessions, fresh, expired, forgotten) = tokio::join!(
        biased;
        link.rows(&GONE, of_locks),
        link.rows(&HERE, of_owner),
        link.rows(&DEAD, &[]),
        link.rows(&DUE_MESSAGES, &[&SLICE]),
        link.rows(&DUE_SESSIONS, &[&SLICE]),
        link.rows(&HAS_FRESH, &[]),
        link.rows(&EXPIRED, &[&SLICE]),
        link.rows(&FORGET_KEYS, &[&SLICE]),
    );
    gone?;
    here?;
    let (due, sessions, forgotten, expired) = (due?, sessions?, forgotten?, expired?);
    let full =
        [&due, &sessions, &forgotten, &expired].iter().any(|rows| rows.len() as i64 >= SLICE);
    let expired = places(&expired)?;
    let emptied: Vec<i64> = expired.iter().filter_map(|place| place.1).collect();
    if !emptied.is_empty() {
        link.rows(&SWEEP, &[&emptied]).await?;
    }
    for places in [places(&due)?, places(&sessions)?, expired] {
        shared.ring(places);
    }
    let mut dead_owners: Vec<i32> = Vec::new();
    for row in dead? {
        dead_owners.push(row.try_get(0)?);
    }
    while take_back(shared, link, &dead_owners).await? {}
    if !dead_owners.is_empty() {
        // Before they are forgotten: whoever ends in between leaves them to the next.
        link.rows(&UNLOCK, &[&dead_owners]).await?;
        link.rows(&BURY, &[&dead_owners]).await?;
        shared.wake_all();
    }
    if !fresh?.is_empty()
        && let Err(error) = shared.append_due().await
    {
        tracing::warn!(%error, "what was sent for later waits");
    }
    if full {
        return Ok(Duration::ZERO);
    }
    let next = link.rows(&NEXT, &[]).await?;
    let next: Option<f64> = next.first().map_or(Ok(None), |row| row.try_get(0))?;
    let ms = next.map_or(POLL.as_millis() as f64, |ms| ms.clamp(1.0, POLL.as_millis() as f64));
    Ok(Duration::from_secs_f64(ms / 1000.0))
}

fn places(rows: &[Row]) -> Result<Vec<(i32, Option<i64>)>, tokio_postgres::Error> {
    rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
}

/// Takes sessions from holders who are gone or whose lock ran out. Whether there may be more.
async fn take_back(
    shared: &Shared,
    link: &Link,
    dead: &[i32],
) -> Result<bool, tokio_postgres::Error> {
    link.run("begin isolation level read committed").await?;
    let mut lapsed = link.rows(&LAPSED, &[&SESSIONS]).await?;
    if lapsed.is_empty() && !dead.is_empty() {
        lapsed = link.rows(&OF_THE_DEAD, &[&SESSIONS, &dead]).await?;
    }
    let (mut nums, mut holds, mut fetched) = (Vec::new(), Vec::new(), Vec::new());
    for row in &lapsed {
        nums.push(row.try_get::<_, i64>(0)?);
        holds.push(row.try_get::<_, i64>(1)?);
        fetched.push(row.try_get::<_, i64>(2)?);
    }
    if nums.is_empty() {
        link.run("rollback").await?;
        return Ok(false);
    }
    let mut rung = places(&link.rows(&FAILED, &[&nums, &fetched]).await?)?;
    rung.extend(places(&link.rows(&RELEASE, &[&nums, &holds]).await?)?);
    link.rows(&SWEEP, &[&nums]).await?;
    link.run("commit").await?;
    shared.ring(rung);
    Ok(lapsed.len() as i64 == SESSIONS || !dead.is_empty())
}

impl Shared {
    /// Takes back what ran out, for whoever must know now.
    pub(super) async fn keep_house(&self) -> Result<(), BrokerError> {
        let _alone = self.keeping_alone.lock().await;
        let link = self.keeping.link().await?;
        let taken = take_back(self, &link, &[]).await;
        if let Err(error) = &taken {
            let _ = link.run("rollback").await;
            self.keeping.note(&link, Some(error)).await;
        }
        Ok(taken.map(drop)?)
    }

    /// What was sent for now is appended as if it were sent now.
    async fn append_due(&self) -> Result<(), BrokerError> {
        let _alone = self.keeping_alone.lock().await;
        let link = self.keeping.link().await?;
        let done = self.append_some(&link).await;
        if done.is_err() {
            let _ = link.run("rollback").await;
        }
        done
    }

    async fn append_some(&self, link: &Link) -> Result<(), BrokerError> {
        link.run(link.begin()).await?;
        let mut due = Vec::new();
        for row in link.rows(&DUE_FRESH, &[&FRESH]).await? {
            let (name, meta, body): (String, Vec<u8>, Vec<u8>) =
                (row.try_get(0)?, row.try_get(2)?, row.try_get(3)?);
            let name = malote_model::QueueName::new(&name).map_err(unreadable)?;
            let sent = message::decode(&meta, None, &[])?;
            let queue: Arc<queues::Queue> = self.queue(&name).await?;
            let ttl = sent.ttl_ms.into_iter().chain(queue.spec.ttl_ms).min();
            let session = sent.session.filter(|_| queue.has_sessions());
            due.push((
                row.try_get::<_, i64>(4)?,
                NewRow {
                    lane: row.try_get(1)?,
                    session,
                    queue,
                    delay_ms: None,
                    at_ms: None,
                    ttl_ms: ttl.and_then(|ms| i64::try_from(ms).ok()),
                    key: None,
                    meta,
                    body: body.into(),
                    message_id: String::new(),
                },
            ));
        }
        due.sort_unstable_by_key(|(seq, _)| *seq);
        let rows: Vec<NewRow> = due.into_iter().map(|(_, row)| row).collect();
        send::append(link, &rows).await?;
        link.run("commit").await?;
        self.ring(rows.iter().map(|row| (row.queue.id, None)).collect());
        Ok(())
    }
}

/// What is run on the connection that keeps house when somebody waits for it.
pub(super) const ASIDE: &[&Sql] =
    &[&DUE_FRESH, &send::LOCK_SESSIONS, &send::INSERT, &LAPSED, &FAILED, &RELEASE, &SWEEP];
