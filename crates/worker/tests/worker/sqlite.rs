//! Effects exactly once in a SQLite database, whatever comes twice.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use malote::model::{Dedup, Sessions};
use malote::once::sqlite::Sqlite;
use malote::testing::TestBroker;
use malote::{Attempt, Failure, Outgoing, QueueSpec, Retry, Session, State, Tx, Worker};

const ORDERS: &str = "orders";
const RECEIPTS: &str = "receipts";

struct World {
    broker: TestBroker,
    db: Sqlite,
    _dir: tempfile::TempDir,
}

impl World {
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
    tx.send(Outgoing::text(RECEIPTS, order)).await?;
    Ok(())
}

#[tokio::test]
async fn what_comes_twice_is_done_once() {
    let world = World::new(Sessions::None).await;
    for n in 0..10 {
        world.send(&n.to_string()).await;
    }
    // Killed after the effect, delivered once more although it was done, sent twice.
    world.broker.lose_settlements(5);
    world.broker.repeat_messages(5);
    world.send("3").await;
    let counts = world.broker.drain(world.worker().handle(charge)).await.unwrap().counts;
    assert_eq!((counts.lost, counts.done), (5, 16));
    let mut charges = world.charges().await;
    charges.sort();
    assert_eq!(charges, (0..10).map(|n| n.to_string()).collect::<Vec<_>>());
    assert_eq!((world.count("malote_inbox").await, world.count("malote_outbox").await), (10, 10));
}

#[tokio::test]
async fn what_fails_leaves_nothing_and_is_done_later() {
    let world = World::new(Sessions::None).await;
    for how in ["error", "panic", "hang", "snooze"] {
        world.send(how).await;
    }
    async fn half(
        order: String,
        Attempt(attempt): Attempt,
        tx: Tx<Sqlite>,
        runs: State<Arc<AtomicU32>>,
    ) -> Result<(), Failure> {
        insert(&tx, order.clone()).await?;
        tx.send(Outgoing::text(RECEIPTS, "never")).await?;
        runs.fetch_add(1, Ordering::SeqCst);
        match order.as_str() {
            _ if attempt > 1 => Ok(()),
            "panic" => panic!("on purpose"),
            "hang" => std::future::pending().await,
            _ => Err(Failure::retry("not yet")),
        }
    }
    let runs = Arc::new(AtomicU32::new(0));
    // One at a time: whoever hangs has the only write lock, and others would wait for it until their time is over.
    let worker = world.worker().handle(half).state(runs.clone()).slots(1);
    let worker = worker.timeout(Duration::from_secs(10));
    let counts = world.broker.drain(worker.retry(Retry::at_once(5))).await.unwrap().counts;
    assert_eq!((counts.done, counts.retried), (4, 4));
    assert_eq!(runs.load(Ordering::SeqCst), 8);
    assert_eq!((world.charges().await.len(), world.count("malote_outbox").await), (4, 4));
}

