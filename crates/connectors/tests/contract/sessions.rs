//! Sessions: exclusive, in order, fair, with a state.

use std::time::Duration;

use malote_connectors::{Broker, BrokerError, NewState, Settle, Source};
use malote_model::{Changes, QueueSpec, Sessions, Settlement};

use crate::TestEnv;
use crate::cases::{Q, refused, with_queue};
use crate::common::{LOCK, NO_WAIT, TIMEOUT, queue, session, session_message, to};

fn spec() -> QueueSpec {
    QueueSpec { sessions: Sessions::Dynamic, ..QueueSpec::default() }
}

async fn send(broker: &dyn Broker, all: &[(&str, &str)]) {
    let all = all.iter().map(|(id, body)| (to(Q), session_message(id, body)));
    broker.send(all.collect()).await.unwrap();
}

async fn next(broker: &dyn Broker) -> Box<dyn Source> {
    let accepted = broker.accept(&queue(Q), None, LOCK, TIMEOUT).await.unwrap();
    accepted.expect("no session was ready")
}

fn name(source: &dyn Source) -> &str {
    source.held().unwrap().session.as_str()
}

async fn all(source: &dyn Source, count: usize) -> Vec<malote_connectors::Delivery> {
    let mut received = Vec::new();
    while received.len() < count {
        let some = source.fetch(64, TIMEOUT).await.unwrap();
        assert!(!some.is_empty(), "only {} of {count} messages arrived", received.len());
        received.extend(some);
    }
    received
}

pub async fn exclusive_and_in_order(env: &TestEnv) {
    let broker = with_queue(env, spec()).await;
    let numbers: Vec<String> = (0..20).map(|n| n.to_string()).collect();
    let messages: Vec<_> = numbers.iter().map(|n| ("a", n.as_str())).collect();
    send(&*broker, &messages).await;
    let first = next(&*broker).await;
    assert_eq!(name(&*first), "a");
    // No other receiver can accept the session, neither by name nor as the next, nor over another connection.
    let other = env.connect().await;
    let taken = other.accept(&queue(Q), Some(session("a")), LOCK, NO_WAIT).await;
    assert_eq!(refused(taken), "session_held");
    assert!(other.accept(&queue(Q), None, LOCK, NO_WAIT).await.unwrap().is_none());
    // The order is kept when some messages are completed and the others released.
    let received = all(&*first, 20).await;
    let bodies: Vec<_> = received.iter().map(|d| d.message.body.bytes.clone()).collect();
    assert_eq!(bodies, numbers);
    // Only the last message may be marked as such.
    assert!(received[..19].iter().all(|d| !d.last));
    let done = received[..5].iter().map(|d| Settle::complete(d.lease)).collect();
    assert!(broker.settle(&queue(Q), done).await.unwrap().iter().all(Result::is_ok));
    let epoch = first.held().unwrap().epoch;
    first.close().await.unwrap();
    let again = other.accept(&queue(Q), Some(session("a")), LOCK, NO_WAIT).await.unwrap().unwrap();
    assert!(again.held().unwrap().epoch >= epoch);
    let received = all(&*again, 15).await;
    assert_eq!(&received[0].message.body.bytes[..], b"5");
    assert!(received.iter().all(|d| d.failed == 0));
    assert!(received.iter().all(|d| d.receives == 2) || !env.counts_receives());
}

pub async fn fair(env: &TestEnv) {
    let broker = with_queue(env, spec()).await;
    send(&*broker, &[("a", "1"), ("b", "1"), ("c", "1"), ("a", "2")]).await;
    let a = next(&*broker).await;
    assert_eq!(name(&*a), "a");
    a.close().await.unwrap();
    // The session has more messages and is now at the end of the ready ring.
    let (b, c, a) = (next(&*broker).await, next(&*broker).await, next(&*broker).await);
    assert_eq!([name(&*b), name(&*c), name(&*a)], ["b", "c", "a"]);
}

pub async fn state(env: &TestEnv) {
    let broker = with_queue(env, spec()).await;
    if !broker.capabilities().state_with_settle {
        send(&*broker, &[("a", "1")]).await;
        let a = next(&*broker).await;
        assert_eq!(broker.state(&queue(Q), a.held().unwrap()).await.unwrap(), None);
        return;
    }
    send(&*broker, &[("a", "1"), ("a", "2")]).await;
    let a = next(&*broker).await;
    let held = a.held().unwrap().clone();
    assert_eq!(broker.state(&queue(Q), &held).await.unwrap(), None);
    let received = all(&*a, 2).await;
    let state = Some(NewState { hold: held.hold, state: Some(vec![0, 1, 255].into()) });
    let done = Settle { state, ..Settle::complete(received[0].lease) };
    assert_eq!(broker.settle(&queue(Q), vec![done]).await.unwrap(), [Ok(())]);
    a.close().await.unwrap();
    let a = next(&*broker).await;
    let held = a.held().unwrap().clone();
    let state = broker.state(&queue(Q), &held).await.unwrap();
    assert_eq!(state.as_deref(), Some(&[0, 1, 255][..]));
    let received = all(&*a, 1).await;
    let cleared = Some(NewState { hold: held.hold, state: None });
    let done = Settle { state: cleared, ..Settle::complete(received[0].lease) };
    assert_eq!(broker.settle(&queue(Q), vec![done]).await.unwrap(), [Ok(())]);
    assert_eq!(broker.state(&queue(Q), &held).await.unwrap(), None);
}

