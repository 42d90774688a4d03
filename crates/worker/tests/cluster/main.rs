//! A worker on a RabbitMQ of three nodes, of which one is killed while it works: no message is lost, the order of every
//! session is kept, and effects happen once, by an inbox.
//!
//! `cargo xtask conformance cluster` runs it and shows the figures.
#![allow(clippy::unwrap_used, clippy::expect_used)] // a test

use std::collections::BTreeMap;
use std::time::Duration;

use malote::model::{Body, BodyKind, Sessions};
use malote::once::sqlite::Sqlite;
use malote::{
    Address, Failure, Malote, Message, Meta, QueueName, QueueSpec, Retry, Running, SessionId, Tx,
    Worker,
};
use malote_services::RabbitMq;

const QUEUE: &str = "orders";
const SESSIONS: i64 = 40;
const EACH: i64 = 100;
const TOTAL: i64 = SESSIONS * EACH;
/// Messages that wait for a worker, about.
const AHEAD: i64 = 10 * SESSIONS;
/// A node dies when so many effects are there.
const KILL_AT: i64 = TOTAL / 4;
/// Without an effect for so long there is something wrong: a cluster that lost a node has to notice it first.
const STALLED: Duration = Duration::from_secs(180);
const LOOK: Duration = Duration::from_millis(50);

/// A message's session and number within it, as its body tells them. Every tenth fails the first time.
async fn handle(meta: Meta, tx: Tx<Sqlite>) -> Result<(), Failure> {
    let body = String::from_utf8(meta.message().body.bytes.to_vec()).unwrap();
    let (session, number) = body.split_once('/').expect("it was sent so");
    let (session, number): (String, i64) = (session.to_owned(), number.parse().unwrap());
    if number % 10 == 9 && meta.attempt() == 1 {
        return Err(Failure::retry("the first time it does not work"));
    }
    tx.run(move |db| {
        db.execute("insert into effects (session, number) values (?1, ?2)", (&session, number))
    })
    .await?;
    Ok(())
}

/// Every effect, in the order in which they were committed.
async fn effects(db: &Sqlite) -> Vec<(String, i64)> {
    db.run(|db| {
        let mut all = db.prepare("select session, number from effects order by rowid")?;
        all.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect()
    })
    .await
    .unwrap()
}

async fn count(db: &Sqlite) -> i64 {
    db.run(|db| db.query_row("select count(*) from effects", [], |row| row.get(0))).await.unwrap()
}

/// Sends all, the nth of every session before the next: what was not confirmed is sent once more, with the same ids.
async fn send_all(malote: Malote, db: Sqlite) -> i64 {
    let mut again = 0;
    for number in 0..EACH {
        // It sends for as long as there is work, so also while the node dies.
        while number * SESSIONS > count(&db).await + AHEAD {
            tokio::time::sleep(LOOK).await;
        }
        let message = |session: i64| {
            let text = format!("s{session}/{number}");
            Message {
                message_id: Some(text.clone()),
                session: Some(SessionId::new(&format!("s{session}")).unwrap()),
                body: Body { bytes: text.into(), kind: BodyKind::Text },
                ..Message::default()
            }
        };
        let to = Address::Queue(QueueName::new(QUEUE).unwrap());
        let batch: Vec<_> = (0..SESSIONS).map(|session| (to.clone(), message(session))).collect();
        while let Err(error) = malote.send_all(batch.clone()).await {
            let malote::Error::Broker(why) = &error else { panic!("{error}") };
            assert!(why.is_transient(), "{error}");
            again += SESSIONS;
            tokio::time::sleep(LOOK).await;
        }
    }
    again
}

async fn worker(url: &str, db: &Sqlite) -> (Malote, Running) {
    let malote = Malote::connect(url).await.unwrap();
    let retry = Retry::fixed(Duration::from_millis(20), 100);
    let worker = Worker::new(&malote, QUEUE).sessions(8).retry(retry).handle(handle);
    let running = worker.state(db.clone()).start().await.unwrap();
    (malote, running)
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_and_every_session_is_in_order_when_a_node_dies() {
    let starting = tokio::task::spawn_blocking(|| RabbitMq::cluster(3));
    let mut cluster = starting.await.unwrap().unwrap_or_else(|why| panic!("{why}"));
    let dir = tempfile::tempdir().unwrap();
    let db = Sqlite::open(dir.path().join("effects.db")).unwrap();
    db.run(|db| {
        db.execute_batch(
            "create table effects (session text, number integer, primary key (session, number))",
        )
    })
    .await
    .unwrap();

    // The first is the node that dies, for one of two workers and for whoever sends.
    let [dies, other] = [[2, 0, 1], [1, 2, 0]].map(|order| cluster.url_of_all(&order, 0));
    let sender = Malote::connect(&dies).await.unwrap();
    let spec = QueueSpec { sessions: Sessions::Dynamic, failed_max: None, ..QueueSpec::default() };
    sender.declare(QUEUE, spec).await.unwrap();
    let workers = [worker(&dies, &db).await, worker(&other, &db).await];
    let sending = tokio::spawn(send_all(sender, db.clone()));

    let (mut killed_at, mut last) = (None, 0);
    let mut since = tokio::time::Instant::now();
    loop {
        let done = count(&db).await;
        if done > last {
            (last, since) = (done, tokio::time::Instant::now());
        }
        if done >= KILL_AT && killed_at.is_none() {
            cluster.kill(2);
            killed_at = Some(done);
        }
        if done >= TOTAL && sending.is_finished() {
            break;
        }
        assert!(since.elapsed() < STALLED, "nothing happens any more: {done} of {TOTAL}");
        tokio::time::sleep(LOOK).await;
    }
    let sent_again = sending.await.unwrap();
    let (mut handled, mut retried, mut lost) = (0, 0, 0);
    for (malote, running) in workers {
        running.stop();
        let counts = running.ended().await.unwrap().counts;
        handled += counts.started;
        retried += counts.retried;
        lost += counts.lost;
        malote.close().await.unwrap();
    }

    let mut next: BTreeMap<String, i64> = BTreeMap::new();
    let mut out_of_order = 0;
    for (session, number) in effects(&db).await {
        let expected = next.entry(session).or_default();
        out_of_order += i64::from(number != *expected);
        *expected = number + 1;
    }
    let effects = count(&db).await;
    println!(
        "{TOTAL} messages in {SESSIONS} sessions, quorum queues on 3 nodes, 1 killed after {} effects; {sent_again} sent again, {handled} handled, {retried} retried, {lost} lost locks; {effects} effects, {out_of_order} out of order",
        killed_at.unwrap_or_default()
    );
    assert!(killed_at.is_some_and(|at| at < TOTAL), "the node died too late to matter");
    assert_eq!((effects, out_of_order), (TOTAL, 0));
}
