//! Queue depth, for brokers that support it.

use malote_connectors::{Broker, BrokerError, Depth, SessionDepth, Settle};
use malote_model::{Message, QueueSpec, SessionId, Sessions};

use crate::TestEnv;
use crate::cases::{Q, refused, with_queue};
use crate::common::{LOCK, NO_WAIT, TIMEOUT, queue, text, to};

/// None if the broker does not support it.
async fn depth(broker: &dyn Broker) -> Option<Depth> {
    match broker.depth(&queue(Q)).await {
        Ok(depth) => Some(depth),
        Err(BrokerError::Unsupported { .. }) => None,
        Err(error) => panic!("{error}"),
    }
}

/// Polls until the depth is as expected. Messages that are being pushed to this process are not counted anywhere.
async fn depth_becomes(broker: &dyn Broker, ready: u64, in_flight: u64) -> Depth {
    let started = tokio::time::Instant::now();
    loop {
        let depth_becomes = depth(broker).await.unwrap();
        if (depth_becomes.ready, depth_becomes.in_flight) == (ready, in_flight) {
            return depth_becomes;
        }
        assert!(started.elapsed() < TIMEOUT, "{depth_becomes:?}, not {ready} and {in_flight}");
    }
}

pub async fn messages_are_counted(env: &TestEnv) {
    let broker = with_queue(env, QueueSpec::default()).await;
    let Some(empty) = depth(&*broker).await else { return };
    assert_eq!((empty.ready, empty.in_flight, empty.paused), (0, 0, false));
    assert_eq!((empty.sessions, empty.uncounted_sessions), (None, false));
    broker.send(vec![(to(Q), text("a")), (to(Q), text("b")), (to(Q), text("c"))]).await.unwrap();
    let source = broker.open(&queue(Q), LOCK).await.unwrap();
    let received = source.fetch(1, TIMEOUT).await.unwrap().remove(0);
    let some = depth_becomes(&*broker, 2, 1).await;
    if let (Some(before), Some(after)) = (empty.sent, some.sent) {
        assert_eq!(after - before, 3);
    }
    broker.settle(&queue(Q), vec![Settle::complete(received.lease)]).await.unwrap();
    assert_eq!(depth_becomes(&*broker, 2, 0).await.sent, some.sent);
    assert_eq!(refused(broker.depth(&queue("nowhere")).await), "queue_not_found");
}

pub async fn sessions_are_counted_by_state(env: &TestEnv) {
    let spec = QueueSpec { sessions: Sessions::Dynamic, ..QueueSpec::default() };
    let broker = with_queue(env, spec).await;
    if depth(&*broker).await.is_none() {
        return;
    }
    let of = |session: &str| {
        let session = Some(SessionId::new(session).unwrap());
        (to(Q), Message { session, ..text("x") })
    };
    broker.send(vec![of("a"), of("a"), of("b"), of("c")]).await.unwrap();
    let held = broker.accept(&queue(Q), None, LOCK, NO_WAIT).await.unwrap().unwrap();
    // A broker that does not count sessions still counts their messages.
    let Depth { sessions, uncounted_sessions, .. } = depth_becomes(&*broker, 4, 0).await;
    let counts = !uncounted_sessions;
    assert_eq!(sessions, counts.then_some(SessionDepth { runnable: 2, held: 1, other: 0 }));
    held.close().await.unwrap();
    let sessions = depth_becomes(&*broker, 4, 0).await.sessions;
    assert_eq!(sessions, counts.then_some(SessionDepth { runnable: 3, held: 0, other: 0 }));
}
