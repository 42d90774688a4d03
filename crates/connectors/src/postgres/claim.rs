//! Receiving from a queue without sessions. A claim leases several messages at a time and skips rows that are locked.
//!
//! It takes from the heads of two indexes: ready messages, and expired leases, which count as failures. Leased
//! messages are in neither index, so the cost of a claim does not depend on their number. Leases of owners that are
//! gone are made to expire by `maintenance.rs`.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use malote_model::{Seq, Timestamp, limits};
use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_postgres::Row;
use tokio_postgres::types::Type;
use tokio_util::sync::DropGuard;

use super::PgShared;
use super::connection::Sql;
use super::message;
use super::queues::PgQueue;
use super::settle::SettleCall;
use super::token::PgToken;
use super::wakeups::POLL_INTERVAL;
use crate::broker::{BrokerError, BrokerFuture, Delivery, SessionHold, Settle, Source};
use crate::system::millis;

/// `$1` queue, `$2` limit, `$3` lease, `$4` lock in ms, `$5` failures at which a message is dead-lettered, `$6` bytes.
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

/// The delivery of a row with the columns of [`CLAIM`], in their order.
pub(super) fn row_to_delivery(
    row: &Row,
    token: impl FnOnce(i64) -> PgToken,
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
        lease: token(seq).encode(),
        receives: receives.unsigned_abs(),
        failed: failed.unsigned_abs(),
        enqueued_at: Timestamp(millis(enqueued)),
        last: false,
        dead: reason.map(|reason| (reason, explanation.unwrap_or_default())),
        message,
    })
}

/// Claimed messages on their way to the caller. On drop, they are released uncounted.
struct ClaimedBatch {
    shared: Arc<PgShared>,
    deliveries: Vec<Delivery>,
}

impl ClaimedBatch {
    fn take(mut self) -> Vec<Delivery> {
        std::mem::take(&mut self.deliveries)
    }
}

impl Drop for ClaimedBatch {
    fn drop(&mut self) {
        let leases = self.deliveries.drain(..).map(|delivery| delivery.lease);
        let items: Vec<_> = leases.map(Settle::release).collect();
        if !items.is_empty() {
            // If the channel is full, the leases end with their locks.
            let _ = self.shared.settle_calls.try_send(SettleCall::Settle { items, reply: None });
        }
    }
}

impl PgShared {
    /// Leases ready messages, up to `max`.
    async fn claim(
        self: &Arc<Self>,
        queue: &PgQueue,
        max: u32,
        lock: Duration,
    ) -> Result<ClaimedBatch, BrokerError> {
        let owner = self.owner()?;
        // Wraps after 2^32 claims, when the first leases have long ended.
        let count = self.claim_count.fetch_add(1, Ordering::Relaxed);
        let lease = (i64::from(owner) << 32) | i64::from(count);
        let limit = i64::from(max).clamp(1, limits::RECEIVE_BATCH_MAX as i64);
        let lock = i64::try_from(millis(lock).min(limits::LOCK_MS_MAX)).unwrap_or(i64::MAX);
        let (failed_max, bytes) = (queue.failed_max(), limits::DELIVERY_BYTES_MAX as i64);
        let rows = self
            .claiming
            .query(&CLAIM, &[&queue.id, &limit, &lease, &lock, &failed_max, &bytes])
            .await?;
        let mut all = Vec::with_capacity(rows.len());
        let mut dead = false;
        for row in &rows {
            if row.try_get(10)? {
                dead = true;
                continue;
            }
            let one = row_to_delivery(row, |seq| PgToken::Message { seq, lease })?;
            all.push((row.try_get::<_, i16>(9)?, one));
        }
        if dead {
            self.notify_arrivals(vec![(-queue.id.abs(), None)]);
        }
        all.sort_unstable_by_key(|(lane, one)| (*lane, one.seq));
        let deliveries: Vec<Delivery> = all.into_iter().map(|(_, one)| one).collect();
        {
            let mut plain = self.plain_leases.lock();
            plain.extend(deliveries.iter().map(|one| (one.seq.0 as i64, lease)));
        }
        Ok(ClaimedBatch { shared: self.clone(), deliveries })
    }
}

/// The source of a queue without sessions.
pub(super) struct PgPlainSource {
    pub shared: Arc<PgShared>,
    pub queue: Arc<PgQueue>,
    pub lock: Duration,
    /// Keeps the connector's thread running.
    pub _thread_guard: Arc<DropGuard>,
}

impl Source for PgPlainSource {
    fn held(&self) -> Option<&SessionHold> {
        None
    }

    fn fetch(&self, max: u32, wait: Duration) -> BrokerFuture<'_, Vec<Delivery>> {
        Box::pin(async move {
            let until = Instant::now().checked_add(wait);
            let mut wakeup = self.shared.subscribe(self.queue.id);
            loop {
                wakeup.mark_unchanged();
                let (shared, queue, lock) = (self.shared.clone(), self.queue.clone(), self.lock);
                let (reply, answer) = oneshot::channel();
                // In a task: the caller may give up before the answer arrives.
                self.shared.handle.spawn(async move {
                    let _ = reply.send(shared.claim(&queue, max, lock).await);
                });
                let claimed = answer.await.unwrap_or(Err(BrokerError::Closed))?.take();
                if !claimed.is_empty() {
                    return Ok(claimed);
                }
                let left = until
                    .map_or(POLL_INTERVAL, |until| until.saturating_duration_since(Instant::now()));
                if left.is_zero() {
                    return Ok(Vec::new());
                }
                tokio::select! {
                    _ = wakeup.changed() => {}
                    () = tokio::time::sleep(left.min(POLL_INTERVAL)) => {}
                }
            }
        })
    }

    fn close(self: Box<Self>) -> BrokerFuture<'static, ()> {
        // Nothing is prefetched.
        Box::pin(async { Ok(()) })
    }
}
