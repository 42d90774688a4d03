//! A connection: consumers, leases and holds that end with it, and one stream of what the core says to it.

use std::sync::atomic::{AtomicBool, Ordering};

use malote_model::{LeaseToken, QueueName, QueueSpec, Refusal, Seq, SessionId};
use tokio::sync::mpsc;

use crate::command::{
    Attach, Command, ConnectionId, ConsumerId, Grant, Held, Notice, ReceiveDeferred, Reply, Wants,
};
use crate::deliver::ReadGrants;
use crate::handle::{Delivery, Engine, EngineError, Receive};

/// Notices that wait to be read. Credit bounds them for consumers that stay; a connection that attaches, detaches and
/// never reads what it was sent is ended here.
const NOTICES_MAX: usize = 1 << 16;

/// The asking half. Dropping it is a lost connection: leases bound to it come back, counted as failed.
pub struct Connection {
    engine: Engine,
    id: ConnectionId,
    closed: AtomicBool,
}

/// The listening half. What it has not handed over when it is dropped was seen by nobody: it comes back uncounted,
/// whether or not it is bound to the connection. Drop it before the asking half.
pub struct Outbox {
    engine: Engine,
    from_core: mpsc::Receiver<(ConsumerId, QueueName, Notice)>,
    /// Granted, and being read: whoever listens may stop half-way and go on later.
    reading: Option<(ConsumerId, QueueName, Vec<Grant>)>,
    /// What could not be delivered, to be told next.
    damaged: Option<(ConsumerId, u32)>,
}

/// What the core says to a connection.
#[derive(Debug)]
pub enum Outbound {
    /// Messages for a consumer, in order, within its credit.
    Deliver(ConsumerId, Vec<Delivery>),
    /// This many messages for a consumer will not come: they could not be read, or their leases ended before they were.
    /// The credit that they used is the listener's to give again.
    Damaged(ConsumerId, u32),
    /// The consumer ended by itself: its queue was deleted or its hold was lost.
    Ended(ConsumerId, Refusal),
}

/// What a consumer of a connection wants.
#[derive(Clone, Debug)]
pub struct Consume {
    /// From where.
    pub queue: QueueName,
    /// Which messages.
    pub wants: Wants,
    /// How many it takes now.
    pub credit: u32,
    /// Remove them as they are delivered.
    pub take: bool,
    /// The queue's lock if absent.
    pub lock_ms: Option<u64>,
    /// Leases outlive the connection (Service Bus peek-lock outside sessions).
    pub free_standing: bool,
}

impl Connection {
    pub(crate) fn new(engine: Engine) -> (Self, Outbox) {
        let (sender, from_core) = mpsc::channel(NOTICES_MAX);
        let id = engine.shared.mailbox.new_connection(sender);
        let outbox = Outbox { engine: engine.clone(), from_core, reading: None, damaged: None };
        (Self { engine, id, closed: AtomicBool::new(false) }, outbox)
    }

    /// The engine behind it.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Makes a queue, or finds it just as asked; an exclusive one belongs to this connection and goes with it.
    pub async fn declare(&self, name: QueueName, spec: QueueSpec) -> Result<bool, EngineError> {
        self.engine.declare_for(Some(self.id), name, spec).await
    }

    /// Starts to consume; deliveries come through the outbox.
    pub async fn attach(&self, consume: Consume) -> Result<ConsumerId, EngineError> {
        let (consumer, attached) = self.attaching(consume);
        attached.await.map(|()| consumer)
    }

    /// The same for whoever must know the consumer before its first message comes: it is asked for when the future is
    /// polled for the first time, and messages do not wait for the answer, which waits for the disk.
    pub fn attaching(
        &self,
        consume: Consume,
    ) -> (ConsumerId, impl Future<Output = Result<(), EngineError>>) {
        let consumer = self.engine.shared.mailbox.new_consumer_of(self.id, &consume.queue);
        let Consume { queue, wants, credit, take, lock_ms, free_standing } = consume;
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
        };
        let attached = async move {
            self.engine.ask(Command::Attach(attach)).await.map(drop).inspect_err(|_| {
                self.engine.shared.mailbox.forget_consumer(consumer);
            })
        };
        (consumer, attached)
    }

    /// Adds to a consumer's credit, or replaces it. Tells what it had: what it was given beyond that and has not
    /// received yet is on its way.
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

    /// Ends a consumer. What is out to it stays out.
    pub async fn detach(&self, consumer: ConsumerId) -> Result<(), EngineError> {
        let detached = self.engine.ask(Command::Detach { consumer }).await.map(drop);
        self.engine.shared.mailbox.forget_consumer(consumer);
        detached
    }

    /// Holds a session, bound to this connection, by name or the next that is ready.
    pub async fn accept(
        &self,
        queue: QueueName,
        session: Option<SessionId>,
        wait_ms: u64,
        lock_ms: Option<u64>,
    ) -> Result<Option<Held>, EngineError> {
        self.engine.accept_for(Some(self.id), queue, session, wait_ms, lock_ms).await
    }

    /// Waits for messages, leased to this connection. Dropping the future takes no message with it.
    pub async fn receive(&self, receive: Receive) -> Result<Vec<Delivery>, EngineError> {
        self.engine.receive_for(Some(self.id), receive).await
    }

    /// Deferred messages by their sequences, leased to this connection.
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
            Reply::Delivered(grants) => Ok(self.engine.deliveries(&queue, grants).await),
            other => unreachable!("the core answered {other:?}"),
        }
    }

    /// An orderly end: what is out comes back uncounted.
    pub async fn close(self) {
        self.end().await;
    }

    /// As [`Connection::close`], for a connection that several hold. What is asked of it later is refused or lost.
    pub async fn end(&self) {
        self.closed.store(true, Ordering::SeqCst);
        let _ = self.engine.ask(Command::Disconnect { connection: self.id, clean: true }).await;
        self.engine.shared.mailbox.forget_connection(self.id);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if !self.closed.load(Ordering::SeqCst) {
            self.engine.shared.mailbox.lost(self.id);
        }
    }
}

impl Outbox {
    /// The next thing the core has to say; `None` after the connection ended. Giving it up half-way loses nothing.
    pub async fn next(&mut self) -> Option<Outbound> {
        loop {
            if let Some((consumer, count)) = self.damaged.take() {
                return Some(Outbound::Damaged(consumer, count));
            }
            if let Some((consumer, queue, grants)) = &self.reading {
                let consumer = *consumer;
                let ReadGrants { deliveries, missing } = self.engine.read(queue, grants).await;
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
