//! One case for each capability. The cases for sessions are in `sessions.rs`.

use malote_connectors::{BrokerError, Capability, NewState, SessionHold, Settle};
use malote_model::{Changes, Dedup, Message, Properties, QueueSpec, Settlement, Value, When};

use crate::TestEnv;
use crate::cases::{Q, refused, with_queue};
use crate::common::{LOCK, NO_WAIT, TIMEOUT, queue, session, text, to};

const HOUR_MS: u64 = 3_600_000;

pub async fn declare(env: &TestEnv) {
    let broker = with_queue(env, QueueSpec::default()).await;
    broker.declare(&queue(Q), QueueSpec::default()).await.unwrap();
    let other = QueueSpec { failed_max: Some(3), ..QueueSpec::default() };
    assert_eq!(refused(broker.declare(&queue(Q), other).await), "queue_differs");
}

pub async fn renew(env: &TestEnv) {
    let broker = with_queue(env, QueueSpec::default()).await;
    broker.send(vec![(to(Q), text("x"))]).await.unwrap();
    let source = broker.open(&queue(Q), LOCK).await.unwrap();
    let received = source.fetch(1, TIMEOUT).await.unwrap().remove(0);
    assert_eq!(broker.renew(&queue(Q), vec![received.lease], LOCK).await.unwrap(), [Ok(())]);
}

/// After a lock of a millisecond, the message is delivered again.
pub async fn choose_lock(env: &TestEnv) {
    let broker = with_queue(env, QueueSpec::default()).await;
    broker.send(vec![(to(Q), text("x"))]).await.unwrap();
    let source = broker.open(&queue(Q), std::time::Duration::from_millis(1)).await.unwrap();
    let received = source.fetch(1, TIMEOUT).await.unwrap().remove(0);
    let again = source.fetch(1, TIMEOUT).await.unwrap().remove(0);
    assert_eq!((again.seq, again.failed), (received.seq, 1));
    let late = broker.settle(&queue(Q), vec![Settle::complete(received.lease)]).await.unwrap();
    assert_eq!(late, [Err(BrokerError::LockLost)]);
}

/// A missing capability is refused. Some capabilities cannot be requested.
pub async fn refuse(env: &TestEnv, what: Capability) {
    let broker = with_queue(env, QueueSpec::default()).await;
    broker.send(vec![(to(Q), text("x"))]).await.unwrap();
    let source = broker.open(&queue(Q), LOCK).await.unwrap();
    let received = source.fetch(1, TIMEOUT).await.unwrap().remove(0);
    let settle = async |settlement, state| {
        let item = Settle { lease: received.lease, settlement, state };
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
            let state = Some(NewState { hold: received.lease, state: None });
            settle(Settlement::Complete, state).await
        }
        Capability::SessionState => {
            let held = SessionHold { session: session("a"), hold: received.lease, epoch: 0 };
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
        other => panic!("no test for the refusal of {other:?}"),
    };
    assert!(matches!(refused, Err(BrokerError::Unsupported { .. })), "{what:?}: {refused:?}");
    // The refused call had no effect.
    assert_eq!(settle(Settlement::Complete, None).await, Ok(()));
}

pub async fn release(env: &TestEnv) {
    let broker = with_queue(env, QueueSpec::default()).await;
    broker.send(vec![(to(Q), text("x"))]).await.unwrap();
    let source = broker.open(&queue(Q), LOCK).await.unwrap();
    let received = source.fetch(1, TIMEOUT).await.unwrap().remove(0);
    broker.settle(&queue(Q), vec![Settle::release(received.lease)]).await.unwrap();
    let again = source.fetch(1, TIMEOUT).await.unwrap().remove(0);
    assert_eq!(again.failed, 0);
    assert!(again.receives == 2 || !env.counts_receives());
}

pub async fn delay(env: &TestEnv) {
    let broker = with_queue(env, QueueSpec::default()).await;
    broker.send(vec![(to(Q), text("late")), (to(Q), text("soon"))]).await.unwrap();
    let source = broker.open(&queue(Q), LOCK).await.unwrap();
    for delay_ms in [HOUR_MS, 1] {
        let received = source.fetch(1, TIMEOUT).await.unwrap().remove(0);
        let settlement = Settlement::Abandon { delay_ms, changes: Changes::default() };
        let item = Settle { lease: received.lease, settlement, state: None };
        broker.settle(&queue(Q), vec![item]).await.unwrap();
    }
    let received = source.fetch(2, TIMEOUT).await.unwrap();
    assert_eq!((received.len(), &received[0].message.body.bytes[..]), (1, &b"soon"[..]));
}

