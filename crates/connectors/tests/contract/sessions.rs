//! Sessions: exclusive, in order, in turn, with a state.

use std::time::Duration;

use malote_connectors::{Broker, BrokerError, NewState, Settle, Source};
use malote_model::{Changes, QueueSpec, Sessions, Settlement};

use crate::World;
use crate::cases::{Q, refused, with_queue};
use crate::common::{LOCK, NOW, PATIENCE, of_session, queue, session, to};

fn spec() -> QueueSpec {
    QueueSpec { sessions: Sessions::Dynamic, ..QueueSpec::default() }
}

async fn send(broker: &dyn Broker, all: &[(&str, &str)]) {
    let all = all.iter().map(|(id, body)| (to(Q), of_session(id, body)));
    broker.send(all.collect()).await.unwrap();
}

async fn next(broker: &dyn Broker) -> Box<dyn Source> {
    let accepted = broker.accept(&queue(Q), None, LOCK, PATIENCE).await.unwrap();
    accepted.expect("no session was ready")
}

fn name(source: &dyn Source) -> &str {
    source.held().unwrap().session.as_str()
}

async fn all(source: &dyn Source, count: usize) -> Vec<malote_connectors::Delivery> {
    let mut got = Vec::new();
    while got.len() < count {
        let some = source.fetch(64, PATIENCE).await.unwrap();
        assert!(!some.is_empty(), "only {} of {count} came", got.len());
        got.extend(some);
    }
    got
}

pub async fn in_order_and_alone(world: &World) {
    let broker = with_queue(world, spec()).await;
    let numbers: Vec<String> = (0..20).map(|n| n.to_string()).collect();
    let messages: Vec<_> = numbers.iter().map(|n| ("a", n.as_str())).collect();
    send(&*broker, &messages).await;
    let first = next(&*broker).await;
    assert_eq!(name(&*first), "a");
    // Alone: not by name, not as the next, and not through another connection.
    let other = world.connect().await;
    let taken = other.accept(&queue(Q), Some(session("a")), LOCK, NOW).await;
    assert_eq!(refused(taken), "session_held");
    assert!(other.accept(&queue(Q), None, LOCK, NOW).await.unwrap().is_none());
    // In order, also after a part of it was done and the rest given back.
    let got = all(&*first, 20).await;
    let bodies: Vec<_> = got.iter().map(|d| d.message.body.bytes.clone()).collect();
    assert_eq!(bodies, numbers);
    // Whoever can tell which one is the last says it of no other.
    assert!(got[..19].iter().all(|d| !d.last));
    let done = got[..5].iter().map(|d| Settle::complete(d.lease)).collect();
    assert!(broker.settle(&queue(Q), done).await.unwrap().iter().all(Result::is_ok));
    let epoch = first.held().unwrap().epoch;
    first.close().await.unwrap();
    let again = other.accept(&queue(Q), Some(session("a")), LOCK, NOW).await.unwrap().unwrap();
    assert!(again.held().unwrap().epoch >= epoch);
    let got = all(&*again, 15).await;
    assert_eq!(&got[0].message.body.bytes[..], b"5");
    assert!(got.iter().all(|d| d.failed == 0));
    assert!(got.iter().all(|d| d.receives == 2) || !world.counts_receives());
}

pub async fn in_turn(world: &World) {
    let broker = with_queue(world, spec()).await;
    send(&*broker, &[("a", "1"), ("b", "1"), ("c", "1"), ("a", "2")]).await;
    let a = next(&*broker).await;
    assert_eq!(name(&*a), "a");
    a.close().await.unwrap();
    // It has more, and stands at the end now.
    let (b, c, a) = (next(&*broker).await, next(&*broker).await, next(&*broker).await);
    assert_eq!([name(&*b), name(&*c), name(&*a)], ["b", "c", "a"]);
}

pub async fn state(world: &World) {
    let broker = with_queue(world, spec()).await;
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
    let got = all(&*a, 2).await;
    let state = Some(NewState { hold: held.hold, state: Some(vec![0, 1, 255].into()) });
    let done = Settle { state, ..Settle::complete(got[0].lease) };
    assert_eq!(broker.settle(&queue(Q), vec![done]).await.unwrap(), [Ok(())]);
    a.close().await.unwrap();
    let a = next(&*broker).await;
    let held = a.held().unwrap().clone();
    let state = broker.state(&queue(Q), &held).await.unwrap();
    assert_eq!(state.as_deref(), Some(&[0, 1, 255][..]));
    let got = all(&*a, 1).await;
    let cleared = Some(NewState { hold: held.hold, state: None });
    let done = Settle { state: cleared, ..Settle::complete(got[0].lease) };
    assert_eq!(broker.settle(&queue(Q), vec![done]).await.unwrap(), [Ok(())]);
    assert_eq!(broker.state(&queue(Q), &held).await.unwrap(), None);
}

