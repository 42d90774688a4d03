//! Writers that commit in any order, relays that are killed: order per key kept, nothing lost, nothing twice.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use malote::model::{LeaseToken, Sessions};
use malote::once::postgres::Postgres;
use malote::once::postgres::tokio_postgres::{Config, NoTls};
use malote::{
    Address, Broker, Capabilities, Malote, Message, Outgoing, QueueName, QueueSpec, Sent, SessionId,
};
use malote_connectors::{BrokerError, Doing, Held, Settle, Source};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::{RECEIPTS, World, client};

const WRITERS: u64 = 8;
const KEYS: u64 = 12;
const RELAYS: usize = 3;
const KILLS: usize = 8;

/// A seed's numbers.
struct Chance(u64);

impl Chance {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

/// A broker as one relay sees it. When it is asked to, it has the messages on disk and does not say so until its relay
/// was killed: the moment that makes duplicates.
pub(super) struct Window {
    inner: Arc<dyn Broker>,
    seen: Arc<Seen>,
    /// Somebody who waits for that moment, and who ends it.
    wanted: Arc<std::sync::Mutex<Option<Moment>>>,
}

/// What it saw of all that was sent.
#[derive(Default)]
pub(super) struct Seen {
    pub(super) duplicates: AtomicU64,
    /// Bodies of the largest batch, and batches.
    pub(super) bytes_max: AtomicU64,
    pub(super) batches: AtomicU64,
}

impl Window {
    pub(super) fn over(inner: Arc<dyn Broker>, seen: Arc<Seen>) -> Self {
        Self { inner, seen, wanted: Arc::default() }
    }
}

struct Moment {
    come: oneshot::Sender<()>,
    over: oneshot::Receiver<()>,
}

impl Broker for Window {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    fn declare(&self, queue: &QueueName, spec: QueueSpec) -> Doing<'_, ()> {
        self.inner.declare(queue, spec)
    }

    fn send(&self, messages: Vec<(Address, Message)>) -> Doing<'_, Vec<Sent>> {
        Box::pin(async move {
            let bytes: usize = messages.iter().map(|(_, message)| message.body.bytes.len()).sum();
            self.seen.bytes_max.fetch_max(bytes as u64, Ordering::SeqCst);
            self.seen.batches.fetch_add(1, Ordering::SeqCst);
            let sent = self.inner.send(messages).await?;
            let twice = sent.iter().filter(|sent| sent.duplicate).count();
            self.seen.duplicates.fetch_add(twice as u64, Ordering::SeqCst);
            let wanted = self.wanted.lock().unwrap().take();
            if let Some(Moment { come, over }) = wanted {
                let _ = come.send(());
                let _ = over.await;
            }
            Ok(sent)
        })
    }

    fn open(&self, queue: &QueueName, lock: Duration) -> Doing<'_, Box<dyn Source>> {
        self.inner.open(queue, lock)
    }

    fn accept(
        &self,
        queue: &QueueName,
        session: Option<SessionId>,
        lock: Duration,
        wait: Duration,
    ) -> Doing<'_, Option<Box<dyn Source>>> {
        self.inner.accept(queue, session, lock, wait)
    }

    fn settle(
        &self,
        queue: &QueueName,
        items: Vec<Settle>,
    ) -> Doing<'_, Vec<Result<(), BrokerError>>> {
        self.inner.settle(queue, items)
    }

    fn renew(
        &self,
        queue: &QueueName,
        leases: Vec<LeaseToken>,
        lock: Duration,
    ) -> Doing<'_, Vec<Result<(), BrokerError>>> {
        self.inner.renew(queue, leases, lock)
    }

    fn state(&self, queue: &QueueName, held: &Held) -> Doing<'_, Option<Bytes>> {
        self.inner.state(queue, held)
    }

    fn close(&self) -> Doing<'_, ()> {
        self.inner.close()
    }
}

/// A relay in a task, with connections that can be told from others.
struct Relay {
    name: String,
    wanted: Arc<std::sync::Mutex<Option<Moment>>>,
    task: JoinHandle<()>,
    stop: oneshot::Sender<()>,
}

async fn relay(world: &World, name: String, seen: &Arc<Seen>) -> Relay {
    let mut config: Config = world.url.parse().unwrap();
    config.application_name(&name);
    let db = Postgres::connect_with(config, NoTls).await.unwrap();
    let window = Window::over(world.broker.malote().broker().clone(), seen.clone());
    let wanted = window.wanted.clone();
    let malote = Malote::over(Arc::new(window));
    let (stop, stopped) = oneshot::channel::<()>();
    let task = tokio::spawn(async move {
        db.relay_until(&malote, async { drop(stopped.await) }).await.unwrap();
    });
    Relay { name, wanted, task, stop }
}

/// One of the writers. Each number of a key is written by whoever has the key's row, so numbers are in order; all else
/// is up to chance: who commits when, which transaction is older than which, who rolls back.
async fn write(
    url: String,
    seed: u64,
    enough: CancellationToken,
    written: mpsc::UnboundedSender<(String, String)>,
) {
    let sql = client(&url).await;
    let mut chance = Chance(seed * 7919 + 1);
    for n in 0.. {
        if enough.is_cancelled() {
            break;
        }
        sql.batch_execute("begin").await.unwrap();
        if chance.below(2) == 0 {
            sql.batch_execute("select pg_current_xact_id()").await.unwrap();
            tokio::time::sleep(Duration::from_millis(chance.below(20))).await;
        }
        let mut said = Vec::new();
        // In order of their names: two that want each other's would wait for ever.
        let (first, second) = (chance.below(KEYS), chance.below(KEYS));
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
            said.push((format!("key-{key}"), row.get::<_, i64>(0).to_string()));
        }
        // One key that nobody keeps in order: only nothing of it may be lost.
        said.push(("free".to_owned(), format!("{seed}-{n}")));
        for (key, text) in &said {
            let session = SessionId::new(key).unwrap();
            let outgoing = Outgoing::text(RECEIPTS, text.clone()).session(session);
            Postgres::send_in(&sql, outgoing).await.unwrap();
        }
        tokio::time::sleep(Duration::from_millis(chance.below(40))).await;
        if chance.below(8) == 0 {
            sql.batch_execute("rollback").await.unwrap();
            continue;
        }
        sql.batch_execute("commit").await.unwrap();
        for one in said {
            written.send(one).unwrap();
        }
    }
}

