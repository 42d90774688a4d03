//! Messages of a queue without sessions: claimed many at a time, by rows that nobody else has locked just now.
//!
//! The claim takes from the heads of two indexes: what is ready, and leases that ran out, which counts as a failure. What
//! is in somebody's hand is in neither, so that a claim costs the same however much of that there is. Leases of those
//! who are gone are made to run out by whoever notices (`keeper.rs`).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use malote_model::{Seq, Timestamp, limits};
use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_postgres::Row;
use tokio_postgres::types::Type;
use tokio_util::sync::DropGuard;

use super::bells::POLL;
use super::link::Sql;
use super::message;
use super::queues::Queue;
use super::settle::Work;
use super::token::Token;
use super::{Shared, ms};
use crate::broker::{BrokerError, Delivery, Doing, Held, Settle, Source};

/// `$1` queue, `$2` how many, `$3` lease, `$4` lock in ms, `$5` failures that kill, `$6` bytes.
pub(super) const CLAIM: Sql = Sql {
    text: "with ready as materialized (
            select m.seq, m.lane, octet_length(m.body) as size, m.failed, false as dead
            from malote.messages m
            where m.queue = $1 and m.session is null and m.due is null and m.lease is null
                and (m.expires is null or m.expires > now())
                and exists (select 1 from malote.owners o where o.id = ($3 >> 32)::int)
            order by m.lane, m.seq limit $2 for no key update of m skip locked),
        lapsed as materialized (
            select m.seq, m.lane, octet_length(m.body) as size, m.failed + 1 as failed,
                coalesce(m.failed + 1 >= $5, false) as dead
            from malote.messages m
            where m.queue = $1 and m.lease is not null and m.locked_until <= now()
                and (m.expires is null or m.expires > now())
                and exists (select 1 from malote.owners o where o.id = ($3 >> 32)::int)
            order by m.locked_until limit $2 for no key update of m skip locked),
        head as (
            select * from ready union all select * from lapsed order by lane, seq limit $2),
        taken as (select *, sum(size) over (order by lane, seq) as upto from head)
        update malote.messages m set
            failed = t.failed, receives = m.receives + 1,
            seq = case when t.dead then nextval('malote.seqs') else m.seq end,
            queue = case when t.dead then -abs(m.queue) else m.queue end,
            lane = case when t.dead then 0 else m.lane end,
            expires = case when t.dead then null else m.expires end,
            lease = case when t.dead then null else $3 end,
            locked_until = case when t.dead then null else now() + $4 * interval '1 ms' end,
            reason = case when t.dead then 'MaxDeliveryCountExceeded' else m.reason end,
            explanation = case when t.dead then
                format('failed %s times; the queue allows %s (failed_max)', t.failed, $5) else m.explanation end
        from taken t where m.seq = t.seq and (t.upto <= $6 or t.upto = t.size)
        returning m.seq, m.receives, m.failed, m.enqueued_at, m.reason, m.explanation, m.meta, m.changes, m.body,
            m.lane, t.dead",
    types: &[Type::INT4, Type::INT8, Type::INT8, Type::INT8, Type::INT4, Type::INT8],
};

/// A row as a delivery: the columns of a claim in their order.
pub(super) fn delivery(
    row: &Row,
    token: impl FnOnce(i64) -> Token,
) -> Result<Delivery, BrokerError> {
    let seq: i64 = row.try_get(0)?;
    let (receives, failed): (i32, i32) = (row.try_get(1)?, row.try_get(2)?);
    let enqueued: SystemTime = row.try_get(3)?;
    let enqueued = enqueued.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (reason, explanation): (Option<String>, Option<String>) =
        (row.try_get(4)?, row.try_get(5)?);
    let message = message::decode(row.try_get(6)?, row.try_get(7)?, row.try_get(8)?)?;
    Ok(Delivery {
        seq: Seq(seq.unsigned_abs()),
        lease: token(seq).write(),
        receives: receives.unsigned_abs(),
        failed: failed.unsigned_abs(),
        enqueued_at: Timestamp(ms(enqueued)),
        last: false,
        dead: reason.map(|reason| (reason, explanation.unwrap_or_default())),
        message,
    })
}

