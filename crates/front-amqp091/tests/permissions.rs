//! Users with RabbitMQ's permissions, over AMQP. The answers were compared with those of RabbitMQ 3.10.8.
#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use common::{Ana, Client, Open, World, short};
use malote_front_amqp091::names;
use malote_front_amqp091::users::{Changing, UserChange, UserEntry, Users};
use malote_front_amqp091::wire::method::{Method, basic, connection, exchange, queue};
use malote_front_amqp091::wire::properties::BasicProperties;
use malote_front_amqp091::wire::table::FieldTable;
use malote_front_amqp091::{Front, Keys, Peer, serve_peer};
use malote_model::access::AllowAll;
use malote_model::{Access, Action, AuditEntry, Denied, Principal, Resource};

/// Ana may, in `/`: configure `c…`, write `c…` and `w…`, read `c…` and `r…`.
struct Rights {
    tags: Vec<String>,
}

impl Access for Rights {
    fn check(&self, who: &Principal, action: Action, on: Resource<'_>) -> Result<(), Denied> {
        let (vhost, name) = names::split(on.permission_name().unwrap_or_default());
        let also = match action {
            Action::Manage => 'c',
            Action::Send => 'w',
            Action::Receive => 'r',
        };
        match vhost == "/" && name.starts_with(['c', also]) {
            true => Ok(()),
            false => Err(Denied::new(who, action, on)),
        }
    }
}

impl Users for Rights {
    fn tags(&self, _: &Principal) -> Vec<String> {
        self.tags.clone()
    }
    fn may_enter(&self, _: &Principal, vhost: &str) -> bool {
        vhost == "/"
    }
    fn has_permission(&self, _: &Principal, vhost: &str) -> bool {
        vhost == "/"
    }
    fn may_use_key(&self, _: &Principal, _: Action, _: &str, exchange: &str, key: &str) -> bool {
        exchange != "cx" || key.starts_with('k')
    }
    fn list(&self) -> Vec<UserEntry> {
        Vec::new()
    }
    fn change(&self, _: Vec<UserChange>, _: AuditEntry) -> Changing<'_> {
        Box::pin(async { Ok(()) })
    }
}

fn world(tags: &[&str]) -> World {
    let rights = || Rights { tags: tags.iter().map(|tag| (*tag).to_owned()).collect() };
    let mut world = World::with(Arc::new(rights()), Arc::new(Ana));
    let front: Arc<dyn Access> = Arc::new(rights());
    let mut front = Front::new(world.engine.clone(), front, Arc::new(Ana));
    front.users = Arc::new(rights());
    world.front = Arc::new(front);
    world
}

async fn ana(world: &World) -> Client {
    let mut client = world.dial();
    client.sign_in("ana", "secret").await;
    client.open("/").await;
    client.open_channel(1).await;
    client
}

fn refused(what: &str) -> (u16, String) {
    (403, format!("ACCESS_REFUSED - access to {what} in vhost '/' refused for user 'ana'"))
}

#[tokio::test]
async fn a_virtual_host_without_permissions_is_refused() {
    let world = world(&[]);
    world.front.create_vhost("dev").await.unwrap();
    let mut client = world.dial();
    client.sign_in("ana", "secret").await;
    client.send(0, connection::Open { virtual_host: short("dev"), ..Default::default() }).await;
    let Method::ConnectionClose(close) = client.method().await else { panic!("accepted") };
    let text = "NOT_ALLOWED - access to vhost 'dev' refused for user 'ana'";
    assert_eq!((close.reply_code, &*close.reply_text), (530, text));
}

