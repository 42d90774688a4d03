//! What the contract does not ask: time, death, and who comes first.

use std::sync::Arc;
use std::time::Duration;

use malote_connectors::postgres::Postgres;
use malote_connectors::{Broker, BrokerError, Delivery, Settle, Source};
use malote_model::{Changes, Message, OnExpiry, QueueSpec, Sessions, Settlement, Timestamp, When};
use tokio_postgres::Client;

use crate::cases::{Q, with_queue};
use crate::common::{LOCK, PATIENCE, of_session, queue, text, to};
use crate::{World, client};

fn with_sessions() -> QueueSpec {
    QueueSpec { sessions: Sessions::Dynamic, ..QueueSpec::default() }
}

async fn next(broker: &dyn Broker, lock: Duration) -> Box<dyn Source> {
    broker.accept(&queue(Q), None, lock, PATIENCE).await.unwrap().expect("no session was ready")
}

async fn one(source: &dyn Source) -> Delivery {
    let mut got = source.fetch(1, PATIENCE).await.unwrap();
    assert_eq!(got.len(), 1, "nothing came");
    got.remove(0)
}

fn body(delivery: &Delivery) -> &str {
    std::str::from_utf8(&delivery.message.body.bytes).unwrap()
}

async fn settle(broker: &dyn Broker, delivery: &Delivery, settlement: Settlement) {
    let item = Settle { lease: delivery.lease, settlement, state: None };
    assert_eq!(broker.settle(&queue(Q), vec![item]).await.unwrap(), [Ok(())]);
}

/// Somebody who can be made to vanish.
struct Mortal {
    broker: Arc<Postgres>,
    admin: Client,
}

impl Mortal {
    async fn new(world: &World) -> Self {
        let admin = client(&world.url).await;
        let name: String =
            admin.query_one("select current_database()::text", &[]).await.unwrap().get(0);
        let role = format!("{name}_mortal");
        admin.batch_execute(&format!("create role {role} login in role malote")).await.unwrap();
        let url = world.url.replace("//malote@", &format!("//{role}@"));
        Self { broker: Arc::new(Postgres::connect(&url).await.unwrap()), admin }
    }

    /// All its connections end, and it gets no others.
    async fn vanish(&self) {
        let name: String =
            self.admin.query_one("select current_database()::text", &[]).await.unwrap().get(0);
        let role = format!("{name}_mortal");
        self.admin.batch_execute(&format!("alter role {role} nologin")).await.unwrap();
        self.cut(&role).await;
    }

    async fn cut(&self, role: &str) {
        let cut = "select pg_terminate_backend(pid) from pg_stat_activity where usename = $1";
        self.admin.query(cut, &[&role]).await.unwrap();
    }
}

#[tokio::test]
async fn leases_of_a_worker_that_vanished_go_on_at_once_and_count() {
    let world = World::new().await;
    let broker = with_queue(&world, QueueSpec::default()).await;
    let mortal = Mortal::new(&world).await;
    broker.send(vec![(to(Q), text("x"))]).await.unwrap();
    let lost = one(&*mortal.broker.open(&queue(Q), LOCK).await.unwrap()).await;
    mortal.vanish().await;
    // An hour before its lock ends.
    let again = one(&*broker.open(&queue(Q), LOCK).await.unwrap()).await;
    assert_eq!((again.seq, again.receives, again.failed), (lost.seq, 2, 1));
}

#[tokio::test]
async fn a_session_of_a_worker_that_vanished_begins_again_and_counts_what_was_out() {
    let world = World::new().await;
    let broker = with_queue(&world, with_sessions()).await;
    let mortal = Mortal::new(&world).await;
    let all = ["1", "2", "3"].map(|n| (to(Q), of_session("a", n)));
    broker.send(all.to_vec()).await.unwrap();
    let held = next(&*mortal.broker, LOCK).await;
    assert_eq!(held.fetch(2, PATIENCE).await.unwrap().len(), 2);
    mortal.vanish().await;
    let again = next(&*broker, LOCK).await;
    assert!(again.held().unwrap().epoch > held.held().unwrap().epoch);
    let got = again.fetch(3, PATIENCE).await.unwrap();
    let seen: Vec<_> = got.iter().map(|d| (body(d), d.receives, d.failed)).collect();
    assert_eq!(seen, [("1", 2, 1), ("2", 2, 1), ("3", 1, 0)]);
}