pub async fn state_with_settle(env: &TestEnv) {
    let broker = with_queue(env, spec()).await;
    send(&*broker, &[("a", "1")]).await;
    let a = next(&*broker).await;
    let held = a.held().unwrap().clone();
    let received = all(&*a, 1).await;
    broker.settle(&queue(Q), vec![Settle::complete(received[0].lease)]).await.unwrap();
    // The lease has ended: neither the settlement nor the state takes effect.
    let state = Some(NewState { hold: held.hold, state: Some("x".into()) });
    let stale = Settle { state, ..Settle::complete(received[0].lease) };
    let done = broker.settle(&queue(Q), vec![stale]).await.unwrap();
    assert_eq!(done, [Err(BrokerError::LockLost)]);
    assert_eq!(broker.state(&queue(Q), &held).await.unwrap(), None);
}

pub async fn an_accept_waits_and_may_return_none(env: &TestEnv) {
    let broker = with_queue(env, spec()).await;
    assert!(broker.accept(&queue(Q), None, LOCK, NO_WAIT).await.unwrap().is_none());
    let waiting = {
        let broker = broker.clone();
        tokio::spawn(async move { next(&*broker).await.held().unwrap().session.clone() })
    };
    send(&*broker, &[("a", "1")]).await;
    assert_eq!(waiting.await.unwrap().as_str(), "a");
}

pub async fn a_dropped_accept_holds_nothing(env: &TestEnv) {
    let broker = with_queue(env, spec()).await;
    let accept = broker.accept(&queue(Q), None, LOCK, TIMEOUT);
    assert!(tokio::time::timeout(Duration::from_millis(50), accept).await.is_err());
    send(&*broker, &[("a", "1")]).await;
    let other = env.connect().await;
    assert_eq!(name(&*next(&*other).await), "a");
}

pub async fn dropping_a_source_releases_its_session(env: &TestEnv) {
    let broker = with_queue(env, spec()).await;
    send(&*broker, &[("a", "1")]).await;
    let a = next(&*broker).await;
    all(&*a, 1).await;
    drop(a);
    let a = next(&*broker).await;
    let received = all(&*a, 1).await;
    assert_eq!(received[0].failed, 0);
}

/// The session waits for the delayed message, and its holder gets an error.
pub async fn a_delayed_retry_ends_the_hold(env: &TestEnv) {
    let broker = with_queue(env, spec()).await;
    if !broker.capabilities().delay {
        return;
    }
    send(&*broker, &[("a", "1"), ("a", "2")]).await;
    let a = next(&*broker).await;
    let hold = a.held().unwrap().hold;
    let received = all(&*a, 2).await;
    let settlement = Settlement::Abandon { delay_ms: 1, changes: Changes::default() };
    let item = Settle { lease: received[0].lease, settlement, state: None };
    assert_eq!(broker.settle(&queue(Q), vec![item]).await.unwrap(), [Ok(())]);
    let late = broker.settle(&queue(Q), vec![Settle::complete(received[1].lease)]).await.unwrap();
    assert_eq!(late, [Err(BrokerError::LockLost)]);
    assert_eq!(
        broker.renew(&queue(Q), vec![hold], LOCK).await.unwrap(),
        [Err(BrokerError::LockLost)]
    );
    assert_eq!(a.fetch(1, TIMEOUT).await, Err(BrokerError::LockLost));
    // The delayed message comes first.
    let a = next(&*broker).await;
    let received = all(&*a, 2).await;
    let bodies: Vec<_> = received.iter().map(|d| &d.message.body.bytes[..]).collect();
    assert_eq!(bodies, [b"1", b"2"]);
    assert_eq!((received[0].failed, received[1].failed), (1, 0));
}

/// For brokers that mark the last message of a session.
#[allow(dead_code)] // not every broker does
pub async fn the_last_message_is_marked(env: &TestEnv) {
    let broker = with_queue(env, spec()).await;
    send(&*broker, &[("a", "1"), ("a", "2"), ("a", "3")]).await;
    let a = next(&*broker).await;
    let last: Vec<_> = all(&*a, 3).await.iter().map(|d| d.last).collect();
    assert_eq!(last, [false, false, true]);
    // A message that arrives later is marked again.
    send(&*broker, &[("a", "4")]).await;
    let last: Vec<_> = all(&*a, 1).await.iter().map(|d| d.last).collect();
    assert_eq!(last, [true]);
}
