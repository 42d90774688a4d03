//! What not every broker can do: one case for each capability. Sessions have a file of their own.

use malote_connectors::{BrokerError, Capability, Held, NewState, Settle};
use malote_model::{Changes, Dedup, Message, Properties, QueueSpec, Settlement, Value, When};

use crate::World;
use crate::cases::{Q, refused, with_queue};
use crate::common::{LOCK, NOW, PATIENCE, queue, session, text, to};

const HOUR_MS: u64 = 3_600_000;

pub async fn declare(world: &World) {
    let broker = with_queue(world, QueueSpec::default()).await;
    broker.declare(&queue(Q), QueueSpec::default()).await.unwrap();
    let other = QueueSpec { failed_max: Some(3), ..QueueSpec::default() };
    assert_eq!(refused(broker.declare(&queue(Q), other).await), "queue_differs");
}

pub async fn renew(world: &World) {
    let broker = with_queue(world, QueueSpec::default()).await;
    broker.send(vec![(to(Q), text("x"))]).await.unwrap();
    let source = broker.open(&queue(Q), LOCK).await.unwrap();
    let got = source.fetch(1, PATIENCE).await.unwrap().remove(0);
    assert_eq!(broker.renew(&queue(Q), vec![got.lease], LOCK).await.unwrap(), [Ok(())]);
}

/// A lock of a millisecond, and the message is somebody else's.
pub async fn choose_lock(world: &World) {
    let broker = with_queue(world, QueueSpec::default()).await;
    broker.send(vec![(to(Q), text("x"))]).await.unwrap();
    let source = broker.open(&queue(Q), std::time::Duration::from_millis(1)).await.unwrap();
    let got = source.fetch(1, PATIENCE).await.unwrap().remove(0);
    let again = source.fetch(1, PATIENCE).await.unwrap().remove(0);
    assert_eq!((again.seq, again.failed), (got.seq, 1));
    let late = broker.settle(&queue(Q), vec![Settle::complete(got.lease)]).await.unwrap();
    assert_eq!(late, [Err(BrokerError::LockLost)]);
}

/// What a broker cannot do is refused, not done weaker. Some things are nothing that one could ask for.
pub async fn refuse(world: &World, what: Capability) {
    let broker = with_queue(world, QueueSpec::default()).await;
    broker.send(vec![(to(Q), text("x"))]).await.unwrap();
    let source = broker.open(&queue(Q), LOCK).await.unwrap();
    let got = source.fetch(1, PATIENCE).await.unwrap().remove(0);
    let settle = async |settlement, state| {
        let item = Settle { lease: got.lease, settlement, state };
        broker.settle(&queue(Q), vec![item]).await.unwrap().remove(0)
    };
    let mut properties = Properties::new();
    properties.set("tried", Value::I64(1));
    let refused = match what {
        Capability::Declare => broker.declare(&queue("other"), QueueSpec::default()).await,
        Capability::Delay => {
            settle(Settlement::Abandon { delay_ms: 1, changes: Changes::default() }, None).await
        }
        Capability::Changes => {
            settle(Settlement::Abandon { delay_ms: 0, changes: Changes { properties } }, None).await
        }
        Capability::StateWithSettle => {
            let state = Some(NewState { hold: got.lease, state: None });
            settle(Settlement::Complete, state).await
        }
        Capability::SessionState => {
            let held = Held { session: session("a"), hold: got.lease, epoch: 0 };
            broker.state(&queue(Q), &held).await.map(drop)
        }
        Capability::Dedup => {
            let dedup = Some(Dedup { window_ms: HOUR_MS, per_session: false, content: false });
            broker.declare(&queue("other"), QueueSpec { dedup, ..QueueSpec::default() }).await
        }
        Capability::FairSessions
        | Capability::ChooseLock
        | Capability::AtomicSend
        | Capability::BoundLeases => return,
        other => panic!("nobody says how {other:?} is refused"),
    };
    assert!(matches!(refused, Err(BrokerError::Unsupported { .. })), "{what:?}: {refused:?}");
    // And nothing happened.
    assert_eq!(settle(Settlement::Complete, None).await, Ok(()));
}

pub async fn release(world: &World) {
    let broker = with_queue(world, QueueSpec::default()).await;
    broker.send(vec![(to(Q), text("x"))]).await.unwrap();
    let source = broker.open(&queue(Q), LOCK).await.unwrap();
    let got = source.fetch(1, PATIENCE).await.unwrap().remove(0);
    broker.settle(&queue(Q), vec![Settle::release(got.lease)]).await.unwrap();
    let again = source.fetch(1, PATIENCE).await.unwrap().remove(0);
    assert_eq!(again.failed, 0);
    assert!(again.receives == 2 || !world.counts_receives());
}

