//! Accepting sessions in the order in which they became ready. All callers of this process share one statement.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use malote_model::{Refusal, SessionId, Sessions, limits};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_postgres::types::Type;
use tokio_util::sync::DropGuard;

use super::PgShared;
use super::claim::row_to_delivery;
use super::connection::Sql;
use super::error::unreadable;
use super::local_holds::LocalHold;
use super::queues::PgQueue;
use super::send::unknown_session;
use super::settle::SettleCall;
use super::token::PgToken;
use super::wakeups::POLL_INTERVAL;
use crate::broker::{BrokerError, BrokerFuture, Delivery, SessionHold, Source};
use crate::system::millis;

/// The most callers that may wait for a session of one queue.
const WAITING_MAX: usize = 4096;
/// The most sessions accepted by one statement.
const ACCEPT_MAX: usize = 256;

/// `$1` queue, `$2` limit, `$3` owner, `$4` lock in ms.
pub(super) const ACCEPT: Sql = Sql {
    text: "with ready as materialized (
            select s.num, s.turn from malote.sessions s where s.queue = $1 and s.turn is not null
            order by s.turn limit $2 for no key update skip locked)
        update malote.sessions s set lease = nextval('malote.holds'), owner = $3,
            held_until = now() + $4 * interval '1 ms', turn = null, due = null, fetched = 0
        from ready r where s.num = r.num returning s.num, s.lease, s.id, r.turn",
    types: &[Type::INT4, Type::INT8, Type::INT4, Type::INT8],
};
/// `$1` queue, `$2` session, `$3` owner, `$4` lock in ms. Returns no row if the session is held.
pub(super) const ACCEPT_NAMED: Sql = Sql {
    text: "insert into malote.sessions as s (queue, id, lease, owner, held_until)
        values ($1, $2, nextval('malote.holds'), $3, now() + $4 * interval '1 ms')
        on conflict (queue, id) do update set lease = excluded.lease, owner = excluded.owner,
            held_until = excluded.held_until, turn = null, due = null, fetched = 0
        where s.lease is null returning s.num, s.lease",
    types: &[Type::INT4, Type::BYTEA, Type::INT4, Type::INT8],
};
/// `$1` session, `$2` hold, `$3` after this message, `$4` leased messages to skip, `$5` limit, `$6` bytes. If the
/// hold is valid, there is at least one row, even without a message.
pub(super) const FETCH: Sql = Sql {
    text: "with got as materialized (
            select m.*, bool_and(m.due is null or m.due <= now()) over w as open, sum(octet_length(m.body)) over w as upto
            from (select * from malote.messages m where m.session = $1 and m.seq > $3 and m.seq <> all($4)
                and (m.expires is null or m.expires > now()) order by m.seq limit $5) m
            window w as (order by m.seq)),
        held as (select 1 from malote.sessions s where s.num = $1 and s.lease is not distinct from $2 and s.held_until > now()),
        mark as (
            update malote.sessions s set fetched = greatest(s.fetched, (select max(g.seq) from got g where g.open))
            where s.num = $1 and s.lease is not distinct from $2 and s.held_until > now() and exists (select 1 from got g where g.open)
            returning s.num)
        select g.seq, g.receives + 1, g.failed, g.enqueued_at, g.reason, g.explanation, g.meta, g.changes, g.body
        from held left join got g
            on exists (select 1 from mark) and g.open and (g.upto <= $6 or g.upto = octet_length(g.body))
        order by g.seq",
    types: &[Type::INT8, Type::INT8, Type::INT8, Type::INT8_ARRAY, Type::INT8, Type::INT8],
};
pub(super) const GET_STATE: Sql = Sql {
    text: "select state from malote.sessions where num = $1 and lease is not distinct from $2 and held_until > now()",
    types: &[Type::INT8, Type::INT8],
};

type Accepted = Result<Option<PgSessionSource>, BrokerError>;

