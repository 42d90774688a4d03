//! The statements that settle leases and release sessions, as one transaction.
//!
//! Here and elsewhere, leases are compared with `is not distinct from`. With `=`, the server could scan the index of
//! all leased or held rows instead of looking up one row. That plan looks cheap while there are few, and the server
//! keeps it.

use std::collections::HashSet;

use bytes::Bytes;
use tokio::sync::oneshot;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::connection::{Params, PgConnection, Sql};
use crate::broker::BrokerError;

/// The most bytes of all changes of one message. Every reader of the message must apply them.
const TOTAL_CHANGES_BYTES_MAX: i32 = 8 << 20;

/// All processes lock in the same order, which prevents deadlocks. A process that accepts an expired session waits
/// for this.
const LOCK_SESSIONS: Sql = Sql {
    text: "select 1 from malote.sessions where num = any($1) order by queue, id for no key update",
    types: &[Type::INT8_ARRAY],
};
const COMPLETE: Sql = Sql {
    text: "delete from malote.messages m using unnest($1::int8[], $2::int8[]) as w (seq, lease)
        where m.seq = w.seq and m.lease is not distinct from w.lease and m.session is null and m.locked_until > now()
        returning m.seq",
    types: &[Type::INT8_ARRAY, Type::INT8_ARRAY],
};
const COMPLETE_HELD: Sql = Sql {
    text: "delete from malote.messages m using unnest($1::int8[], $2::int8[]) as w (seq, hold), malote.sessions s
        where m.seq = w.seq and s.num = m.session and s.lease is not distinct from w.hold and s.held_until > now()
        returning m.seq",
    types: &[Type::INT8_ARRAY, Type::INT8_ARRAY],
};
/// Returns messages to their positions, or appends them to the dead letters. Deliveries of messages in held sessions
/// are counted here.
const RETURN: Sql = Sql {
    text: "with r as (
            select m.seq, w.kind, w.delay, w.changes, w.reason, w.explanation, m.failed + (w.kind = 1)::int as failed,
                w.kind = 2 or (w.kind = 1 and m.failed + 1 >= (q.spec ->> 'failed_max')::int) as dead,
                q.spec ->> 'failed_max' as failed_max
            from unnest($1::int8[], $2::int8[], $3::int8[], $4::int2[], $5::int8[], $6::bytea[], $7::text[], $8::text[])
                as w (seq, lease, hold, kind, delay, changes, reason, explanation)
                join malote.messages m on m.seq = w.seq
                left join malote.sessions s on s.num = m.session
                left join malote.queues q on q.id = m.queue
            where case when m.session is null then m.lease = w.lease and m.locked_until > now()
                else s.lease = w.hold and s.held_until > now() end
            for no key update of m)
        update malote.messages m set
            seq = case when r.dead then nextval('malote.seqs') else m.seq end,
            queue = case when r.dead then -abs(m.queue) else m.queue end,
            session = case when r.dead then null else m.session end,
            lane = case when r.dead then 0 else m.lane end,
            expires = case when r.dead then null else m.expires end,
            due = case when not coalesce(r.dead, false) and r.delay > 0 then now() + r.delay * interval '1 ms' end,
            failed = r.failed, receives = m.receives + (m.session is not null)::int,
            lease = null, locked_until = null,
            reason = case when r.dead then coalesce(r.reason, 'MaxDeliveryCountExceeded') else m.reason end,
            explanation = case when r.dead then coalesce(r.explanation,
                format('failed %s times; the queue allows %s (failed_max)', r.failed, r.failed_max))
                else m.explanation end,
            changes = case when octet_length(m.changes) + octet_length(r.changes) > $9 then m.changes
                else coalesce(m.changes || r.changes, m.changes, r.changes) end
        from r where m.seq = r.seq returning r.seq, m.queue, m.session",
    types: &[
        Type::INT8_ARRAY,
        Type::INT8_ARRAY,
        Type::INT8_ARRAY,
        Type::INT2_ARRAY,
        Type::INT8_ARRAY,
        Type::BYTEA_ARRAY,
        Type::TEXT_ARRAY,
        Type::TEXT_ARRAY,
        Type::INT4,
    ],
};
const SET_STATE: Sql = Sql {
    text: "update malote.sessions set state = $3 where num = $1 and lease is not distinct from $2",
    types: &[Type::INT8, Type::INT8, Type::BYTEA],
};
/// Counts deliveries of leased messages that return with their session.
const COUNT_RELEASED: Sql = Sql {
    text: "update malote.messages set receives = receives + 1 where seq = any($1) and session is not null",
    types: &[Type::INT8_ARRAY],
};
/// Releases holds. Depending on its first message, the session becomes ready, waits until the message is due, or is
/// empty.
pub(super) const RELEASE_HOLDS: Sql = Sql {
    text: "update malote.sessions s set lease = null, owner = null, held_until = null, fetched = 0,
            turn = case when f.ready then nextval('malote.turns') << 16 end,
            due = case when not f.ready then f.due end
        from unnest($1::int8[], $2::int8[]) as w (num, hold) left join lateral (
            select m.due, m.due is null or m.due <= now() as ready from malote.messages m
            where m.session = w.num and (m.expires is null or m.expires > now())
            order by m.seq limit 1) f on true
        where s.num = w.num and s.lease is not distinct from w.hold returning s.queue, s.num",
    types: &[Type::INT8_ARRAY, Type::INT8_ARRAY],
};
/// Deletes sessions without messages and state.
pub(super) const DELETE_EMPTY: Sql = Sql {
    text: "delete from malote.sessions s where s.num = any($1) and s.lease is null and s.turn is null and s.due is null
            and s.state is null and not exists (select 1 from malote.messages m where m.session = s.num)",
    types: &[Type::INT8_ARRAY],
};

