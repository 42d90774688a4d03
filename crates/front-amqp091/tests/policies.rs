//! Policies: at declaration, when they change, and after a restart.
#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use common::{Client, World, short};
use malote_front_amqp091::metadata::{MetadataError, VhostFacts};
use malote_front_amqp091::names::VirtualHost;
use malote_front_amqp091::policy::PolicyKind;
use malote_front_amqp091::wire::method::{Method, connection, exchange, queue};
use malote_front_amqp091::wire::table::FieldTable;
use malote_front_amqp091::{AdministrationError, by_server, limits};
use malote_model::{DeadLetterTarget, Overflow, QueueSpec, TopicName};
use serde_json::{Value, json};

async fn policy(world: &World, kind: PolicyKind, name: &str, policy: Value) {
    let Value::Object(object) = policy else { unreachable!() };
    world.front.put_policy(kind, "/", name, &object).await.unwrap();
    world.front.apply_policies().await.unwrap();
}

async fn spec(world: &World, queue: &str) -> QueueSpec {
    let name = VirtualHost::new("/").queue(queue).unwrap();
    world.engine.describe(name).await.unwrap().spec
}

async fn shown(world: &World, queue: &str) -> (Option<String>, Option<String>, Value) {
    let name = VirtualHost::new("/").queue(queue).unwrap();
    let policy = world.front.policy_of_queue(&world.engine.describe(name).await.unwrap());
    (policy.policy, policy.operator_policy, policy.definition.into())
}

fn max_length(most: i64) -> FieldTable {
    FieldTable::builder().with("x-max-length", most).build()
}

async fn redeclared(client: &mut Client, name: &str, arguments: FieldTable) -> u16 {
    let declare = queue::Declare { queue: short(name), arguments, ..Default::default() };
    client.refusal(declare).await.0
}

#[tokio::test]
async fn a_policy_applies_to_new_and_existing_queues_until_it_is_deleted() {
    let world = World::new();
    let mut client = world.channel().await;
    client.declare("a.old", max_length(7)).await;
    client.declare("b.old", FieldTable::default()).await;
    let limits = json!({ "pattern": "^a", "apply-to": "queues", "definition": {
        "max-length": 5, "message-ttl": 1000, "overflow": "reject-publish",
        "dead-letter-exchange": "dead", "dead-letter-routing-key": "k" } });
    policy(&world, PolicyKind::User, "limits", limits).await;
    client.declare("a.new", FieldTable::default()).await;
    for queue in ["a.old", "a.new"] {
        let spec = spec(&world, queue).await;
        assert_eq!((spec.length_max, spec.ttl_ms), (Some(5), Some(1000)), "{queue}");
        assert_eq!(spec.overflow, Overflow::Reject);
        let topic = TopicName::new("dead").unwrap();
        assert_eq!(spec.dead_letter, DeadLetterTarget::Topic { topic, key: Some("k".into()) });
    }
    assert_eq!(spec(&world, "b.old").await.length_max, None);

    // A declaration is compared with the arguments, not with the policy.
    client.declare("a.old", max_length(7)).await;
    assert_eq!(redeclared(&mut client, "a.old", max_length(5)).await, 406);

    world.front.delete_policy(PolicyKind::User, "/", "limits").await.unwrap();
    world.front.apply_policies().await.unwrap();
    let restored = spec(&world, "a.old").await;
    assert_eq!((restored.length_max, restored.ttl_ms), (Some(7), None));
    assert_eq!(restored.dead_letter, DeadLetterTarget::Drop);
    assert_eq!(restored.overflow, Overflow::DropOldest);
    assert_eq!(spec(&world, "a.new").await.length_max, None);
}

#[tokio::test]
async fn the_highest_priority_wins_and_an_operator_limits_it() {
    let world = World::new();
    let mut client = world.channel().await;
    client.declare("q", max_length(50)).await;
    let low = json!({ "pattern": "", "priority": 1, "definition": { "max-length": 1 } });
    policy(&world, PolicyKind::User, "low", low).await;
    let high = json!({ "pattern": "q", "priority": 9, "definition": { "max-length": 30, "expires": 90000 } });
    policy(&world, PolicyKind::User, "high", high).await;
    assert_eq!(spec(&world, "q").await.length_max, Some(30));
    let operator = json!({ "pattern": "q", "definition": { "max-length": 20, "message-ttl": 9 } });
    policy(&world, PolicyKind::Operator, "op", operator).await;
    let found = spec(&world, "q").await;
    assert_eq!(
        (found.length_max, found.ttl_ms, found.idle_ms_max),
        (Some(20), Some(9), Some(90000))
    );
    let (policy_name, operator_name, definition) = shown(&world, "q").await;
    assert_eq!(policy_name.as_deref(), Some("high"));
    assert_eq!(operator_name.as_deref(), Some("op"));
    assert_eq!(definition, json!({ "max-length": 20, "expires": 90000, "message-ttl": 9 }));
}