/// Where nobody is killed, nothing is sent twice: a key is one relay's, and what that sent is gone for the next.
#[tokio::test]
async fn relays_share_an_outbox_without_repeats() {
    let world = World::new(Sessions::None, Sessions::Dynamic).await;
    let seen = Arc::<Seen>::default();
    let mut relays = Vec::new();
    for n in 0..RELAYS {
        relays.push(relay(&world, format!("relay-{n}"), &seen).await);
    }
    for n in 0..200 {
        world.sql.batch_execute("begin").await.unwrap();
        for key in 0..KEYS {
            let session = SessionId::new(&format!("key-{key}")).unwrap();
            let outgoing = Outgoing::text(RECEIPTS, n.to_string()).session(session);
            Postgres::send_in(&world.sql, outgoing).await.unwrap();
        }
        world.sql.batch_execute("commit").await.unwrap();
    }
    world.until("select count(*) = 0 from malote_outbox").await;
    for one in relays {
        drop(one.stop);
        one.task.await.unwrap();
    }
    assert_eq!(seen.duplicates.load(Ordering::SeqCst), 0);
    let mut received = BTreeMap::<String, Vec<u32>>::new();
    for (key, text) in world.received(Some(8)).await {
        received.entry(key).or_default().push(text.parse().unwrap());
    }
    assert_eq!(received.len() as u64, KEYS);
    for (key, numbers) in received {
        assert_eq!(numbers, (0..200).collect::<Vec<_>>(), "{key}");
    }
}

/// Check 8 of the outbox: eight writers, three relays, one killed each second.
#[tokio::test]
async fn killed_relays_lose_nothing_and_keep_the_order() {
    let world = World::new(Sessions::None, Sessions::Dynamic).await;
    let numbers = format!(
        "create table numbers (key bigint primary key, n bigint not null);
         insert into numbers select key, 0 from generate_series(0, {}) key",
        KEYS - 1
    );
    world.sql.batch_execute(&numbers).await.unwrap();
    let (tell, mut told) = mpsc::unbounded_channel();
    let enough = CancellationToken::new();
    let writers: Vec<_> = (0..WRITERS)
        .map(|seed| tokio::spawn(write(world.url.clone(), seed, enough.clone(), tell.clone())))
        .collect();
    drop(tell);

    let seen = Arc::<Seen>::default();
    let mut relays = Vec::new();
    for n in 0..RELAYS {
        relays.push(relay(&world, format!("relay-{n}"), &seen).await);
    }
    for kill in 0..KILLS {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let victim = kill % RELAYS;
        // At any moment, or in the one after the broker has the messages and before the outbox knows.
        let over = match kill % 2 {
            0 => Some(worst_moment(&relays[victim]).await),
            _ => None,
        };
        if kill % 4 < 2 {
            // The process dies, and another is started.
            relays[victim].task.abort();
            let name = format!("relay-again-{kill}");
            relays[victim] = relay(&world, name, &seen).await;
        } else {
            // The database loses its connection: it finds another.
            let name = &relays[victim].name;
            let cut = format!(
                "select count(pg_terminate_backend(pid)) from pg_stat_activity where application_name = '{name}'"
            );
            let _: i64 = world.one(&cut).await;
        }
        drop(over);
    }
    enough.cancel();
    for writer in writers {
        writer.await.unwrap();
    }
    world.until("select count(*) = 0 from malote_outbox").await;
    for one in &relays {
        assert!(!one.task.is_finished(), "{} has given up", one.name);
        one.task.abort();
    }

    let mut expected = BTreeMap::<String, Vec<String>>::new();
    while let Some((key, text)) = told.recv().await {
        expected.entry(key).or_default().push(text);
    }
    let mut received = BTreeMap::<String, Vec<String>>::new();
    for (key, text) in world.received(Some(8)).await {
        received.entry(key).or_default().push(text);
    }
    for (map, name) in [(&mut expected, "written"), (&mut received, "received")] {
        let free = map.get_mut("free").unwrap_or_else(|| panic!("nothing was {name}"));
        free.sort();
    }
    // Writers tell in any order; what they wrote is in the order of its numbers.
    for (key, texts) in expected.iter_mut().filter(|(key, _)| *key != "free") {
        texts.sort_by_key(|text| text.parse::<i64>().unwrap());
        let numbers: Vec<_> = (1..=texts.len()).map(|n| n.to_string()).collect();
        assert_eq!(*texts, numbers, "{key}: the writers are wrong");
    }
    assert_eq!(received, expected);
    let duplicates = seen.duplicates.load(Ordering::SeqCst);
    assert!(duplicates >= KILLS as u64 / 2, "no kill came at the worst moment: {duplicates}");
}

/// Waits until this relay has sent something and does not know it yet. It stays so until the result is dropped.
async fn worst_moment(relay: &Relay) -> oneshot::Sender<()> {
    let (come, has_come) = oneshot::channel();
    let (end, over) = oneshot::channel();
    *relay.wanted.lock().unwrap() = Some(Moment { come, over });
    has_come.await.unwrap();
    end
}