pub(super) const STATEMENTS: &[&Sql] = &[
    &LOCK_SESSIONS,
    &COMPLETE,
    &COMPLETE_HELD,
    &RETURN,
    &SET_STATE,
    &COUNT_RELEASED,
    &RELEASE_HOLDS,
    &DELETE_EMPTY,
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReturnKind {
    Release = 0,
    Abandon = 1,
    DeadLetter = 2,
}

/// A message that is not completed.
pub(super) struct ReturnedMessage {
    pub seq: i64,
    /// Only in a queue without sessions.
    pub lease: Option<i64>,
    /// Only in a held session.
    pub hold: Option<i64>,
    pub kind: ReturnKind,
    pub delay_ms: i64,
    pub changes: Option<Vec<u8>>,
    pub reason: Option<String>,
    pub text: Option<String>,
}

/// A settlement that changes the state of its session.
pub(super) struct StateUpdate {
    pub seq: i64,
    pub num: i64,
    pub hold: i64,
    /// None: the message is completed.
    pub returned: Option<ReturnedMessage>,
    pub state: Option<Bytes>,
}

/// The changes of one transaction.
#[derive(Default)]
pub(super) struct SettleTransaction {
    pub locked: Vec<i64>,
    /// Completed messages of queues without sessions, with their leases.
    pub completed_plain: Vec<(i64, i64)>,
    /// Completed messages of sessions, with their holds.
    pub completed_held: Vec<(i64, i64)>,
    pub returns: Vec<ReturnedMessage>,
    pub states: Vec<StateUpdate>,
    /// Released sessions: row id and hold.
    pub ended_holds: Vec<(i64, i64)>,
    /// Leased messages that return with them.
    pub released: Vec<i64>,
    /// Callers that wait for a session to be released.
    pub release_replies: Vec<oneshot::Sender<Result<(), BrokerError>>>,
}

impl SettleTransaction {
    pub(super) fn seqs(&self) -> impl Iterator<Item = i64> {
        let completed = self.completed_plain.iter().chain(&self.completed_held).map(|one| one.0);
        let returns = self.returns.iter().map(|returned| returned.seq);
        completed.chain(returns).chain(self.states.iter().map(|item| item.seq))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.seqs().next().is_none() && self.ended_holds.is_empty()
    }

    fn is_plain(&self) -> bool {
        self.locked.is_empty() && self.returns.is_empty() && self.states.is_empty()
    }
}

/// The outcome of a transaction.
pub(super) struct TransactionResult {
    /// Messages that were settled.
    pub settled: HashSet<i64>,
    /// Queues and sessions with new ready messages.
    pub arrivals: Vec<(i32, Option<i64>)>,
}

pub(super) async fn execute(
    connection: &PgConnection,
    plan: &SettleTransaction,
) -> Result<TransactionResult, tokio_postgres::Error> {
    let mut result = TransactionResult { settled: HashSet::new(), arrivals: Vec::new() };
    if plan.is_plain() {
        result.completed(complete(connection, &COMPLETE, &plan.completed_plain).await?)?;
        return Ok(result);
    }
    // Statements are sent in the order in which they are first polled, without waiting for answers.
    let begin = async {
        let (begin, lock) =
            (connection.execute(connection.begin()), lock(connection, &plan.locked));
        let (begun, locked) = tokio::join!(biased; begin, lock);
        begun.and(locked)
    };
    let settled = async {
        tokio::join!(
            biased;
            complete(connection, &COMPLETE, &plan.completed_plain),
            complete(connection, &COMPLETE_HELD, &plan.completed_held),
            return_messages(connection, &plan.returns),
        )
    };
    let end = async {
        let (released, committed) =
            tokio::join!(biased; release(connection, plan), connection.execute("commit"));
        committed.and(released)
    };
    let (begun, (plain, held, returns), released) = if plan.states.is_empty() {
        tokio::join!(biased; begin, settled, end)
    } else {
        let (begun, settled) = tokio::join!(biased; begin, settled);
        for item in &plan.states {
            state(connection, item, &mut result).await?;
        }
        (begun, settled, end.await)
    };
    begun?;
    result.completed(plain?)?;
    result.completed(held?)?;
    result.returned(returns?)?;
    for row in released? {
        result.arrivals.push((row.try_get(0)?, Some(row.try_get(1)?)));
    }
    Ok(result)
}

impl TransactionResult {
    fn completed(&mut self, rows: Vec<Row>) -> Result<(), tokio_postgres::Error> {
        for row in rows {
            self.settled.insert(row.try_get(0)?);
        }
        Ok(())
    }

    fn returned(&mut self, rows: Vec<Row>) -> Result<(), tokio_postgres::Error> {
        for row in rows {
            self.settled.insert(row.try_get(0)?);
            self.arrivals.push((row.try_get(1)?, row.try_get(2)?));
        }
        Ok(())
    }
}

async fn lock(connection: &PgConnection, sessions: &[i64]) -> Result<(), tokio_postgres::Error> {
    if sessions.is_empty() {
        return Ok(());
    }
    connection.query(&LOCK_SESSIONS, &[&sessions]).await.map(drop)
}

async fn complete(
    connection: &PgConnection,
    sql: &Sql,
    all: &[(i64, i64)],
) -> Result<Vec<Row>, tokio_postgres::Error> {
    if all.is_empty() {
        return Ok(Vec::new());
    }
    let (seqs, tokens): (Vec<i64>, Vec<i64>) = all.iter().copied().unzip();
    connection.query(sql, &[&seqs, &tokens]).await
}

async fn return_messages(
    connection: &PgConnection,
    returns: &[ReturnedMessage],
) -> Result<Vec<Row>, tokio_postgres::Error> {
    if returns.is_empty() {
        return Ok(Vec::new());
    }
    let of = |get: fn(&ReturnedMessage) -> i64| -> Vec<i64> { returns.iter().map(get).collect() };
    let (seqs, delays) = (of(|returned| returned.seq), of(|returned| returned.delay_ms));
    let leases: Vec<Option<i64>> = returns.iter().map(|returned| returned.lease).collect();
    let holds: Vec<Option<i64>> = returns.iter().map(|returned| returned.hold).collect();
    let kinds: Vec<i16> = returns.iter().map(|returned| returned.kind as i16).collect();
    let changes: Vec<Option<&[u8]>> =
        returns.iter().map(|returned| returned.changes.as_deref()).collect();
    let reasons: Vec<Option<&str>> =
        returns.iter().map(|returned| returned.reason.as_deref()).collect();
    let texts: Vec<Option<&str>> =
        returns.iter().map(|returned| returned.text.as_deref()).collect();
    let limit = TOTAL_CHANGES_BYTES_MAX;
    connection
        .query(
            &RETURN,
            &[&seqs, &leases, &holds, &kinds, &delays, &changes, &reasons, &texts, &limit],
        )
        .await
}

/// Changes the state only if the message was settled.
async fn state(
    connection: &PgConnection,
    item: &StateUpdate,
    result: &mut TransactionResult,
) -> Result<(), tokio_postgres::Error> {
    let before = result.settled.len();
    match &item.returned {
        Some(returned) => {
            result.returned(return_messages(connection, std::slice::from_ref(returned)).await?)?
        }
        None => {
            let held = [(item.seq, item.hold)];
            result.completed(complete(connection, &COMPLETE_HELD, &held).await?)?;
        }
    }
    if result.settled.len() > before {
        let state = item.state.as_deref();
        connection.query(&SET_STATE, &[&item.num, &item.hold, &state]).await?;
    }
    Ok(())
}

async fn release(
    connection: &PgConnection,
    plan: &SettleTransaction,
) -> Result<Vec<Row>, tokio_postgres::Error> {
    if plan.ended_holds.is_empty() {
        return Ok(Vec::new());
    }
    let (nums, holds): (Vec<i64>, Vec<i64>) = plan.ended_holds.iter().copied().unzip();
    let (both, sessions): (Params<'_>, Params<'_>) = (&[&nums, &holds], &[&nums]);
    let count = async {
        if plan.released.is_empty() {
            return Ok(Vec::new());
        }
        connection.query(&COUNT_RELEASED, &[&plan.released]).await
    };
    let (counted, released, swept) = tokio::join!(
        biased;
        count,
        connection.query(&RELEASE_HOLDS, both),
        connection.query(&DELETE_EMPTY, sessions),
    );
    counted?;
    swept?;
    released
}