/// A call that waits for a session.
pub(super) struct AcceptCall {
    lock_ms: i64,
    until: Option<Instant>,
    reply: oneshot::Sender<Accepted>,
}

fn lock_ms(lock: Duration) -> i64 {
    i64::try_from(millis(lock).min(limits::LOCK_MS_MAX)).unwrap_or(i64::MAX)
}

impl PgShared {
    /// Accepts the next session that is ready.
    pub(super) async fn accept_next(
        self: &Arc<Self>,
        queue: &Arc<PgQueue>,
        lock: Duration,
        wait: Duration,
    ) -> Accepted {
        let accept_queue = {
            let mut accept_queues = self.accept_queues.lock();
            let accept_queue = accept_queues.entry(queue.id).or_insert_with(|| {
                let (sender, calls) = mpsc::channel(WAITING_MAX);
                self.handle.spawn(serve_accepts(self.clone(), queue.clone(), calls));
                sender
            });
            accept_queue.clone()
        };
        let (reply, answer) = oneshot::channel();
        let call =
            AcceptCall { lock_ms: lock_ms(lock), until: Instant::now().checked_add(wait), reply };
        accept_queue.send(call).await.map_err(|_| BrokerError::Closed)?;
        answer.await.unwrap_or(Err(BrokerError::Closed))
    }

    /// Accepts a named session, with or without messages.
    pub(super) async fn accept_named(
        self: &Arc<Self>,
        queue: &Arc<PgQueue>,
        session: SessionId,
        lock: Duration,
    ) -> Accepted {
        if let Sessions::Fixed(ids) = &queue.spec.sessions
            && !ids.contains(&session)
        {
            return Err(unknown_session(queue, &session));
        }
        let (shared, queue) = (self.clone(), queue.clone());
        let (reply, answer) = oneshot::channel();
        // In a task: the caller may give up before the answer arrives. The source is then dropped, which releases the
        // session.
        self.handle.spawn(async move {
            let accepted = shared.hold_named(&queue, session, lock).await;
            let _ = reply.send(accepted);
        });
        answer.await.unwrap_or(Err(BrokerError::Closed))
    }

    async fn hold_named(
        self: &Arc<Self>,
        queue: &Arc<PgQueue>,
        session: SessionId,
        lock: Duration,
    ) -> Accepted {
        let (id, lock_ms) = (session.as_str().as_bytes(), lock_ms(lock));
        for again in [false, true] {
            if again {
                // The hold may have expired since the last maintenance.
                self.reclaim_expired_holds().await?;
            }
            let owner = self.owner()?;
            let rows =
                self.accepting.query(&ACCEPT_NAMED, &[&queue.id, &id, &owner, &lock_ms]).await?;
            if let Some(row) = rows.first() {
                return self.source(queue, row.try_get(0)?, row.try_get(1)?, session).map(Some);
            }
        }
        let text =
            format!("session `{session}` of queue `{}` is held by another receiver", queue.name);
        Err(BrokerError::Refused { code: "session_held".into(), text })
    }

    fn source(
        self: &Arc<Self>,
        queue: &Arc<PgQueue>,
        num: i64,
        hold: i64,
        session: SessionId,
    ) -> Result<PgSessionSource, BrokerError> {
        let hold = Arc::new(LocalHold::new(queue.clone(), num, hold, session));
        self.add_hold(&hold);
        let held = hold.held();
        Ok(PgSessionSource { shared: self.clone(), hold: Some(hold), held, thread_guard: None })
    }

