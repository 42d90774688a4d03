//! Cases beyond the contract: time, crashed workers, order.

use std::sync::Arc;
use std::time::Duration;

use malote_connectors::postgres::PostgresBroker;
use malote_connectors::{Broker, BrokerError, Delivery, Settle, Source};
use malote_model::{Changes, Message, OnExpiry, QueueSpec, Sessions, Settlement, Timestamp, When};
use tokio_postgres::Client;

use crate::cases::{Q, with_queue};
use crate::common::{LOCK, TIMEOUT, queue, session_message, text, to};
use crate::{TestEnv, client};

fn with_sessions() -> QueueSpec {
    QueueSpec { sessions: Sessions::Dynamic, ..QueueSpec::default() }
}

async fn next(broker: &dyn Broker, lock: Duration) -> Box<dyn Source> {
    broker.accept(&queue(Q), None, lock, TIMEOUT).await.unwrap().expect("no session was ready")
}

async fn one(source: &dyn Source) -> Delivery {
    let mut received = source.fetch(1, TIMEOUT).await.unwrap();
    assert_eq!(received.len(), 1, "no message arrived");
    received.remove(0)
}

fn body(delivery: &Delivery) -> &str {
    std::str::from_utf8(&delivery.message.body.bytes).unwrap()
}

async fn settle(broker: &dyn Broker, delivery: &Delivery, settlement: Settlement) {
    let item = Settle { lease: delivery.lease, settlement, state: None };
    assert_eq!(broker.settle(&queue(Q), vec![item]).await.unwrap(), [Ok(())]);
}

/// A worker whose connections can be closed for good.
struct KillableWorker {
    broker: Arc<PostgresBroker>,
    admin: Client,
}

impl KillableWorker {
    async fn new(env: &TestEnv) -> Self {
        let admin = client(&env.url).await;
        let name: String =
            admin.query_one("select current_database()::text", &[]).await.unwrap().get(0);
        let role = format!("{name}_mortal");
        admin.batch_execute(&format!("create role {role} login in role malote")).await.unwrap();
        let url = env.url.replace("//malote@", &format!("//{role}@"));
        Self { broker: Arc::new(PostgresBroker::connect(&url).await.unwrap()), admin }
    }

    /// Closes all connections and forbids new ones.
    async fn kill(&self) {
        let name: String =
            self.admin.query_one("select current_database()::text", &[]).await.unwrap().get(0);
        let role = format!("{name}_mortal");
        self.admin.batch_execute(&format!("alter role {role} nologin")).await.unwrap();
        self.close_connections(&role).await;
    }

    async fn close_connections(&self, role: &str) {
        let close_connections =
            "select pg_terminate_backend(pid) from pg_stat_activity where usename = $1";
        self.admin.query(close_connections, &[&role]).await.unwrap();
    }
}

#[tokio::test]
async fn messages_of_a_crashed_worker_are_redelivered_at_once_and_counted() {
    let env = TestEnv::new().await;
    let broker = with_queue(&env, QueueSpec::default()).await;
    let killable = KillableWorker::new(&env).await;
    broker.send(vec![(to(Q), text("x"))]).await.unwrap();
    let lost = one(&*killable.broker.open(&queue(Q), LOCK).await.unwrap()).await;
    killable.kill().await;
    // The lock lasts an hour.
    let again = one(&*broker.open(&queue(Q), LOCK).await.unwrap()).await;
    assert_eq!((again.seq, again.receives, again.failed), (lost.seq, 2, 1));
}

#[tokio::test]
async fn a_session_of_a_crashed_worker_restarts_and_counts_leased_messages() {
    let env = TestEnv::new().await;
    let broker = with_queue(&env, with_sessions()).await;
    let killable = KillableWorker::new(&env).await;
    let all = ["1", "2", "3"].map(|n| (to(Q), session_message("a", n)));
    broker.send(all.to_vec()).await.unwrap();
    let held = next(&*killable.broker, LOCK).await;
    assert_eq!(held.fetch(2, TIMEOUT).await.unwrap().len(), 2);
    killable.kill().await;
    let again = next(&*broker, LOCK).await;
    assert!(again.held().unwrap().epoch > held.held().unwrap().epoch);
    let received = again.fetch(3, TIMEOUT).await.unwrap();
    let seen: Vec<_> = received.iter().map(|d| (body(d), d.receives, d.failed)).collect();
    assert_eq!(seen, [("1", 2, 1), ("2", 2, 1), ("3", 1, 0)]);
}