pub async fn schedule(env: &TestEnv) {
    let broker = with_queue(env, QueueSpec::default()).await;
    let late = Message { when: When::Delay(HOUR_MS), ..text("late") };
    let soon = Message { when: When::Delay(1), ..text("soon") };
    broker.send(vec![(to(Q), late), (to(Q), soon)]).await.unwrap();
    let source = broker.open(&queue(Q), LOCK).await.unwrap();
    let received = source.fetch(2, TIMEOUT).await.unwrap();
    assert_eq!((received.len(), &received[0].message.body.bytes[..]), (1, &b"soon"[..]));
}

pub async fn dead_letter(env: &TestEnv) {
    let broker = with_queue(env, QueueSpec::default()).await;
    broker.send(vec![(to(Q), text("x"))]).await.unwrap();
    let source = broker.open(&queue(Q), LOCK).await.unwrap();
    let received = source.fetch(1, TIMEOUT).await.unwrap().remove(0);
    let (reason, why) = ("Unpayable".to_owned(), "no such account".to_owned());
    let changes = Changes::default();
    let settlement = Settlement::DeadLetter { reason: reason.clone(), text: why.clone(), changes };
    let item = Settle { lease: received.lease, settlement, state: None };
    assert_eq!(broker.settle(&queue(Q), vec![item]).await.unwrap(), [Ok(())]);
    let dead = queue(Q).dead_letters();
    let letters = broker.open(&dead, LOCK).await.unwrap();
    let letter = letters.fetch(1, TIMEOUT).await.unwrap().remove(0);
    assert_eq!(letter.dead, Some((reason, why)));
    assert_eq!(&letter.message.body.bytes[..], b"x");
    assert_eq!(broker.settle(&dead, vec![Settle::complete(letter.lease)]).await.unwrap(), [Ok(())]);
    assert_eq!(source.fetch(1, NO_WAIT).await.unwrap(), []);
}

pub async fn changes(env: &TestEnv) {
    let broker = with_queue(env, QueueSpec::default()).await;
    broker.send(vec![(to(Q), text("x"))]).await.unwrap();
    let source = broker.open(&queue(Q), LOCK).await.unwrap();
    let received = source.fetch(1, TIMEOUT).await.unwrap().remove(0);
    let mut properties = Properties::new();
    properties.set("tried", Value::I64(1));
    let settlement = Settlement::Abandon { delay_ms: 0, changes: Changes { properties } };
    let item = Settle { lease: received.lease, settlement, state: None };
    broker.settle(&queue(Q), vec![item]).await.unwrap();
    let again = source.fetch(1, TIMEOUT).await.unwrap().remove(0);
    assert_eq!(again.message.properties.get("tried"), Some(&Value::I64(1)));
}

pub async fn dedup(env: &TestEnv) {
    let dedup = Some(Dedup { window_ms: HOUR_MS, per_session: false, content: false });
    let broker = with_queue(env, QueueSpec { dedup, ..QueueSpec::default() }).await;
    let message = || Message { message_id: Some("m".into()), ..text("x") };
    let first = broker.send(vec![(to(Q), message())]).await.unwrap();
    let second = broker.send(vec![(to(Q), message())]).await.unwrap();
    assert_eq!(first[0].message_id, second[0].message_id);
    let source = broker.open(&queue(Q), LOCK).await.unwrap();
    assert_eq!(source.fetch(2, TIMEOUT).await.unwrap().len(), 1);
    assert_eq!(source.fetch(2, NO_WAIT).await.unwrap(), []);
}

pub async fn atomic_send(env: &TestEnv) {
    let broker = with_queue(env, QueueSpec::default()).await;
    let sent = broker.send(vec![(to(Q), text("x")), (to("nowhere"), text("y"))]).await;
    assert_eq!(refused(sent), "queue_not_found");
    let source = broker.open(&queue(Q), LOCK).await.unwrap();
    assert_eq!(source.fetch(1, NO_WAIT).await.unwrap(), []);
}

pub async fn bound_leases(env: &TestEnv) {
    let broker = with_queue(env, QueueSpec::default()).await;
    broker.send(vec![(to(Q), text("x"))]).await.unwrap();
    let source = broker.open(&queue(Q), LOCK).await.unwrap();
    let received = source.fetch(1, TIMEOUT).await.unwrap();
    assert_eq!(received.len(), 1);
    broker.close().await.unwrap();
    // The lock lasts an hour. Closing counts no failure.
    let other = env.connect().await.open(&queue(Q), LOCK).await.unwrap();
    let again = other.fetch(1, TIMEOUT).await.unwrap().remove(0);
    assert_eq!((again.receives, again.failed), (2, 0));
}