pub async fn delay(world: &World) {
    let broker = with_queue(world, QueueSpec::default()).await;
    broker.send(vec![(to(Q), text("late")), (to(Q), text("soon"))]).await.unwrap();
    let source = broker.open(&queue(Q), LOCK).await.unwrap();
    for delay_ms in [HOUR_MS, 1] {
        let got = source.fetch(1, PATIENCE).await.unwrap().remove(0);
        let settlement = Settlement::Abandon { delay_ms, changes: Changes::default() };
        let item = Settle { lease: got.lease, settlement, state: None };
        broker.settle(&queue(Q), vec![item]).await.unwrap();
    }
    let got = source.fetch(2, PATIENCE).await.unwrap();
    assert_eq!((got.len(), &got[0].message.body.bytes[..]), (1, &b"soon"[..]));
}

pub async fn schedule(world: &World) {
    let broker = with_queue(world, QueueSpec::default()).await;
    let late = Message { when: When::Delay(HOUR_MS), ..text("late") };
    let soon = Message { when: When::Delay(1), ..text("soon") };
    broker.send(vec![(to(Q), late), (to(Q), soon)]).await.unwrap();
    let source = broker.open(&queue(Q), LOCK).await.unwrap();
    let got = source.fetch(2, PATIENCE).await.unwrap();
    assert_eq!((got.len(), &got[0].message.body.bytes[..]), (1, &b"soon"[..]));
}

pub async fn dead_letter(world: &World) {
    let broker = with_queue(world, QueueSpec::default()).await;
    broker.send(vec![(to(Q), text("x"))]).await.unwrap();
    let source = broker.open(&queue(Q), LOCK).await.unwrap();
    let got = source.fetch(1, PATIENCE).await.unwrap().remove(0);
    let (reason, why) = ("Unpayable".to_owned(), "no such account".to_owned());
    let changes = Changes::default();
    let settlement = Settlement::DeadLetter { reason: reason.clone(), text: why.clone(), changes };
    let item = Settle { lease: got.lease, settlement, state: None };
    assert_eq!(broker.settle(&queue(Q), vec![item]).await.unwrap(), [Ok(())]);
    let dead = queue(Q).dead_letters();
    let letters = broker.open(&dead, LOCK).await.unwrap();
    let letter = letters.fetch(1, PATIENCE).await.unwrap().remove(0);
    assert_eq!(letter.dead, Some((reason, why)));
    assert_eq!(&letter.message.body.bytes[..], b"x");
    assert_eq!(broker.settle(&dead, vec![Settle::complete(letter.lease)]).await.unwrap(), [Ok(())]);
    assert_eq!(source.fetch(1, NOW).await.unwrap(), []);
}

pub async fn changes(world: &World) {
    let broker = with_queue(world, QueueSpec::default()).await;
    broker.send(vec![(to(Q), text("x"))]).await.unwrap();
    let source = broker.open(&queue(Q), LOCK).await.unwrap();
    let got = source.fetch(1, PATIENCE).await.unwrap().remove(0);
    let mut properties = Properties::new();
    properties.set("tried", Value::I64(1));
    let settlement = Settlement::Abandon { delay_ms: 0, changes: Changes { properties } };
    let item = Settle { lease: got.lease, settlement, state: None };
    broker.settle(&queue(Q), vec![item]).await.unwrap();
    let again = source.fetch(1, PATIENCE).await.unwrap().remove(0);
    assert_eq!(again.message.properties.get("tried"), Some(&Value::I64(1)));
}

pub async fn dedup(world: &World) {
    let dedup = Some(Dedup { window_ms: HOUR_MS, per_session: false, content: false });
    let broker = with_queue(world, QueueSpec { dedup, ..QueueSpec::default() }).await;
    let message = || Message { message_id: Some("m".into()), ..text("x") };
    let first = broker.send(vec![(to(Q), message())]).await.unwrap();
    let second = broker.send(vec![(to(Q), message())]).await.unwrap();
    assert_eq!(first[0].message_id, second[0].message_id);
    let source = broker.open(&queue(Q), LOCK).await.unwrap();
    assert_eq!(source.fetch(2, PATIENCE).await.unwrap().len(), 1);
    assert_eq!(source.fetch(2, NOW).await.unwrap(), []);
}

pub async fn atomic_send(world: &World) {
    let broker = with_queue(world, QueueSpec::default()).await;
    let sent = broker.send(vec![(to(Q), text("x")), (to("nowhere"), text("y"))]).await;
    assert_eq!(refused(sent), "queue_not_found");
    let source = broker.open(&queue(Q), LOCK).await.unwrap();
    assert_eq!(source.fetch(1, NOW).await.unwrap(), []);
}

pub async fn bound_leases(world: &World) {
    let broker = with_queue(world, QueueSpec::default()).await;
    broker.send(vec![(to(Q), text("x"))]).await.unwrap();
    let source = broker.open(&queue(Q), LOCK).await.unwrap();
    let got = source.fetch(1, PATIENCE).await.unwrap();
    assert_eq!(got.len(), 1);
    broker.close().await.unwrap();
    // An hour before its lock ends. An orderly end counts nothing.
    let other = world.connect().await.open(&queue(Q), LOCK).await.unwrap();
    let again = other.fetch(1, PATIENCE).await.unwrap().remove(0);
    assert_eq!((again.receives, again.failed), (2, 0));
}