#[tokio::test]
async fn a_policy_is_for_one_kind_and_for_queues_of_this_protocol() {
    let world = World::new();
    let mut client = world.channel().await;
    let quorum = FieldTable::builder().with("x-queue-type", "quorum").build();
    let declare = queue::Declare {
        queue: short("quorum"),
        durable: true,
        arguments: quorum,
        ..Default::default()
    };
    client.send(1, declare).await;
    client.method().await;
    client.declare("classic", FieldTable::default()).await;
    let native = VirtualHost::new("/").queue("native").unwrap();
    world.engine.declare(native, QueueSpec::default()).await.unwrap();
    for (name, apply_to, key) in
        [("c", "classic_queues", "message-ttl"), ("q", "quorum_queues", "delivery-limit")]
    {
        let priority = if name == "q" { 1 } else { 0 };
        let one = json!({ "pattern": ".*", "apply-to": apply_to, "priority": priority, "definition": { key: 4 } });
        policy(&world, PolicyKind::User, name, one).await;
    }
    assert_eq!(spec(&world, "classic").await.ttl_ms, Some(4));
    let quorum = spec(&world, "quorum").await;
    assert_eq!((quorum.ttl_ms, quorum.failed_max), (None, Some(5)));
    assert_eq!(spec(&world, "native").await.ttl_ms, None);
    assert_eq!(shown(&world, "native").await.0, None);
}

#[tokio::test]
async fn an_exchange_gets_its_alternate_exchange_from_a_policy() {
    let world = World::new();
    let mut client = world.channel().await;
    let declare = |name: &str| exchange::Declare {
        exchange: short(name),
        kind: short("direct"),
        ..Default::default()
    };
    client.send(1, declare("x.old")).await;
    client.method().await;
    let alternate = json!({ "pattern": "^x", "apply-to": "exchanges", "definition": { "alternate-exchange": "amq.fanout" } });
    policy(&world, PolicyKind::User, "alternate", alternate).await;
    client.send(1, declare("x.new")).await;
    client.method().await;
    client.declare("all", FieldTable::default()).await;
    let bind =
        queue::Bind { queue: short("all"), exchange: short("amq.fanout"), ..Default::default() };
    client.send(1, bind).await;
    client.method().await;
    for name in ["x.old", "x.new"] {
        client.publish(name, "nowhere", name).await;
        assert_eq!(client.get("all").await.unwrap().text(), name);
        // Again as declared.
        client.send(1, declare(name)).await;
        assert!(matches!(client.method().await, Method::ExchangeDeclareOk(_)));
    }
    world.front.delete_policy(PolicyKind::User, "/", "alternate").await.unwrap();
    world.front.apply_policies().await.unwrap();
    client.publish("x.old", "nowhere", "lost").await;
    assert!(client.get("all").await.is_none());
}

#[tokio::test]
async fn wrong_and_hostile_policies_are_refused() {
    let world = World::new();
    let put = async |name: &str, value: Value| {
        let Value::Object(object) = value else { unreachable!() };
        world.front.put_policy(PolicyKind::User, "/", name, &object).await
    };
    for wrong in [
        json!({ "pattern": "(", "definition": { "max-length": 1 } }),
        json!({ "pattern": "a{100000}", "definition": { "max-length": 1 } }),
        json!({ "pattern": "x".repeat(2000), "definition": { "max-length": 1 } }),
        json!({ "pattern": "a", "definition": { "max-length": 1e30 } }),
        json!({ "pattern": "a", "definition": { "unknown": 1 } }),
        json!({ "pattern": "a", "definition": {} }),
        json!({ "pattern": "a", "definition": [] }),
        json!({ "pattern": 1, "definition": { "max-length": 1 } }),
    ] {
        put("p", wrong.clone()).await.expect_err(&wrong.to_string());
    }
    let good = || json!({ "pattern": "a", "definition": { "max-length": 1 } });
    put(&"n".repeat(300), good()).await.unwrap_err();
    for number in 0..limits::POLICIES_MAX {
        put(&format!("p{number}"), good()).await.unwrap();
    }
    let error = put("one-more", good()).await.unwrap_err();
    assert!(
        matches!(error, AdministrationError::Metadata(MetadataError::TooMany { .. })),
        "{error}"
    );
    let Value::Object(object) = good() else { unreachable!() };
    let error = world.front.put_policy(PolicyKind::User, "nope", "p", &object).await.unwrap_err();
    assert!(matches!(error, AdministrationError::Metadata(MetadataError::NoVhost(_))), "{error}");
}

