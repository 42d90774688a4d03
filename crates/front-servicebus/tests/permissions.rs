//! Permissions are checked on the entity's own name, before any resource is held, and again when they change.
#![allow(clippy::unwrap_used, reason = "a test, in all its functions")]

#[allow(dead_code, reason = "each test uses its part")]
mod common;

use std::sync::{Arc, Mutex};

use bytes::{Bytes, BytesMut};
use common::{Client, World};
use malote_front_servicebus::{Key, Keys, Verified};
use malote_model::access::Changed;
use malote_model::{Access, Action, Denied, Principal, Resource};
use malote_wire_amqp::connection::{Event, LinkId, Outgoing, SessionId as Channel};
use malote_wire_amqp::message::{AMQP_VALUE, Draft};
use malote_wire_amqp::performative::{
    Composite, Declare, DeliveryState, Discharge, TransactionalState, condition,
};
use malote_wire_amqp::types::{Map, Value, put_descriptor};
use tokio::sync::watch;

/// One caller with the token `t`, and the prefixes of names that it may use.
struct Grants {
    allowed: Mutex<Vec<&'static str>>,
    known: Mutex<bool>,
    version: watch::Sender<u64>,
}

impl Grants {
    fn new(allowed: &[&'static str]) -> Arc<Grants> {
        let allowed = Mutex::new(allowed.to_vec());
        Arc::new(Grants { allowed, known: Mutex::new(true), version: watch::Sender::new(0) })
    }

    fn revoke(&self) {
        self.allowed.lock().unwrap().clear();
        self.version.send_modify(|version| *version += 1);
    }

    fn forget(&self) {
        *self.known.lock().unwrap() = false;
        self.version.send_modify(|version| *version += 1);
    }
}

impl Access for Grants {
    fn check(&self, who: &Principal, action: Action, on: Resource<'_>) -> Result<(), Denied> {
        let name = on.name().unwrap_or_default();
        let fits = self.allowed.lock().unwrap().iter().any(|start| name.starts_with(start));
        if fits && !who.is_anonymous() && self.knows(who) {
            return Ok(());
        }
        Err(Denied::new(who, action, on))
    }