/// Whoever was frozen and comes back finds that somebody else has the session.
#[tokio::test]
async fn an_old_holder_commits_nothing() {
    let world = World::new(Sessions::Dynamic).await;
    world.send("1").await;
    world
        .db
        .run(|db| {
            // A newer holder was here.
            db.execute("insert into malote_fence (consumer, key, epoch) values ('orders', 'ana', 9999999999999)", [])
        })
        .await
        .unwrap();
    async fn charge_ana(order: String, tx: Tx<Sqlite>, Session(_): Session) -> Result<(), Failure> {
        Ok(insert(&tx, order).await?)
    }
    let running = world.worker().handle(charge_ana).sessions(1).start().await.unwrap();
    let until = tokio::time::Instant::now() + Duration::from_secs(60);
    while running.counts().released == 0 {
        assert!(tokio::time::Instant::now() < until);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    running.stop();
    assert_eq!(running.ended().await.unwrap().counts.done, 0);
    assert_eq!((world.charges().await.len(), world.count("malote_inbox").await), (0, 0));
    // The holder of today is not held up.
    world.db.run(|db| db.execute("update malote_fence set epoch = 1", [])).await.unwrap();
    world.broker.drain(world.worker().handle(charge_ana).sessions(1)).await.unwrap();
    assert_eq!(world.charges().await, ["1"]);
    let epoch = "select epoch from malote_fence";
    let epoch: i64 =
        world.db.run(move |db| db.query_row(epoch, [], |row| row.get(0))).await.unwrap();
    assert!(epoch > 1);
}

#[tokio::test]
async fn an_outbox_is_published_once_and_in_order_by_any_number_of_relays() {
    let world = World::new(Sessions::Dynamic).await;
    for n in 0..250 {
        world.send(&n.to_string()).await;
    }
    world.broker.drain(world.worker().handle(charge).sessions(1)).await.unwrap();
    assert_eq!(world.count("malote_outbox").await, 250);
    let relays: Vec<_> = (0..3)
        .map(|_| {
            // A process of its own has a connection of its own.
            let path = world._dir.path().join("app.db");
            let (db, malote) = (Sqlite::open(path).unwrap(), world.broker.malote().clone());
            let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
            let relay = tokio::spawn(async move {
                db.relay_until(&malote, async { drop(stopped.await) }).await
            });
            (stop, relay)
        })
        .collect();
    let until = tokio::time::Instant::now() + Duration::from_secs(60);
    while world.count("malote_outbox").await > 0 {
        assert!(tokio::time::Instant::now() < until, "the outbox is not published");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for (stop, relay) in relays {
        drop(stop);
        relay.await.unwrap().unwrap();
    }
    async fn note(text: String, seen: State<Arc<std::sync::Mutex<Vec<String>>>>) {
        seen.lock().unwrap().push(text);
    }
    let seen = Arc::new(std::sync::Mutex::new(Vec::<String>::new()));
    let worker = Worker::new(world.broker.malote(), RECEIPTS).handle(note).slots(1);
    world.broker.drain(worker.state(seen.clone())).await.unwrap();
    let expected: Vec<String> = (0..250).map(|n| n.to_string()).collect();
    assert_eq!(*seen.lock().unwrap(), expected);
}

#[tokio::test]
async fn a_refused_message_holds_back_only_its_own_key() {
    let world = World::new(Sessions::None).await;
    world.send("1").await;
    async fn both(order: String, tx: Tx<Sqlite>) -> Result<(), Failure> {
        tx.send(Outgoing::text("nowhere", "x")).await?;
        tx.send(Outgoing::text(RECEIPTS, order)).await?;
        tx.send(Outgoing::text("nowhere", "y")).await?;
        Ok(())
    }
    world.broker.drain(world.worker().handle(both)).await.unwrap();
    let until = async {
        while world.count("malote_outbox").await > 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    world.db.relay_until(world.broker.malote(), until).await.unwrap();
    assert_eq!(world.broker.held(RECEIPTS).await.unwrap().ready, 1);
    let refused = "select count(*) from malote_outbox where error like '%nowhere%'";
    let refused: i64 =
        world.db.run(move |db| db.query_row(refused, [], |row| row.get(0))).await.unwrap();
    assert_eq!(refused, 1);
    // Once there is such a queue, both go, in order.
    world.broker.malote().declare("nowhere", QueueSpec::default()).await.unwrap();
    let until = async {
        while world.count("malote_outbox").await > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    world.db.relay_until(world.broker.malote(), until).await.unwrap();
    assert_eq!(world.broker.held("nowhere").await.unwrap().ready, 2);
}

#[tokio::test]
async fn an_inbox_is_cleaned() {
    let world = World::new(Sessions::None).await;
    world.send("1").await;
    world.broker.drain(world.worker().handle(charge)).await.unwrap();
    assert_eq!(world.db.clean_inbox(Duration::from_secs(7 * 24 * 3600)).await.unwrap(), 0);
    world.db.run(|db| db.execute("update malote_inbox set done_at = 0", [])).await.unwrap();
    assert_eq!(world.db.clean_inbox(Duration::from_secs(7 * 24 * 3600)).await.unwrap(), 1);
}

/// What is not due holds nothing back and is not late; then it leaves.
#[tokio::test]
async fn a_delayed_message_leaves_when_it_is_due() {
    let world = World::new(Sessions::None).await;
    let write = async |outgoing: Outgoing| {
        world.db.run(move |db| Ok(Sqlite::send_in(db, outgoing))).await.unwrap().unwrap();
    };
    write(Outgoing::text(RECEIPTS, "later").delay(Duration::from_secs(3600))).await;
    assert_eq!(world.db.outbox_age().await.unwrap(), None);
    write(Outgoing::text(RECEIPTS, "now")).await;
    let old = "update malote_outbox set since = since - 60000 where not_before is null";
    world.db.run(|db| db.execute(old, [])).await.unwrap();
    assert!(world.db.outbox_age().await.unwrap().unwrap() >= Duration::from_secs(60));
    let until = async |left: i64| {
        while world.count("malote_outbox").await > left {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    world.db.relay_until(world.broker.malote(), until(1)).await.unwrap();
    assert_eq!(world.broker.held(RECEIPTS).await.unwrap().ready, 1);
    world.db.run(|db| db.execute("update malote_outbox set not_before = 0", [])).await.unwrap();
    assert!(world.db.outbox_age().await.unwrap().unwrap() >= Duration::from_secs(60));
    world.db.relay_until(world.broker.malote(), until(0)).await.unwrap();
    assert_eq!(world.broker.held(RECEIPTS).await.unwrap().ready, 2);
}
