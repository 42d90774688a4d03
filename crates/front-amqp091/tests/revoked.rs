//! Permissions are checked again when they change: for consumers, transactions and connections.
#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use std::sync::Arc;

use common::{Ana, Client, World, short};
use malote_front_amqp091::Front;
use malote_front_amqp091::users::{Changing, UserChange, UserEntry, Users};
use malote_front_amqp091::wire::method::{Method, basic, exchange, tx};
use malote_front_amqp091::wire::properties::BasicProperties;
use malote_front_amqp091::wire::table::FieldTable;
use malote_model::access::Changed;
use malote_model::{Access, Action, AuditEntry, Denied, Principal, QueueName, Resource};
use parking_lot::Mutex;
use tokio::sync::watch;

/// What is allowed. Every action is, until it is revoked.
struct Switch {
    revoked: Mutex<Vec<Action>>,
    known: Mutex<bool>,
    /// Revoke this action right after the next check of it.
    revoke_after_check: Mutex<Option<Action>>,
    keys: Mutex<&'static str>,
    tags: Mutex<Vec<String>>,
    version: watch::Sender<u64>,
}

impl Switch {
    fn new() -> Arc<Switch> {
        Arc::new(Switch {
            revoked: Mutex::default(),
            known: Mutex::new(true),
            revoke_after_check: Mutex::default(),
            keys: Mutex::new(""),
            tags: Mutex::default(),
            version: watch::Sender::new(0),
        })
    }

    fn change(&self, change: impl FnOnce(&Switch)) {
        change(self);
        self.version.send_modify(|version| *version += 1);
    }

    fn revoke(&self, action: Action) {
        self.change(|switch| switch.revoked.lock().push(action));
    }
}

impl Access for Switch {
    fn check(&self, who: &Principal, action: Action, on: Resource<'_>) -> Result<(), Denied> {
        let denied = self.revoked.lock().contains(&action);
        if self.revoke_after_check.lock().take_if(|after| *after == action).is_some() {
            self.revoke(action);
        }
        if denied { Err(Denied::new(who, action, on)) } else { Ok(()) }
    }

    fn knows(&self, _: &Principal) -> bool {
        *self.known.lock()
    }

    fn version(&self) -> u64 {
        *self.version.borrow()
    }

    fn changed(&self, seen: u64) -> Changed<'_> {
        let mut version = self.version.subscribe();
        Box::pin(async move {
            let other = version.wait_for(|version| *version != seen).await.map(|other| *other);
            other.unwrap_or(seen)
        })
    }
}

/// The tags and routing keys of the switch.
struct SwitchUsers(Arc<Switch>);

impl Users for SwitchUsers {
    fn tags(&self, _: &Principal) -> Vec<String> {
        self.0.tags.lock().clone()
    }
    fn may_enter(&self, _: &Principal, _: &str) -> bool {
        true
    }
    fn has_permission(&self, _: &Principal, _: &str) -> bool {
        true
    }
    fn may_use_key(&self, _: &Principal, _: Action, _: &str, _: &str, key: &str) -> bool {
        key.starts_with(*self.0.keys.lock())
    }
    fn list(&self) -> Vec<UserEntry> {
        Vec::new()
    }
    fn change(&self, _: Vec<UserChange>, _: AuditEntry) -> Changing<'_> {
        Box::pin(async { Ok(()) })
    }
}

fn world() -> (World, Arc<Switch>) {
    let switch = Switch::new();
    let mut world = World::with(switch.clone(), Arc::new(Ana));
    let mut front = Front::new(world.engine.clone(), switch.clone(), Arc::new(Ana));
    front.users = Arc::new(SwitchUsers(switch.clone()));
    world.front = Arc::new(front);
    (world, switch)
}

async fn ana(world: &World) -> Client {
    let mut client = world.dial();
    client.sign_in("ana", "secret").await;
    client.open("/").await;
    client.open_channel(1).await;
    client
}

async fn ready(world: &World, queue: &str) -> u64 {
    world.engine.describe(QueueName::new(queue).unwrap()).await.unwrap().ready
}

#[tokio::test]
async fn a_consumer_is_cancelled_and_gets_nothing_more() {
    let (world, switch) = world();
    let mut client = ana(&world).await;
    client.declare("q", FieldTable::default()).await;
    client.consume("q", "c", true).await;
    switch.revoke(Action::Receive);
    let Method::BasicCancel(cancel) = client.method().await else { panic!("not cancelled") };
    assert_eq!(&*cancel.consumer_tag, "c");
    client.confirms().await;
    client.publish("", "q", "x").await;
    client.confirmed(1).await;
    assert_eq!(ready(&world, "q").await, 1);
}

