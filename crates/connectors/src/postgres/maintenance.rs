//! Maintenance: due messages, expired messages and leases, and owners that are gone. Every process does it, in small
//! steps.

use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::connection::{Params, PgConnection, Sql};
use super::error::unreadable;
use super::owner::ADVISORY_LOCK_CLASS;
use super::send::{self, MessageRow};
use super::settle_transaction::{DELETE_EMPTY, RELEASE_HOLDS};
use super::wakeups::POLL_INTERVAL;
use super::{PgShared, message, queues};
use crate::broker::BrokerError;

/// The most rows of one statement.
const ROWS_MAX: i64 = 1000;
/// The most scheduled messages of one transaction, which transfers their bodies to this process and back.
const SCHEDULED_MAX: i64 = 100;
/// The most sessions that one transaction reclaims.
const SESSIONS_MAX: i64 = 100;

/// An owner whose advisory lock is free is gone, unless it returns within a second. The own lock is excluded, because
/// this process could take it.
const MARK_GONE: Sql = Sql {
    text: "update malote.owners set gone_at = now() where id in (
            select id from malote.owners
            where bound and gone_at is null and id <> $2 and pg_try_advisory_xact_lock($1, id)
            limit 100 for update skip locked)",
    types: &[Type::INT4, Type::INT4],
};
/// An owner without an advisory lock is gone when all its leases must have ended.
const GONE_OWNERS: Sql = Sql {
    text: "select id from malote.owners where gone_at < now() - interval '1 s' or seen_at < now() - interval '1 day'
        limit 100",
    types: &[],
};
const MARK_SEEN: Sql = Sql {
    text: "update malote.owners set seen_at = now() where id = $1 and seen_at < now() - interval '10 min'",
    types: &[Type::INT4],
};
/// Held sessions whose lock has expired.
const EXPIRED_HOLDS: Sql = Sql {
    text: "select num, lease, fetched from malote.sessions where lease is not null and held_until <= now()
        order by held_until limit $1 for no key update skip locked",
    types: &[Type::INT8],
};
const HOLDS_OF_GONE: Sql = Sql {
    text:
        "select num, lease, fetched from malote.sessions where lease is not null and owner = any($2)
        order by held_until limit $1 for no key update skip locked",
    types: &[Type::INT8, Type::INT4_ARRAY],
};
/// Messages that were leased with a reclaimed session count as failed.
const COUNT_FAILURES: Sql = Sql {
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
/// Lets all leases of gone owners expire now. It scans all leased messages, but only when an owner is gone.
const EXPIRE_LEASES: Sql = Sql {
    text: "update malote.messages set locked_until = now()
        where lease is not null and (lease >> 32)::int = any($1) and locked_until > now()",
    types: &[Type::INT4_ARRAY],
};
/// Deletes owners whose sessions are all reclaimed. Sessions that were skipped because of a row lock still need their
/// owner.
const DELETE_OWNERS: Sql = Sql {
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
/// Scheduled messages that are due. They are appended to the queue again.
const TAKE_SCHEDULED: Sql = Sql {
    text: "delete from malote.messages m using malote.queues q where q.id = m.queue and m.seq in (
            select seq from malote.messages where due <= now() and session is null and fresh
            order by due limit $1 for update skip locked)
        returning q.name, m.lane, m.meta, m.body, m.seq",
    types: &[Type::INT8],
};
const HAS_SCHEDULED: Sql = Sql {
    text: "select 1 from malote.messages where due <= now() and session is null and fresh limit 1",
    types: &[],
};
/// Expires messages that are not leased.
const EXPIRE_MESSAGES: Sql = Sql {
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
const DELETE_DEDUP_KEYS: Sql = Sql {
    text: "delete from malote.sent_before where (queue, key) in (
            select queue, key from malote.sent_before where until <= now() limit $1 for update skip locked) returning queue",
    types: &[Type::INT8],
};
/// Milliseconds until the next message or session is due.
const NEXT_DUE: Sql = Sql {
    text: "select (extract(epoch from least(
            (select min(due) from malote.messages where due is not null and session is null),
            (select min(due) from malote.sessions where due is not null)) - clock_timestamp()) * 1000)::float8",
    types: &[],
};