#[tokio::test]
async fn a_broken_connection_is_reopened() {
    let env = TestEnv::new().await;
    let broker = with_queue(&env, QueueSpec::default()).await;
    let source = broker.open(&queue(Q), LOCK).await.unwrap();
    let admin = client(&env.url).await;
    broker.send(vec![(to(Q), text("x"))]).await.unwrap();
    let close_connections = "select pg_terminate_backend(pid) from pg_stat_activity \
               where datname = current_database() and pid <> pg_backend_pid()";
    admin.query(close_connections, &[]).await.unwrap();
    // Pending calls fail with transient errors, and later ones succeed.
    let mut received = Vec::new();
    while received.is_empty() {
        match source.fetch(1, TIMEOUT).await {
            Ok(some) => received = some,
            Err(error) => {
                assert!(error.is_transient(), "{error}");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }
    loop {
        match broker.send(vec![(to(Q), text("y"))]).await {
            Ok(_) => break,
            Err(error) => assert!(error.is_transient(), "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    loop {
        let done =
            broker.settle(&queue(Q), vec![Settle::complete(received[0].lease)]).await.unwrap();
        match &done[0] {
            Ok(()) | Err(BrokerError::LockLost) => break,
            Err(error) => assert!(error.is_transient(), "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn an_expired_hold_can_be_taken_over() {
    let env = TestEnv::new().await;
    let broker = with_queue(&env, with_sessions()).await;
    broker
        .send(vec![(to(Q), session_message("a", "1")), (to(Q), session_message("a", "2"))])
        .await
        .unwrap();
    let first = next(&*broker, Duration::from_millis(1)).await;
    let other = env.connect().await;
    let second = next(&*other, LOCK).await;
    assert_eq!(first.fetch(1, TIMEOUT).await, Err(BrokerError::LockLost));
    let received = second.fetch(2, TIMEOUT).await.unwrap();
    assert_eq!(received.iter().map(body).collect::<Vec<_>>(), ["1", "2"]);
    // Also by name.
    second.close().await.unwrap();
    let first = next(&*broker, Duration::from_millis(1)).await;
    loop {
        match other.accept(&queue(Q), first.held().map(|h| h.session.clone()), LOCK, LOCK).await {
            Ok(Some(_)) => break,
            Ok(None) => panic!("accepting a named session cannot return none"),
            Err(error) => assert!(error.to_string().contains("held by another"), "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_message_that_fails_too_often_becomes_a_dead_letter() {
    let env = TestEnv::new().await;
    let spec = QueueSpec { failed_max: Some(2), ..QueueSpec::default() };
    let broker = with_queue(&env, spec).await;
    let source = broker.open(&queue(Q), LOCK).await.unwrap();
    let short = broker.open(&queue(Q), Duration::from_millis(1)).await.unwrap();
    for name in ["abandoned", "ran out"] {
        broker.send(vec![(to(Q), text(name))]).await.unwrap();
        let received = one(&*source).await;
        let again = Settlement::Abandon { delay_ms: 0, changes: Changes::default() };
        settle(&*broker, &received, again.clone()).await;
        if name == "abandoned" {
            settle(&*broker, &one(&*source).await, again).await;
        } else {
            one(&*short).await;
            // An expired lease is found by the next claim.
            tokio::time::sleep(Duration::from_millis(50)).await;
            let rest = source.fetch(1, Duration::from_millis(20)).await.unwrap();
            assert_eq!(rest, []);
        }
        let letters = broker.open(&queue(Q).dead_letters(), LOCK).await.unwrap();
        let letter = one(&*letters).await;
        let (reason, why) = letter.dead.clone().unwrap();
        assert_eq!((body(&letter), reason.as_str()), (name, "MaxDeliveryCountExceeded"));
        assert_eq!(why, "failed 2 times; the queue allows 2 (failed_max)");
        let done = vec![Settle::complete(letter.lease)];
        assert_eq!(broker.settle(&queue(Q).dead_letters(), done).await.unwrap(), [Ok(())]);
    }
}

#[tokio::test]
async fn a_scheduled_message_has_no_position_before_it_is_due() {
    let env = TestEnv::new().await;
    let broker = with_queue(&env, with_sessions()).await;
    let later = Message { when: When::At(Timestamp(1)), ..session_message("a", "later") };
    broker.send(vec![(to(Q), later), (to(Q), session_message("a", "now"))]).await.unwrap();
    let a = next(&*broker, LOCK).await;
    assert_eq!(body(&one(&*a).await), "now");
    assert_eq!(body(&one(&*a).await), "later");
}

#[tokio::test]
async fn an_expired_message_of_a_session_becomes_a_dead_letter() {
    let env = TestEnv::new().await;
    let spec = QueueSpec { on_expiry: OnExpiry::DeadLetter, ..with_sessions() };
    let broker = with_queue(&env, spec).await;
    let short = Message { ttl_ms: Some(1), ..session_message("a", "short") };
    broker.send(vec![(to(Q), short), (to(Q), session_message("a", "long"))]).await.unwrap();
    let letters = broker.open(&queue(Q).dead_letters(), LOCK).await.unwrap();
    let letter = one(&*letters).await;
    assert_eq!(letter.dead.clone().unwrap().0, "TTLExpiredException");
    assert_eq!(body(&letter), "short");
    assert_eq!(body(&one(&*next(&*broker, LOCK).await).await), "long");
}

#[tokio::test]
async fn higher_priorities_come_first() {
    let env = TestEnv::new().await;
    let broker = with_queue(&env, QueueSpec { priority_max: 5, ..QueueSpec::default() }).await;
    let all =
        [0, 200, 5, 1].map(|priority| (to(Q), Message { priority, ..text(&priority.to_string()) }));
    broker.send(all.to_vec()).await.unwrap();
    let source = broker.open(&queue(Q), LOCK).await.unwrap();
    let received = source.fetch(4, TIMEOUT).await.unwrap();
    assert_eq!(received.iter().map(body).collect::<Vec<_>>(), ["200", "5", "1", "0"]);
}

/// Several processes send to the same sessions while they are drained.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sends_after_an_answer_come_later() {
    const SENDERS: usize = 4;
    const EACH: usize = 40;
    let env = TestEnv::new().await;
    let broker = with_queue(&env, with_sessions()).await;
    let mut senders = tokio::task::JoinSet::new();
    for sender in 0..SENDERS {
        let broker = env.connect().await;
        senders.spawn(async move {
            for index in 0..EACH {
                // Both sessions in one transaction, in a different order for every other sender.
                let mut all = vec![
                    (to(Q), session_message("a", &format!("{sender} {index}"))),
                    (to(Q), session_message("b", &format!("{sender} {index}"))),
                ];
                if sender % 2 == 0 {
                    all.reverse();
                }
                broker.send(all).await.unwrap();
            }
        });
    }
    let mut seen = std::collections::HashMap::new();
    let mut count = 0;
    while count < SENDERS * EACH * 2 {
        let source = next(&*broker, LOCK).await;
        let session = source.held().unwrap().session.to_string();
        let received = source.fetch(10, TIMEOUT).await.unwrap();
        for delivery in &received {
            let (sender, index) = body(delivery).split_once(' ').unwrap();
            let index: usize = index.parse().unwrap();
            let last = seen.insert((session.clone(), sender.to_owned()), index);
            assert_eq!(last.map_or(0, |last| last + 1), index, "{session} {sender}");
        }
        let done = received.iter().map(|delivery| Settle::complete(delivery.lease)).collect();
        assert!(broker.settle(&queue(Q), done).await.unwrap().iter().all(Result::is_ok));
        count += received.len();
        source.close().await.unwrap();
    }
    while let Some(sent) = senders.join_next().await {
        sent.unwrap();
    }
    // Empty sessions are deleted.
    let sql = client(&env.url).await;
    let left: i64 = sql
        .query_one("select count(*) from malote.sessions where queue <> 0", &[])
        .await
        .unwrap()
        .get(0);
    assert_eq!(left, 0);
}

#[tokio::test]
async fn an_unsupported_setting_is_refused_by_name() {
    let env = TestEnv::new().await;
    let broker = env.connect().await;
    let spec = QueueSpec { length_max: Some(5), ..QueueSpec::default() };
    let error = broker.declare(&queue(Q), spec).await.unwrap_err().to_string();
    assert!(error.starts_with("PostgreSQL has no length_max: leave this setting"), "{error}");
    broker.declare(&queue(Q), with_sessions()).await.unwrap();
    let Err(error) = broker.open(&queue(Q), LOCK).await else { panic!("open must fail") };
    assert!(matches!(error, BrokerError::Refused { code, .. } if code == "session_required"));
}
