//! A broker that is far away: it cannot tell at once whether a session has messages.

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
use malote_connectors::{Doing, Held, Settle, Source};

/// Longer than it takes to get another session.
const WAY: Duration = Duration::from_millis(50);

struct Far {
    broker: Arc<dyn Broker>,
    /// How often it was asked what is there now.
    asked_now: Arc<AtomicUsize>,
}

struct FarSource(Box<dyn Source>, Arc<AtomicUsize>);

impl Source for FarSource {
    fn held(&self) -> Option<&Held> {
        self.0.held()
    }

    fn fetch(&self, max: u32, wait: Duration) -> Doing<'_, Vec<Delivery>> {
        Box::pin(async move {
            if wait.is_zero() {
                self.1.fetch_add(1, Ordering::SeqCst);
                return Ok(Vec::new());
            }
            tokio::time::sleep(WAY).await;
            self.0.fetch(max, wait).await
        })
    }

    fn close(self: Box<Self>) -> Doing<'static, ()> {
        self.0.close()
    }
}

type Each = Vec<Result<(), BrokerError>>;

impl Broker for Far {
    fn capabilities(&self) -> &Capabilities {
        self.broker.capabilities()
    }

    fn declare(&self, queue: &QueueName, spec: QueueSpec) -> Doing<'_, ()> {
        self.broker.declare(queue, spec)
    }

    fn send(&self, messages: Vec<(Address, Message)>) -> Doing<'_, Vec<Sent>> {
        self.broker.send(messages)
    }

    fn open(&self, queue: &QueueName, lock: Duration) -> Doing<'_, Box<dyn Source>> {
        self.broker.open(queue, lock)
    }

    fn accept(
        &self,
        queue: &QueueName,
        session: Option<SessionId>,
        lock: Duration,
        wait: Duration,
    ) -> Doing<'_, Option<Box<dyn Source>>> {
        let accepted = self.broker.accept(queue, session, lock, wait);
        Box::pin(async move {
            let far = |source| Box::new(FarSource(source, self.asked_now.clone()));
            Ok(accepted.await?.map(|source| far(source) as Box<dyn Source>))
        })
    }

    fn settle(&self, queue: &QueueName, items: Vec<Settle>) -> Doing<'_, Each> {
        self.broker.settle(queue, items)
    }

    fn renew(&self, queue: &QueueName, leases: Vec<LeaseToken>, lock: Duration) -> Doing<'_, Each> {
        self.broker.renew(queue, leases, lock)
    }

    fn state(&self, queue: &QueueName, held: &Held) -> Doing<'_, Option<Bytes>> {
        self.broker.state(queue, held)
    }

    fn close(&self) -> Doing<'_, ()> {
        self.broker.close()
    }
}

/// A session in hand is not given up for another one before its messages had time to come: else every slot would take
/// one session after the other and handle none. And when it was told which message is the last it does not ask.
#[tokio::test]
async fn sessions_of_a_far_broker_are_handled_and_not_only_taken() {
    let broker = TestBroker::new().unwrap();
    let spec = QueueSpec { sessions: Sessions::Dynamic, ..QueueSpec::default() };
    broker.malote().declare("orders", spec).await.unwrap();
    for n in 0..12 {
        let session = format!("s{}", n % 4);
        broker.malote().send_text("orders", "x").session(session).await.unwrap();
    }
    async fn nothing() {}
    let asked_now = Arc::<AtomicUsize>::default();
    let far = Far { broker: broker.malote().broker().clone(), asked_now: asked_now.clone() };
    let far = Malote::over(Arc::new(far));
    let running = Worker::new(&far, "orders").handle(nothing).sessions(2).start().await.unwrap();
    let until = tokio::time::Instant::now() + Duration::from_secs(60);
    while running.counts().done < 12 {
        assert!(tokio::time::Instant::now() < until, "{:?}", running.counts());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    running.stop();
    assert_eq!(running.ended().await.unwrap().counts.started, 12);
    assert_eq!(asked_now.load(Ordering::SeqCst), 0);
}
