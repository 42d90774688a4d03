//! Exactly-once writes to SQLite, and its outbox.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use malote::model::{Dedup, Sessions};
use malote::once::sqlite::Sqlite;
use malote::testing::TestBroker;
use malote::{Attempt, Failure, OutboxMessage, QueueSpec, Retry, Session, State, Tx, Worker};

use crate::until;

const ORDERS: &str = "orders";
const RECEIPTS: &str = "receipts";

struct Fixture {
    broker: TestBroker,
    db: Sqlite,
    _dir: tempfile::TempDir,
}

impl Fixture {
    async fn new(sessions: Sessions) -> Self {
        let broker = TestBroker::new().unwrap();
        let spec = QueueSpec { failed_max: None, ..QueueSpec::default() };
        broker.malote().declare(ORDERS, QueueSpec { sessions, ..spec.clone() }).await.unwrap();
        let dedup = Some(Dedup { window_ms: 600_000, per_session: false, content: false });
        broker.malote().declare(RECEIPTS, QueueSpec { dedup, ..spec }).await.unwrap();
        let dir = tempfile::tempdir().unwrap();
        let db = Sqlite::open(dir.path().join("app.db")).unwrap();
        db.run(|db| db.execute_batch("create table charges (order_id text, cents integer)"))
            .await
            .unwrap();
        Self { broker, db, _dir: dir }
    }

    async fn send(&self, id: &str) {
        self.broker.malote().send_text(ORDERS, id).id(id).session("ana").await.unwrap();
    }

    fn worker(&self) -> Worker {
        Worker::new(self.broker.malote(), ORDERS).state(self.db.clone())
    }

    async fn charges(&self) -> Vec<String> {
        self.db
            .run(|db| {
                let mut all = db.prepare("select order_id from charges order by rowid")?;
                all.query_map([], |row| row.get(0))?.collect()
            })
            .await
            .unwrap()
    }

    async fn count(&self, table: &'static str) -> i64 {
        let count = format!("select count(*) from {table}");
        self.db.run(move |db| db.query_row(&count, [], |row| row.get(0))).await.unwrap()
    }
}

async fn insert(tx: &Tx<Sqlite>, order: String) -> Result<(), malote::Error> {
    tx.run(move |db| db.execute("insert into charges values (?1, 100)", [order]).map(drop)).await
}

async fn charge(order: String, tx: Tx<Sqlite>) -> Result<(), Failure> {
    insert(&tx, order.clone()).await?;
    tx.send(OutboxMessage::text(RECEIPTS, order)).await?;
    Ok(())
}

#[tokio::test]
async fn a_message_delivered_twice_has_one_effect() {
    let fixture = Fixture::new(Sessions::None).await;
    for n in 0..10 {
        fixture.send(&n.to_string()).await;
    }
    // Some settlements are lost, some completed messages are delivered again, and one message is sent twice.
    fixture.broker.lose_settlements(5);
    fixture.broker.repeat_messages(5);
    fixture.send("3").await;
    let counts = fixture.broker.drain(fixture.worker().handle(charge)).await.unwrap().counts;
    assert_eq!((counts.lost, counts.done), (5, 16));
    let mut charges = fixture.charges().await;
    charges.sort();
    assert_eq!(charges, (0..10).map(|n| n.to_string()).collect::<Vec<_>>());
    assert_eq!(
        (fixture.count("malote_inbox").await, fixture.count("malote_outbox").await),
        (10, 10)
    );
}