/// Messages on their way to whoever asked. What nobody takes goes back, uncounted.
struct Claimed {
    shared: Arc<Shared>,
    deliveries: Vec<Delivery>,
}

impl Claimed {
    fn take(mut self) -> Vec<Delivery> {
        std::mem::take(&mut self.deliveries)
    }
}

impl Drop for Claimed {
    fn drop(&mut self) {
        let leases = self.deliveries.drain(..).map(|delivery| delivery.lease);
        let items: Vec<_> = leases.map(Settle::release).collect();
        if !items.is_empty() {
            // A full line: their lock ends it.
            let _ = self.shared.settles.try_send(Work::Settle { items, reply: None });
        }
    }
}

impl Shared {
    /// What is ready now, up to so many.
    async fn claim(
        self: &Arc<Self>,
        queue: &Queue,
        max: u32,
        lock: Duration,
    ) -> Result<Claimed, BrokerError> {
        let owner = self.owner()?;
        // Wraps after four thousand million claims, when nobody remembers the first.
        let count = self.count.fetch_add(1, Ordering::Relaxed);
        let lease = (i64::from(owner) << 32) | i64::from(count);
        let most = i64::from(max).clamp(1, limits::RECEIVE_BATCH_MAX as i64);
        let lock = i64::try_from(ms(lock).min(limits::LOCK_MS_MAX)).unwrap_or(i64::MAX);
        let (failed_max, bytes) = (queue.failed_max(), limits::DELIVERY_BYTES_MAX as i64);
        let rows = self
            .claims
            .rows(&CLAIM, &[&queue.id, &most, &lease, &lock, &failed_max, &bytes])
            .await?;
        let mut all = Vec::with_capacity(rows.len());
        let mut dead = false;
        for row in &rows {
            if row.try_get(10)? {
                dead = true;
                continue;
            }
            let one = delivery(row, |seq| Token::Plain { seq, lease })?;
            all.push((row.try_get::<_, i16>(9)?, one));
        }
        if dead {
            self.ring(vec![(-queue.id.abs(), None)]);
        }
        all.sort_unstable_by_key(|(lane, one)| (*lane, one.seq));
        let deliveries: Vec<Delivery> = all.into_iter().map(|(_, one)| one).collect();
        {
            let mut plain = self.plain.lock();
            plain.extend(deliveries.iter().map(|one| (one.seq.0 as i64, lease)));
        }
        Ok(Claimed { shared: self.clone(), deliveries })
    }
}

/// A queue without sessions.
pub(super) struct PlainSource {
    pub shared: Arc<Shared>,
    pub queue: Arc<Queue>,
    pub lock: Duration,
    /// Keeps the connection.
    pub _alive: Arc<DropGuard>,
}

impl Source for PlainSource {
    fn held(&self) -> Option<&Held> {
        None
    }

    fn fetch(&self, max: u32, wait: Duration) -> Doing<'_, Vec<Delivery>> {
        Box::pin(async move {
            let until = Instant::now().checked_add(wait);
            let mut bell = self.shared.bell(self.queue.id);
            loop {
                bell.mark_unchanged();
                let (shared, queue, lock) = (self.shared.clone(), self.queue.clone(), self.lock);
                let (reply, answer) = oneshot::channel();
                // Not here: whoever asks may be gone when the answer comes.
                self.shared.handle.spawn(async move {
                    let _ = reply.send(shared.claim(&queue, max, lock).await);
                });
                let claimed = answer.await.unwrap_or(Err(BrokerError::Closed))?.take();
                if !claimed.is_empty() {
                    return Ok(claimed);
                }
                let left =
                    until.map_or(POLL, |until| until.saturating_duration_since(Instant::now()));
                if left.is_zero() {
                    return Ok(Vec::new());
                }
                tokio::select! {
                    _ = bell.changed() => {}
                    () = tokio::time::sleep(left.min(POLL)) => {}
                }
            }
        })
    }

    fn close(self: Box<Self>) -> Doing<'static, ()> {
        // Nothing is fetched ahead.
        Box::pin(async { Ok(()) })
    }
}
