//! Concurrent writers and killed relays: messages stay in order per key, and none is lost or received twice.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use malote::model::{LeaseToken, Sessions};
use malote::once::postgres::Postgres;
use malote::once::postgres::tokio_postgres::{Config, NoTls};
use malote::{
    Address, Broker, Capabilities, Malote, Message, OutboxMessage, QueueName, QueueSpec, Sent,
    SessionId,
};
use malote_connectors::{BrokerError, BrokerFuture, SessionHold, Settle, Source};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::{Fixture, RECEIPTS, client};

const WRITERS: u64 = 8;
const KEYS: u64 = 12;
const RELAYS: usize = 3;
const KILLS: usize = 8;

/// A reproducible random generator.
struct SeededRandom(u64);

impl SeededRandom {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

/// The broker of one relay. On request it stores the messages and pauses before it answers, so that the relay can be
/// killed between sending and deleting. This is the moment that causes duplicates.
pub(super) struct PausableBroker {
    inner: Arc<dyn Broker>,
    counts: Arc<SendCounts>,
    /// The requested pause.
    pause: Arc<std::sync::Mutex<Option<Pause>>>,
}

/// Counts of all sends.
#[derive(Default)]
pub(super) struct SendCounts {
    pub(super) duplicates: AtomicU64,
    /// Bytes of the largest batch.
    pub(super) bytes_max: AtomicU64,
    pub(super) batches: AtomicU64,
}

impl PausableBroker {
    pub(super) fn over(inner: Arc<dyn Broker>, counts: Arc<SendCounts>) -> Self {
        Self { inner, counts, pause: Arc::default() }
    }
}

struct Pause {
    reached: oneshot::Sender<()>,
    resume: oneshot::Receiver<()>,
}

impl Broker for PausableBroker {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    fn declare(&self, queue: &QueueName, spec: QueueSpec) -> BrokerFuture<'_, ()> {
        self.inner.declare(queue, spec)
    }

    fn send(&self, messages: Vec<(Address, Message)>) -> BrokerFuture<'_, Vec<Sent>> {
        Box::pin(async move {
            let bytes: usize = messages.iter().map(|(_, message)| message.body.bytes.len()).sum();
            self.counts.bytes_max.fetch_max(bytes as u64, Ordering::SeqCst);
            self.counts.batches.fetch_add(1, Ordering::SeqCst);
            let sent = self.inner.send(messages).await?;
            let twice = sent.iter().filter(|sent| sent.duplicate).count();
            self.counts.duplicates.fetch_add(twice as u64, Ordering::SeqCst);
            let pause = self.pause.lock().unwrap().take();
            if let Some(Pause { reached, resume }) = pause {
                let _ = reached.send(());
                let _ = resume.await;
            }
            Ok(sent)
        })
    }

    fn open(&self, queue: &QueueName, lock: Duration) -> BrokerFuture<'_, Box<dyn Source>> {
        self.inner.open(queue, lock)
    }

    fn accept(
        &self,
        queue: &QueueName,
        session: Option<SessionId>,
        lock: Duration,
        wait: Duration,
    ) -> BrokerFuture<'_, Option<Box<dyn Source>>> {
        self.inner.accept(queue, session, lock, wait)
    }

    fn settle(
        &self,
        queue: &QueueName,
        items: Vec<Settle>,
    ) -> BrokerFuture<'_, Vec<Result<(), BrokerError>>> {
        self.inner.settle(queue, items)
    }

    fn renew(
        &self,
        queue: &QueueName,
        leases: Vec<LeaseToken>,
        lock: Duration,
    ) -> BrokerFuture<'_, Vec<Result<(), BrokerError>>> {
        self.inner.renew(queue, leases, lock)
    }

    fn state(&self, queue: &QueueName, held: &SessionHold) -> BrokerFuture<'_, Option<Bytes>> {
        self.inner.state(queue, held)
    }

    fn close(&self) -> BrokerFuture<'_, ()> {
        self.inner.close()
    }
}