#[tokio::test]
async fn a_failed_attempt_is_rolled_back_and_retried() {
    let fixture = Fixture::new(Sessions::None).await;
    for how in ["error", "panic", "hang", "snooze"] {
        fixture.send(how).await;
    }
    async fn write_then_fail(
        order: String,
        Attempt(attempt): Attempt,
        tx: Tx<Sqlite>,
        runs: State<Arc<AtomicU32>>,
    ) -> Result<(), Failure> {
        insert(&tx, order.clone()).await?;
        tx.send(OutboxMessage::text(RECEIPTS, "never")).await?;
        runs.fetch_add(1, Ordering::SeqCst);
        match order.as_str() {
            _ if attempt > 1 => Ok(()),
            "panic" => panic!("on purpose"),
            "hang" => std::future::pending().await,
            _ => Err(Failure::retry("not yet")),
        }
    }
    let runs = Arc::new(AtomicU32::new(0));
    // One slot, because a hanging handler has the only write lock.
    let worker = fixture.worker().handle(write_then_fail).state(runs.clone()).slots(1);
    let worker = worker.timeout(Duration::from_secs(10));
    let counts = fixture.broker.drain(worker.retry(Retry::at_once(5))).await.unwrap().counts;
    assert_eq!((counts.done, counts.retried), (4, 4));
    assert_eq!(runs.load(Ordering::SeqCst), 8);
    assert_eq!((fixture.charges().await.len(), fixture.count("malote_outbox").await), (4, 4));
}

#[tokio::test]
async fn an_old_holder_of_a_session_cannot_commit() {
    let fixture = Fixture::new(Sessions::Dynamic).await;
    fixture.send("1").await;
    fixture
        .db
        .run(|db| {
            // The fence has a newer holder.
            db.execute("insert into malote_fence (consumer, key, epoch) values ('orders', 'ana', 9999999999999)", [])
        })
        .await
        .unwrap();
    async fn charge_ana(order: String, tx: Tx<Sqlite>, Session(_): Session) -> Result<(), Failure> {
        Ok(insert(&tx, order).await?)
    }
    let running = fixture.worker().handle(charge_ana).sessions(1).start().await.unwrap();
    until("the message is released", async || running.counts().released > 0).await;
    running.stop();
    assert_eq!(running.ended().await.unwrap().counts.done, 0);
    assert_eq!((fixture.charges().await.len(), fixture.count("malote_inbox").await), (0, 0));
    // The current holder can commit.
    fixture.db.run(|db| db.execute("update malote_fence set epoch = 1", [])).await.unwrap();
    fixture.broker.drain(fixture.worker().handle(charge_ana).sessions(1)).await.unwrap();
    assert_eq!(fixture.charges().await, ["1"]);
    let epoch = "select epoch from malote_fence";
    let epoch: i64 =
        fixture.db.run(move |db| db.query_row(epoch, [], |row| row.get(0))).await.unwrap();
    assert!(epoch > 1);
}

#[tokio::test]
async fn several_relays_publish_an_outbox_once_and_in_order() {
    let fixture = Fixture::new(Sessions::Dynamic).await;
    for n in 0..250 {
        fixture.send(&n.to_string()).await;
    }
    fixture.broker.drain(fixture.worker().handle(charge).sessions(1)).await.unwrap();
    assert_eq!(fixture.count("malote_outbox").await, 250);
    let relays: Vec<_> = (0..3)
        .map(|_| {
            // Each relay has its own connection, like a separate process.
            let path = fixture._dir.path().join("app.db");
            let (db, malote) = (Sqlite::open(path).unwrap(), fixture.broker.malote().clone());
            let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
            let relay = tokio::spawn(async move {
                db.relay_until(&malote, async { drop(stopped.await) }).await
            });
            (stop, relay)
        })
        .collect();
    until("the outbox is published", async || fixture.count("malote_outbox").await == 0).await;
    for (stop, relay) in relays {
        drop(stop);
        relay.await.unwrap().unwrap();
    }
    async fn record(text: String, seen: State<Arc<std::sync::Mutex<Vec<String>>>>) {
        seen.lock().unwrap().push(text);
    }
    let seen = Arc::new(std::sync::Mutex::new(Vec::<String>::new()));
    let worker = Worker::new(fixture.broker.malote(), RECEIPTS).handle(record).slots(1);
    fixture.broker.drain(worker.state(seen.clone())).await.unwrap();
    let expected: Vec<String> = (0..250).map(|n| n.to_string()).collect();
    assert_eq!(*seen.lock().unwrap(), expected);
}

