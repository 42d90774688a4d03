//! Sessions: accepted in the order in which they became ready, several at a time for all who wait in this process.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use malote_model::{Refusal, SessionId, Sessions, limits};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_postgres::types::Type;
use tokio_util::sync::DropGuard;

use super::bells::POLL;
use super::claim::delivery;
use super::error::unreadable;
use super::holds::Hold;
use super::link::Sql;
use super::queues::Queue;
use super::send::unknown_session;
use super::settle::Work;
use super::token::Token;
use super::{Shared, ms};
use crate::broker::{BrokerError, Delivery, Doing, Held, Source};

/// Those who wait for a session of one queue.
const WAITING_MAX: usize = 4096;
/// Sessions accepted by one statement.
const ACCEPT_MAX: usize = 256;

/// `$1` queue, `$2` how many, `$3` owner, `$4` lock in ms.
pub(super) const ACCEPT: Sql = Sql {
    text: "with ready as materialized (
            select s.num, s.turn from malote.sessions s where s.queue = $1 and s.turn is not null
            order by s.turn limit $2 for no key update skip locked)
        update malote.sessions s set lease = nextval('malote.holds'), owner = $3,
            held_until = now() + $4 * interval '1 ms', turn = null, due = null, fetched = 0
        from ready r where s.num = r.num returning s.num, s.lease, s.id, r.turn",
    types: &[Type::INT4, Type::INT8, Type::INT4, Type::INT8],
};
/// `$1` queue, `$2` session, `$3` owner, `$4` lock in ms. No row: somebody has it.
pub(super) const ACCEPT_NAMED: Sql = Sql {
    text: "insert into malote.sessions as s (queue, id, lease, owner, held_until)
        values ($1, $2, nextval('malote.holds'), $3, now() + $4 * interval '1 ms')
        on conflict (queue, id) do update set lease = excluded.lease, owner = excluded.owner,
            held_until = excluded.held_until, turn = null, due = null, fetched = 0
        where s.lease is null returning s.num, s.lease",
    types: &[Type::INT4, Type::BYTEA, Type::INT4, Type::INT8],
};
/// `$1` session, `$2` hold, `$3` behind this message, `$4` but none of these, `$5` how many, `$6` bytes. The first row
/// says whether the hold is there, even if there is no message.
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
pub(super) const STATE_OF: Sql = Sql {
    text: "select state from malote.sessions where num = $1 and lease is not distinct from $2 and held_until > now()",
    types: &[Type::INT8, Type::INT8],
};

type Accepted = Result<Option<SessionSource>, BrokerError>;

/// Somebody who wants a session.
pub(super) struct Ask {
    lock_ms: i64,
    until: Option<Instant>,
    reply: oneshot::Sender<Accepted>,
}

fn lock_ms(lock: Duration) -> i64 {
    i64::try_from(ms(lock).min(limits::LOCK_MS_MAX)).unwrap_or(i64::MAX)
}

impl Shared {
    /// The next session that is ready.
    pub(super) async fn accept_next(
        self: &Arc<Self>,
        queue: &Arc<Queue>,
        lock: Duration,
        wait: Duration,
    ) -> Accepted {
        let desk = {
            let mut desks = self.desks.lock();
            let desk = desks.entry(queue.id).or_insert_with(|| {
                let (asks, asked) = mpsc::channel(WAITING_MAX);
                self.handle.spawn(desk(self.clone(), queue.clone(), asked));
                asks
            });
            desk.clone()
        };
        let (reply, answer) = oneshot::channel();
        let ask = Ask { lock_ms: lock_ms(lock), until: Instant::now().checked_add(wait), reply };
        desk.send(ask).await.map_err(|_| BrokerError::Closed)?;
        answer.await.unwrap_or(Err(BrokerError::Closed))
    }

    /// A session by its name, whether it has messages or not.
    pub(super) async fn accept_named(
        self: &Arc<Self>,
        queue: &Arc<Queue>,
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
        // Not here: whoever asks may be gone when the answer comes, and a source that is dropped lets go.
        self.handle.spawn(async move {
            let accepted = shared.hold_named(&queue, session, lock).await;
            let _ = reply.send(accepted);
        });
        answer.await.unwrap_or(Err(BrokerError::Closed))
    }

