//! `embedded:DIR`: the engine in this process.
//!
//! Leases and holds are bound to one connection of the engine, as those of a worker should be: if this process dies,
//! the next one that opens the directory finds its messages ready again.

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

use crate::broker::{Broker, BrokerError, Delivery, Doing, Held, Sent, Settle, Source};
use crate::capabilities::{Capabilities, RetryHold};
use crate::depth::{Depth, SessionDepth};

/// What it can do: everything.
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
    /// Opens a data directory. One process at a time can.
    pub fn open(data: impl Into<PathBuf>) -> Result<Self, BrokerError> {
        let opened = Engine::open(Settings::at(data));
        let (engine, running) = opened.map_err(|error| BrokerError::Refused {
            code: "open_failed".into(),
            text: error.to_string(),
        })?;
        let embedded = Self::over(&engine);
        *embedded.running.lock() = Some(running);
        Ok(embedded)
    }

    /// Works on an engine that somebody else opened and will stop.
    pub fn over(engine: &Engine) -> Self {
        let (connection, _) = engine.connect();
        Self { connection: Arc::new(connection), running: Mutex::new(None) }
    }

    /// The engine itself, for what the trait does not say: peek, pause, describe.
    pub fn engine(&self) -> &Engine {
        self.connection.engine()
    }
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl From<Refusal> for BrokerError {
    fn from(refusal: Refusal) -> Self {
        let text = refusal.to_string();
        match refusal {
            Refusal::LeaseLost { .. } => Self::LockLost,
            Refusal::Busy
            | Refusal::DiskFull
            | Refusal::NoSegment { .. }
            | Refusal::BoundReached { .. } => Self::Busy { text },
            Refusal::SessionHeld { .. } => Self::Refused { code: "session_held".into(), text },
            Refusal::QueueNotFound { .. } => Self::Refused { code: "queue_not_found".into(), text },
            Refusal::QueueDiffers { .. } => Self::Refused { code: "queue_differs".into(), text },
            Refusal::SessionRequired { .. } => {
                Self::Refused { code: "session_required".into(), text }
            }
            Refusal::NoSessions { .. } => Self::Refused { code: "no_sessions".into(), text },
            _ => Self::Refused { code: "refused".into(), text },
        }
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

    fn declare(&self, queue: &QueueName, spec: QueueSpec) -> Doing<'_, ()> {
        let queue = queue.clone();
        Box::pin(async move { Ok(self.connection.declare(queue, spec).await.map(drop)?) })
    }

    fn send(&self, messages: Vec<(Address, Message)>) -> Doing<'_, Vec<Sent>> {
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

    fn open(&self, queue: &QueueName, lock: Duration) -> Doing<'_, Box<dyn Source>> {
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
    ) -> Doing<'_, Option<Box<dyn Source>>> {
        let queue = queue.clone();
        Box::pin(async move {
            let accepted =
                self.connection.accept(queue.clone(), session, ms(wait), Some(ms(lock))).await?;
            let Some(accepted) = accepted else { return Ok(None) };
            let held = Held {
                session: accepted.session,
                hold: accepted.hold,
                // When it was granted, by a clock that never steps back over restarts.
                epoch: accepted.until.0.saturating_sub(ms(lock)),
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
    ) -> Doing<'_, Vec<Result<(), BrokerError>>> {
        let queue = queue.clone();
        Box::pin(async move {
            let engine = self.engine();
            // Those that complete go as one; all are handed over before any is waited for, in their order.
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
            let asked = groups.into_iter().map(|(leases, Settle { settlement, state, .. })| {
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
            let answers: Vec<Vec<_>> = futures_util::future::join_all(asked).await;
            Ok(answers.into_iter().flatten().collect())
        })
    }

    fn renew(
        &self,
        queue: &QueueName,
        leases: Vec<LeaseToken>,
        lock: Duration,
    ) -> Doing<'_, Vec<Result<(), BrokerError>>> {
        let queue = queue.clone();
        Box::pin(async move {
            let each = self.engine().renew(Some(&queue), leases, Some(ms(lock))).await?;
            Ok(each.into_iter().map(|one| one.map(drop).map_err(BrokerError::from)).collect())
        })
    }

    fn state(&self, queue: &QueueName, held: &Held) -> Doing<'_, Option<Bytes>> {
        let (queue, session, hold) = (queue.clone(), held.session.clone(), held.hold);
        Box::pin(async move { Ok(self.engine().get_state(queue, session, Some(hold)).await?) })
    }

    fn look_at_state(&self, queue: &QueueName, session: &SessionId) -> Doing<'_, Option<Bytes>> {
        let (queue, session) = (queue.clone(), session.clone());
        Box::pin(async move { Ok(self.engine().get_state(queue, session, None).await?) })
    }

    fn look_at_sessions(
        &self,
        queue: &QueueName,
        from: u32,
        max: usize,
    ) -> Doing<'_, (Vec<SessionId>, Option<u32>)> {
        let queue = queue.clone();
        Box::pin(async move {
            let (all, next) = self.engine().sessions(queue, from, max).await?;
            Ok((all.into_iter().map(|facts| facts.session).collect(), next))
        })
    }

    fn now(&self) -> Timestamp {
        self.engine().now()
    }

    fn depth(&self, queue: &QueueName) -> Doing<'_, Depth> {
        let queue = queue.clone();
        Box::pin(async move {
            let facts = self.engine().describe(queue).await?;
            Ok(depth(&facts, self.engine().now()))
        })
    }

    fn close(&self) -> Doing<'_, ()> {
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
            Duration::from_millis(now.0.saturating_sub(at.0)) // a block's time may be ahead
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
    /// Taken when it is let go.
    held: Option<Held>,
}

impl Source for EngineSource {
    fn held(&self) -> Option<&Held> {
        self.held.as_ref()
    }

    fn fetch(&self, max: u32, wait: Duration) -> Doing<'_, Vec<Delivery>> {
        Box::pin(async move {
            let receive = Receive {
                queue: self.queue.clone(),
                max,
                wait_ms: ms(wait),
                lock_ms: Some(ms(self.lock)),
                take: false,
                hold: self.held.as_ref().map(|held| held.hold),
                per_session: 1,
            };
            let deliveries = self.connection.receive(receive).await?;
            Ok(deliveries.into_iter().filter_map(delivery).collect())
        })
    }

    fn close(mut self: Box<Self>) -> Doing<'static, ()> {
        let (held, queue, connection) =
            (self.held.take(), self.queue.clone(), self.connection.clone());
        Box::pin(async move {
            let Some(held) = held else { return Ok(()) };
            match connection.engine().release_session(Some(&queue), held.hold).await {
                // Over is over.
                Err(EngineError::Refused(Refusal::LeaseLost { .. })) | Ok(()) => Ok(()),
                Err(error) => Err(error.into()),
            }
        })
    }
}

impl Drop for EngineSource {
    fn drop(&mut self) {
        if let Some(held) = self.held.take() {
            // Asking is what counts: the engine has it once it was asked, whoever waits for the answer.
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
