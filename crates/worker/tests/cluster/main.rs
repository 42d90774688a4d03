//! Workers on a RabbitMQ cluster of three nodes, of which one is killed. No message is lost, the order of every session
//! is kept, and an inbox makes effects happen once.
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
/// The approximate number of waiting messages.
const BACKLOG: i64 = 10 * SESSIONS;
/// A node is killed after this number of effects.
const KILL_AT: i64 = TOTAL / 4;
/// The test fails after this time without an effect. A cluster needs some time to notice a lost node.
const STALLED: Duration = Duration::from_secs(180);
const POLL: Duration = Duration::from_millis(50);

/// Records the session and number in the body. Every tenth message fails at the first attempt.
async fn handle(meta: Meta, tx: Tx<Sqlite>) -> Result<(), Failure> {
    let body = String::from_utf8(meta.message().body.bytes.to_vec()).unwrap();
    let (session, number) = body.split_once('/').expect("the body is SESSION/NUMBER");
    let (session, number): (String, i64) = (session.to_owned(), number.parse().unwrap());
    if number % 10 == 9 && meta.attempt() == 1 {
        return Err(Failure::retry("the first attempt fails"));
    }
    tx.run(move |db| {
        db.execute("insert into effects (session, number) values (?1, ?2)", (&session, number))
    })
    .await?;
    Ok(())
}

/// All effects in commit order.
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

/// Sends all messages, one of each session at a time. Unconfirmed messages are sent sent_again with the same ids.
/// Returns how many were sent sent_again.
async fn send_all(malote: Malote, db: Sqlite) -> i64 {
    let mut sent_again = 0;
    for number in 0..EACH {
        // Spread the sends over the whole test, so that some happen while the node is killed.
        while number * SESSIONS > count(&db).await + BACKLOG {
            tokio::time::sleep(POLL).await;
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
            let malote::Error::Broker(cause) = &error else { panic!("{error}") };
            assert!(cause.is_transient(), "{error}");
            if sent_again % (100 * SESSIONS) == 0 {
                println!("sent sent_again: {error}");
            }
            sent_again += SESSIONS;
            tokio::time::sleep(POLL).await;
        }
    }
    sent_again
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
    let mut cluster = starting.await.unwrap().unwrap_or_else(|error| panic!("{error}"));
    let dir = tempfile::tempdir().unwrap();
    let db = Sqlite::open(dir.path().join("effects.db")).unwrap();
    db.run(|db| {
        db.execute_batch(
            "create table effects (session text, number integer, primary key (session, number))",
        )
    })
    .await
    .unwrap();

    // The sender and one of the two workers connect to the node that is killed.
    let [killed_first, other] = [[2, 0, 1], [1, 2, 0]].map(|order| cluster.url_of_all(&order, 0));
    let sender = Malote::connect(&killed_first).await.unwrap();
    let spec = QueueSpec { sessions: Sessions::Dynamic, failed_max: None, ..QueueSpec::default() };
    sender.declare(QUEUE, spec).await.unwrap();
    let workers = [worker(&killed_first, &db).await, worker(&other, &db).await];
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
        let slots = workers.each_ref().map(|(_, running)| (running.busy(), running.idle()));
        assert!(
            since.elapsed() < STALLED,
            "no effect for {STALLED:?}: {done} of {TOTAL}, busy and idle slots {slots:?}"
        );
        tokio::time::sleep(POLL).await;
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
        "{TOTAL} messages in {SESSIONS} sessions, quorum queues on 3 nodes, 1 killed after {} effects; {sent_again} sent sent_again, {handled} handled, {retried} retried, {lost} lost locks; {effects} effects, {out_of_order} out of order",
        killed_at.unwrap_or_default()
    );
    assert!(killed_at.is_some_and(|at| at < TOTAL), "the node was killed too late");
    assert_eq!((effects, out_of_order), (TOTAL, 0));
}