    async fn accept_some(
        self: &Arc<Self>,
        queue: &Arc<PgQueue>,
        count: usize,
        lock_ms: i64,
    ) -> Result<VecDeque<PgSessionSource>, BrokerError> {
        let (owner, count) = (self.owner()?, count as i64);
        let rows = self.accepting.query(&ACCEPT, &[&queue.id, &count, &owner, &lock_ms]).await?;
        let mut all = Vec::with_capacity(rows.len());
        for row in &rows {
            let (num, hold, turn): (i64, i64, i64) =
                (row.try_get(0)?, row.try_get(1)?, row.try_get(3)?);
            let id = std::str::from_utf8(row.try_get(2)?).map_err(unreadable)?;
            let session = SessionId::new(id).map_err(unreadable)?;
            all.push((turn, self.source(queue, num, hold, session)?));
        }
        all.sort_unstable_by_key(|(turn, _)| *turn);
        Ok(all.into_iter().map(|(_, source)| source).collect())
    }

    /// Leases messages of a held session in order. Returns none if none is ready.
    async fn fetch(&self, hold: &LocalHold, max: u32) -> Result<Vec<Delivery>, BrokerError> {
        if hold.has_ended() {
            return Err(BrokerError::LockLost);
        }
        let (after, leased) = hold.position();
        let limit = i64::from(max).clamp(1, limits::RECEIVE_BATCH_MAX as i64);
        let bytes = limits::DELIVERY_BYTES_MAX as i64;
        let rows = self
            .claiming
            .query(&FETCH, &[&hold.num, &hold.hold, &after, &leased, &limit, &bytes])
            .await?;
        if rows.is_empty() {
            self.remove_hold(hold);
            return Err(BrokerError::LockLost);
        }
        let mut all = Vec::with_capacity(rows.len());
        for row in &rows {
            if row.try_get::<_, Option<i64>>(0)?.is_some() {
                all.push(row_to_delivery(row, |seq| PgToken::SessionMessage {
                    seq,
                    hold: hold.hold,
                })?);
            }
        }
        let seqs: Vec<i64> = all.iter().map(|one| one.seq.0 as i64).collect();
        hold.mark_leased(&seqs);
        Ok(all)
    }

    pub(super) fn require_sessions(&self, queue: &PgQueue) -> Result<(), BrokerError> {
        if queue.has_sessions() {
            return Ok(());
        }
        Err(Refusal::NoSessions { queue: queue.name.clone() }.into())
    }
}

/// Accepts sessions of one queue for all waiting callers of this process, with one statement for many.
async fn serve_accepts(
    shared: Arc<PgShared>,
    queue: Arc<PgQueue>,
    mut calls: mpsc::Receiver<AcceptCall>,
) {
    let mut wakeup = shared.subscribe(queue.id);
    let mut waiting: VecDeque<AcceptCall> = VecDeque::new();
    loop {
        waiting.retain(|call| !call.reply.is_closed());
        if waiting.is_empty() {
            match calls.recv().await {
                Some(call) => waiting.push_back(call),
                None => return,
            }
        }
        while waiting.len() < WAITING_MAX
            && let Ok(call) = calls.try_recv()
        {
            waiting.push_back(call);
        }
        wakeup.mark_unchanged();
        let Some(lock_ms) = waiting.front().map(|call| call.lock_ms) else { continue };
        let same =
            waiting.iter().take_while(|call| call.lock_ms == lock_ms).count().min(ACCEPT_MAX);
        match shared.accept_some(&queue, same, lock_ms).await {
            Ok(sources) => {
                let all = sources.len() == same;
                for source in sources {
                    // If the caller gave up, the source is dropped, which releases the session.
                    if let Some(call) = waiting.pop_front() {
                        let _ = call.reply.send(Ok(Some(source)));
                    }
                }
                if all {
                    continue;
                }
            }
            Err(error) => {
                for call in waiting.drain(..) {
                    let _ = call.reply.send(Err(error.clone()));
                }
                continue;
            }
        }
        let now = Instant::now();
        let mut next = now + POLL_INTERVAL;
        let mut waiting_on = VecDeque::with_capacity(waiting.len());
        for call in waiting.drain(..) {
            match call.until {
                Some(until) if until <= now => {
                    let _ = call.reply.send(Ok(None));
                }
                until => {
                    next = until.map_or(next, |until| next.min(until));
                    waiting_on.push_back(call);
                }
            }
        }
        waiting = waiting_on;
        if waiting.is_empty() {
            continue;
        }
        tokio::select! {
            _ = wakeup.changed() => {}
            call = calls.recv() => match call {
                Some(call) => waiting.push_back(call),
                None => return,
            },
            () = tokio::time::sleep_until(next) => {}
        }
    }
}

