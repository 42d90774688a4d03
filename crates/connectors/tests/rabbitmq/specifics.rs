//! Cases beyond the contract.

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

use crate::TestEnv;
use crate::cases::{Q, refused, with_queue};
use crate::common::proxy::CuttableProxy;
use crate::common::{LOCK, NO_WAIT, TIMEOUT, queue, session, session_message, text, to};

fn dynamic() -> QueueSpec {
    QueueSpec { sessions: Sessions::Dynamic, ..QueueSpec::default() }
}

async fn next(broker: &dyn Broker) -> Box<dyn Source> {
    let accepted = broker.accept(&queue(Q), None, LOCK, TIMEOUT).await.unwrap();
    accepted.expect("no session was ready")
}

async fn one(source: &dyn Source) -> Delivery {
    source.fetch(1, TIMEOUT).await.unwrap().into_iter().next().expect("no message arrived")
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

/// A channel of a client other than Malote.
async fn foreign_channel(env: &TestEnv) -> lapin::Channel {
    let url = env.url.split('?').next().unwrap();
    let connection = Connection::connect(url, ConnectionProperties::default()).await.unwrap();
    connection.create_channel().await.unwrap()
}

#[tokio::test]
async fn a_different_number_of_partitions_is_refused_with_a_hint() {
    let env = TestEnv::new().await;
    with_queue(&env, dynamic()).await;
    let other = RabbitMq::connect(&env.url.replace("=4", "=8")).await.unwrap();
    let Err(error) = other.declare(&queue(Q), dynamic()).await else { panic!("declare must fail") };
    assert!(error.to_string().contains("?partitions=4"), "{error}");
    // A process that only uses the queue takes the partitions from its record.
    other.send(vec![(to(Q), session_message("a", "1"))]).await.unwrap();
    assert_eq!(body(&one(&*next(&other).await).await), "1");
    assert_eq!(refused(other.open(&queue(Q), LOCK).await), "session_required");
    let sent = other.send(vec![(to(Q), text("no session"))]).await;
    assert_eq!(refused(sent), "session_required");
}

#[tokio::test]
async fn a_full_queue_refuses_messages() {
    let env = TestEnv::new().await;
    let spec =
        QueueSpec { length_max: Some(1), overflow: Overflow::Reject, ..QueueSpec::default() };
    let broker = with_queue(&env, spec).await;
    // RabbitMQ checks the limit afterwards, so a few more messages may be accepted.
    let full = async {
        loop {
            match broker.send(vec![(to(Q), text("x"))]).await {
                Ok(_) => {}
                Err(error) => return error,
            }
        }
    };
    let error = tokio::time::timeout(TIMEOUT, full).await.unwrap();
    assert!(matches!(error, BrokerError::Busy { .. }), "{error:?}");
}

#[tokio::test]
async fn messages_and_queues_of_other_programs_are_supported() {
    let env = TestEnv::new().await;
    let broker = with_queue(&env, dynamic()).await;
    let channel = foreign_channel(&env).await;
    let mut headers = FieldTable::default();
    headers.insert("n".into(), lapin::types::AMQPValue::ShortShortInt(3));
    let properties = BasicProperties::default().with_message_id("m".into()).with_headers(headers);
    let options = BasicPublishOptions::default();
    let sent = channel.basic_publish(Q.into(), "ana".into(), options, b"1", properties).await;
    sent.unwrap();
    let source = next(&*broker).await;
    assert_eq!(source.held().unwrap().session.as_str(), "ana");
    let received = one(&*source).await;
    assert_eq!(
        (received.message.message_id.as_deref(), received.failed, received.receives),
        (Some("m"), 0, 1)
    );
    assert_eq!(received.message.properties.get("n"), Some(&Value::I8(3)));

    // A queue declared by another program, as a classic queue.
    let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    channel.queue_declare("theirs".into(), durable, FieldTable::default()).await.unwrap();
    broker.send(vec![(to("theirs"), text("2"))]).await.unwrap();
    let source = broker.open(&queue("theirs"), LOCK).await.unwrap();
    let received = one(&*source).await;
    let dead = Settlement::DeadLetter {
        reason: "Why".into(),
        text: String::new(),
        changes: Changes::default(),
    };
    let item = Settle { lease: received.lease, settlement: dead, state: None };
    assert_eq!(broker.settle(&queue("theirs"), vec![item]).await.unwrap(), [Ok(())]);
    let letters = broker.open(&queue("theirs").dead_letters(), LOCK).await.unwrap();
    assert_eq!(one(&*letters).await.dead, Some(("Why".into(), String::new())));
}

#[tokio::test]
async fn a_session_continues_after_a_message_became_a_dead_letter() {
    let env = TestEnv::new().await;
    let broker = with_queue(&env, QueueSpec { failed_max: Some(2), ..dynamic() }).await;
    broker.send(["1", "2"].map(|n| (to(Q), session_message("a", n))).to_vec()).await.unwrap();
    for expected in [0, 1] {
        let source = next(&*broker).await;
        let received = one(&*source).await;
        assert_eq!((body(&received).as_str(), received.failed), ("1", expected));
        settle(&*broker, &received, abandon(1)).await;
    }
    let source = next(&*broker).await;
    assert_eq!(body(&one(&*source).await), "2");
    let letters = broker.open(&queue(Q).dead_letters(), LOCK).await.unwrap();
    let letter = one(&*letters).await;
    assert_eq!(letter.dead.as_ref().unwrap().0, "MaxDeliveryCountExceeded");
    assert_eq!(letter.message.session, Some(session("a")));
}

#[tokio::test]
async fn a_delayed_message_keeps_its_position_and_a_scheduled_one_does_not() {
    let env = TestEnv::new().await;
    let broker = with_queue(&env, dynamic()).await;
    let delayed = Message { when: When::Delay(200), ..session_message("a", "1") };
    broker.send(vec![(to(Q), delayed), (to(Q), session_message("a", "2"))]).await.unwrap();
    let source = next(&*broker).await;
    let first = one(&*source).await;
    assert_eq!([body(&first), body(&one(&*source).await)], ["1", "2"]);
    drop(source);
    // A time in the past means now. A time in the future uses delay queues.
    let at = |body, at| Message { when: When::At(Timestamp(at)), ..session_message("b", body) };
    let soon = first.enqueued_at.0 + 1500;
    broker.send(vec![(to(Q), at("later", soon)), (to(Q), at("now", 1))]).await.unwrap();
    let source =
        broker.accept(&queue(Q), Some(session("b")), LOCK, TIMEOUT).await.unwrap().unwrap();
    let (now, later) = (one(&*source).await, one(&*source).await);
    assert_eq!([body(&now), body(&later)], ["now", "later"]);
    assert_eq!((later.failed, later.receives), (0, 1));
    let long = Message { when: When::Delay(3_600_000), ..session_message("a", "3") };
    let refused = broker.send(vec![(to(Q), long)]).await;
    assert!(matches!(refused, Err(BrokerError::Unsupported { .. })), "{refused:?}");
}

#[tokio::test]
async fn an_expired_message_becomes_a_dead_letter() {
    let env = TestEnv::new().await;
    let on_expiry = malote_model::OnExpiry::DeadLetter;
    let spec = QueueSpec { ttl_ms: Some(1), on_expiry, ..QueueSpec::default() };
    let broker = with_queue(&env, spec).await;
    broker.send(vec![(to(Q), text("x"))]).await.unwrap();
    let letters = broker.open(&queue(Q).dead_letters(), LOCK).await.unwrap();
    assert_eq!(one(&*letters).await.dead.unwrap().0, "TTLExpiredException");
}

/// A proxy to the server, and the URL through it.
async fn through_a_proxy(env: &TestEnv) -> (CuttableProxy, String) {
    let (start, rest) = env.url.split_once('@').unwrap();
    let (at, rest) = rest.split_once('/').unwrap();
    let proxy = CuttableProxy::to(at.parse().unwrap()).await;
    let url = format!("{start}@{}/{rest}", proxy.at);
    (proxy, url)
}

#[tokio::test]
async fn a_lost_connection_loses_its_leases_and_is_reopened() {
    let env = TestEnv::new().await;
    let direct = with_queue(&env, dynamic()).await;
    direct.declare(&queue("plain"), QueueSpec::default()).await.unwrap();
    let (proxy, url) = through_a_proxy(&env).await;
    let broker = RabbitMq::connect(&url).await.unwrap();
    broker.send(["1", "2"].map(|n| (to(Q), session_message("a", n))).to_vec()).await.unwrap();
    broker.send(vec![(to("plain"), text("x"))]).await.unwrap();
    let (held, source) = (next(&broker).await, broker.open(&queue("plain"), LOCK).await.unwrap());
    let (in_session, alone) = (one(&*held).await, one(&*source).await);
    proxy.cut(false);
    assert_eq!(
        held.fetch(1, TIMEOUT).await.map(drop).and(held.fetch(1, TIMEOUT).await),
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
    proxy.cut(true);
    // The source and the broker recover without being opened again.
    let again = loop {
        match source.fetch(1, TIMEOUT).await {
            Ok(received) => break received,
            Err(error) => assert!(error.is_transient(), "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert_eq!((body(&again[0]).as_str(), again[0].receives), ("x", 2));
    let held = loop {
        match broker.accept(&queue(Q), None, LOCK, TIMEOUT).await {
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

/// Works on sessions and reports each completed message in order.
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
        // A few messages at a time, so that every session changes its holder.
        let Ok(received) = source.fetch(3, NO_WAIT).await else { continue };
        for delivery in received {
            let number = body(&delivery).parse().unwrap();
            // The third message of each session fails once.
            let outcome = match number {
                2 if delivery.failed == 0 => abandon(5),
                _ => Settlement::Complete,
            };
            let done = outcome == Settlement::Complete;
            let item = Settle { lease: delivery.lease, settlement: outcome, state: None };
            let settled = broker.settle(&queue(Q), vec![item]).await.unwrap().remove(0);
            if settled.is_err() || !done {
                break; // the hold was lost, or the session waits for a retry
            }
            if to.send((name.clone(), number, count)).await.is_err() {
                return;
            }
        }
    }
}

/// Many sessions, and a second process that joins: the order is kept through retries and handovers, no message is
/// lost, and both processes get work.
#[tokio::test]
async fn two_processes_share_the_sessions_in_order() {
    const SESSIONS: u32 = 24;
    const EACH: u32 = 40;
    let env = TestEnv::new().await;
    let broker = with_queue(&env, dynamic()).await;
    let (to_us, mut seen) = tokio::sync::mpsc::channel(16);
    let mut next: HashMap<String, u32> = HashMap::new();
    let mut by = [0, 0];
    let mut tasks = tokio::task::JoinSet::new();
    let mut processes = Vec::new();
    for (which, part) in [(0, 0..EACH / 2), (1, EACH / 2..EACH)] {
        let process = Arc::new(RabbitMq::connect(&env.url).await.unwrap());
        for _ in 0..4 {
            tasks.spawn(work(process.clone(), which, to_us.clone()));
        }
        processes.push(process);
        let mut wanted = 0;
        for number in part {
            let all = (0..SESSIONS)
                .map(|s| (to(Q), session_message(&format!("s{s}"), &number.to_string())));
            broker.send(all.collect()).await.unwrap();
            wanted += SESSIONS;
        }
        for _ in 0..wanted {
            let (name, number, by_whom) =
                tokio::time::timeout(TIMEOUT, seen.recv()).await.unwrap().unwrap();
            let expected = next.entry(name.clone()).or_default();
            // After a handover a message may be delivered again, but none may be skipped.
            assert!(number <= *expected, "{name}: {number} was delivered before {expected}");
            *expected = (number + 1).max(*expected);
            by[by_whom] += 1;
        }
    }
    while next.values().any(|number| *number < EACH) {
        let (name, number, _) = tokio::time::timeout(TIMEOUT, seen.recv()).await.unwrap().unwrap();
        let expected = next.entry(name).or_default();
        assert!(number <= *expected);
        *expected = (number + 1).max(*expected);
    }
    // The second process gets its share while there is work.
    let mut more = EACH;
    let shared = async {
        while by[1] == 0 {
            let number = more.to_string();
            let all = (0..SESSIONS).map(|s| (to(Q), session_message(&format!("s{s}"), &number)));
            broker.send(all.collect()).await.unwrap();
            for _ in 0..SESSIONS {
                by[seen.recv().await.unwrap().2] += 1;
            }
            more += 1;
        }
    };
    tokio::time::timeout(TIMEOUT, shared).await.unwrap();
    drop(seen);
    tasks.shutdown().await;
}

/// Held sessions without messages do not keep their partitions from a process that joins.
#[tokio::test]
async fn idle_holds_do_not_keep_partitions_from_a_new_process() {
    let env = TestEnv::new().await;
    let broker = with_queue(&env, dynamic()).await;
    let all =
        || (0..16).map(|s| (to(Q), session_message(&format!("s{s}"), "x"))).collect::<Vec<_>>();
    broker.send(all()).await.unwrap();
    let mut held = Vec::new();
    for _ in 0..16 {
        let source = next(&*broker).await;
        settle(&*broker, &one(&*source).await, Settlement::Complete).await;
        held.push(source);
    }
    broker.send(all()).await.unwrap();
    let other = env.connect().await;
    let source = next(&*other).await;
    settle(&*other, &one(&*source).await, Settlement::Complete).await;
    // The previous holder gets an error.
    let id = source.held().unwrap().session.clone();
    let lost = held.iter().find(|source| source.held().unwrap().session == id).unwrap();
    assert_eq!(lost.fetch(1, NO_WAIT).await, Err(BrokerError::LockLost));
}

fn numbers(all: &[Delivery]) -> Vec<usize> {
    all.iter().map(|one| body(one).parse().unwrap()).collect()
}

/// Fetches `count` messages, `at_once` at a time.
async fn all_of(source: &dyn Source, count: usize, at_once: u32) -> Vec<Delivery> {
    let mut all = Vec::new();
    while all.len() < count {
        let received = source.fetch(at_once, TIMEOUT).await.unwrap();
        assert!(!received.is_empty(), "only {} of {count} messages arrived", all.len());
        all.extend(received);
    }
    all
}

/// Fetching more while many messages are leased keeps the order and the leases.
#[tokio::test]
async fn a_growing_prefetch_keeps_the_order() {
    let env = TestEnv::new().await;
    let broker = with_queue(&env, QueueSpec::default()).await;
    let source = broker.open(&queue(Q), LOCK).await.unwrap();
    let messages = |n: usize| (0..n).map(|n| (to(Q), text(&n.to_string()))).collect::<Vec<_>>();
    let mut leased = Vec::new();
    for (sent, at_once) in [(20, 1), (300, 40), (1000, 500)] {
        broker.send(messages(sent)).await.unwrap();
        let received = all_of(&*source, sent, at_once).await;
        assert_eq!(numbers(&received), Vec::from_iter(0..sent));
        leased.extend(received);
    }
    let all = leased.iter().map(|one| Settle::complete(one.lease)).collect();
    assert!(broker.settle(&queue(Q), all).await.unwrap().iter().all(Result::is_ok));

    // Messages returned by another consumer keep their order.
    let channel = foreign_channel(&env).await;
    let mut first = FieldTable::default();
    first.insert("x-priority".into(), lapin::types::AMQPValue::LongInt(1));
    let (queue_name, tag, options) = (Q.into(), "them".into(), BasicConsumeOptions::default());
    let theirs = channel.basic_consume(queue_name, tag, options, first).await.unwrap();
    broker.send(messages(400)).await.unwrap();
    assert_eq!(theirs.take(400).count().await, 400);
    channel.close(200, "done".into()).await.unwrap();
    assert_eq!(numbers(&all_of(&*source, 400, 400).await), Vec::from_iter(0..400));

    // Closing returns the prefetched messages of all consumers.
    broker.send(messages(100)).await.unwrap();
    let leased = source.fetch(10, TIMEOUT).await.unwrap();
    source.close().await.unwrap();
    let other = env.connect().await;
    let source = other.open(&queue(Q), LOCK).await.unwrap();
    all_of(&*source, 100 - leased.len(), 100).await;
}