/// A relay in its own task. Its connections have its name.
struct RunningRelay {
    name: String,
    pause: Arc<std::sync::Mutex<Option<Pause>>>,
    task: JoinHandle<()>,
    stop: oneshot::Sender<()>,
}

async fn relay(fixture: &Fixture, name: String, counts: &Arc<SendCounts>) -> RunningRelay {
    let mut config: Config = fixture.url.parse().unwrap();
    config.application_name(&name);
    let db = Postgres::connect_with(config, NoTls).await.unwrap();
    let pausable = PausableBroker::over(fixture.broker.malote().broker().clone(), counts.clone());
    let pause = pausable.pause.clone();
    let malote = Malote::with_broker(Arc::new(pausable));
    let (stop, stopped) = oneshot::channel::<()>();
    let task = tokio::spawn(async move {
        db.relay_until(&malote, async { drop(stopped.await) }).await.unwrap();
    });
    RunningRelay { name, pause, task, stop }
}

/// One of the writers. A writer locks the row of a key to get its next number, so numbers are in commit order. The
/// order of commits, the age of transactions and rollbacks are random.
async fn write(
    url: String,
    seed: u64,
    stop: CancellationToken,
    written: mpsc::UnboundedSender<(String, String)>,
) {
    let sql = client(&url).await;
    let mut random = SeededRandom(seed * 7919 + 1);
    for n in 0.. {
        if stop.is_cancelled() {
            break;
        }
        sql.batch_execute("begin").await.unwrap();
        if random.below(2) == 0 {
            sql.batch_execute("select pg_current_xact_id()").await.unwrap();
            tokio::time::sleep(Duration::from_millis(random.below(20))).await;
        }
        let mut messages = Vec::new();
        // Sorted, to avoid a deadlock.
        let (first, second) = (random.below(KEYS), random.below(KEYS));
        let mut keys = vec![first.min(second), first.max(second)];
        keys.dedup();
        for key in keys {
            let row = sql
                .query_one(
                    "update numbers set n = n + 1 where key = $1 returning n",
                    &[&(key as i64)],
                )
                .await
                .unwrap();
            messages.push((format!("key-{key}"), row.get::<_, i64>(0).to_string()));
        }
        // One key without order; no message of it may be lost.
        messages.push(("free".to_owned(), format!("{seed}-{n}")));
        for (key, text) in &messages {
            let session = SessionId::new(key).unwrap();
            let message = OutboxMessage::text(RECEIPTS, text.clone()).session(session);
            Postgres::send_in(&sql, message).await.unwrap();
        }
        tokio::time::sleep(Duration::from_millis(random.below(40))).await;
        if random.below(8) == 0 {
            sql.batch_execute("rollback").await.unwrap();
            continue;
        }
        sql.batch_execute("commit").await.unwrap();
        for one in messages {
            written.send(one).unwrap();
        }
    }
}

/// Without a killed relay, no message is sent twice.
#[tokio::test]
async fn several_relays_publish_each_message_once() {
    let fixture = Fixture::new(Sessions::None, Sessions::Dynamic).await;
    let counts = Arc::<SendCounts>::default();
    let mut relays = Vec::new();
    for n in 0..RELAYS {
        relays.push(relay(&fixture, format!("relay-{n}"), &counts).await);
    }
    for n in 0..200 {
        fixture.sql.batch_execute("begin").await.unwrap();
        for key in 0..KEYS {
            let session = SessionId::new(&format!("key-{key}")).unwrap();
            let message = OutboxMessage::text(RECEIPTS, n.to_string()).session(session);
            Postgres::send_in(&fixture.sql, message).await.unwrap();
        }
        fixture.sql.batch_execute("commit").await.unwrap();
    }
    fixture.until("select count(*) = 0 from malote_outbox").await;
    for one in relays {
        drop(one.stop);
        one.task.await.unwrap();
    }
    assert_eq!(counts.duplicates.load(Ordering::SeqCst), 0);
    let mut received = BTreeMap::<String, Vec<u32>>::new();
    for (key, text) in fixture.received(Some(8)).await {
        received.entry(key).or_default().push(text.parse().unwrap());
    }
    assert_eq!(received.len() as u64, KEYS);
    for (key, numbers) in received {
        assert_eq!(numbers, (0..200).collect::<Vec<_>>(), "{key}");
    }
}

