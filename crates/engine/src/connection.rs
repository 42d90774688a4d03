//! A connection: consumers, leases and session holds that end with it, and the stream of its deliveries.

use std::sync::atomic::{AtomicBool, Ordering};

use malote_model::{LeaseToken, QueueName, QueueSpec, Refusal, Seq, SessionId};
use tokio::sync::mpsc;

use crate::command::{
    AcceptedSession, Attach, Command, ConnectionId, ConsumerId, MessageGrant, Notice,
    ReceiveDeferred, Reply, Wants,
};
use crate::deliver::ReadGrants;
use crate::handle::{Delivery, Engine, EngineError, Receive};

/// The maximum number of unread notices. Credit limits them for attached consumers. A connection that attaches and
/// detaches without ever reading its notices is closed at this limit.
const NOTICES_MAX: usize = 1 << 16;

/// The sending half of a connection. Dropping it counts as a lost connection: its leases end as failed deliveries.
pub struct Connection {
    engine: Engine,
    id: ConnectionId,
    closed: AtomicBool,
}

/// The receiving half of a connection. Messages that it has not handed out when it is dropped are returned to their
/// queues, and nothing is counted. Drop it before the sending half.
pub struct Outbox {
    engine: Engine,
    from_core: mpsc::Receiver<(ConsumerId, QueueName, Notice)>,
    /// Grants whose messages are being read. The caller may drop the future and continue later.
    reading: Option<(ConsumerId, QueueName, Vec<MessageGrant>)>,
    /// The number of messages that could not be delivered, to be reported next.
    damaged: Option<(ConsumerId, u32)>,
}

/// What a connection receives.
#[derive(Debug)]
pub enum Outbound {
    /// Messages for a consumer, in order, within its credit.
    Deliver(ConsumerId, Vec<Delivery>),
    /// This many messages could not be delivered to a consumer: they could not be read, or their leases ended first.
    /// The caller must give back the credit that they used.
    Damaged(ConsumerId, u32),
    /// The engine ended the consumer: its queue was deleted or its hold was lost.
    Ended(ConsumerId, Refusal),
}

/// A consumer to attach to a connection.
#[derive(Clone, Debug)]
pub struct Consume {
    pub queue: QueueName,
    pub wants: Wants,
    /// How many messages the consumer accepts now.
    pub credit: u32,
    /// Remove messages on delivery instead of leasing them.
    pub take: bool,
    /// The duration of its locks; the queue's default if absent.
    pub lock_ms: Option<u64>,
    /// The leases outlive the connection.
    pub free_standing: bool,
    /// Consumers with a higher priority are served first, while they have credit.
    pub priority: i32,
    /// Refused if the queue has consumers; while it is attached, no other consumer can attach.
    pub exclusive: bool,
}

impl Connection {
    pub(crate) fn new(engine: Engine) -> (Self, Outbox) {
        let (sender, from_core) = mpsc::channel(NOTICES_MAX);
        let id = engine.shared.mailbox.new_connection(sender);
        let outbox = Outbox { engine: engine.clone(), from_core, reading: None, damaged: None };
        (Self { engine, id, closed: AtomicBool::new(false) }, outbox)
    }

    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Creates a queue, or checks that it exists with these settings. An exclusive queue belongs to this connection and
    /// is deleted with it.
    pub async fn declare(&self, name: QueueName, spec: QueueSpec) -> Result<bool, EngineError> {
        self.engine.declare_for(Some(self.id), name, spec).await
    }

    /// Attaches a consumer. Its deliveries come through the outbox.
    pub async fn attach(&self, consume: Consume) -> Result<ConsumerId, EngineError> {
        let (consumer, attached) = self.attaching(consume);
        attached.await.map(|()| consumer)
    }

    /// Like [`Connection::attach`], but returns the consumer's id before its first message can arrive. The consumer is
    /// attached when the future is first polled. Deliveries do not wait for the future, which waits for the disk.
    pub fn attaching(
        &self,
        consume: Consume,
    ) -> (ConsumerId, impl Future<Output = Result<(), EngineError>>) {
        let consumer = self.engine.shared.mailbox.new_consumer_of(self.id, &consume.queue);
        let Consume { queue, wants, credit, take, lock_ms, free_standing, priority, exclusive } =
            consume;
        let (connection, once_until) = (Some(self.id), None);
        let attach = Attach {
            consumer,
            connection,
            free_standing,
            queue,
            wants,
            credit,
            take,
            lock_ms,
            once_until,
            priority,
            exclusive,
        };
        let attached = async move {
            self.engine.ask(Command::Attach(attach)).await.map(drop).inspect_err(|_| {
                self.engine.shared.mailbox.forget_consumer(consumer);
            })
        };
        (consumer, attached)
    }

