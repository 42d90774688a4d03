//! What only this broker can show.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use lapin::options::{BasicConsumeOptions, BasicPublishOptions, QueueDeclareOptions};
use lapin::types::FieldTable;
use lapin::{BasicProperties, Connection, ConnectionProperties};
use malote_connectors::rabbitmq::RabbitMq;
use malote_connectors::{Broker, BrokerError, Delivery, Settle, Source};
use malote_model::{
    Changes, Message, Overflow, QueueSpec, Sessions, Settlement, Timestamp, Value, When,
};

use crate::World;
use crate::cases::{Q, refused, with_queue};
use crate::common::wire::Wire;
use crate::common::{LOCK, NOW, PATIENCE, of_session, queue, session, text, to};

fn dynamic() -> QueueSpec {
    QueueSpec { sessions: Sessions::Dynamic, ..QueueSpec::default() }
}

async fn next(broker: &dyn Broker) -> Box<dyn Source> {
    let accepted = broker.accept(&queue(Q), None, LOCK, PATIENCE).await.unwrap();
    accepted.expect("no session was ready")
}

async fn one(source: &dyn Source) -> Delivery {
    source.fetch(1, PATIENCE).await.unwrap().into_iter().next().expect("nothing came")
}

fn body(delivery: &Delivery) -> String {
    String::from_utf8(delivery.message.body.bytes.to_vec()).unwrap()
}

async fn settle(broker: &dyn Broker, lease: &Delivery, settlement: Settlement) {
    let item = Settle { lease: lease.lease, settlement, state: None };
    assert_eq!(broker.settle(&queue(Q), vec![item]).await.unwrap(), [Ok(())]);
}

fn abandon(delay_ms: u64) -> Settlement {
    Settlement::Abandon { delay_ms, changes: Changes::default() }
}

/// A client that knows nothing of Malote.
async fn stranger(world: &World) -> lapin::Channel {
    let url = world.url.split('?').next().unwrap();
    let connection = Connection::connect(url, ConnectionProperties::default()).await.unwrap();
    connection.create_channel().await.unwrap()
}

#[tokio::test]
async fn other_partitions_are_refused_with_what_to_write() {
    let world = World::new().await;
    with_queue(&world, dynamic()).await;
    let other = RabbitMq::connect(&world.url.replace("=4", "=8")).await.unwrap();
    let Err(error) = other.declare(&queue(Q), dynamic()).await else { panic!("it was taken") };
    assert!(error.to_string().contains("?partitions=4"), "{error}");
    // Whoever only uses the queue takes it as it was made.
    other.send(vec![(to(Q), of_session("a", "1"))]).await.unwrap();
    assert_eq!(body(&one(&*next(&other).await).await), "1");
    assert_eq!(refused(other.open(&queue(Q), LOCK).await), "session_required");
    let sent = other.send(vec![(to(Q), text("no session"))]).await;
    assert_eq!(refused(sent), "session_required");
}

#[tokio::test]
async fn a_full_queue_refuses_and_says_so() {
    let world = World::new().await;
    let spec =
        QueueSpec { length_max: Some(1), overflow: Overflow::Reject, ..QueueSpec::default() };
    let broker = with_queue(&world, spec).await;
    // The limit is checked after the fact: some more may get in.
    let full = async {
        loop {
            match broker.send(vec![(to(Q), text("x"))]).await {
                Ok(_) => {}
                Err(error) => return error,
            }
        }
    };
    let error = tokio::time::timeout(PATIENCE, full).await.unwrap();
    assert!(matches!(error, BrokerError::Busy { .. }), "{error:?}");
}

#[tokio::test]
async fn what_others_sent_has_a_session_and_every_field() {
    let world = World::new().await;
    let broker = with_queue(&world, dynamic()).await;
    let channel = stranger(&world).await;
    let mut headers = FieldTable::default();
    headers.insert("n".into(), lapin::types::AMQPValue::ShortShortInt(3));
    let properties = BasicProperties::default().with_message_id("m".into()).with_headers(headers);
    let options = BasicPublishOptions::default();
    let sent = channel.basic_publish(Q.into(), "ana".into(), options, b"1", properties).await;
    sent.unwrap();
    let source = next(&*broker).await;
    assert_eq!(source.held().unwrap().session.as_str(), "ana");
    let got = one(&*source).await;
    assert_eq!((got.message.message_id.as_deref(), got.failed, got.receives), (Some("m"), 0, 1));
    assert_eq!(got.message.properties.get("n"), Some(&Value::I8(3)));

    // A queue that somebody else made, of another kind.
    let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    channel.queue_declare("theirs".into(), durable, FieldTable::default()).await.unwrap();
    broker.send(vec![(to("theirs"), text("2"))]).await.unwrap();
    let source = broker.open(&queue("theirs"), LOCK).await.unwrap();
    let got = one(&*source).await;
    let dead = Settlement::DeadLetter {
        reason: "Why".into(),
        text: String::new(),
        changes: Changes::default(),
    };
    let item = Settle { lease: got.lease, settlement: dead, state: None };
    assert_eq!(broker.settle(&queue("theirs"), vec![item]).await.unwrap(), [Ok(())]);
    let letters = broker.open(&queue("theirs").dead_letters(), LOCK).await.unwrap();
    assert_eq!(one(&*letters).await.dead, Some(("Why".into(), String::new())));
}

