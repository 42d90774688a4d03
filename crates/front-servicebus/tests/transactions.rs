//! Transactions as .NET and Java use them: declared, staged, discharged.
#![allow(clippy::unwrap_used, reason = "a test, in all its functions")]

#[allow(dead_code, reason = "each test uses its part")]
mod common;

use bytes::{Bytes, BytesMut};
use common::{Client, World};
use malote_model::QueueName;
use malote_wire_amqp::connection::{Event, LinkId};
use malote_wire_amqp::message::{AMQP_VALUE, Draft};
use malote_wire_amqp::performative::{
    Composite, Declare, DeliveryState, Discharge, TransactionalState,
};
use malote_wire_amqp::types::put_descriptor;

fn value(of: &impl Composite) -> Bytes {
    let mut out = BytesMut::new();
    put_descriptor(&mut out, AMQP_VALUE);
    of.encode(&mut out);
    out.freeze()
}

fn part(txn_id: &Bytes, outcome: Option<DeliveryState>) -> DeliveryState {
    let outcome = outcome.map(Box::new);
    DeliveryState::Transactional(TransactionalState { txn_id: txn_id.clone(), outcome })
}

async fn declare(client: &mut Client, coordinator: LinkId) -> Bytes {
    let body = value(&Declare::default());
    let Some(DeliveryState::Declared(declared)) = client.send_bytes(coordinator, body, None).await
    else {
        panic!("not declared")
    };
    declared.txn_id
}

async fn discharge(
    client: &mut Client,
    coordinator: LinkId,
    txn_id: &Bytes,
    fail: bool,
) -> Option<DeliveryState> {
    let body = value(&Discharge { txn_id: txn_id.clone(), fail: Some(fail) });
    client.send_bytes(coordinator, body, None).await
}

fn condition(state: Option<DeliveryState>) -> String {
    match state {
        Some(DeliveryState::Rejected(rejected)) => rejected.error.unwrap().condition.to_string(),
        other => panic!("{other:?}"),
    }
}

async fn ready(world: &World, queue: &QueueName) -> (u64, u64) {
    let facts = world.engine.describe(queue.clone()).await.unwrap();
    (facts.ready, facts.locked)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_is_atomic() {
    let world = World::new().await;
    let (from, to) = (world.queue("from", false).await, world.queue("to", false).await);
    world.put(&from, &[("", "job")]).await;
    let mut client = world.client().await;
    let channel = client.amqp.begin().unwrap();
    let coordinator = client.coordinator(channel);
    let sender = client.sender(channel, "s", "to");
    let receiver = client.receiver(channel, "r", "from", None);
    for link in [coordinator, sender, receiver] {
        client.attached(link).await;
    }
    client.credit(coordinator).await;
    client.credit(sender).await;
    client.amqp.grant(receiver, 1).unwrap();
    let job = client
        .until(|event| match event {
            Event::Delivery(incoming) => Some((incoming.link, incoming.delivery)),
            _ => None,
        })
        .await;

    // Rolled back: nothing is sent.
    let first = declare(&mut client, coordinator).await;
    let staged =
        client.send_bytes(sender, Draft::data("no").to_bytes(), Some(part(&first, None))).await;
    assert_eq!(staged, Some(part(&first, Some(DeliveryState::Accepted))));
    let rolled_back = discharge(&mut client, coordinator, &first, true).await;
    assert_eq!(rolled_back, Some(DeliveryState::Accepted));
    assert_eq!(ready(&world, &to).await, (0, 0));

    // Committed: sent and completed together, and not before.
    let second = declare(&mut client, coordinator).await;
    assert_ne!(first, second);
    client.send_bytes(sender, Draft::data("yes").to_bytes(), Some(part(&second, None))).await;
    let done = part(&second, Some(DeliveryState::Accepted));
    client.amqp.dispose(job.0, job.1, false, Some(done.clone())).unwrap();
    let echoed = client
        .until(|event| match event {
            Event::Disposition(disposed) if disposed.link == receiver => {
                Some((disposed.settled, disposed.state.clone()))
            }
            _ => None,
        })
        .await;
    assert_eq!(echoed, (true, Some(done)));
    assert_eq!((ready(&world, &to).await, ready(&world, &from).await), ((0, 0), (0, 1)));
    let committed = discharge(&mut client, coordinator, &second, false).await;
    assert_eq!(committed, Some(DeliveryState::Accepted));
    assert_eq!((ready(&world, &to).await, ready(&world, &from).await), ((1, 0), (0, 0)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_operations_and_excessive_requests_are_refused() {
    let world = World::new().await;
    let to = world.queue("orders", true).await;
    let mut client = world.client().await;
    let channel = client.amqp.begin().unwrap();
    let coordinator = client.coordinator(channel);
    let sender = client.sender(channel, "s", "orders");
    client.attached(coordinator).await;
    client.attached(sender).await;
    client.credit(coordinator).await;
    client.credit(sender).await;
    let nobody = Bytes::from_static(b"nobody");
    let answer = discharge(&mut client, coordinator, &nobody, false).await;
    assert_eq!(condition(answer), "amqp:transaction:unknown-id");
    let text = Draft::data("x").to_bytes();
    let answer = client.send_bytes(sender, text.clone(), Some(part(&nobody, None))).await;
    assert_eq!(condition(answer), "amqp:transaction:unknown-id");
    let answer = client.send_bytes(coordinator, text.clone(), None).await;
    assert_eq!(condition(answer), "amqp:not-implemented");

    // A message without a session: the whole transaction is refused at the commit.
    let id = declare(&mut client, coordinator).await;
    client.send_bytes(sender, text, Some(part(&id, None))).await;
    let answer = discharge(&mut client, coordinator, &id, false).await;
    assert_eq!(condition(answer), "amqp:transaction:rollback");
    assert_eq!(ready(&world, &to).await, (0, 0));

    for _ in 0..16 {
        declare(&mut client, coordinator).await;
    }
    let answer = client.send_bytes(coordinator, value(&Declare::default()), None).await;
    assert_eq!(condition(answer), "amqp:resource-limit-exceeded");
}