#[tokio::test]
async fn a_refused_message_holds_back_only_its_own_key() {
    let fixture = Fixture::new(Sessions::None).await;
    fixture.send("1").await;
    async fn send_to_both(order: String, tx: Tx<Sqlite>) -> Result<(), Failure> {
        tx.send(OutboxMessage::text("nowhere", "x")).await?;
        tx.send(OutboxMessage::text(RECEIPTS, order)).await?;
        tx.send(OutboxMessage::text("nowhere", "y")).await?;
        Ok(())
    }
    fixture.broker.drain(fixture.worker().handle(send_to_both)).await.unwrap();
    let published = async {
        while fixture.count("malote_outbox").await > 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    fixture.db.relay_until(fixture.broker.malote(), published).await.unwrap();
    assert_eq!(fixture.broker.counts(RECEIPTS).await.unwrap().ready, 1);
    let refused = "select count(*) from malote_outbox where error like '%nowhere%'";
    let refused: i64 =
        fixture.db.run(move |db| db.query_row(refused, [], |row| row.get(0))).await.unwrap();
    assert_eq!(refused, 1);
    // After the queue is created, both messages are published.
    fixture.broker.malote().declare("nowhere", QueueSpec::default()).await.unwrap();
    let published = async {
        while fixture.count("malote_outbox").await > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    fixture.db.relay_until(fixture.broker.malote(), published).await.unwrap();
    assert_eq!(fixture.broker.counts("nowhere").await.unwrap().ready, 2);
}

#[tokio::test]
async fn old_inbox_rows_are_deleted() {
    let fixture = Fixture::new(Sessions::None).await;
    fixture.send("1").await;
    fixture.broker.drain(fixture.worker().handle(charge)).await.unwrap();
    assert_eq!(fixture.db.clean_inbox(Duration::from_secs(7 * 24 * 3600)).await.unwrap(), 0);
    fixture.db.run(|db| db.execute("update malote_inbox set done_at = 0", [])).await.unwrap();
    assert_eq!(fixture.db.clean_inbox(Duration::from_secs(7 * 24 * 3600)).await.unwrap(), 1);
}

/// A delayed message holds back no other message and does not count for the age of the outbox.
#[tokio::test]
async fn a_delayed_message_is_published_when_it_is_due() {
    let fixture = Fixture::new(Sessions::None).await;
    let write = async |message: OutboxMessage| {
        fixture.db.run(move |db| Ok(Sqlite::send_in(db, message))).await.unwrap().unwrap();
    };
    write(OutboxMessage::text(RECEIPTS, "later").delay(Duration::from_secs(3600))).await;
    assert_eq!(fixture.db.outbox_age().await.unwrap(), None);
    write(OutboxMessage::text(RECEIPTS, "now")).await;
    let old = "update malote_outbox set since = since - 60000 where not_before is null";
    fixture.db.run(|db| db.execute(old, [])).await.unwrap();
    assert!(fixture.db.outbox_age().await.unwrap().unwrap() >= Duration::from_secs(60));
    let published = async |left: i64| {
        while fixture.count("malote_outbox").await > left {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    fixture.db.relay_until(fixture.broker.malote(), published(1)).await.unwrap();
    assert_eq!(fixture.broker.counts(RECEIPTS).await.unwrap().ready, 1);
    fixture.db.run(|db| db.execute("update malote_outbox set not_before = 0", [])).await.unwrap();
    assert!(fixture.db.outbox_age().await.unwrap().unwrap() >= Duration::from_secs(60));
    fixture.db.relay_until(fixture.broker.malote(), published(0)).await.unwrap();
    assert_eq!(fixture.broker.counts(RECEIPTS).await.unwrap().ready, 2);
}