#[tokio::test]
async fn a_session_message_that_failed_too_often_is_a_dead_letter_and_the_next_goes_on() {
    let world = World::new().await;
    let broker = with_queue(&world, QueueSpec { failed_max: Some(2), ..dynamic() }).await;
    broker.send(["1", "2"].map(|n| (to(Q), of_session("a", n))).to_vec()).await.unwrap();
    for expected in [0, 1] {
        let source = next(&*broker).await;
        let got = one(&*source).await;
        assert_eq!((body(&got).as_str(), got.failed), ("1", expected));
        settle(&*broker, &got, abandon(1)).await;
    }
    let source = next(&*broker).await;
    assert_eq!(body(&one(&*source).await), "2");
    let letters = broker.open(&queue(Q).dead_letters(), LOCK).await.unwrap();
    let letter = one(&*letters).await;
    assert_eq!(letter.dead.as_ref().unwrap().0, "MaxDeliveryCountExceeded");
    assert_eq!(letter.message.session, Some(session("a")));
}

#[tokio::test]
async fn a_delay_keeps_its_place_and_a_time_does_not() {
    let world = World::new().await;
    let broker = with_queue(&world, dynamic()).await;
    let delayed = Message { when: When::Delay(200), ..of_session("a", "1") };
    broker.send(vec![(to(Q), delayed), (to(Q), of_session("a", "2"))]).await.unwrap();
    let source = next(&*broker).await;
    let first = one(&*source).await;
    assert_eq!([body(&first), body(&one(&*source).await)], ["1", "2"]);
    drop(source);
    // Long past is at once; a little later goes through places where it waits.
    let at = |body, at| Message { when: When::At(Timestamp(at)), ..of_session("b", body) };
    let soon = first.enqueued_at.0 + 1500;
    broker.send(vec![(to(Q), at("later", soon)), (to(Q), at("now", 1))]).await.unwrap();
    let source =
        broker.accept(&queue(Q), Some(session("b")), LOCK, PATIENCE).await.unwrap().unwrap();
    let (now, later) = (one(&*source).await, one(&*source).await);
    assert_eq!([body(&now), body(&later)], ["now", "later"]);
    assert_eq!((later.failed, later.receives), (0, 1));
    let long = Message { when: When::Delay(3_600_000), ..of_session("a", "3") };
    let refused = broker.send(vec![(to(Q), long)]).await;
    assert!(matches!(refused, Err(BrokerError::Unsupported { .. })), "{refused:?}");
}

#[tokio::test]
async fn an_expired_message_becomes_a_dead_letter_where_that_is_asked_for() {
    let world = World::new().await;
    let on_expiry = malote_model::OnExpiry::DeadLetter;
    let spec = QueueSpec { ttl_ms: Some(1), on_expiry, ..QueueSpec::default() };
    let broker = with_queue(&world, spec).await;
    broker.send(vec![(to(Q), text("x"))]).await.unwrap();
    let letters = broker.open(&queue(Q).dead_letters(), LOCK).await.unwrap();
    assert_eq!(one(&*letters).await.dead.unwrap().0, "TTLExpiredException");
}

/// A wire to the server's port, and the URL through it.
async fn through_a_wire(world: &World) -> (Wire, String) {
    let (start, rest) = world.url.split_once('@').unwrap();
    let (at, rest) = rest.split_once('/').unwrap();
    let wire = Wire::to(at.parse().unwrap()).await;
    let url = format!("{start}@{}/{rest}", wire.at);
    (wire, url)
}