/// Eight writers and three relays, of which one is killed each second.
#[tokio::test]
async fn killed_relays_lose_no_message_and_keep_the_order() {
    let fixture = Fixture::new(Sessions::None, Sessions::Dynamic).await;
    let numbers = format!(
        "create table numbers (key bigint primary key, n bigint not null);
         insert into numbers select key, 0 from generate_series(0, {}) key",
        KEYS - 1
    );
    fixture.sql.batch_execute(&numbers).await.unwrap();
    let (written_sender, mut written_receiver) = mpsc::unbounded_channel();
    let stop = CancellationToken::new();
    let writers: Vec<_> = (0..WRITERS)
        .map(|seed| {
            tokio::spawn(write(fixture.url.clone(), seed, stop.clone(), written_sender.clone()))
        })
        .collect();
    drop(written_sender);

    let counts = Arc::<SendCounts>::default();
    let mut relays = Vec::new();
    for n in 0..RELAYS {
        relays.push(relay(&fixture, format!("relay-{n}"), &counts).await);
    }
    for kill in 0..KILLS {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let victim = kill % RELAYS;
        // At a random moment, or after the broker stored the messages and before the rows are deleted.
        let resume = match kill % 2 {
            0 => Some(pause_after_send(&relays[victim]).await),
            _ => None,
        };
        if kill % 4 < 2 {
            // The process dies, and another one is started.
            relays[victim].task.abort();
            let name = format!("relay-again-{kill}");
            relays[victim] = relay(&fixture, name, &counts).await;
        } else {
            // The database closes the connection, and the relay opens another one.
            let name = &relays[victim].name;
            let cut = format!(
                "select count(pg_terminate_backend(pid)) from pg_stat_activity where application_name = '{name}'"
            );
            let _: i64 = fixture.one(&cut).await;
        }
        drop(resume);
    }
    stop.cancel();
    for writer in writers {
        writer.await.unwrap();
    }
    fixture.until("select count(*) = 0 from malote_outbox").await;
    for one in &relays {
        assert!(!one.task.is_finished(), "relay {} has ended", one.name);
        one.task.abort();
    }

    let mut expected = BTreeMap::<String, Vec<String>>::new();
    while let Some((key, text)) = written_receiver.recv().await {
        expected.entry(key).or_default().push(text);
    }
    let mut received = BTreeMap::<String, Vec<String>>::new();
    for (key, text) in fixture.received(Some(8)).await {
        received.entry(key).or_default().push(text);
    }
    for (map, name) in [(&mut expected, "written"), (&mut received, "received")] {
        let free = map.get_mut("free").unwrap_or_else(|| panic!("nothing was {name}"));
        free.sort();
    }
    // Writers report in any order; sort by number.
    for (key, texts) in expected.iter_mut().filter(|(key, _)| *key != "free") {
        texts.sort_by_key(|text| text.parse::<i64>().unwrap());
        let numbers: Vec<_> = (1..=texts.len()).map(|n| n.to_string()).collect();
        assert_eq!(*texts, numbers, "{key}: the writers skipped a number");
    }
    assert_eq!(received, expected);
    let duplicates = counts.duplicates.load(Ordering::SeqCst);
    assert!(
        duplicates >= KILLS as u64 / 2,
        "no relay was killed between sending and deleting: {duplicates} duplicates"
    );
}

/// Waits until the broker has stored messages of this relay and not answered. The pause ends when the result is
/// dropped.
async fn pause_after_send(relay: &RunningRelay) -> oneshot::Sender<()> {
    let (reached, is_reached) = oneshot::channel();
    let (end, resume) = oneshot::channel();
    *relay.pause.lock().unwrap() = Some(Pause { reached, resume });
    is_reached.await.unwrap();
    end
}
