//! What a handler writes happens once, whatever comes twice and whoever dies.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use malote::model::Sessions;
use malote::once::INBOX_AGE;
use malote::once::postgres::{DEPENDENCY, Postgres};
use malote::{Attempt, Breaker, Error, Failure, Outgoing, Retry, SessionId, State, Tx};
use tokio::sync::{Mutex, mpsc};

use super::{ORDERS, RECEIPTS, World, client, database, until};

const INSERT: &str = "insert into charges (order_id) values ($1)";
/// Somebody waits for a row that somebody else has.
const BLOCKED: &str = "select count(*) > 0 from pg_locks where not granted";

async fn charge(order: String, tx: Tx<Postgres>) -> Result<(), Failure> {
    tx.execute(INSERT, &[&order]).await?;
    tx.send(Outgoing::text(RECEIPTS, order)).await?;
    Ok(())
}

#[tokio::test]
async fn what_comes_twice_is_done_once() {
    let world = World::new(Sessions::None, Sessions::None).await;
    for n in 0..10 {
        world.send(&n.to_string()).await;
    }
    // Killed between commit and settlement, delivered once more although it was done, sent twice.
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

/// The first of two waits until the second waits for it, and then commits or not.
#[tokio::test]
async fn of_two_at_once_one_does_it() {
    async fn slow(
        order: String,
        Attempt(attempt): Attempt,
        tx: Tx<Postgres>,
        turns: State<Turns>,
    ) -> Result<(), Failure> {
        tx.execute(INSERT, &[&order]).await?;
        let first = turns.runs.fetch_add(1, Ordering::SeqCst) == 0;
        if first {
            let look = client(&turns.url).await;
            while !look.query_one(BLOCKED, &[]).await?.get::<_, bool>(0) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
        if first && turns.fails && attempt == 1 { Err(Failure::retry("not yet")) } else { Ok(()) }
    }
    #[derive(Clone)]
    struct Turns {
        runs: Arc<AtomicU32>,
        url: String,
        fails: bool,
    }
    for fails in [false, true] {
        let world = World::new(Sessions::None, Sessions::None).await;
        let runs = Arc::new(AtomicU32::new(0));
        let turns = Turns { runs: runs.clone(), url: world.url.clone(), fails };
        world.send("1").await;
        world.send("1").await;
        let worker = world.worker().handle(slow).state(turns).slots(2).retry(Retry::at_once(5));
        let counts = world.broker.drain(worker).await.unwrap().counts;
        assert_eq!((counts.done, counts.retried), (2, u64::from(fails)));
        // The second took the place of the first only where that was rolled back.
        assert_eq!(runs.load(Ordering::SeqCst), if fails { 2 } else { 1 });
        assert_eq!(world.charges().await, ["1"]);
    }
}

#[tokio::test]
async fn what_fails_leaves_nothing_and_is_done_later() {
    let world = World::new(Sessions::None, Sessions::None).await;
    for how in ["error", "panic", "hang", "wrong"] {
        world.send(how).await;
    }
    async fn half(
        order: String,
        Attempt(attempt): Attempt,
        tx: Tx<Postgres>,
    ) -> Result<(), Failure> {
        tx.execute(INSERT, &[&order]).await?;
        tx.send(Outgoing::text(RECEIPTS, "once")).await?;
        match order.as_str() {
            _ if attempt > 1 => Ok(()),
            "panic" => panic!("on purpose"),
            "hang" => std::future::pending().await,
            // Whoever ignores that a statement failed cannot commit the rest.
            "wrong" => {
                assert!(tx.execute("select 1 / 0", &[]).await.is_err());
                Ok(())
            }
            _ => Err(Failure::retry("not yet")),
        }
    }
    let worker = world.worker().handle(half).timeout(Duration::from_secs(10));
    let counts = world.broker.drain(worker.retry(Retry::at_once(5))).await.unwrap().counts;
    assert_eq!((counts.done, counts.retried), (4, 4));
    assert_eq!(world.charges().await.len(), 4);
    assert_eq!((world.count("malote_inbox").await, world.count("malote_outbox").await), (4, 4));
}

/// Whoever comes back to a session that somebody else has had commits nothing.
#[tokio::test]
async fn an_old_holder_commits_nothing() {
    let world = World::new(Sessions::Dynamic, Sessions::None).await;
    world.send("1").await;
    let newer =
        "insert into malote_fence (consumer, key, epoch) values ('orders', 'ana', 9999999999999)";
    world.sql.batch_execute(newer).await.unwrap();
    let running = world.worker().handle(charge).sessions(1).start().await.unwrap();
    until(async || running.counts().released > 0).await;
    running.stop();
    assert_eq!(running.ended().await.unwrap().counts.done, 0);
    assert_eq!((world.charges().await.len(), world.count("malote_inbox").await), (0, 0));
    // The holder of today is not held up.
    world.sql.batch_execute("update malote_fence set epoch = 1").await.unwrap();
    world.broker.drain(world.worker().handle(charge).sessions(1)).await.unwrap();
    assert_eq!(world.charges().await, ["1"]);
    assert!(world.one::<i64>("select epoch from malote_fence").await > 1);
}

/// A holder that freezes in the middle of its transaction keeps the next one waiting until the database ends it.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_frozen_holder_rolls_back() {
    let world = World::new(Sessions::Dynamic, Sessions::None).await;
    world.send("1").await;
    async fn frozen(order: String, tx: Tx<Postgres>, frozen: State<Frozen>) -> Result<(), Failure> {
        tx.execute(INSERT, &[&format!("frozen {order}")]).await?;
        let _ = frozen.begun.send(());
        // Not an `.await`: nothing can drop it here.
        let thawed = frozen.thawed.lock().unwrap().recv();
        assert!(thawed.is_ok());
        Ok(())
    }
    #[derive(Clone)]
    struct Frozen {
        begun: mpsc::UnboundedSender<()>,
        thawed: Arc<std::sync::Mutex<std::sync::mpsc::Receiver<()>>>,
    }
    let (begun, mut has_begun) = mpsc::unbounded_channel();
    let (thaw, thawed) = std::sync::mpsc::channel();
    let state = Frozen { begun, thawed: Arc::new(std::sync::Mutex::new(thawed)) };
    // Long enough for a slow machine to write in.
    let db = world.db.clone().idle(Duration::from_secs(5));
    let old = malote::Worker::new(world.broker.malote(), ORDERS).handle(frozen).sessions(1);
    let old =
        old.state(state).state(db).stuck_after(Duration::from_millis(1)).start().await.unwrap();
    has_begun.recv().await.unwrap();
    old.stop();
    let ana = SessionId::new("ana").unwrap();
    world.broker.break_session(ORDERS, &ana).await.unwrap();
    // The new holder begins while the old one's transaction is open, and waits for the fence.
    let new = world.worker().handle(charge).sessions(1).start().await.unwrap();
    until(async || new.counts().done == 1).await;
    assert_eq!(world.charges().await, ["1"]);
    thaw.send(()).unwrap();
    new.stop();
    new.ended().await.unwrap();
    drop(old.ended().await);
    assert_eq!(world.charges().await, ["1"]);
    assert_eq!(world.count("malote_inbox").await, 1);
}

/// Whoever keeps the transaction for later finds it over: its connection is somebody else's by then.
#[tokio::test]
async fn a_transaction_ends_with_its_handler() {
    let world = World::new(Sessions::None, Sessions::None).await;
    world.send("1").await;
    type Kept = Arc<Mutex<Option<Tx<Postgres>>>>;
    async fn keep(tx: Tx<Postgres>, kept: State<Kept>) {
        *kept.lock().await = Some(tx);
    }
    let kept = Kept::default();
    world.broker.drain(world.worker().handle(keep).state(kept.clone())).await.unwrap();
    let tx = kept.lock().await.take().unwrap();
    let late = tx.execute(INSERT, &[&"late"]).await;
    assert_eq!(late, Err(Error::Database("the transaction is over".into())));
    assert_eq!(world.charges().await.len(), 0);
}

/// Connections that the server ended are replaced, and no attempt is counted for it.
#[tokio::test]
async fn a_lost_connection_is_made_anew() {
    let world = World::new(Sessions::None, Sessions::None).await;
    for order in ["1", "2"] {
        world.send(order).await;
        let counts = world.broker.drain(world.worker().handle(charge)).await.unwrap().counts;
        assert_eq!((counts.done, counts.retried), (1, 0));
        let others = "select count(pg_terminate_backend(pid)) from pg_stat_activity
            where datname = current_database() and pid <> pg_backend_pid()";
        assert!(world.one::<i64>(others).await > 0);
    }
    assert_eq!(world.charges().await, ["1", "2"]);
}

/// A database that is away is a dependency that failed: the worker waits for it instead of burning attempts.
#[tokio::test]
async fn a_breaker_knows_the_database() {
    let world = World::new(Sessions::None, Sessions::None).await;
    let admin = client(&super::server().url("postgres")).await;
    let name: String = world.one("select current_database()::text").await;
    let closed = format!("alter database {name} allow_connections false");
    admin.batch_execute(&closed).await.unwrap();
    let away = "select count(pg_terminate_backend(pid)) from pg_stat_activity where datname = $1";
    admin.query_one(away, &[&name]).await.unwrap();
    for n in 0..20 {
        world.send(&n.to_string()).await;
    }
    let worker = world.worker().handle(charge).breaker(Breaker::of(DEPENDENCY));
    let running = worker.start().await.unwrap();
    until(async || !running.is_taking()).await;
    running.stop();
    assert_eq!(running.ended().await.unwrap().counts.done, 0);
}

#[tokio::test]
async fn ids_that_postgresql_cannot_keep_are_dead_letters() {
    let world = World::new(Sessions::None, Sessions::None).await;
    world.send("a\0b").await;
    world.broker.drain(world.worker().handle(charge)).await.unwrap();
    let dead = world.broker.take_dead(ORDERS).await.unwrap();
    assert_eq!(dead[0].dead.as_ref().unwrap().0, "ZeroByte");
}

#[tokio::test]
async fn an_inbox_is_cleaned_in_slices() {
    let world = World::new(Sessions::Dynamic, Sessions::None).await;
    world.send("1").await;
    world.broker.drain(world.worker().handle(charge).sessions(1)).await.unwrap();
    assert_eq!(world.db.clean_inbox(INBOX_AGE).await.unwrap(), 0);
    let old = "insert into malote_inbox select 'orders', n::text, now() - interval '8 days'
            from generate_series(10, 2509) n;
        update malote_fence set raised_at = now() - interval '8 days'";
    world.sql.batch_execute(old).await.unwrap();
    assert_eq!(world.db.clean_inbox(INBOX_AGE).await.unwrap(), 2501);
    assert_eq!((world.count("malote_inbox").await, world.count("malote_fence").await), (1, 0));
}

#[tokio::test]
async fn tables_are_made_once_by_any_number_of_programs() {
    let url = database().await;
    let all = (0..8).map(|_| {
        let url = url.clone();
        tokio::spawn(async move { Postgres::connect(&url).await?.install().await })
    });
    for one in all.collect::<Vec<_>>() {
        one.await.unwrap().unwrap();
    }
}