#[tokio::test]
async fn a_lost_connection_loses_what_was_in_hand_and_comes_back() {
    let world = World::new().await;
    let direct = with_queue(&world, dynamic()).await;
    direct.declare(&queue("plain"), QueueSpec::default()).await.unwrap();
    let (wire, url) = through_a_wire(&world).await;
    let broker = RabbitMq::connect(&url).await.unwrap();
    broker.send(["1", "2"].map(|n| (to(Q), of_session("a", n))).to_vec()).await.unwrap();
    broker.send(vec![(to("plain"), text("x"))]).await.unwrap();
    let (held, source) = (next(&broker).await, broker.open(&queue("plain"), LOCK).await.unwrap());
    let (in_session, alone) = (one(&*held).await, one(&*source).await);
    wire.cut(false);
    assert_eq!(
        held.fetch(1, PATIENCE).await.map(drop).and(held.fetch(1, PATIENCE).await),
        Err(BrokerError::LockLost)
    );
    for (of, lease) in [(Q, &in_session), ("plain", &alone)] {
        let late = broker.settle(&queue(of), vec![Settle::complete(lease.lease)]).await.unwrap();
        assert_eq!(late, [Err(BrokerError::LockLost)]);
        let renewed = broker.renew(&queue(of), vec![lease.lease], LOCK).await.unwrap();
        assert_eq!(renewed, [Err(BrokerError::LockLost)]);
    }
    let unreachable = broker.send(vec![(to("plain"), text("y"))]).await;
    assert!(unreachable.is_err_and(|error| error.is_transient()));
    wire.cut(true);
    // The source goes on by itself, and so does the broker.
    let again = loop {
        match source.fetch(1, PATIENCE).await {
            Ok(got) => break got,
            Err(error) => assert!(error.is_transient(), "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert_eq!((body(&again[0]).as_str(), again[0].receives), ("x", 2));
    let held = loop {
        match broker.accept(&queue(Q), None, LOCK, PATIENCE).await {
            Ok(Some(held)) => break held,
            Ok(None) => panic!("the session is not ready"),
            Err(error) => assert!(error.is_transient(), "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let first = one(&*held).await;
    assert_eq!([body(&first), body(&one(&*held).await)], ["1", "2"]);
    settle(&broker, &first, Settlement::Complete).await;
}

/// Works on sessions until it has seen `stop`; says what it handled, in order.
async fn work(
    broker: Arc<RabbitMq>,
    count: usize,
    to: tokio::sync::mpsc::Sender<(String, u32, usize)>,
) {
    loop {
        let source = match broker.accept(&queue(Q), None, LOCK, Duration::from_secs(1)).await {
            Ok(Some(source)) => source,
            Ok(None) => continue,
            Err(error) => panic!("{error}"),
        };
        let name = source.held().unwrap().session.as_str().to_owned();
        // A few of each, so that every session goes from hand to hand.
        let Ok(got) = source.fetch(3, NOW).await else { continue };
        for delivery in got {
            let number = body(&delivery).parse().unwrap();
            // The third of each fails once.
            let outcome = match number {
                2 if delivery.failed == 0 => abandon(5),
                _ => Settlement::Complete,
            };
            let done = outcome == Settlement::Complete;
            let item = Settle { lease: delivery.lease, settlement: outcome, state: None };
            let settled = broker.settle(&queue(Q), vec![item]).await.unwrap().remove(0);
            if settled.is_err() || !done {
                break; // it was given to another, or the session waits
            }
            if to.send((name.clone(), number, count)).await.is_err() {
                return;
            }
        }
    }
}

/// Many sessions, and a second program that joins: order is kept through retries and through the hand-over, nothing is
/// lost, and both have something to do.
#[tokio::test]
async fn two_programs_share_the_sessions_in_order() {
    const SESSIONS: u32 = 24;
    const EACH: u32 = 40;
    let world = World::new().await;
    let broker = with_queue(&world, dynamic()).await;
    let (to_us, mut seen) = tokio::sync::mpsc::channel(16);
    let mut next: HashMap<String, u32> = HashMap::new();
    let mut by = [0, 0];
    let mut tasks = tokio::task::JoinSet::new();
    let mut programs = Vec::new();
    for (which, part) in [(0, 0..EACH / 2), (1, EACH / 2..EACH)] {
        let program = Arc::new(RabbitMq::connect(&world.url).await.unwrap());
        for _ in 0..4 {
            tasks.spawn(work(program.clone(), which, to_us.clone()));
        }
        programs.push(program);
        let mut wanted = 0;
        for number in part {
            let all =
                (0..SESSIONS).map(|s| (to(Q), of_session(&format!("s{s}"), &number.to_string())));
            broker.send(all.collect()).await.unwrap();
            wanted += SESSIONS;
        }
        for _ in 0..wanted {
            let (name, number, by_whom) =
                tokio::time::timeout(PATIENCE, seen.recv()).await.unwrap().unwrap();
            let expected = next.entry(name.clone()).or_default();
            // Seen again is allowed after a hand-over; skipped is not.
            assert!(number <= *expected, "{name}: {number} came before {expected}");
            *expected = (number + 1).max(*expected);
            by[by_whom] += 1;
        }
    }
    while next.values().any(|number| *number < EACH) {
        let (name, number, _) = tokio::time::timeout(PATIENCE, seen.recv()).await.unwrap().unwrap();
        let expected = next.entry(name).or_default();
        assert!(number <= *expected);
        *expected = (number + 1).max(*expected);
    }
    // The second gets its share as long as there is work.
    let mut more = EACH;
    let shared = async {
        while by[1] == 0 {
            let number = more.to_string();
            let all = (0..SESSIONS).map(|s| (to(Q), of_session(&format!("s{s}"), &number)));
            broker.send(all.collect()).await.unwrap();
            for _ in 0..SESSIONS {
                by[seen.recv().await.unwrap().2] += 1;
            }
            more += 1;
        }
    };
    tokio::time::timeout(PATIENCE, shared).await.unwrap();
    drop(seen);
    tasks.shutdown().await;
}

/// Sessions that are held and have nothing to do keep no partition from a program that joins.
#[tokio::test]
async fn idle_sessions_make_way() {
    let world = World::new().await;
    let broker = with_queue(&world, dynamic()).await;
    let all = || (0..16).map(|s| (to(Q), of_session(&format!("s{s}"), "x"))).collect::<Vec<_>>();
    broker.send(all()).await.unwrap();
    let mut held = Vec::new();
    for _ in 0..16 {
        let source = next(&*broker).await;
        settle(&*broker, &one(&*source).await, Settlement::Complete).await;
        held.push(source);
    }
    broker.send(all()).await.unwrap();
    let other = world.connect().await;
    let source = next(&*other).await;
    settle(&*other, &one(&*source).await, Settlement::Complete).await;
    // Whoever held it hears of it.
    let id = source.held().unwrap().session.clone();
    let lost = held.iter().find(|source| source.held().unwrap().session == id).unwrap();
    assert_eq!(lost.fetch(1, NOW).await, Err(BrokerError::LockLost));
}

fn numbers(all: &[Delivery]) -> Vec<usize> {
    all.iter().map(|one| body(one).parse().unwrap()).collect()
}

/// As many as that, however many come at once.
async fn all_of(source: &dyn Source, count: usize, at_once: u32) -> Vec<Delivery> {
    let mut all = Vec::new();
    while all.len() < count {
        let got = source.fetch(at_once, PATIENCE).await.unwrap();
        assert!(!got.is_empty(), "{} of {count} came", all.len());
        all.extend(got);
    }
    all
}

/// Whoever has many in hand and asks for more gets them, in order, and loses none of those.
#[tokio::test]
async fn more_at_once_in_order() {
    let world = World::new().await;
    let broker = with_queue(&world, QueueSpec::default()).await;
    let source = broker.open(&queue(Q), LOCK).await.unwrap();
    let messages = |n: usize| (0..n).map(|n| (to(Q), text(&n.to_string()))).collect::<Vec<_>>();
    let mut in_hand = Vec::new();
    for (sent, at_once) in [(20, 1), (300, 40), (1000, 500)] {
        broker.send(messages(sent)).await.unwrap();
        let came = all_of(&*source, sent, at_once).await;
        assert_eq!(numbers(&came), Vec::from_iter(0..sent));
        in_hand.extend(came);
    }
    let all = in_hand.iter().map(|one| Settle::complete(one.lease)).collect();
    assert!(broker.settle(&queue(Q), all).await.unwrap().iter().all(Result::is_ok));

    // What another one had comes back in one piece, and stays in order.
    let channel = stranger(&world).await;
    let mut first = FieldTable::default();
    first.insert("x-priority".into(), lapin::types::AMQPValue::LongInt(1));
    let (queue_name, tag, options) = (Q.into(), "them".into(), BasicConsumeOptions::default());
    let theirs = channel.basic_consume(queue_name, tag, options, first).await.unwrap();
    broker.send(messages(400)).await.unwrap();
    assert_eq!(theirs.take(400).count().await, 400);
    channel.close(200, "done".into()).await.unwrap();
    assert_eq!(numbers(&all_of(&*source, 400, 400).await), Vec::from_iter(0..400));

    // What was fetched ahead goes back when it is let go, whichever consumer brought it.
    broker.send(messages(100)).await.unwrap();
    let in_hand = source.fetch(10, PATIENCE).await.unwrap();
    source.close().await.unwrap();
    let other = world.connect().await;
    let source = other.open(&queue(Q), LOCK).await.unwrap();
    all_of(&*source, 100 - in_hand.len(), 100).await;
}
