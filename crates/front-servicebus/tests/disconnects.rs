//! Links and connections that end unexpectedly: expired tokens, deleted entities, lost clients.
#![allow(clippy::unwrap_used, reason = "a test, in all its functions")]

#[allow(dead_code, reason = "each test uses its part")]
mod common;

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use common::World;
use malote_front_servicebus::{Key, Keys, Verified};
use malote_model::{Access, Action, Denied, Principal, QueueName, QueueSpec, Resource, Status};
use malote_wire_amqp::message::Draft;
use malote_wire_amqp::performative::DeliveryState;
use malote_wire_amqp::types::{Map, Value};
use sha2::{Digest, Sha256};

/// Polls a queue until `fits` is true.
async fn until(world: &World, queue: &QueueName, fits: impl Fn(u64, u64) -> bool) -> (u64, u64) {
    let looking = async {
        loop {
            let facts = world.engine.describe(queue.clone()).await.unwrap();
            if fits(facts.ready, facts.locked) {
                return (facts.ready, facts.locked);
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), looking).await.expect("it becomes so")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unsent_deliveries_are_released_when_the_connection_is_lost() {
    let world = World::new().await;
    let queue = QueueName::new("orders").unwrap();
    // The locks are so long that nothing returns because of an expired lock.
    let spec = QueueSpec { lock_ms: 3_600_000, ..QueueSpec::default() };
    world.engine.declare(queue.clone(), spec).await.unwrap();
    let body = "x".repeat(300_000);
    let all: Vec<(&str, &str)> = (0..10).map(|_| ("", body.as_str())).collect();
    world.put(&queue, &all).await;
    let mut client = world.client().await;
    let channel = client.amqp.begin().unwrap();
    let link = client.receiver(channel, "r", "orders", None);
    client.attached(link).await;
    client.amqp.grant(link, 10).unwrap();
    client.write().await;
    until(&world, &queue, |_, locked| locked == 10).await;
    // The pipe holds three messages and a part of the fourth.
    drop(client);
    let (ready, locked) = until(&world, &queue, |ready, _| ready >= 7).await;
    assert!(ready + locked == 10 && locked <= 3, "{ready} {locked}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disabled_entity_is_refused_with_its_condition() {
    let world = World::new().await;
    let queue = world.queue("orders", false).await;
    let mut client = world.client().await;
    let channel = client.amqp.begin().unwrap();
    let receiver = client.receiver(channel, "r", "orders", None);
    client.attached(receiver).await;
    let sender = client.sender(channel, "s", "orders");
    client.attached(sender).await;
    client.credit(sender).await;
    let spec = QueueSpec { status: Status::Disabled, ..QueueSpec::default() };
    world.engine.update(queue, spec).await.unwrap();
    assert_eq!(client.detached(receiver).await, "com.microsoft:entity-disabled");
    let Some(DeliveryState::Rejected(rejected)) =
        client.send(sender, Draft::value(Value::Null)).await
    else {
        panic!("it was taken")
    };
    let condition = rejected.error.unwrap().condition;
    assert_eq!(condition.as_str(), "com.microsoft:entity-disabled");
    let again = client.receiver(channel, "again", "orders", None);
    assert!(client.attached(again).await.source.is_none());
    assert_eq!(client.detached(again).await, "com.microsoft:entity-disabled");
}

/// One key with all permissions.
struct OneKey;

const SECRET: &str = "secret";

impl Keys for OneKey {
    fn is_open(&self) -> bool {
        false
    }
    fn key(&self, name: &str) -> Option<Key> {
        let principal = Principal::named("root");
        (name == "Root").then(|| Key { secret: SECRET.into(), principal })
    }
    fn verify_password<'a>(&'a self, _: &'a str, _: &'a str, _: std::net::IpAddr) -> Verified<'a> {
        Box::pin(async { None })
    }
    fn verify_token(&self, _: &str) -> Option<Principal> {
        None
    }
}

impl Access for OneKey {
    fn check(&self, who: &Principal, action: Action, on: Resource<'_>) -> Result<(), Denied> {
        match who.is_anonymous() {
            false => Ok(()),
            true => Err(Denied::new(who, action, on)),
        }
    }
}

/// A token for an entity, valid until `expires_s`.
fn token(entity: &str, expires_s: u64) -> String {
    let text = format!("{entity}\n{expires_s}");
    let mut key = [0_u8; 64];
    key[..SECRET.len()].copy_from_slice(SECRET.as_bytes());
    let inner = Sha256::new().chain_update(key.map(|byte| byte ^ 0x36)).chain_update(&text);
    let outer = Sha256::new().chain_update(key.map(|byte| byte ^ 0x5c));
    let signature = STANDARD.encode(outer.chain_update(inner.finalize()).finalize());
    let signature = signature.replace('+', "%2B").replace('/', "%2F").replace('=', "%3D");
    format!("SharedAccessSignature sr={entity}&sig={signature}&se={expires_s}&skn=Root")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_lasts_as_long_as_its_token() {
    let world = World::with(Arc::new(OneKey), Arc::new(OneKey));
    let (short, renewed) = (world.queue("short", false).await, world.queue("renewed", false).await);
    let mut client = world.client().await;
    let channel = client.amqp.begin().unwrap();
    let node = client.node(channel, "$cbs").await;
    // Enough time to attach, on any machine.
    let soon = world.engine.now().0 / 1000 + 12;
    let put = |queue: &QueueName, until_s: u64| {
        let names = Map::default()
            .with_string("operation", "put-token")
            .with_string("type", "servicebus.windows.net:sastoken")
            .with_string("name", queue.as_str());
        (names, Value::from(token(queue.as_str(), until_s).as_str()))
    };
    for queue in [&short, &renewed] {
        let (names, body) = put(queue, soon);
        assert_eq!(client.ask(node, names, body).await.0, 202);
    }
    let ends = client.receiver(channel, "ends", "short", None);
    assert!(client.attached(ends).await.source.is_some());
    let stays = client.sender(channel, "stays", "renewed");
    assert!(client.attached(stays).await.target.is_some());
    let (names, body) = put(&renewed, soon + 3600);
    assert_eq!(client.ask(node, names, body).await.0, 202);
    assert_eq!(client.detached(ends).await, "amqp:unauthorized-access");
    let sent = client.send(stays, Draft::value(Value::Null)).await;
    assert_eq!(sent, Some(DeliveryState::Accepted));
}