pub(super) const STATEMENTS: &[&Sql] = &[
    &MARK_GONE,
    &GONE_OWNERS,
    &MARK_SEEN,
    &EXPIRED_HOLDS,
    &HOLDS_OF_GONE,
    &COUNT_FAILURES,
    &EXPIRE_LEASES,
    &DELETE_OWNERS,
    &DUE_MESSAGES,
    &DUE_SESSIONS,
    &HAS_SCHEDULED,
    &EXPIRE_MESSAGES,
    &DELETE_DEDUP_KEYS,
    &NEXT_DUE,
    &RELEASE_HOLDS,
    &DELETE_EMPTY,
];

/// Runs one round. Returns the time until the next one.
pub(super) async fn run_once(
    shared: &Arc<PgShared>,
    connection: &PgConnection,
) -> Result<Duration, tokio_postgres::Error> {
    let owner = shared.owner.load(std::sync::atomic::Ordering::Acquire);
    let (locks, of_owner): (i32, Params<'_>) = (ADVISORY_LOCK_CLASS, &[&owner]);
    let of_locks: Params<'_> = &[&locks, &owner];
    let (marked_gone, seen, gone_owners, due, sessions, scheduled, expired, deleted_keys) = tokio::join!(
        biased;
        connection.query(&MARK_GONE, of_locks),
        connection.query(&MARK_SEEN, of_owner),
        connection.query(&GONE_OWNERS, &[]),
        connection.query(&DUE_MESSAGES, &[&ROWS_MAX]),
        connection.query(&DUE_SESSIONS, &[&ROWS_MAX]),
        connection.query(&HAS_SCHEDULED, &[]),
        connection.query(&EXPIRE_MESSAGES, &[&ROWS_MAX]),
        connection.query(&DELETE_DEDUP_KEYS, &[&ROWS_MAX]),
    );
    marked_gone?;
    seen?;
    let (due, sessions, deleted_keys, expired) = (due?, sessions?, deleted_keys?, expired?);
    let full =
        [&due, &sessions, &deleted_keys, &expired].iter().any(|rows| rows.len() as i64 >= ROWS_MAX);
    let expired = arrivals_of(&expired)?;
    let emptied: Vec<i64> = expired.iter().filter_map(|arrival| arrival.1).collect();
    if !emptied.is_empty() {
        connection.query(&DELETE_EMPTY, &[&emptied]).await?;
    }
    for arrivals in [arrivals_of(&due)?, arrivals_of(&sessions)?, expired] {
        shared.notify_arrivals(arrivals);
    }
    let mut gone_owner_ids: Vec<i32> = Vec::new();
    for row in gone_owners? {
        gone_owner_ids.push(row.try_get(0)?);
    }
    while reclaim_holds(shared, connection, &gone_owner_ids).await? {}
    if !gone_owner_ids.is_empty() {
        // Before the owners are deleted: if this process stops in between, another one repeats both.
        connection.query(&EXPIRE_LEASES, &[&gone_owner_ids]).await?;
        connection.query(&DELETE_OWNERS, &[&gone_owner_ids]).await?;
        shared.wake_all();
    }
    if !scheduled?.is_empty()
        && let Err(error) = shared.append_scheduled().await
    {
        tracing::warn!(%error, "scheduled messages that are due could not be appended; retrying");
    }
    if full {
        return Ok(Duration::ZERO);
    }
    let next = connection.query(&NEXT_DUE, &[]).await?;
    let next: Option<f64> = next.first().map_or(Ok(None), |row| row.try_get(0))?;
    let ms = next.map_or(POLL_INTERVAL.as_millis() as f64, |ms| {
        ms.clamp(1.0, POLL_INTERVAL.as_millis() as f64)
    });
    Ok(Duration::from_secs_f64(ms / 1000.0))
}

fn arrivals_of(rows: &[Row]) -> Result<Vec<(i32, Option<i64>)>, tokio_postgres::Error> {
    rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
}

/// Reclaims sessions whose hold has expired or whose owner is gone. Returns whether there may be more.
async fn reclaim_holds(
    shared: &PgShared,
    connection: &PgConnection,
    gone_owners: &[i32],
) -> Result<bool, tokio_postgres::Error> {
    connection.execute("begin isolation level read committed").await?;
    let mut expired = connection.query(&EXPIRED_HOLDS, &[&SESSIONS_MAX]).await?;
    if expired.is_empty() && !gone_owners.is_empty() {
        expired = connection.query(&HOLDS_OF_GONE, &[&SESSIONS_MAX, &gone_owners]).await?;
    }
    let (mut nums, mut holds, mut fetched) = (Vec::new(), Vec::new(), Vec::new());
    for row in &expired {
        nums.push(row.try_get::<_, i64>(0)?);
        holds.push(row.try_get::<_, i64>(1)?);
        fetched.push(row.try_get::<_, i64>(2)?);
    }
    if nums.is_empty() {
        connection.execute("rollback").await?;
        return Ok(false);
    }
    let mut arrivals = arrivals_of(&connection.query(&COUNT_FAILURES, &[&nums, &fetched]).await?)?;
    arrivals.extend(arrivals_of(&connection.query(&RELEASE_HOLDS, &[&nums, &holds]).await?)?);
    connection.query(&DELETE_EMPTY, &[&nums]).await?;
    connection.execute("commit").await?;
    shared.notify_arrivals(arrivals);
    Ok(expired.len() as i64 == SESSIONS_MAX || !gone_owners.is_empty())
}

impl PgShared {
    /// Reclaims expired holds now, for a caller that needs one of the sessions.
    pub(super) async fn reclaim_expired_holds(&self) -> Result<(), BrokerError> {
        let _guard = self.maintenance_lock.lock().await;
        let connection = self.maintenance.connection().await?;
        let taken = reclaim_holds(self, &connection, &[]).await;
        if let Err(error) = &taken {
            let _ = connection.execute("rollback").await;
            self.maintenance.discard_if_broken(&connection, Some(error)).await;
        }
        Ok(taken.map(drop)?)
    }

    /// Appends scheduled messages that are due, as if they were sent now.
    async fn append_scheduled(&self) -> Result<(), BrokerError> {
        let _guard = self.maintenance_lock.lock().await;
        let connection = self.maintenance.connection().await?;
        let done = self.append_scheduled_in(&connection).await;
        if done.is_err() {
            let _ = connection.execute("rollback").await;
        }
        done
    }

    async fn append_scheduled_in(&self, connection: &PgConnection) -> Result<(), BrokerError> {
        connection.execute(connection.begin()).await?;
        let mut due = Vec::new();
        for row in connection.query(&TAKE_SCHEDULED, &[&SCHEDULED_MAX]).await? {
            let (name, meta, body): (String, Vec<u8>, Vec<u8>) =
                (row.try_get(0)?, row.try_get(2)?, row.try_get(3)?);
            let name = malote_model::QueueName::new(&name).map_err(unreadable)?;
            let sent = message::decode(&meta, None, &[])?;
            let queue: Arc<queues::PgQueue> = self.queue(&name).await?;
            let ttl = sent.ttl_ms.into_iter().chain(queue.spec.ttl_ms).min();
            let session = sent.session.filter(|_| queue.has_sessions());
            due.push((
                row.try_get::<_, i64>(4)?,
                MessageRow {
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
        let rows: Vec<MessageRow> = due.into_iter().map(|(_, row)| row).collect();
        send::append(connection, &rows).await?;
        connection.execute("commit").await?;
        self.notify_arrivals(rows.iter().map(|row| (row.queue.id, None)).collect());
        Ok(())
    }
}

/// Statements of the connection for maintenance that a caller waits for.
pub(super) const ON_DEMAND: &[&Sql] = &[
    &TAKE_SCHEDULED,
    &send::LOCK_SESSIONS,
    &send::INSERT_MESSAGES,
    &EXPIRED_HOLDS,
    &COUNT_FAILURES,
    &RELEASE_HOLDS,
    &DELETE_EMPTY,
];