#[tokio::test]
async fn a_connection_that_breaks_is_made_again() {
    let world = World::new().await;
    let broker = with_queue(&world, QueueSpec::default()).await;
    let source = broker.open(&queue(Q), LOCK).await.unwrap();
    let admin = client(&world.url).await;
    broker.send(vec![(to(Q), text("x"))]).await.unwrap();
    let cut = "select pg_terminate_backend(pid) from pg_stat_activity \
               where datname = current_database() and pid <> pg_backend_pid()";
    admin.query(cut, &[]).await.unwrap();
    // Whatever was under way is told so; sooner or later all goes on.
    let mut got = Vec::new();
    while got.is_empty() {
        match source.fetch(1, PATIENCE).await {
            Ok(some) => got = some,
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
        let done = broker.settle(&queue(Q), vec![Settle::complete(got[0].lease)]).await.unwrap();
        match &done[0] {
            Ok(()) | Err(BrokerError::LockLost) => break,
            Err(error) => assert!(error.is_transient(), "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn a_hold_that_runs_out_is_somebody_elses() {
    let world = World::new().await;
    let broker = with_queue(&world, with_sessions()).await;
    broker.send(vec![(to(Q), of_session("a", "1")), (to(Q), of_session("a", "2"))]).await.unwrap();
    let first = next(&*broker, Duration::from_millis(1)).await;
    let other = world.connect().await;
    let second = next(&*other, LOCK).await;
    assert_eq!(first.fetch(1, PATIENCE).await, Err(BrokerError::LockLost));
    let got = second.fetch(2, PATIENCE).await.unwrap();
    assert_eq!(got.iter().map(body).collect::<Vec<_>>(), ["1", "2"]);
    // By its name, too.
    second.close().await.unwrap();
    let first = next(&*broker, Duration::from_millis(1)).await;
    loop {
        match other.accept(&queue(Q), first.held().map(|h| h.session.clone()), LOCK, LOCK).await {
            Ok(Some(_)) => break,
            Ok(None) => panic!("a session by its name is there or held"),
            Err(error) => assert!(error.to_string().contains("held by another"), "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn at_the_limit_of_failures_a_message_is_a_dead_letter() {
    let world = World::new().await;
    let spec = QueueSpec { failed_max: Some(2), ..QueueSpec::default() };
    let broker = with_queue(&world, spec).await;
    let source = broker.open(&queue(Q), LOCK).await.unwrap();
    let short = broker.open(&queue(Q), Duration::from_millis(1)).await.unwrap();
    for name in ["abandoned", "ran out"] {
        broker.send(vec![(to(Q), text(name))]).await.unwrap();
        let got = one(&*source).await;
        let again = Settlement::Abandon { delay_ms: 0, changes: Changes::default() };
        settle(&*broker, &got, again.clone()).await;
        if name == "abandoned" {
            settle(&*broker, &one(&*source).await, again).await;
        } else {
            one(&*short).await;
            // It is found when somebody looks, and not before its lock is over.
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
async fn what_is_sent_for_later_holds_no_place_before() {
    let world = World::new().await;
    let broker = with_queue(&world, with_sessions()).await;
    let later = Message { when: When::At(Timestamp(1)), ..of_session("a", "later") };
    broker.send(vec![(to(Q), later), (to(Q), of_session("a", "now"))]).await.unwrap();
    let a = next(&*broker, LOCK).await;
    assert_eq!(body(&one(&*a).await), "now");
    assert_eq!(body(&one(&*a).await), "later");
}

#[tokio::test]
async fn what_expires_goes_where_its_queue_says() {
    let world = World::new().await;
    let spec = QueueSpec { on_expiry: OnExpiry::DeadLetter, ..with_sessions() };
    let broker = with_queue(&world, spec).await;
    let short = Message { ttl_ms: Some(1), ..of_session("a", "short") };
    broker.send(vec![(to(Q), short), (to(Q), of_session("a", "long"))]).await.unwrap();
    let letters = broker.open(&queue(Q).dead_letters(), LOCK).await.unwrap();
    let letter = one(&*letters).await;
    assert_eq!(letter.dead.clone().unwrap().0, "TTLExpiredException");
    assert_eq!(body(&letter), "short");
    assert_eq!(body(&one(&*next(&*broker, LOCK).await).await), "long");
}

#[tokio::test]
async fn higher_priorities_come_first() {
    let world = World::new().await;
    let broker = with_queue(&world, QueueSpec { priority_max: 5, ..QueueSpec::default() }).await;
    let all =
        [0, 200, 5, 1].map(|priority| (to(Q), Message { priority, ..text(&priority.to_string()) }));
    broker.send(all.to_vec()).await.unwrap();
    let source = broker.open(&queue(Q), LOCK).await.unwrap();
    let got = source.fetch(4, PATIENCE).await.unwrap();
    assert_eq!(got.iter().map(body).collect::<Vec<_>>(), ["200", "5", "1", "0"]);
}

/// Each sends one after the other, to sessions that all share, while they are drained.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_sends_after_an_answer_comes_behind_it() {
    const SENDERS: usize = 4;
    const EACH: usize = 40;
    let world = World::new().await;
    let broker = with_queue(&world, with_sessions()).await;
    let mut senders = tokio::task::JoinSet::new();
    for sender in 0..SENDERS {
        let broker = world.connect().await;
        senders.spawn(async move {
            for nth in 0..EACH {
                // Both in one transaction, each sender in another order.
                let mut all = vec![
                    (to(Q), of_session("a", &format!("{sender} {nth}"))),
                    (to(Q), of_session("b", &format!("{sender} {nth}"))),
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
        let got = source.fetch(10, PATIENCE).await.unwrap();
        for delivery in &got {
            let (sender, nth) = body(delivery).split_once(' ').unwrap();
            let nth: usize = nth.parse().unwrap();
            let last = seen.insert((session.clone(), sender.to_owned()), nth);
            assert_eq!(last.map_or(0, |last| last + 1), nth, "{session} {sender}");
        }
        let done = got.iter().map(|delivery| Settle::complete(delivery.lease)).collect();
        assert!(broker.settle(&queue(Q), done).await.unwrap().iter().all(Result::is_ok));
        count += got.len();
        source.close().await.unwrap();
    }
    while let Some(sent) = senders.join_next().await {
        sent.unwrap();
    }
    // A session with nothing in it is nothing.
    let sql = client(&world.url).await;
    let left: i64 = sql
        .query_one("select count(*) from malote.sessions where queue <> 0", &[])
        .await
        .unwrap()
        .get(0);
    assert_eq!(left, 0);
}

#[tokio::test]
async fn a_setting_that_would_not_be_kept_is_refused_by_its_name() {
    let world = World::new().await;
    let broker = world.connect().await;
    let spec = QueueSpec { length_max: Some(5), ..QueueSpec::default() };
    let error = broker.declare(&queue(Q), spec).await.unwrap_err().to_string();
    assert!(error.starts_with("PostgreSQL has no length_max: leave this setting"), "{error}");
    broker.declare(&queue(Q), with_sessions()).await.unwrap();
    let Err(error) = broker.open(&queue(Q), LOCK).await else { panic!("it has sessions") };
    assert!(matches!(error, BrokerError::Refused { code, .. } if code == "session_required"));
}
