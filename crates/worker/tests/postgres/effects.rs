//! Exactly-once writes to PostgreSQL.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use malote::model::Sessions;
use malote::once::INBOX_AGE;
use malote::once::postgres::{DEPENDENCY, Postgres};
use malote::{Attempt, Breaker, Error, Failure, OutboxMessage, Retry, SessionId, State, Tx};
use tokio::sync::{Mutex, mpsc};

use super::{Fixture, ORDERS, RECEIPTS, client, database, until};

const INSERT: &str = "insert into charges (order_id) values ($1)";
/// Whether a transaction waits for a lock.
const BLOCKED: &str = "select count(*) > 0 from pg_locks where not granted";

async fn charge(order: String, tx: Tx<Postgres>) -> Result<(), Failure> {
    tx.execute(INSERT, &[&order]).await?;
    tx.send(OutboxMessage::text(RECEIPTS, order)).await?;
    Ok(())
}

#[tokio::test]
async fn a_message_delivered_twice_has_one_effect() {
    let fixture = Fixture::new(Sessions::None, Sessions::None).await;
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

/// The first transaction waits until the second one is blocked by it, and then commits or fails.
#[tokio::test]
async fn of_two_concurrent_duplicates_one_takes_effect() {
    async fn slow(
        order: String,
        Attempt(attempt): Attempt,
        tx: Tx<Postgres>,
        duplicates: State<Duplicates>,
    ) -> Result<(), Failure> {
        tx.execute(INSERT, &[&order]).await?;
        let first = duplicates.runs.fetch_add(1, Ordering::SeqCst) == 0;
        if first {
            let look = client(&duplicates.url).await;
            while !look.query_one(BLOCKED, &[]).await?.get::<_, bool>(0) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
        if first && duplicates.fails && attempt == 1 {
            Err(Failure::retry("not yet"))
        } else {
            Ok(())
        }
    }
    #[derive(Clone)]
    struct Duplicates {
        runs: Arc<AtomicU32>,
        url: String,
        fails: bool,
    }
    for fails in [false, true] {
        let fixture = Fixture::new(Sessions::None, Sessions::None).await;
        let runs = Arc::new(AtomicU32::new(0));
        let duplicates = Duplicates { runs: runs.clone(), url: fixture.url.clone(), fails };
        fixture.send("1").await;
        fixture.send("1").await;
        let worker =
            fixture.worker().handle(slow).state(duplicates).slots(2).retry(Retry::at_once(5));
        let counts = fixture.broker.drain(worker).await.unwrap().counts;
        assert_eq!((counts.done, counts.retried), (2, u64::from(fails)));
        // The second handler runs only if the first transaction was rolled back.
        assert_eq!(runs.load(Ordering::SeqCst), if fails { 2 } else { 1 });
        assert_eq!(fixture.charges().await, ["1"]);
    }
}

#[tokio::test]
async fn a_failed_attempt_is_rolled_back_and_retried() {
    let fixture = Fixture::new(Sessions::None, Sessions::None).await;
    for how in ["error", "panic", "hang", "wrong"] {
        fixture.send(how).await;
    }
    async fn write_then_fail(
        order: String,
        Attempt(attempt): Attempt,
        tx: Tx<Postgres>,
    ) -> Result<(), Failure> {
        tx.execute(INSERT, &[&order]).await?;
        tx.send(OutboxMessage::text(RECEIPTS, "once")).await?;
        match order.as_str() {
            _ if attempt > 1 => Ok(()),
            "panic" => panic!("on purpose"),
            "hang" => std::future::pending().await,
            // A handler that ignores a failed statement cannot commit.
            "wrong" => {
                assert!(tx.execute("select 1 / 0", &[]).await.is_err());
                Ok(())
            }
            _ => Err(Failure::retry("not yet")),
        }
    }
    let worker = fixture.worker().handle(write_then_fail).timeout(Duration::from_secs(10));
    let counts = fixture.broker.drain(worker.retry(Retry::at_once(5))).await.unwrap().counts;
    assert_eq!((counts.done, counts.retried), (4, 4));
    assert_eq!(fixture.charges().await.len(), 4);
    assert_eq!((fixture.count("malote_inbox").await, fixture.count("malote_outbox").await), (4, 4));
}

#[tokio::test]
async fn an_old_holder_of_a_session_cannot_commit() {
    let fixture = Fixture::new(Sessions::Dynamic, Sessions::None).await;
    fixture.send("1").await;
    let newer =
        "insert into malote_fence (consumer, key, epoch) values ('orders', 'ana', 9999999999999)";
    fixture.sql.batch_execute(newer).await.unwrap();
    let running = fixture.worker().handle(charge).sessions(1).start().await.unwrap();
    until(async || running.counts().released > 0).await;
    running.stop();
    assert_eq!(running.ended().await.unwrap().counts.done, 0);
    assert_eq!((fixture.charges().await.len(), fixture.count("malote_inbox").await), (0, 0));
    // The current holder can commit.
    fixture.sql.batch_execute("update malote_fence set epoch = 1").await.unwrap();
    fixture.broker.drain(fixture.worker().handle(charge).sessions(1)).await.unwrap();
    assert_eq!(fixture.charges().await, ["1"]);
    assert!(fixture.one::<i64>("select epoch from malote_fence").await > 1);
}

/// The next holder waits until the database ends the idle transaction.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_transaction_of_a_frozen_holder_is_rolled_back() {
    let fixture = Fixture::new(Sessions::Dynamic, Sessions::None).await;
    fixture.send("1").await;
    async fn frozen(order: String, tx: Tx<Postgres>, frozen: State<Frozen>) -> Result<(), Failure> {
        tx.execute(INSERT, &[&format!("frozen {order}")]).await?;
        let _ = frozen.begun.send(());
        // Blocks the thread, so that the handler cannot be dropped here.
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
    // Long enough for the statements on a slow machine.
    let db = fixture.db.clone().idle(Duration::from_secs(5));
    let old = malote::Worker::new(fixture.broker.malote(), ORDERS).handle(frozen).sessions(1);
    let old =
        old.state(state).state(db).stuck_after(Duration::from_millis(1)).start().await.unwrap();
    has_begun.recv().await.unwrap();
    old.stop();
    let ana = SessionId::new("ana").unwrap();
    fixture.broker.break_session(ORDERS, &ana).await.unwrap();
    // The new holder starts while the old transaction is open, and waits for the fence row.
    let new = fixture.worker().handle(charge).sessions(1).start().await.unwrap();
    until(async || new.counts().done == 1).await;
    assert_eq!(fixture.charges().await, ["1"]);
    thaw.send(()).unwrap();
    new.stop();
    new.ended().await.unwrap();
    drop(old.ended().await);
    assert_eq!(fixture.charges().await, ["1"]);
    assert_eq!(fixture.count("malote_inbox").await, 1);
}

/// A transaction that outlives its handler cannot be used: another handler may have its connection.
#[tokio::test]
async fn a_transaction_ends_with_its_handler() {
    let fixture = Fixture::new(Sessions::None, Sessions::None).await;
    fixture.send("1").await;
    type KeptTransaction = Arc<Mutex<Option<Tx<Postgres>>>>;
    async fn keep(tx: Tx<Postgres>, kept: State<KeptTransaction>) {
        *kept.lock().await = Some(tx);
    }
    let kept = KeptTransaction::default();
    fixture.broker.drain(fixture.worker().handle(keep).state(kept.clone())).await.unwrap();
    let tx = kept.lock().await.take().unwrap();
    let late = tx.execute(INSERT, &[&"late"]).await;
    assert_eq!(late, Err(Error::Database("the transaction has ended".into())));
    assert_eq!(fixture.charges().await.len(), 0);
}

/// Connections that the server closed are replaced, without a failed attempt.
#[tokio::test]
async fn a_lost_connection_is_replaced() {
    let fixture = Fixture::new(Sessions::None, Sessions::None).await;
    for order in ["1", "2"] {
        fixture.send(order).await;
        let counts = fixture.broker.drain(fixture.worker().handle(charge)).await.unwrap().counts;
        assert_eq!((counts.done, counts.retried), (1, 0));
        let others = "select count(pg_terminate_backend(pid)) from pg_stat_activity
            where datname = current_database() and pid <> pg_backend_pid()";
        assert!(fixture.one::<i64>(others).await > 0);
    }
    assert_eq!(fixture.charges().await, ["1", "2"]);
}

/// While the database is unavailable, the worker fetches no messages.
#[tokio::test]
async fn a_breaker_counts_failures_of_the_database() {
    let fixture = Fixture::new(Sessions::None, Sessions::None).await;
    let admin = client(&super::server().url("postgres")).await;
    let name: String = fixture.one("select current_database()::text").await;
    let closed = format!("alter database {name} allow_connections false");
    admin.batch_execute(&closed).await.unwrap();
    let away = "select count(pg_terminate_backend(pid)) from pg_stat_activity where datname = $1";
    admin.query_one(away, &[&name]).await.unwrap();
    for n in 0..20 {
        fixture.send(&n.to_string()).await;
    }
    let worker = fixture.worker().handle(charge).breaker(Breaker::of(DEPENDENCY));
    let running = worker.start().await.unwrap();
    until(async || !running.is_fetching()).await;
    running.stop();
    assert_eq!(running.ended().await.unwrap().counts.done, 0);
}

#[tokio::test]
async fn messages_with_a_zero_byte_in_the_id_are_dead_lettered() {
    let fixture = Fixture::new(Sessions::None, Sessions::None).await;
    fixture.send("a\0b").await;
    fixture.broker.drain(fixture.worker().handle(charge)).await.unwrap();
    let dead = fixture.broker.take_dead_letters(ORDERS).await.unwrap();
    assert_eq!(dead[0].dead.as_ref().unwrap().0, "ZeroByte");
}

#[tokio::test]
async fn old_inbox_and_fence_rows_are_deleted() {
    let fixture = Fixture::new(Sessions::Dynamic, Sessions::None).await;
    fixture.send("1").await;
    fixture.broker.drain(fixture.worker().handle(charge).sessions(1)).await.unwrap();
    assert_eq!(fixture.db.clean_inbox(INBOX_AGE).await.unwrap(), 0);
    let old = "insert into malote_inbox select 'orders', n::text, now() - interval '8 days'
            from generate_series(10, 2509) n;
        update malote_fence set raised_at = now() - interval '8 days'";
    fixture.sql.batch_execute(old).await.unwrap();
    assert_eq!(fixture.db.clean_inbox(INBOX_AGE).await.unwrap(), 2501);
    assert_eq!((fixture.count("malote_inbox").await, fixture.count("malote_fence").await), (1, 0));
}

#[tokio::test]
async fn tables_can_be_created_concurrently() {
    let url = database().await;
    let all = (0..8).map(|_| {
        let url = url.clone();
        tokio::spawn(async move { Postgres::connect(&url).await?.install().await })
    });
    for one in all.collect::<Vec<_>>() {
        one.await.unwrap().unwrap();
    }
}