#[tokio::test]
async fn each_method_needs_the_permission_that_rabbitmq_checks() {
    let world = world(&[]);
    let mut client = ana(&world).await;
    let declare = |name: &str, arguments: FieldTable| queue::Declare {
        queue: short(name),
        arguments,
        ..Default::default()
    };
    client.declare("cq", FieldTable::default()).await;
    assert_eq!(client.refusal(declare("xq", FieldTable::default())).await, refused("queue 'xq'"));
    // Everyone in the virtual host may ask whether something exists.
    let passive = queue::Declare { passive: true, ..declare("xq", FieldTable::default()) };
    assert_eq!(client.refusal(passive).await.0, 404);
    let passive =
        exchange::Declare { exchange: short("amq.topic"), passive: true, ..Default::default() };
    assert!(matches!(client.call(passive).await, Method::ExchangeDeclareOk(_)));
    // A dead-letter exchange must be writable, the default one, too. Later declarations do not need that.
    for (exchange, shown) in [("", "amq.default"), ("amq.direct", "amq.direct")] {
        let arguments = FieldTable::builder().with("x-dead-letter-exchange", exchange).build();
        let expected = refused(&format!("exchange '{shown}'"));
        assert_eq!(client.refusal(declare("cdlx", arguments)).await, expected);
    }
    client
        .declare("cdlx", FieldTable::builder().with("x-dead-letter-exchange", "wx").build())
        .await;
    let alternate = exchange::Declare {
        exchange: short("cae"),
        kind: short("direct"),
        arguments: FieldTable::builder().with("alternate-exchange", "zz").build(),
        ..Default::default()
    };
    assert_eq!(client.refusal(alternate).await, refused("exchange 'zz'"));
    client.declare_exchange("cx", "topic", FieldTable::default()).await;
    let bind = |queue: &str, exchange: &str, key: &str| queue::Bind {
        queue: short(queue),
        exchange: short(exchange),
        routing_key: short(key),
        ..Default::default()
    };
    assert_eq!(client.refusal(bind("cq", "amq.topic", "k")).await, refused("exchange 'amq.topic'"));
    assert_eq!(client.refusal(bind("rq", "cx", "k")).await, refused("queue 'rq'"));
    assert!(matches!(client.call(bind("cq", "cx", "k1")).await, Method::QueueBindOk(_)));
    assert_eq!(
        client.refusal(bind("cq", "cx", "z1")).await,
        refused("topic 'z1' in exchange 'cx'")
    );
    let get = basic::Get { queue: short("wq"), ..Default::default() };
    assert_eq!(client.refusal(get).await, refused("queue 'wq'"));
    let purge = queue::Purge { queue: short("wq"), ..Default::default() };
    assert_eq!(client.refusal(purge).await, refused("queue 'wq'"));
    let consume = basic::Consume { queue: short("wq"), ..Default::default() };
    assert_eq!(client.refusal(consume).await, refused("queue 'wq'"));
    let delete = queue::Delete { queue: short("rq"), ..Default::default() };
    assert_eq!(client.refusal(delete).await, refused("queue 'rq'"));
    let delete = exchange::Delete { exchange: short("zz"), ..Default::default() };
    assert_eq!(client.refusal(delete).await, refused("exchange 'zz'"));
}

/// What closes channel 1 after a publication.
async fn refusal_of_publication(client: &mut Client, exchange: &str, key: &str) -> (u16, String) {
    client.publish(exchange, key, "x").await;
    let Method::ChannelClose(close) = client.method().await else { panic!("accepted") };
    (close.reply_code, close.reply_text.to_string())
}

#[tokio::test]
async fn publishing_needs_write_on_the_exchange_and_on_the_routing_key() {
    let world = world(&[]);
    let mut client = ana(&world).await;
    client.declare("cq", FieldTable::default()).await;
    client.declare_exchange("cx", "topic", FieldTable::default()).await;
    client.bind("cq", "cx", "k.#").await;
    client.publish("cx", "k.1", "x").await;
    assert_eq!(client.get("cq").await.unwrap().text(), "x");
    for (exchange, key, expected) in [
        // The permission for the queue does not help.
        ("", "cq", refused("exchange 'amq.default'")),
        ("amq.topic", "k", refused("exchange 'amq.topic'")),
        ("cx", "z.1", refused("topic 'z.1' in exchange 'cx'")),
    ] {
        let mut client = ana(&world).await;
        assert_eq!(refusal_of_publication(&mut client, exchange, key).await, expected);
    }
}

/// Everything is allowed, until sending is revoked.
#[derive(Default)]
struct Revocable {
    version: AtomicU64,
}

impl Access for Revocable {
    fn check(&self, who: &Principal, action: Action, on: Resource<'_>) -> Result<(), Denied> {
        match action == Action::Send && self.version() > 0 {
            true => Err(Denied::new(who, action, on)),
            false => Ok(()),
        }
    }
    fn version(&self) -> u64 {
        self.version.load(Ordering::SeqCst)
    }
}