pub async fn state_with_settle(world: &World) {
    let broker = with_queue(world, spec()).await;
    send(&*broker, &[("a", "1")]).await;
    let a = next(&*broker).await;
    let held = a.held().unwrap().clone();
    let got = all(&*a, 1).await;
    broker.settle(&queue(Q), vec![Settle::complete(got[0].lease)]).await.unwrap();
    // The lease is over: neither the settlement nor the state happens.
    let state = Some(NewState { hold: held.hold, state: Some("x".into()) });
    let stale = Settle { state, ..Settle::complete(got[0].lease) };
    let done = broker.settle(&queue(Q), vec![stale]).await.unwrap();
    assert_eq!(done, [Err(BrokerError::LockLost)]);
    assert_eq!(broker.state(&queue(Q), &held).await.unwrap(), None);
}

pub async fn an_accept_waits_and_none_is_no_error(world: &World) {
    let broker = with_queue(world, spec()).await;
    assert!(broker.accept(&queue(Q), None, LOCK, NOW).await.unwrap().is_none());
    let waiting = {
        let broker = broker.clone();
        tokio::spawn(async move { next(&*broker).await.held().unwrap().session.clone() })
    };
    send(&*broker, &[("a", "1")]).await;
    assert_eq!(waiting.await.unwrap().as_str(), "a");
}

pub async fn an_accept_that_is_dropped_holds_nothing(world: &World) {
    let broker = with_queue(world, spec()).await;
    let accept = broker.accept(&queue(Q), None, LOCK, PATIENCE);
    assert!(tokio::time::timeout(Duration::from_millis(50), accept).await.is_err());
    send(&*broker, &[("a", "1")]).await;
    let other = world.connect().await;
    assert_eq!(name(&*next(&*other).await), "a");
}

pub async fn dropping_lets_go(world: &World) {
    let broker = with_queue(world, spec()).await;
    send(&*broker, &[("a", "1")]).await;
    let a = next(&*broker).await;
    all(&*a, 1).await;
    drop(a);
    let a = next(&*broker).await;
    let got = all(&*a, 1).await;
    assert_eq!(got[0].failed, 0);
}

/// A delayed retry ends the hold: the session waits for its head, and whoever held it hears of it.
pub async fn a_broken_hold_is_lost(world: &World) {
    let broker = with_queue(world, spec()).await;
    if !broker.capabilities().delay {
        return;
    }
    send(&*broker, &[("a", "1"), ("a", "2")]).await;
    let a = next(&*broker).await;
    let hold = a.held().unwrap().hold;
    let got = all(&*a, 2).await;
    let settlement = Settlement::Abandon { delay_ms: 1, changes: Changes::default() };
    let item = Settle { lease: got[0].lease, settlement, state: None };
    assert_eq!(broker.settle(&queue(Q), vec![item]).await.unwrap(), [Ok(())]);
    let late = broker.settle(&queue(Q), vec![Settle::complete(got[1].lease)]).await.unwrap();
    assert_eq!(late, [Err(BrokerError::LockLost)]);
    assert_eq!(
        broker.renew(&queue(Q), vec![hold], LOCK).await.unwrap(),
        [Err(BrokerError::LockLost)]
    );
    assert_eq!(a.fetch(1, PATIENCE).await, Err(BrokerError::LockLost));
    // The head first, once its delay is over.
    let a = next(&*broker).await;
    let got = all(&*a, 2).await;
    let bodies: Vec<_> = got.iter().map(|d| &d.message.body.bytes[..]).collect();
    assert_eq!(bodies, [b"1", b"2"]);
    assert_eq!((got[0].failed, got[1].failed), (1, 0));
}

/// Of a broker that can tell: which message has nothing behind it, and whoever has it need not ask.
#[allow(dead_code)] // not every broker can
pub async fn the_last_is_told(world: &World) {
    let broker = with_queue(world, spec()).await;
    send(&*broker, &[("a", "1"), ("a", "2"), ("a", "3")]).await;
    let a = next(&*broker).await;
    let told: Vec<_> = all(&*a, 3).await.iter().map(|d| d.last).collect();
    assert_eq!(told, [false, false, true]);
    // What comes later is told of anew.
    send(&*broker, &[("a", "4")]).await;
    let told: Vec<_> = all(&*a, 1).await.iter().map(|d| d.last).collect();
    assert_eq!(told, [true]);
}
