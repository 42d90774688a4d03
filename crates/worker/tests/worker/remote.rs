//! A remote broker: it cannot tell at once whether a session has messages.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use malote::model::{LeaseToken, Sessions};
use malote::testing::TestBroker;
use malote::{
    Address, Broker, BrokerError, Capabilities, Delivery, Malote, Message, QueueName, QueueSpec,
    Sent, SessionId, Worker,
};
use malote_connectors::{BrokerFuture, SessionHold, Settle, Source};

use crate::until;

/// Longer than accepting another session takes.
const LATENCY: Duration = Duration::from_millis(50);

struct RemoteBroker {
    broker: Arc<dyn Broker>,
    /// The number of fetches without a wait.
    fetches_without_wait: Arc<AtomicUsize>,
}

struct RemoteSource(Box<dyn Source>, Arc<AtomicUsize>);

impl Source for RemoteSource {
    fn held(&self) -> Option<&SessionHold> {
        self.0.held()
    }

    fn fetch(&self, max: u32, wait: Duration) -> BrokerFuture<'_, Vec<Delivery>> {
        Box::pin(async move {
            if wait.is_zero() {
                self.1.fetch_add(1, Ordering::SeqCst);
                return Ok(Vec::new());
            }
            tokio::time::sleep(LATENCY).await;
            self.0.fetch(max, wait).await
        })
    }

    fn close(self: Box<Self>) -> BrokerFuture<'static, ()> {
        self.0.close()
    }
}

type Results = Vec<Result<(), BrokerError>>;

impl Broker for RemoteBroker {
    fn capabilities(&self) -> &Capabilities {
        self.broker.capabilities()
    }

    fn declare(&self, queue: &QueueName, spec: QueueSpec) -> BrokerFuture<'_, ()> {
        self.broker.declare(queue, spec)
    }

    fn send(&self, messages: Vec<(Address, Message)>) -> BrokerFuture<'_, Vec<Sent>> {
        self.broker.send(messages)
    }

    fn open(&self, queue: &QueueName, lock: Duration) -> BrokerFuture<'_, Box<dyn Source>> {
        self.broker.open(queue, lock)
    }

    fn accept(
        &self,
        queue: &QueueName,
        session: Option<SessionId>,
        lock: Duration,
        wait: Duration,
    ) -> BrokerFuture<'_, Option<Box<dyn Source>>> {
        let accepted = self.broker.accept(queue, session, lock, wait);
        Box::pin(async move {
            let remote = |source| Box::new(RemoteSource(source, self.fetches_without_wait.clone()));
            Ok(accepted.await?.map(|source| remote(source) as Box<dyn Source>))
        })
    }

    fn settle(&self, queue: &QueueName, items: Vec<Settle>) -> BrokerFuture<'_, Results> {
        self.broker.settle(queue, items)
    }

    fn renew(
        &self,
        queue: &QueueName,
        leases: Vec<LeaseToken>,
        lock: Duration,
    ) -> BrokerFuture<'_, Results> {
        self.broker.renew(queue, leases, lock)
    }

    fn state(&self, queue: &QueueName, held: &SessionHold) -> BrokerFuture<'_, Option<Bytes>> {
        self.broker.state(queue, held)
    }

    fn close(&self) -> BrokerFuture<'_, ()> {
        self.broker.close()
    }
}

/// A slot waits for the messages of a session before it takes another one. Otherwise every slot would accept one
/// session after the other and handle none. If the broker has reported the last message, the slot does not fetch again.
#[tokio::test]
async fn sessions_of_a_remote_broker_are_handled_before_the_slot_switches() {
    let broker = TestBroker::new().unwrap();
    let spec = QueueSpec { sessions: Sessions::Dynamic, ..QueueSpec::default() };
    broker.malote().declare("orders", spec).await.unwrap();
    for n in 0..12 {
        let session = format!("s{}", n % 4);
        broker.malote().send_text("orders", "x").session(session).await.unwrap();
    }
    async fn nothing() {}
    let fetches_without_wait = Arc::<AtomicUsize>::default();
    let remote = RemoteBroker {
        broker: broker.malote().broker().clone(),
        fetches_without_wait: fetches_without_wait.clone(),
    };
    let remote = Malote::with_broker(Arc::new(remote));
    let running = Worker::new(&remote, "orders").handle(nothing).sessions(2).start().await.unwrap();
    until("all messages are done", async || running.counts().done == 12).await;
    running.stop();
    assert_eq!(running.ended().await.unwrap().counts.started, 12);
    assert_eq!(fetches_without_wait.load(Ordering::SeqCst), 0);
}
