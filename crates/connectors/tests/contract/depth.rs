//! How much waits in a queue. A broker that cannot tell says so.

use malote_connectors::{Broker, BrokerError, Depth, SessionDepth, Settle};
use malote_model::{Message, QueueSpec, SessionId, Sessions};

use crate::World;
use crate::cases::{Q, refused, with_queue};
use crate::common::{LOCK, NOW, PATIENCE, queue, text, to};

/// None of a broker that has no such thing.
async fn depth(broker: &dyn Broker) -> Option<Depth> {
    match broker.depth(&queue(Q)).await {
        Ok(depth) => Some(depth),
        Err(BrokerError::Unsupported { .. }) => None,
        Err(error) => panic!("{error}"),
    }
}

/// What was pushed by the broker may be on its way here, and counted nowhere: until it is told like this.
async fn told(broker: &dyn Broker, ready: u64, in_flight: u64) -> Depth {
    let begun = tokio::time::Instant::now();
    loop {
        let told = depth(broker).await.unwrap();
        if (told.ready, told.in_flight) == (ready, in_flight) {
            return told;
        }
        assert!(begun.elapsed() < PATIENCE, "{told:?}, not {ready} and {in_flight}");
    }
}

pub async fn what_waits_is_told(world: &World) {
    let broker = with_queue(world, QueueSpec::default()).await;
    let Some(empty) = depth(&*broker).await else { return };
    assert_eq!((empty.ready, empty.in_flight, empty.paused), (0, 0, false));
    assert_eq!((empty.sessions, empty.uncounted_sessions), (None, false));
    broker.send(vec![(to(Q), text("a")), (to(Q), text("b")), (to(Q), text("c"))]).await.unwrap();
    let source = broker.open(&queue(Q), LOCK).await.unwrap();
    let got = source.fetch(1, PATIENCE).await.unwrap().remove(0);
    let some = told(&*broker, 2, 1).await;
    if let (Some(before), Some(after)) = (empty.sent, some.sent) {
        assert_eq!(after - before, 3);
    }
    broker.settle(&queue(Q), vec![Settle::complete(got.lease)]).await.unwrap();
    assert_eq!(told(&*broker, 2, 0).await.sent, some.sent);
    assert_eq!(refused(broker.depth(&queue("nowhere")).await), "queue_not_found");
}

pub async fn sessions_are_told_apart(world: &World) {
    let spec = QueueSpec { sessions: Sessions::Dynamic, ..QueueSpec::default() };
    let broker = with_queue(world, spec).await;
    if depth(&*broker).await.is_none() {
        return;
    }
    let of = |session: &str| {
        let session = Some(SessionId::new(session).unwrap());
        (to(Q), Message { session, ..text("x") })
    };
    broker.send(vec![of("a"), of("a"), of("b"), of("c")]).await.unwrap();
    let held = broker.accept(&queue(Q), None, LOCK, NOW).await.unwrap().unwrap();
    // Of a broker that counts no sessions at least all their messages are counted.
    let Depth { sessions, uncounted_sessions, .. } = told(&*broker, 4, 0).await;
    let counts = !uncounted_sessions;
    assert_eq!(sessions, counts.then_some(SessionDepth { runnable: 2, held: 1, other: 0 }));
    held.close().await.unwrap();
    let sessions = told(&*broker, 4, 0).await.sessions;
    assert_eq!(sessions, counts.then_some(SessionDepth { runnable: 3, held: 0, other: 0 }));
}
