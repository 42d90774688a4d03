//! `embedded:DIR`: the engine in this process.
//!
//! Leases and holds belong to one connection of the engine. If this process dies, the messages are ready again as
//! soon as another process opens the directory.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use malote_engine::{
    Connection, Engine, EngineError, QueueFacts, Receive, Running, Settings, StateChange,
};
use malote_model::{
    Address, LeaseToken, Message, QueueName, QueueSpec, Refusal, SessionId, Settlement, Timestamp,
};
use parking_lot::Mutex;

use crate::broker::{
    Broker, BrokerError, BrokerFuture, Delivery, Sent, SessionHold, Settle, Source,
};
use crate::capabilities::{Capabilities, RetryHold};
use crate::depth::{Depth, SessionDepth};
use crate::system::millis;

/// The embedded engine has all capabilities.
pub const CAPABILITIES: Capabilities = Capabilities {
    broker: "the embedded engine",
    retry_hold: RetryHold::Session,
    declare: true,
    sessions: true,
    fair_sessions: true,
    choose_lock: true,
    session_state: true,
    state_with_settle: true,
    renew: true,
    release: true,
    delay: true,
    schedule: true,
    dead_letter: true,
    changes: true,
    dedup: true,
    atomic_send: true,
    bound_leases: true,
};

/// An engine in this process.
pub struct Embedded {
    connection: Arc<Connection>,
    running: Mutex<Option<Running>>,
}

impl Embedded {
    /// Opens a data directory. Only one process at a time can have it open.
    pub fn open(data: impl Into<PathBuf>) -> Result<Self, BrokerError> {
        let opened = Engine::open(Settings::at(data));
        let (engine, running) = opened.map_err(|error| BrokerError::Refused {
            code: "open_failed".into(),
            text: error.to_string(),
        })?;
        let embedded = Self::on_engine(&engine);
        *embedded.running.lock() = Some(running);
        Ok(embedded)
    }

    /// Uses an engine that the caller opened and will stop.
    pub fn on_engine(engine: &Engine) -> Self {
        let (connection, _) = engine.connect();
        Self { connection: Arc::new(connection), running: Mutex::new(None) }
    }

    /// The engine, for operations that the trait does not have, such as peek or pause.
    pub fn engine(&self) -> &Engine {
        self.connection.engine()
    }
}

impl From<EngineError> for BrokerError {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Refused(refusal) => refusal.into(),
            EngineError::Stopping => Self::Closed,
            EngineError::Poisoned => Self::Unreachable { text: error.to_string() },
            EngineError::Damaged { .. } => {
                Self::Refused { code: "damaged".into(), text: error.to_string() }
            }
        }
    }
}

impl Broker for Embedded {
    fn capabilities(&self) -> &Capabilities {
        &CAPABILITIES
    }

    fn declare(&self, queue: &QueueName, spec: QueueSpec) -> BrokerFuture<'_, ()> {
        let queue = queue.clone();
        Box::pin(async move { Ok(self.connection.declare(queue, spec).await.map(drop)?) })
    }

    fn send(&self, messages: Vec<(Address, Message)>) -> BrokerFuture<'_, Vec<Sent>> {
        Box::pin(async move {
            let sent = self.engine().send(messages).await?;
            let each = sent.into_iter().map(|sent| Sent {
                seq: sent.seq,
                message_id: sent.message_id,
                duplicate: sent.duplicate,
            });
            Ok(each.collect())
        })
    }

    fn open(&self, queue: &QueueName, lock: Duration) -> BrokerFuture<'_, Box<dyn Source>> {
        let queue = queue.clone();
        Box::pin(async move {
            self.engine().describe(queue.clone()).await?;
            let (connection, held) = (self.connection.clone(), None);
            Ok(Box::new(EngineSource { connection, queue, lock, held }) as Box<dyn Source>)
        })
    }

    fn accept(
        &self,
        queue: &QueueName,
        session: Option<SessionId>,
        lock: Duration,
        wait: Duration,
    ) -> BrokerFuture<'_, Option<Box<dyn Source>>> {
        let queue = queue.clone();
        Box::pin(async move {
            let accepted = self
                .connection
                .accept(queue.clone(), session, millis(wait), Some(millis(lock)))
                .await?;
            let Some(accepted) = accepted else { return Ok(None) };
            let held = SessionHold {
                session: accepted.session,
                hold: accepted.hold,
                // The time of the grant. The engine's clock never goes backwards, even across restarts.
                epoch: accepted.until.0.saturating_sub(millis(lock)),
            };
            let connection = self.connection.clone();
            let source = EngineSource { connection, queue, lock, held: Some(held) };
            Ok(Some(Box::new(source) as Box<dyn Source>))
        })
    }

    fn settle(
        &self,
        queue: &QueueName,
        items: Vec<Settle>,
    ) -> BrokerFuture<'_, Vec<Result<(), BrokerError>>> {
        let queue = queue.clone();
        Box::pin(async move {
            let engine = self.engine();
            // Adjacent completions become one request. All requests are made before the first is awaited, so order is
            // kept.
            let mut groups: Vec<(Vec<LeaseToken>, Settle)> = Vec::new();
            for item in items {
                let plain = item.settlement == Settlement::Complete && item.state.is_none();
                match groups.last_mut() {
                    Some((leases, first))
                        if plain
                            && first.state.is_none()
                            && first.settlement == Settlement::Complete
                            && leases.len() < malote_model::limits::SETTLE_BATCH_MAX =>
                    {
                        leases.push(item.lease);
                    }
                    _ => groups.push((vec![item.lease], item)),
                }
            }
            let requests = groups.into_iter().map(|(leases, Settle { settlement, state, .. })| {
                let state = state.map(|new| StateChange { hold: new.hold, state: new.state });
                let count = leases.len();
                engine.settle(Some(&queue), leases, settlement, state).map(move |answer| {
                    match answer {
                        Ok(each) => {
                            each.into_iter().map(|one| one.map_err(BrokerError::from)).collect()
                        }
                        Err(error) => vec![Err(BrokerError::from(error)); count],
                    }
                })
            });
            let answers: Vec<Vec<_>> = futures_util::future::join_all(requests).await;
            Ok(answers.into_iter().flatten().collect())
        })
    }

    fn renew(
        &self,
        queue: &QueueName,
        leases: Vec<LeaseToken>,
        lock: Duration,
    ) -> BrokerFuture<'_, Vec<Result<(), BrokerError>>> {
        let queue = queue.clone();
        Box::pin(async move {
            let each = self.engine().renew(Some(&queue), leases, Some(millis(lock))).await?;
            Ok(each.into_iter().map(|one| one.map(drop).map_err(BrokerError::from)).collect())
        })
    }

    fn state(&self, queue: &QueueName, held: &SessionHold) -> BrokerFuture<'_, Option<Bytes>> {
        let (queue, session, hold) = (queue.clone(), held.session.clone(), held.hold);
        Box::pin(async move { Ok(self.engine().get_state(queue, session, Some(hold)).await?) })
    }

    fn peek_state(
        &self,
        queue: &QueueName,
        session: &SessionId,
    ) -> BrokerFuture<'_, Option<Bytes>> {
        let (queue, session) = (queue.clone(), session.clone());
        Box::pin(async move { Ok(self.engine().get_state(queue, session, None).await?) })
    }

    fn list_sessions(
        &self,
        queue: &QueueName,
        from: u32,
        max: usize,
    ) -> BrokerFuture<'_, (Vec<SessionId>, Option<u32>)> {
        let queue = queue.clone();
        Box::pin(async move {
            let (all, next) = self.engine().sessions(queue, from, max).await?;
            Ok((all.into_iter().map(|facts| facts.session).collect(), next))
        })
    }

    fn now(&self) -> Timestamp {
        self.engine().now()
    }

    fn depth(&self, queue: &QueueName) -> BrokerFuture<'_, Depth> {
        let queue = queue.clone();
        Box::pin(async move {
            let facts = self.engine().describe(queue).await?;
            Ok(depth(&facts, self.engine().now()))
        })
    }

    fn close(&self) -> BrokerFuture<'_, ()> {
        Box::pin(async move {
            self.connection.end().await;
            let running = self.running.lock().take();
            if let Some(running) = running {
                running.stop().await;
            }
            Ok(())
        })
    }
}

