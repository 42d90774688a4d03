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

pub async fn what_waits_is_told(world: &World) {
    let broker = with_queue(world, QueueSpec::default()).await;
    let Some(empty) = depth(&*broker).await else { return };
    assert_eq!((empty.ready, empty.in_flight, empty.paused), (0, 0, false));
    assert_eq!(empty.sessions, None);
    broker.send(vec![(to(Q), text("a")), (to(Q), text("b")), (to(Q), text("c"))]).await.unwrap();
    let source = broker.open(&queue(Q), LOCK).await.unwrap();
    let got = source.fetch(1, PATIENCE).await.unwrap().remove(0);
    let some = depth(&*broker).await.unwrap();
    assert_eq!((some.ready, some.in_flight), (2, 1));
    if let (Some(before), Some(after)) = (empty.sent, some.sent) {
        assert_eq!(after - before, 3);
    }
    broker.settle(&queue(Q), vec![Settle::complete(got.lease)]).await.unwrap();
    let fewer = depth(&*broker).await.unwrap();
    assert_eq!((fewer.ready, fewer.in_flight, fewer.sent), (2, 0, some.sent));
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
    let told = depth(&*broker).await.unwrap();
    assert_eq!(told.sessions, Some(SessionDepth { runnable: 2, held: 1, other: 0 }));
    assert_eq!(told.ready, 4);
    held.close().await.unwrap();
    let told = depth(&*broker).await.unwrap();
    assert_eq!(told.sessions, Some(SessionDepth { runnable: 3, held: 0, other: 0 }));
}