/// The source of a held session. Dropping it releases the session.
pub(super) struct PgSessionSource {
    shared: Arc<PgShared>,
    /// None once the session is released.
    hold: Option<Arc<LocalHold>>,
    held: SessionHold,
    /// Keeps the connector's thread running; set when the source is given to the caller.
    pub thread_guard: Option<Arc<DropGuard>>,
}

impl Source for PgSessionSource {
    fn held(&self) -> Option<&SessionHold> {
        Some(&self.held)
    }

    fn fetch(&self, max: u32, wait: Duration) -> BrokerFuture<'_, Vec<Delivery>> {
        Box::pin(async move {
            let Some(hold) = &self.hold else { return Err(BrokerError::Closed) };
            let until = Instant::now().checked_add(wait);
            loop {
                let arrival = hold.arrival.notified();
                tokio::pin!(arrival);
                arrival.as_mut().enable();
                let (shared, of) = (self.shared.clone(), hold.clone());
                let (reply, answer) = oneshot::channel();
                // In a task: the caller may give up before the answer arrives.
                self.shared.handle.spawn(async move {
                    let _turn = of.fetching.lock().await;
                    let fetched = shared.fetch(&of, max).await;
                    if let Err(Ok(unclaimed)) = reply.send(fetched) {
                        unclaimed.iter().rev().for_each(|one| of.finish(one.seq.0 as i64, true));
                    }
                });
                let fetched = PendingFetch { hold, answer }.take().await?;
                if !fetched.is_empty() {
                    return Ok(fetched);
                }
                let left = until
                    .map_or(POLL_INTERVAL, |until| until.saturating_duration_since(Instant::now()));
                if left.is_zero() {
                    return Ok(Vec::new());
                }
                tokio::select! {
                    () = arrival => {}
                    () = tokio::time::sleep(left.min(POLL_INTERVAL)) => {}
                }
            }
        })
    }

    fn close(mut self: Box<Self>) -> BrokerFuture<'static, ()> {
        let (hold, shared) = (self.hold.take(), self.shared.clone());
        Box::pin(async move {
            let Some(hold) = hold.filter(|hold| !hold.has_ended()) else { return Ok(()) };
            let (reply, answer) = oneshot::channel();
            let work = SettleCall::ReleaseHold { hold, reply: Some(reply) };
            shared.settle_calls.send(work).await.map_err(|_| BrokerError::Closed)?;
            answer.await.unwrap_or(Err(BrokerError::Closed))
        })
    }
}

impl Drop for PgSessionSource {
    fn drop(&mut self) {
        if let Some(hold) = self.hold.take().filter(|hold| !hold.has_ended()) {
            // If the channel is full, the hold ends with its lock or with this process.
            let _ =
                self.shared.settle_calls.try_send(SettleCall::ReleaseHold { hold, reply: None });
        }
    }
}

/// Waits for the messages of a fetch. If it is dropped, messages that arrive later are not leased.
struct PendingFetch<'a> {
    hold: &'a LocalHold,
    answer: oneshot::Receiver<Result<Vec<Delivery>, BrokerError>>,
}

impl PendingFetch<'_> {
    async fn take(mut self) -> Result<Vec<Delivery>, BrokerError> {
        (&mut self.answer).await.unwrap_or(Err(BrokerError::Closed))
    }
}

impl Drop for PendingFetch<'_> {
    fn drop(&mut self) {
        self.answer.close();
        if let Ok(Ok(unclaimed)) = self.answer.try_recv() {
            unclaimed.iter().for_each(|one| self.hold.finish(one.seq.0 as i64, true));
        }
    }
}