    async fn hold_named(
        self: &Arc<Self>,
        queue: &Arc<Queue>,
        session: SessionId,
        lock: Duration,
    ) -> Accepted {
        let (id, lock_ms) = (session.as_str().as_bytes(), lock_ms(lock));
        for again in [false, true] {
            if again {
                // Its holder may be gone, and nobody looked since.
                self.keep_house().await?;
            }
            let owner = self.owner()?;
            let rows =
                self.accepting.rows(&ACCEPT_NAMED, &[&queue.id, &id, &owner, &lock_ms]).await?;
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
        queue: &Arc<Queue>,
        num: i64,
        hold: i64,
        session: SessionId,
    ) -> Result<SessionSource, BrokerError> {
        let hold = Arc::new(Hold::new(queue.clone(), num, hold, session));
        self.remember(&hold);
        let held = hold.held();
        Ok(SessionSource { shared: self.clone(), hold: Some(hold), held, alive: None })
    }

    async fn accept_some(
        self: &Arc<Self>,
        queue: &Arc<Queue>,
        count: usize,
        lock_ms: i64,
    ) -> Result<VecDeque<SessionSource>, BrokerError> {
        let (owner, count) = (self.owner()?, count as i64);
        let rows = self.accepting.rows(&ACCEPT, &[&queue.id, &count, &owner, &lock_ms]).await?;
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

    /// Messages of a session in hand, in order; none is none now.
    async fn fetch(&self, hold: &Hold, max: u32) -> Result<Vec<Delivery>, BrokerError> {
        if hold.is_over() {
            return Err(BrokerError::LockLost);
        }
        let (after, out) = hold.next();
        let most = i64::from(max).clamp(1, limits::RECEIVE_BATCH_MAX as i64);
        let bytes = limits::DELIVERY_BYTES_MAX as i64;
        let rows =
            self.claims.rows(&FETCH, &[&hold.num, &hold.hold, &after, &out, &most, &bytes]).await?;
        if rows.is_empty() {
            self.forget(hold);
            return Err(BrokerError::LockLost);
        }
        let mut all = Vec::with_capacity(rows.len());
        for row in &rows {
            if row.try_get::<_, Option<i64>>(0)?.is_some() {
                all.push(delivery(row, |seq| Token::Held { seq, hold: hold.hold })?);
            }
        }
        let seqs: Vec<i64> = all.iter().map(|one| one.seq.0 as i64).collect();
        hold.handed_out(&seqs);
        Ok(all)
    }

    pub(super) fn needs_sessions(&self, queue: &Queue) -> Result<(), BrokerError> {
        if queue.has_sessions() {
            return Ok(());
        }
        Err(Refusal::NoSessions { queue: queue.name.clone() }.into())
    }
}

/// Serves all of this process who wait for a session of one queue: one statement for as many as there are.
async fn desk(shared: Arc<Shared>, queue: Arc<Queue>, mut asked: mpsc::Receiver<Ask>) {
    let mut bell = shared.bell(queue.id);
    let mut waiting: VecDeque<Ask> = VecDeque::new();
    loop {
        waiting.retain(|ask| !ask.reply.is_closed());
        if waiting.is_empty() {
            match asked.recv().await {
                Some(ask) => waiting.push_back(ask),
                None => return,
            }
        }
        while waiting.len() < WAITING_MAX
            && let Ok(ask) = asked.try_recv()
        {
            waiting.push_back(ask);
        }
        bell.mark_unchanged();
        let Some(lock_ms) = waiting.front().map(|ask| ask.lock_ms) else { continue };
        let same = waiting.iter().take_while(|ask| ask.lock_ms == lock_ms).count().min(ACCEPT_MAX);
        match shared.accept_some(&queue, same, lock_ms).await {
            Ok(sources) => {
                let all = sources.len() == same;
                for source in sources {
                    // One that nobody hears of any more is dropped, and lets go.
                    if let Some(ask) = waiting.pop_front() {
                        let _ = ask.reply.send(Ok(Some(source)));
                    }
                }
                if all {
                    continue;
                }
            }
            Err(error) => {
                for ask in waiting.drain(..) {
                    let _ = ask.reply.send(Err(error.clone()));
                }
                continue;
            }
        }
        let now = Instant::now();
        let mut next = now + POLL;
        let mut still = VecDeque::with_capacity(waiting.len());
        for ask in waiting.drain(..) {
            match ask.until {
                Some(until) if until <= now => {
                    let _ = ask.reply.send(Ok(None));
                }
                until => {
                    next = until.map_or(next, |until| next.min(until));
                    still.push_back(ask);
                }
            }
        }
        waiting = still;
        if waiting.is_empty() {
            continue;
        }
        tokio::select! {
            _ = bell.changed() => {}
            ask = asked.recv() => match ask {
                Some(ask) => waiting.push_back(ask),
                None => return,
            },
            () = tokio::time::sleep_until(next) => {}
        }
    }
}

/// A session in hand. Dropped, it is let go.
pub(super) struct SessionSource {
    shared: Arc<Shared>,
    /// Taken when it is let go.
    hold: Option<Arc<Hold>>,
    held: Held,
    /// Keeps the connection, once somebody has it.
    pub alive: Option<Arc<DropGuard>>,
}

impl Source for SessionSource {
    fn held(&self) -> Option<&Held> {
        Some(&self.held)
    }

    fn fetch(&self, max: u32, wait: Duration) -> Doing<'_, Vec<Delivery>> {
        Box::pin(async move {
            let Some(hold) = &self.hold else { return Err(BrokerError::Closed) };
            let until = Instant::now().checked_add(wait);
            loop {
                let called = hold.called.notified();
                tokio::pin!(called);
                called.as_mut().enable();
                let (shared, of) = (self.shared.clone(), hold.clone());
                let (reply, answer) = oneshot::channel();
                // Not here: whoever asks may be gone when the answer comes.
                self.shared.handle.spawn(async move {
                    let _turn = of.fetching.lock().await;
                    let fetched = shared.fetch(&of, max).await;
                    if let Err(Ok(unheard)) = reply.send(fetched) {
                        unheard.iter().rev().for_each(|one| of.ended(one.seq.0 as i64, true));
                    }
                });
                let fetched = Fetched { hold, answer }.take().await?;
                if !fetched.is_empty() {
                    return Ok(fetched);
                }
                let left =
                    until.map_or(POLL, |until| until.saturating_duration_since(Instant::now()));
                if left.is_zero() {
                    return Ok(Vec::new());
                }
                tokio::select! {
                    () = called => {}
                    () = tokio::time::sleep(left.min(POLL)) => {}
                }
            }
        })
    }

    fn close(mut self: Box<Self>) -> Doing<'static, ()> {
        let (hold, shared) = (self.hold.take(), self.shared.clone());
        Box::pin(async move {
            let Some(hold) = hold.filter(|hold| !hold.is_over()) else { return Ok(()) };
            let (reply, answer) = oneshot::channel();
            let work = Work::LetGo { hold, reply: Some(reply) };
            shared.settles.send(work).await.map_err(|_| BrokerError::Closed)?;
            answer.await.unwrap_or(Err(BrokerError::Closed))
        })
    }
}

impl Drop for SessionSource {
    fn drop(&mut self) {
        if let Some(hold) = self.hold.take().filter(|hold| !hold.is_over()) {
            // A full line: its lock ends it, or the end of this process.
            let _ = self.shared.settles.try_send(Work::LetGo { hold, reply: None });
        }
    }
}

/// Waits for messages of a session. Those that come after it is dropped are not out.
struct Fetched<'a> {
    hold: &'a Hold,
    answer: oneshot::Receiver<Result<Vec<Delivery>, BrokerError>>,
}

impl Fetched<'_> {
    async fn take(mut self) -> Result<Vec<Delivery>, BrokerError> {
        (&mut self.answer).await.unwrap_or(Err(BrokerError::Closed))
    }
}

impl Drop for Fetched<'_> {
    fn drop(&mut self) {
        self.answer.close();
        if let Ok(Ok(unheard)) = self.answer.try_recv() {
            unheard.iter().for_each(|one| self.hold.ended(one.seq.0 as i64, true));
        }
    }
}