fn depth(facts: &QueueFacts, now: Timestamp) -> Depth {
    let other = facts.sessions.saturating_sub(facts.sessions_ready + facts.sessions_held);
    Depth {
        ready: facts.ready,
        delayed: facts.delayed + facts.scheduled,
        in_flight: facts.locked,
        oldest: facts.oldest_at.map_or(Duration::ZERO, |at| {
            Duration::from_millis(now.0.saturating_sub(at.0)) // the time of a block may be slightly ahead
        }),
        sent: Some(facts.totals.sent),
        paused: facts.paused,
        sessions: facts.spec.sessions.required().then_some(SessionDepth {
            runnable: facts.sessions_ready,
            held: facts.sessions_held,
            other,
        }),
        uncounted_sessions: false,
    }
}

struct EngineSource {
    connection: Arc<Connection>,
    queue: QueueName,
    lock: Duration,
    /// None once the hold is released.
    held: Option<SessionHold>,
}

impl Source for EngineSource {
    fn held(&self) -> Option<&SessionHold> {
        self.held.as_ref()
    }

    fn fetch(&self, max: u32, wait: Duration) -> BrokerFuture<'_, Vec<Delivery>> {
        Box::pin(async move {
            let receive = Receive {
                queue: self.queue.clone(),
                max,
                wait_ms: millis(wait),
                lock_ms: Some(millis(self.lock)),
                take: false,
                hold: self.held.as_ref().map(|held| held.hold),
                per_session: 1,
            };
            let deliveries = self.connection.receive(receive).await?;
            Ok(deliveries.into_iter().filter_map(delivery).collect())
        })
    }

    fn close(mut self: Box<Self>) -> BrokerFuture<'static, ()> {
        let (held, queue, connection) =
            (self.held.take(), self.queue.clone(), self.connection.clone());
        Box::pin(async move {
            let Some(held) = held else { return Ok(()) };
            match connection.engine().release_session(Some(&queue), held.hold).await {
                // The hold has already ended.
                Err(EngineError::Refused(Refusal::LeaseLost { .. })) | Ok(()) => Ok(()),
                Err(error) => Err(error.into()),
            }
        })
    }
}

impl Drop for EngineSource {
    fn drop(&mut self) {
        if let Some(held) = self.held.take() {
            // The engine accepts the request when it is first polled; no caller needs the answer.
            let release = self.connection.engine().release_session(Some(&self.queue), held.hold);
            let _ = release.now_or_never();
        }
    }
}

fn delivery(delivery: malote_engine::Delivery) -> Option<Delivery> {
    let malote_engine::Delivery { seq, lease, receives, failed, last, stored, .. } = delivery;
    Some(Delivery {
        seq,
        lease: lease?,
        receives,
        failed,
        last,
        enqueued_at: stored.enqueued_at,
        dead: stored.dead.map(|dead| (dead.reason, dead.text)),
        message: stored.message,
    })
}