#[tokio::test]
async fn a_permission_that_is_revoked_while_a_consumer_starts_ends_it() {
    let (world, switch) = world();
    let mut client = ana(&world).await;
    client.declare("q", FieldTable::default()).await;
    client.publish("", "q", "x").await;
    for exclusive in [false, true] {
        switch.change(|switch| switch.revoked.lock().clear());
        *switch.revoke_after_check.lock() = Some(Action::Receive);
        let consume =
            basic::Consume { queue: short("q"), no_ack: true, exclusive, ..Default::default() };
        let text = "ACCESS_REFUSED - access to queue 'q' in vhost '/' refused for user 'ana'";
        assert_eq!(client.refusal(consume).await, (403, text.to_owned()));
    }
    assert_eq!(ready(&world, "q").await, 1);
    // Nothing is left of the consumers, not even the exclusive one.
    switch.change(|switch| switch.revoked.lock().clear());
    client.consume("q", "c", true).await;
    assert_eq!(client.content().await.text(), "x");
}

#[tokio::test]
async fn a_revoked_permission_stops_the_commit_of_what_is_staged() {
    let (world, switch) = world();
    let mut client = ana(&world).await;
    client.declare("q", FieldTable::default()).await;
    client.declare_exchange("x", "topic", FieldTable::default()).await;
    client.bind("q", "x", "#").await;
    type Revoke = fn(&Switch);
    let cases: [(&str, Revoke, &str); 3] = [
        ("", |switch| switch.revoke(Action::Send), "exchange 'amq.default'"),
        ("x", |switch| switch.revoke(Action::Send), "exchange 'x'"),
        (
            "x",
            |switch| switch.change(|switch| *switch.keys.lock() = "other"),
            "topic 'q' in exchange 'x'",
        ),
    ];
    for (exchange, revoke, what) in cases {
        switch.change(|switch| {
            switch.revoked.lock().clear();
            *switch.keys.lock() = "";
        });
        assert!(matches!(client.call(tx::Select {}).await, Method::TxSelectOk(_)));
        client.publish(exchange, "q", "staged").await;
        // The publication was checked and staged before its permission is revoked.
        assert!(matches!(client.call(basic::Qos::default()).await, Method::BasicQosOk(_)));
        revoke(&switch);
        let text = format!("ACCESS_REFUSED - access to {what} in vhost '/' refused for user 'ana'");
        assert_eq!(client.refusal(tx::Commit {}).await, (403, text));
        assert_eq!(ready(&world, "q").await, 0);
    }
}

#[tokio::test]
async fn messages_acknowledged_in_a_refused_transaction_return() {
    let (world, switch) = world();
    let mut client = ana(&world).await;
    client.declare("q", FieldTable::default()).await;
    client.declare("other", FieldTable::default()).await;
    client.publish("", "q", "x").await;
    assert!(matches!(client.call(tx::Select {}).await, Method::TxSelectOk(_)));
    let tag = client.get("q").await.unwrap().get_ok().delivery_tag;
    client.ack(tag, false).await;
    client.publish("", "other", "staged").await;
    assert!(matches!(client.call(basic::Qos::default()).await, Method::BasicQosOk(_)));
    switch.revoke(Action::Send);
    assert_eq!(client.refusal(tx::Commit {}).await.0, 403);
    assert_eq!(client.get("q").await.unwrap().text(), "x");
    assert!(client.get("other").await.is_none());
}

#[tokio::test]
async fn a_connection_whose_user_is_gone_is_closed_also_right_after_its_handshake() {
    let (world, switch) = world();
    let gone = (320, "CONNECTION_FORCED - user 'ana' is deleted".to_owned());
    let mut open = ana(&world).await;
    let mut late = world.dial();
    late.sign_in("ana", "secret").await;
    switch.change(|switch| *switch.known.lock() = false);
    assert_eq!(open.closed().await, gone);
    late.open("/").await;
    assert_eq!(late.closed().await, gone);
}

#[tokio::test]
async fn a_tag_that_is_removed_ends_impersonation() {
    let (world, switch) = world();
    switch.change(|switch| switch.tags.lock().push("impersonator".to_owned()));
    let mut client = ana(&world).await;
    client.declare("q", FieldTable::default()).await;
    client.confirms().await;
    let as_bob = || BasicProperties { user_id: Some(b"bob"), ..Default::default() };
    client.publish_with("", "q", false, as_bob(), "x").await;
    client.confirmed(1).await;
    switch.change(|switch| switch.tags.lock().clear());
    // The connection has noticed the change once it answers with the new permissions.
    switch.revoke(Action::Manage);
    let passive =
        exchange::Declare { exchange: short("n"), kind: short("direct"), ..Default::default() };
    assert_eq!(client.refusal(passive).await.0, 403);
    client.publish_with("", "q", false, as_bob(), "x").await;
    assert_eq!(client.closed().await.0, 406);
}
