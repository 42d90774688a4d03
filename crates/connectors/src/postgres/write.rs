//! The statements of settlements and of sessions that are let go, as one transaction.
//!
//! Here and elsewhere a lease is compared by `is not distinct from`: with `=` the server would see that there is one, and
//! could go through the index of all that are leased or held instead of to the one row. That plan looks cheap when it is
//! made while there are few, and stays.

use std::collections::HashSet;

use bytes::Bytes;
use tokio::sync::oneshot;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::link::{Link, Sql, Values};
use crate::broker::BrokerError;

/// Changes of one message, all that were laid over it: whoever reads it follows them.
const CHANGES_BYTES_MAX: i32 = 8 << 20;

/// In one order for everybody: nobody waits in a circle. Whoever accepts a session that ran out waits for this.
const LOCK: Sql = Sql {
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
/// Back in its place or to the dead letters, which stand behind each other in the order in which they died. Grants of a
/// message that is held with its session are counted here.
const BACK: Sql = Sql {
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
const STATE: Sql = Sql {
    text: "update malote.sessions set state = $3 where num = $1 and lease is not distinct from $2",
    types: &[Type::INT8, Type::INT8, Type::BYTEA],
};
/// Grants of what was out with a session and comes back.
const RETURNED: Sql = Sql {
    text: "update malote.messages set receives = receives + 1 where seq = any($1) and session is not null",
    types: &[Type::INT8_ARRAY],
};
/// Nobody holds it: by its first message it stands at the end of the line, waits until that is due, or is empty.
pub(super) const RELEASE: Sql = Sql {
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
/// A session that is empty and has no state is nothing.
pub(super) const SWEEP: Sql = Sql {
    text: "delete from malote.sessions s where s.num = any($1) and s.lease is null and s.turn is null and s.due is null
            and s.state is null and not exists (select 1 from malote.messages m where m.session = s.num)",
    types: &[Type::INT8_ARRAY],
};

pub(super) const STATEMENTS: &[&Sql] =
    &[&LOCK, &COMPLETE, &COMPLETE_HELD, &BACK, &STATE, &RETURNED, &RELEASE, &SWEEP];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Release = 0,
    Abandon = 1,
    Dead = 2,
}

/// A message that is not done.
pub(super) struct Back {
    pub seq: i64,
    /// Of a queue without sessions.
    pub lease: Option<i64>,
    /// Of its session.
    pub hold: Option<i64>,
    pub kind: Kind,
    pub delay_ms: i64,
    pub changes: Option<Vec<u8>>,
    pub reason: Option<String>,
    pub text: Option<String>,
}

/// A settlement that changes the state of its session.
pub(super) struct StateItem {
    pub seq: i64,
    pub num: i64,
    pub hold: i64,
    /// None: it is done.
    pub back: Option<Back>,
    pub state: Option<Bytes>,
}

/// A transaction.
#[derive(Default)]
pub(super) struct Plan {
    pub locked: Vec<i64>,
    /// Completed: message and lease.
    pub plain: Vec<(i64, i64)>,
    /// Completed: message and hold.
    pub held: Vec<(i64, i64)>,
    pub backs: Vec<Back>,
    pub states: Vec<StateItem>,
    /// Sessions that are let go: number and hold.
    pub ends: Vec<(i64, i64)>,
    /// Messages that were out with them.
    pub returned: Vec<i64>,
    /// Whoever waits for a session to be let go.
    pub told: Vec<oneshot::Sender<Result<(), BrokerError>>>,
}

impl Plan {
    pub(super) fn seqs(&self) -> impl Iterator<Item = i64> {
        let completed = self.plain.iter().chain(&self.held).map(|one| one.0);
        let backs = self.backs.iter().map(|back| back.seq);
        completed.chain(backs).chain(self.states.iter().map(|item| item.seq))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.seqs().next().is_none() && self.ends.is_empty()
    }

    fn is_plain(&self) -> bool {
        self.locked.is_empty() && self.backs.is_empty() && self.states.is_empty()
    }
}

/// What became of it.
pub(super) struct Written {
    /// Messages that were settled.
    pub done: HashSet<i64>,
    /// Queues and sessions with something new in them.
    pub rung: Vec<(i32, Option<i64>)>,
}

pub(super) async fn transaction(
    link: &Link,
    plan: &Plan,
) -> Result<Written, tokio_postgres::Error> {
    let mut written = Written { done: HashSet::new(), rung: Vec::new() };
    if plan.is_plain() {
        written.completed(complete(link, &COMPLETE, &plan.plain).await?)?;
        return Ok(written);
    }
    // Statements are sent in the order in which they are polled first; none waits for the answer of another.
    let begin = async {
        let (begun, locked) =
            tokio::join!(biased; link.run(link.begin()), lock(link, &plan.locked));
        begun.and(locked)
    };
    let settled = async {
        tokio::join!(
            biased;
            complete(link, &COMPLETE, &plan.plain),
            complete(link, &COMPLETE_HELD, &plan.held),
            go_back(link, &plan.backs),
        )
    };
    let end = async {
        let (released, committed) = tokio::join!(biased; release(link, plan), link.run("commit"));
        committed.and(released)
    };
    let (begun, (plain, held, backs), released) = if plan.states.is_empty() {
        tokio::join!(biased; begin, settled, end)
    } else {
        let (begun, settled) = tokio::join!(biased; begin, settled);
        for item in &plan.states {
            state(link, item, &mut written).await?;
        }
        (begun, settled, end.await)
    };
    begun?;
    written.completed(plain?)?;
    written.completed(held?)?;
    written.returned(backs?)?;
    for row in released? {
        written.rung.push((row.try_get(0)?, Some(row.try_get(1)?)));
    }
    Ok(written)
}

impl Written {
    fn completed(&mut self, rows: Vec<Row>) -> Result<(), tokio_postgres::Error> {
        for row in rows {
            self.done.insert(row.try_get(0)?);
        }
        Ok(())
    }

    fn returned(&mut self, rows: Vec<Row>) -> Result<(), tokio_postgres::Error> {
        for row in rows {
            self.done.insert(row.try_get(0)?);
            self.rung.push((row.try_get(1)?, row.try_get(2)?));
        }
        Ok(())
    }
}

async fn lock(link: &Link, sessions: &[i64]) -> Result<(), tokio_postgres::Error> {
    if sessions.is_empty() {
        return Ok(());
    }
    link.rows(&LOCK, &[&sessions]).await.map(drop)
}

async fn complete(
    link: &Link,
    sql: &Sql,
    all: &[(i64, i64)],
) -> Result<Vec<Row>, tokio_postgres::Error> {
    if all.is_empty() {
        return Ok(Vec::new());
    }
    let (seqs, proofs): (Vec<i64>, Vec<i64>) = all.iter().copied().unzip();
    link.rows(sql, &[&seqs, &proofs]).await
}

async fn go_back(link: &Link, backs: &[Back]) -> Result<Vec<Row>, tokio_postgres::Error> {
    if backs.is_empty() {
        return Ok(Vec::new());
    }
    let of = |get: fn(&Back) -> i64| -> Vec<i64> { backs.iter().map(get).collect() };
    let (seqs, delays) = (of(|back| back.seq), of(|back| back.delay_ms));
    let leases: Vec<Option<i64>> = backs.iter().map(|back| back.lease).collect();
    let holds: Vec<Option<i64>> = backs.iter().map(|back| back.hold).collect();
    let kinds: Vec<i16> = backs.iter().map(|back| back.kind as i16).collect();
    let changes: Vec<Option<&[u8]>> = backs.iter().map(|back| back.changes.as_deref()).collect();
    let reasons: Vec<Option<&str>> = backs.iter().map(|back| back.reason.as_deref()).collect();
    let texts: Vec<Option<&str>> = backs.iter().map(|back| back.text.as_deref()).collect();
    let most = CHANGES_BYTES_MAX;
    link.rows(&BACK, &[&seqs, &leases, &holds, &kinds, &delays, &changes, &reasons, &texts, &most])
        .await
}

/// The state changes only if the message was settled.
async fn state(
    link: &Link,
    item: &StateItem,
    written: &mut Written,
) -> Result<(), tokio_postgres::Error> {
    let before = written.done.len();
    match &item.back {
        Some(back) => written.returned(go_back(link, std::slice::from_ref(back)).await?)?,
        None => {
            let held = [(item.seq, item.hold)];
            written.completed(complete(link, &COMPLETE_HELD, &held).await?)?;
        }
    }
    if written.done.len() > before {
        let state = item.state.as_deref();
        link.rows(&STATE, &[&item.num, &item.hold, &state]).await?;
    }
    Ok(())
}

async fn release(link: &Link, plan: &Plan) -> Result<Vec<Row>, tokio_postgres::Error> {
    if plan.ends.is_empty() {
        return Ok(Vec::new());
    }
    let (nums, holds): (Vec<i64>, Vec<i64>) = plan.ends.iter().copied().unzip();
    let (both, sessions): (Values<'_>, Values<'_>) = (&[&nums, &holds], &[&nums]);
    let count = async {
        if plan.returned.is_empty() {
            return Ok(Vec::new());
        }
        link.rows(&RETURNED, &[&plan.returned]).await
    };
    let (counted, released, swept) = tokio::join!(
        biased;
        count,
        link.rows(&RELEASE, both),
        link.rows(&SWEEP, sessions),
    );
    counted?;
    swept?;
    released
}
