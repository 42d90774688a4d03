//! Sessions under load on PostgreSQL. The primary crashes and the standby is promoted: no message is lost or out of
//! order, and no effect happens twice. `cargo xtask conformance cluster` runs it.
#![allow(clippy::unwrap_used, clippy::expect_used)] // a test

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use malote::model::{Dedup, Sessions};
use malote::once::postgres::Postgres;
use malote::once::postgres::tokio_postgres::{Client, NoTls, connect};
use malote::{Failure, Malote, Meta, QueueSpec, Retry, Running, Tx, Worker};
use malote_services::PostgresPair;

const QUEUE: &str = "orders";
const SESSIONS: usize = 16;
const EACH: usize = 60;
const WORKERS: usize = 2;
/// Longer than a slow machine needs.
const TIMEOUT: Duration = Duration::from_secs(300);
const PAUSE: Duration = Duration::from_millis(20);

async fn client(url: &str) -> Client {
    let (client, connection) = connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// The result of a query, or none if the database is unavailable.
async fn count(url: &str, sql: &str) -> Option<i64> {
    let (client, connection) = connect(url, NoTls).await.ok()?;
    let driver = tokio::spawn(connection);
    let count = client.query_one(sql, &[]).await.ok().map(|row| row.get(0));
    driver.abort();
    count
}

async fn until(what: &str, mut done: impl AsyncFnMut() -> bool) {
    let end = tokio::time::Instant::now() + TIMEOUT;
    while !done().await {
        assert!(tokio::time::Instant::now() < end, "timed out waiting for: {what}");
        tokio::time::sleep(PAUSE).await;
    }
}

async fn record(nth: String, meta: Meta, tx: Tx<Postgres>) -> Result<(), Failure> {
    let session = meta.message().session.as_ref().map(|id| id.as_str().to_owned());
    let nth: i64 = nth.parse().map_err(|_| Failure::dead("BadBody", "the body is not a number"))?;
    tx.execute("insert into effects (session, nth) values ($1, $2)", &[&session, &nth]).await?;
    Ok(())
}

/// Sends messages one after the other. Unanswered sends are repeated with the same id.
async fn send(malote: Malote, session: usize, sent: Arc<AtomicU64>, faults: Arc<AtomicU64>) {
    for nth in 0..EACH {
        let send = || {
            let sending = malote.send_text(QUEUE, nth.to_string());
            sending.session(format!("s{session}")).id(format!("{session}-{nth}"))
        };
        while let Err(error) = send().await {
            let malote::Error::Broker(error) = error else { panic!("{error}") };
            assert!(error.is_transient(), "{error}");
            faults.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(PAUSE).await;
        }
        sent.fetch_add(1, Ordering::Relaxed);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_that_takes_over_loses_nothing() {
    let pair = tokio::task::spawn_blocking(PostgresPair::start).await.unwrap();
    let mut pair = pair.unwrap_or_else(|error| panic!("{error}"));
    client(&pair.url("postgres")).await.batch_execute("create database load").await.unwrap();
    let url = pair.url("load");
    let tables = "create table effects (id bigserial primary key, session text, nth bigint)";
    client(&url).await.batch_execute(tables).await.unwrap();
    let inbox = Postgres::connect(&url).await.unwrap();
    inbox.install().await.unwrap();

    let sender = Malote::connect(&url).await.unwrap();
    let dedup = Some(Dedup { window_ms: 3_600_000, per_session: false, content: false });
    let spec =
        QueueSpec { sessions: Sessions::Dynamic, dedup, failed_max: None, ..QueueSpec::default() };
    sender.declare(QUEUE, spec).await.unwrap();
    let mut workers: Vec<Running> = Vec::new();
    for _ in 0..WORKERS {
        let malote = Malote::connect(&url).await.unwrap();
        let retry = Retry { lost: 1000, ..Retry::fixed(Duration::from_millis(50), 10_000) };
        let worker = Worker::new(&malote, QUEUE).handle(record).state(inbox.clone()).sessions(4);
        workers.push(worker.retry(retry).start().await.unwrap());
    }
    let (sent, faults) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let mut senders = tokio::task::JoinSet::new();
    for session in 0..SESSIONS {
        senders.spawn(send(sender.clone(), session, sent.clone(), faults.clone()));
    }
    let all = (SESSIONS * EACH) as i64;
    until("a third of the load", async || sent.load(Ordering::Relaxed) >= all as u64 / 3).await;
    let pair = tokio::task::spawn_blocking(move || {
        pair.crash().unwrap();
        pair.promote().unwrap();
        pair
    });
    let pair = pair.await.unwrap();
    while let Some(sent) = senders.join_next().await {
        sent.unwrap();
    }
    let effects = "select count(*) from effects";
    until("all effects", async || count(&url, effects).await.is_some_and(|n| n >= all)).await;
    let left = "select count(*) from malote.messages where queue <> 0";
    until("an empty queue", async || count(&url, left).await == Some(0)).await;

    let mut counts = [0; 4];
    for worker in workers {
        worker.stop();
        let ended = worker.ended().await.unwrap().counts;
        let these = [ended.started, ended.done, ended.retried, ended.lost];
        counts.iter_mut().zip(these).for_each(|(sum, one)| *sum += one);
    }
    let [started, done, retried, lost] = counts;
    println!(
        "{all} messages of {SESSIONS} sessions; 1 primary crashed, 1 standby promoted; sends repeated {}, handlers \
         started {started}, done {done}, retried {retried}, locks lost {lost}",
        faults.load(Ordering::Relaxed)
    );
    let sql = client(&url).await;
    for session in 0..SESSIONS {
        let name = format!("s{session}");
        let rows =
            sql.query("select nth from effects where session = $1 order by id", &[&name]).await;
        let seen: Vec<i64> = rows.unwrap().iter().map(|row| row.get(0)).collect();
        assert_eq!(seen, (0..EACH as i64).collect::<Vec<_>>(), "session {session}");
    }
    drop(pair);
}