#[tokio::test]
async fn a_deleted_virtual_host_takes_its_queues_and_connections_with_it() {
    let world = World::new();
    world.front.load_vhosts().await.unwrap();
    assert!(world.front.put_vhost("dev", VhostFacts::default()).await.unwrap());
    assert!(!world.front.put_vhost("dev", VhostFacts::default()).await.unwrap());
    let mut dev = world.dial();
    dev.sign_in("guest", "guest").await;
    dev.open("dev").await;
    dev.open_channel(1).await;
    for number in 0..600 {
        dev.declare(&format!("q{number}"), FieldTable::default()).await;
    }
    let mut client = world.channel().await;
    client.declare("stays", FieldTable::default()).await;
    assert_eq!(world.front.vhost_names(), ["/", "dev"]);
    assert!(world.front.delete_vhost("dev", by_server()).await.unwrap());
    assert_eq!(dev.closed().await, (320, "CONNECTION_FORCED - vhost 'dev' is deleted".into()));
    assert!(!world.front.delete_vhost("dev", by_server()).await.unwrap());
    assert_eq!(world.front.vhost_names(), ["/"]);
    let left = world.engine.list().await.unwrap();
    assert_eq!(left.len(), 1, "{left:?}");
    assert!(
        world
            .engine
            .topics()
            .await
            .unwrap()
            .iter()
            .all(|topic| !topic.name.as_str().starts_with('~'))
    );
    let mut again = world.dial();
    again.sign_in("guest", "guest").await;
    again.send(0, connection::Open { virtual_host: short("dev"), ..Default::default() }).await;
    let Method::ConnectionClose(close) = again.method().await else { panic!("accepted") };
    assert_eq!(close.reply_code, 530);
    world.front.delete_vhost("/", by_server()).await.unwrap_err();
}

/// Queues in the virtual host `dev`, which is then being deleted.
async fn dev_with_queues(world: &World) {
    world.front.put_vhost("dev", VhostFacts::default()).await.unwrap();
    let host = VirtualHost::new("dev");
    for number in 0..100 {
        let queue = host.queue(&format!("q{number}")).unwrap();
        world.engine.declare(queue, QueueSpec::default()).await.unwrap();
    }
}

/// Waits until nothing of the virtual host `dev` is left.
async fn until_dev_is_gone(world: &World) {
    let mut changes = world.front.metadata.subscribe();
    let gone = async {
        while world.front.metadata.current().vhosts.contains_key("dev") {
            changes.changed().await.unwrap();
        }
    };
    tokio::time::timeout(common::PATIENCE, gone).await.expect("the deletion continues");
    assert_eq!(world.engine.list().await.unwrap().len(), 0);
    assert!(world.front.put_vhost("dev", VhostFacts::default()).await.unwrap());
}

#[tokio::test]
async fn a_virtual_host_is_deleted_even_if_the_caller_leaves() {
    let world = World::new();
    dev_with_queues(&world).await;
    let mut changes = world.front.metadata.subscribe();
    changes.mark_unchanged();
    tokio::select! {
        biased;
        _ = world.front.delete_vhost("dev", by_server()) => panic!("faster than its first step"),
        // The deletion is stored; the caller disconnects.
        changed = changes.changed() => changed.unwrap(),
    }
    until_dev_is_gone(&world).await;
}

#[tokio::test]
async fn an_interrupted_deletion_continues_after_a_start_or_when_it_is_asked_for_again() {
    for asks in [true, false] {
        let world = World::new();
        dev_with_queues(&world).await;
        let deleting = VhostFacts { deleting: true, ..VhostFacts::default() };
        let stored = world.front.metadata.change(move |data| data.put_vhost("dev", deleting));
        stored.await.unwrap();
        let stop = tokio_util::sync::CancellationToken::new();
        if asks {
            assert!(world.front.delete_vhost("dev", by_server()).await.unwrap());
        } else {
            tokio::spawn(world.front.clone().keep_vhosts_deleted(stop.clone()));
        }
        until_dev_is_gone(&world).await;
        stop.cancel();
    }
}