    /// Adds to a consumer's credit, or replaces it. Returns the previous credit: credit that is neither in it nor used
    /// by received messages belongs to deliveries in flight.
    pub async fn credit(
        &self,
        consumer: ConsumerId,
        credit: u32,
        replace: bool,
    ) -> Result<u32, EngineError> {
        match self.engine.ask(Command::Credit { consumer, credit, replace }).await? {
            Reply::Count(had) => Ok(u32::try_from(had).unwrap_or(u32::MAX)),
            other => unreachable!("the core answered {other:?}"),
        }
    }

    /// Detaches a consumer. Messages leased to it stay leased.
    pub async fn detach(&self, consumer: ConsumerId) -> Result<(), EngineError> {
        let detached = self.engine.ask(Command::Detach { consumer }).await.map(drop);
        self.engine.shared.mailbox.forget_consumer(consumer);
        detached
    }

    /// Acquires a session for this connection, by id or the next one that is ready.
    pub async fn accept(
        &self,
        queue: QueueName,
        session: Option<SessionId>,
        wait_ms: u64,
        lock_ms: Option<u64>,
    ) -> Result<Option<AcceptedSession>, EngineError> {
        self.engine.accept_for(Some(self.id), queue, session, wait_ms, lock_ms).await
    }

    /// Waits for messages, leased to this connection. Dropping the future loses no message.
    pub async fn receive(&self, receive: Receive) -> Result<Vec<Delivery>, EngineError> {
        self.engine.receive_for(Some(self.id), receive).await
    }

    /// Receives deferred messages by their sequence numbers, leased to this connection.
    pub async fn receive_deferred(
        &self,
        queue: QueueName,
        seqs: Vec<Seq>,
        hold: Option<LeaseToken>,
        take: bool,
    ) -> Result<Vec<Delivery>, EngineError> {
        let connection = Some(self.id);
        let command = Command::ReceiveDeferred(ReceiveDeferred {
            queue: queue.clone(),
            seqs,
            hold,
            lock_ms: None,
            take,
            connection,
        });
        match self.engine.ask(command).await? {
            Reply::Delivered(grants) => self.engine.deliveries(&queue, grants).await,
            other => unreachable!("the core answered {other:?}"),
        }
    }

    /// Closes the connection. Its messages are returned to their queues, and nothing is counted.
    pub async fn close(self) {
        self.end().await;
    }

    /// Like [`Connection::close`], for a shared connection. Later requests on it are refused or lost.
    pub async fn end(&self) {
        self.closed.store(true, Ordering::SeqCst);
        let _ = self.engine.ask(Command::Disconnect { connection: self.id, clean: true }).await;
        self.engine.shared.mailbox.forget_connection(self.id);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if !self.closed.load(Ordering::SeqCst) {
            self.engine.shared.mailbox.connection_lost(self.id);
        }
    }
}

impl Outbox {
    /// The next delivery or notice; `None` after the connection ended. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Option<Outbound> {
        loop {
            if let Some((consumer, count)) = self.damaged.take() {
                return Some(Outbound::Damaged(consumer, count));
            }
            if let Some((consumer, queue, grants)) = &self.reading {
                let consumer = *consumer;
                // An error means that the engine has stopped, and the connection with it.
                let ReadGrants { deliveries, missing } =
                    self.engine.read(queue, grants).await.ok()?;
                self.reading = None;
                self.damaged = (missing > 0).then_some((consumer, missing));
                if !deliveries.is_empty() {
                    return Some(Outbound::Deliver(consumer, deliveries));
                }
                continue;
            }
            match self.from_core.recv().await? {
                (consumer, queue, Notice::Deliver(grants)) => {
                    self.reading = Some((consumer, queue, grants));
                }
                (consumer, _, Notice::Ended(why)) => return Some(Outbound::Ended(consumer, why)),
            }
        }
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        self.from_core.close();
        let mut unseen = self.reading.take().map_or_else(Vec::new, |(_, _, grants)| grants);
        while let Ok((_, _, notice)) = self.from_core.try_recv() {
            if let Notice::Deliver(mut grants) = notice {
                unseen.append(&mut grants);
            }
        }
        self.engine.shared.mailbox.release(unseen);
    }
}
