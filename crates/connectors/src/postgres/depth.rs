//! Counts messages and sessions up to a bound, which is enough for scaling. The cost does not depend on the backlog.

use std::time::Duration;

use malote_model::QueueName;
use tokio_postgres::types::Type;

use super::PgShared;
use super::connection::{Params, Sql};
use crate::broker::BrokerError;
use crate::depth::{Depth, SessionDepth};

/// The highest count of each kind of row.
const COUNT_MAX: i64 = 10_000;
/// The highest count of messages that are found through their sessions, because each is on a different page.
const SESSION_MESSAGES_MAX: i64 = 1000;

/// `$1` queue, `$2` highest count. There is no index on delayed messages by queue, so only the first delayed messages
/// of all queues are examined.
pub(super) const PLAIN_DEPTH: Sql = Sql {
    text: "select
        (select count(*) from (select 1 from malote.messages m
            where m.queue = $1 and m.session is null and m.due is null and m.lease is null limit $2) r),
        (select count(*) filter (where d.queue = $1) from (select m.queue from malote.messages m
            where m.due is not null and m.session is null order by m.due limit $2) d),
        (select count(*) from (select 1 from malote.messages m
            where m.queue = $1 and m.lease is not null limit $2) l),
        (select (extract(epoch from now() - m.enqueued_at) * 1000)::int8 from malote.messages m
            where m.queue = $1 and m.session is null and m.due is null and m.lease is null
            order by m.lane, m.seq limit 1)",
    types: &[Type::INT4, Type::INT8],
};
/// For a queue with sessions: `$3` is the highest count of messages, which are found through ready and held sessions.
/// The last three columns count ready, held and delayed sessions. Sessions that have only a state are not counted.
pub(super) const SESSION_DEPTH: Sql = Sql {
    text: "with line as materialized (
            select s.num, s.turn from malote.sessions s where s.queue = $1 and s.turn is not null
            order by s.turn limit $2),
        held as materialized (
            select h.num, h.fetched from (select s.num, s.fetched, s.queue from malote.sessions s
                where s.lease is not null order by s.held_until limit $2) h where h.queue = $1),
        later as materialized (
            select l.num from (select s.num, s.queue from malote.sessions s
                where s.due is not null order by s.due limit $2) l where l.queue = $1),
        behind as (select m.seq <= h.fetched as out from held h join malote.messages m on m.session = h.num
            where m.due is null or m.due <= now() limit $3)
        select
            (select count(*) from (select 1 from line l join malote.messages m on m.session = l.num
                where m.due is null or m.due <= now() limit $3) r) + (select count(*) from behind where not out),
            (select count(*) from (select 1 from later l join malote.messages m on m.session = l.num limit $3) d),
            (select count(*) from behind where out),
            (select (extract(epoch from now() - m.enqueued_at) * 1000)::int8
                from malote.messages m where m.session = (select l.num from line l order by l.turn limit 1)
                order by m.seq limit 1),
            (select count(*) from line), (select count(*) from held), (select count(*) from later)",
    types: &[Type::INT4, Type::INT8, Type::INT8],
};

impl PgShared {
    pub(super) async fn depth(&self, queue: &QueueName) -> Result<Depth, BrokerError> {
        let queue = self.queue(queue).await?;
        let rows = match queue.has_sessions() {
            true => {
                let values: Params<'_> = &[&queue.id, &COUNT_MAX, &SESSION_MESSAGES_MAX];
                self.claiming.query(&SESSION_DEPTH, values).await?
            }
            false => self.claiming.query(&PLAIN_DEPTH, &[&queue.id, &COUNT_MAX]).await?,
        };
        let Some(row) = rows.first() else { return Ok(Depth::default()) };
        let count = |nth| row.try_get::<_, i64>(nth).map(i64::unsigned_abs);
        let oldest: Option<i64> = row.try_get(3)?;
        let sessions = match queue.has_sessions() {
            true => Some(SessionDepth { runnable: count(4)?, held: count(5)?, other: count(6)? }),
            false => None,
        };
        Ok(Depth {
            ready: count(0)?,
            delayed: count(1)?,
            in_flight: count(2)?,
            // The clock may have been set back.
            oldest: Duration::from_millis(oldest.unwrap_or(0).max(0).unsigned_abs()),
            sent: None,
            paused: false,
            sessions,
            uncounted_sessions: false,
        })
    }
}