    fn knows(&self, who: &Principal) -> bool {
        !who.is_anonymous() && *self.known.lock().unwrap()
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

impl Keys for Grants {
    fn is_open(&self) -> bool {
        false
    }
    fn key(&self, _: &str) -> Option<Key> {
        None
    }
    fn verify_password<'a>(&'a self, _: &'a str, _: &'a str, _: std::net::IpAddr) -> Verified<'a> {
        Box::pin(async { None })
    }
    fn verify_token(&self, token: &str) -> Option<Principal> {
        (token == "t").then(|| Principal::named("ana"))
    }
}

/// An authenticated client.
async fn known(world: &World) -> (Client, Channel) {
    let mut client = world.client().await;
    let channel = client.amqp.begin().unwrap();
    let node = client.node(channel, "$cbs").await;
    let names = Map::default()
        .with_string("operation", "put-token")
        .with_string("type", "jwt")
        .with_string("name", "");
    assert_eq!(client.ask(node, names, Value::from("t")).await.0, 202);
    (client, channel)
}

/// "attached", or the condition of the refusal.
async fn outcome(client: &mut Client, link: LinkId) -> String {
    client
        .until(|event| match event {
            Event::Attached { link: id, attach }
                if *id == link && attach.source.is_some() && attach.target.is_some() =>
            {
                Some("attached".to_owned())
            }
            Event::Detach { link: id, error, .. } if *id == link => {
                Some(error.as_ref().map(|error| error.condition.to_string()).unwrap_or_default())
            }
            _ => None,
        })
        .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permissions_are_checked_on_the_entitys_own_spelling() {
    let grants = Grants::new(&["a"]);
    let world = World::with(grants.clone(), grants);
    for name in ["Admin-q", "alpha", "Other"] {
        world.queue(name, false).await;
    }
    let (mut client, channel) = known(&world).await;
    for (at, expected) in [
        ("alpha", "attached"),
        // Another spelling of a permitted name.
        ("ALPHA", "attached"),
        ("alpha/$DeadLetterQueue", "attached"),
        // A forbidden entity looks like a missing one: first where the requested name is permitted ...
        ("aDmin-q", condition::NOT_FOUND),
        ("aMissing", condition::NOT_FOUND),
        ("aDmin-q/$deadletterqueue", condition::NOT_FOUND),
        // ... then where it is not.
        ("Admin-q", condition::UNAUTHORIZED_ACCESS),
        ("Other", condition::UNAUTHORIZED_ACCESS),
        ("Missing", condition::UNAUTHORIZED_ACCESS),
        ("Missing/$management", condition::UNAUTHORIZED_ACCESS),
        ("Other/$management", condition::UNAUTHORIZED_ACCESS),
        ("aDmin-q/$management", condition::NOT_FOUND),
        ("alpha/$management", "attached"),
    ] {
        let link = client.receiver(channel, at, at, None);
        assert_eq!(outcome(&mut client, link).await, expected, "{at}");
    }
    let link = client.sender(channel, "send", "aDmin-q");
    assert_eq!(outcome(&mut client, link).await, condition::NOT_FOUND);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_cbs_can_be_attached_before_authentication() {
    let grants = Grants::new(&["a"]);
    let world = World::with(grants.clone(), grants);
    world.queue("alpha", false).await;
    let mut client = world.client().await;
    let channel = client.amqp.begin().unwrap();
    for at in ["alpha", "alpha/$management", "missing/$management", "missing"] {
        let link = client.receiver(channel, at, at, None);
        assert_eq!(outcome(&mut client, link).await, condition::UNAUTHORIZED_ACCESS, "{at}");
    }
    let link = client.coordinator(channel);
    assert_eq!(client.detached(link).await, condition::UNAUTHORIZED_ACCESS);
    // A token has a few kilobytes; more is not buffered.
    let (requests, _) = client.node(channel, "$cbs").await;
    let payload = Bytes::from(vec![0; 1 << 20]);
    let outgoing =
        Outgoing { key: 1, tag: Bytes::from_static(b"1"), payload, ..Outgoing::default() };
    client.amqp.send(requests, outgoing).unwrap();
    assert_eq!(client.detached(requests).await, condition::RESOURCE_LIMIT_EXCEEDED);
}

fn value(of: &impl Composite) -> Bytes {
    let mut out = BytesMut::new();
    put_descriptor(&mut out, AMQP_VALUE);
    of.encode(&mut out);
    out.freeze()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revoked_grant_ends_links_and_what_they_staged() {
    for forget in [false, true] {
        let grants = Grants::new(&["a"]);
        let world = World::with(grants.clone(), grants.clone());
        let queue = world.queue("alpha", false).await;
        let (mut client, channel) = known(&world).await;
        let coordinator = client.coordinator(channel);
        let sender = client.sender(channel, "s", "alpha");
        let receiver = client.receiver(channel, "r", "alpha", None);
        for link in [coordinator, sender, receiver] {
            client.attached(link).await;
        }
        client.credit(coordinator).await;
        client.credit(sender).await;
        client.amqp.grant(receiver, 10).unwrap();
        let body = value(&Declare::default());
        let declared = client.send_bytes(coordinator, body, None).await;
        let Some(DeliveryState::Declared(declared)) = declared else { panic!("{declared:?}") };
        let txn_id = declared.txn_id;
        let part = TransactionalState { txn_id: txn_id.clone(), outcome: None };
        let part = DeliveryState::Transactional(part);
        let staged = client.send_bytes(sender, Draft::value(Value::Null).to_bytes(), Some(part));
        assert!(matches!(staged.await, Some(DeliveryState::Transactional(_))));

        if forget {
            grants.forget()
        } else {
            grants.revoke()
        }
        assert_eq!(client.detached(sender).await, condition::UNAUTHORIZED_ACCESS);
        assert_eq!(client.detached(receiver).await, condition::UNAUTHORIZED_ACCESS);
        let body = value(&Discharge { txn_id, fail: Some(false) });
        let discharged = client.send_bytes(coordinator, body, None).await;
        let Some(DeliveryState::Rejected(rejected)) = discharged else { panic!("{discharged:?}") };
        assert_eq!(rejected.error.unwrap().condition.as_str(), condition::UNAUTHORIZED_ACCESS);
        let facts = world.engine.describe(queue).await.unwrap();
        assert_eq!((facts.ready, facts.consumers), (0, 0));
    }
}