/// A channel remembers where it published last, and what it may do there.
#[tokio::test]
async fn a_permission_that_is_revoked_or_ends_with_a_key_holds_no_longer() {
    for exchange in ["", "cx"] {
        let access = Arc::new(Revocable::default());
        let world = World::with(access.clone(), Arc::new(Ana));
        let mut client = ana(&world).await;
        client.declare("cq", FieldTable::default()).await;
        client.declare_exchange("cx", "topic", FieldTable::default()).await;
        client.bind("cq", "cx", "#").await;
        for text in ["one", "two"] {
            client.publish(exchange, "cq", text).await;
            assert_eq!(client.get("cq").await.unwrap().text(), text);
        }
        access.version.store(1, Ordering::SeqCst);
        let shown = if exchange.is_empty() { "amq.default" } else { exchange };
        let expected = refused(&format!("exchange '{shown}'"));
        assert_eq!(refusal_of_publication(&mut client, exchange, "cq").await, expected);
    }
    let world = world(&[]);
    let mut client = ana(&world).await;
    client.declare("cq", FieldTable::default()).await;
    client.declare_exchange("cx", "topic", FieldTable::default()).await;
    client.bind("cq", "cx", "k.#").await;
    client.publish("cx", "k.1", "x").await;
    assert_eq!(client.get("cq").await.unwrap().text(), "x");
    let expected = refused("topic 'z.1' in exchange 'cx'");
    assert_eq!(refusal_of_publication(&mut client, "cx", "z.1").await, expected);
}

#[tokio::test]
async fn an_impersonator_may_set_the_user_id_of_another_user() {
    let as_bob = || BasicProperties { user_id: Some(b"bob"), ..Default::default() };
    let publish = async |client: &mut Client| {
        client.declare("cq", FieldTable::default()).await;
        client.declare_exchange("cx", "fanout", FieldTable::default()).await;
        client.bind("cq", "cx", "k").await;
        client.publish_with("cx", "k", false, as_bob(), "x").await;
    };
    let strict = world(&[]);
    let mut client = ana(&strict).await;
    publish(&mut client).await;
    let Method::ChannelClose(close) = client.method().await else { panic!("accepted") };
    let text =
        "PRECONDITION_FAILED - user_id property set to 'bob' but authenticated user was 'ana'";
    assert_eq!((close.reply_code, &*close.reply_text), (406, text));
    let lenient = world(&["impersonator"]);
    let mut client = ana(&lenient).await;
    publish(&mut client).await;
    let received = client.get("cq").await.unwrap();
    assert_eq!(received.properties.decode().user_id, Some(&b"bob"[..]));
}

/// Guest is a user whose password is `other`.
struct GuestUser;

impl Keys for GuestUser {
    fn is_open(&self) -> bool {
        false
    }
    fn verify_password<'a>(
        &'a self,
        user: &'a str,
        word: &'a str,
        _: IpAddr,
    ) -> malote_front_amqp091::Verified<'a> {
        let good = user == "guest" && word == "other";
        Box::pin(async move { good.then(|| Principal::named("guest")) })
    }
}

#[tokio::test]
async fn guest_signs_in_from_this_machine_only() {
    let cases: [(Arc<dyn Keys>, &str); 2] =
        [(Arc::new(Open), "guest"), (Arc::new(GuestUser), "other")];
    for (keys, password) in cases {
        for (address, accepted) in
            [("127.0.0.1", true), ("::1", true), ("::ffff:127.0.0.1", true), ("10.0.0.1", false)]
        {
            let world = World::with(Arc::new(AllowAll), keys.clone());
            let mut client = world.dial();
            let (ours, theirs) = tokio::io::duplex(1 << 20);
            client.stream = ours;
            let address: IpAddr = address.parse().unwrap();
            let local = SocketAddr::new(address, 5672);
            let peer = Peer { address, port: 1, local, tls: false, known: Arc::default() };
            let (front, stop) = (world.front.clone(), world.shutdown.clone());
            tokio::spawn(async move { serve_peer(theirs, front, stop, peer).await });
            client.start("guest", password, true).await;
            let answer = client.method().await;
            assert_eq!(
                matches!(answer, Method::ConnectionTune(_)),
                accepted,
                "{address} {answer:?}"
            );
        }
    }
}
