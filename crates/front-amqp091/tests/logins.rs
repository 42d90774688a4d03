//! The handshake, users, permissions, virtual hosts, and how connections end.

mod common;

use std::sync::Arc;

use common::{Ana, Open, World, short};
use malote_front_amqp091::wire::frame::PROTOCOL_HEADER;
use malote_front_amqp091::wire::method::{Method, basic, channel, connection, queue};
use malote_front_amqp091::wire::table::FieldTable;
use malote_model::access::AllowAll;
use malote_model::{Access, Action, Denied, Principal, Resource};
use tokio::io::AsyncReadExt;

#[tokio::test]
async fn another_protocol_is_answered_with_the_header() {
    let world = World::new();
    let mut client = world.dial();
    client.write(b"AMQP\x01\x01\x00\x0a").await;
    let mut answer = Vec::new();
    client.stream.read_to_end(&mut answer).await.unwrap();
    assert_eq!(answer, PROTOCOL_HEADER);
}

#[tokio::test]
async fn only_guest_may_use_an_open_server_and_a_wrong_password_is_refused() {
    let refused = "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN. For details see the broker logfile.";
    for (keys, user, password) in [
        (true, "guest", "wrong"),
        (true, "ana", "secret"),
        (false, "guest", "guest"),
        (false, "ana", "x"),
    ] {
        let world = match keys {
            true => World::with(Arc::new(AllowAll), Arc::new(Open)),
            false => World::with(Arc::new(AllowAll), Arc::new(Ana)),
        };
        let mut client = world.dial();
        client.start(user, password, true).await;
        let Method::ConnectionClose(close) = client.method().await else { panic!("accepted") };
        assert_eq!((close.reply_code, &*close.reply_text), (403, refused));
        // Without the capability, the connection ends without a word.
        let mut client = world.dial();
        client.start(user, password, false).await;
        assert!(client.frame().await.is_none());
    }
    let world = World::with(Arc::new(AllowAll), Arc::new(Ana));
    world.dial().sign_in("ana", "secret").await;
}

/// Ana may send to everything, and receive from and manage what begins with `ana`.
struct Rules;

impl Access for Rules {
    fn check(&self, who: &Principal, action: Action, on: Resource<'_>) -> Result<(), Denied> {
        let own = on.name().is_some_and(|name| name.starts_with("ana"));
        match who.name() == "ana" && (own || action == Action::Send) {
            true => Ok(()),
            false => Err(Denied::new(who, action, on)),
        }
    }
}

#[tokio::test]
async fn permissions_are_checked_for_each_operation() {
    let world = World::with(Arc::new(Rules), Arc::new(Ana));
    let mut client = world.dial();
    client.sign_in("ana", "secret").await;
    client.open("/").await;
    client.open_channel(1).await;
    client.declare("ana.q", FieldTable::default()).await;
    let text = |what: &str, name: &str| {
        format!("ACCESS_REFUSED - access to {what} '{name}' in vhost '/' refused for user 'ana'")
    };
    let declare = queue::Declare { queue: short("q"), ..Default::default() };
    assert_eq!(client.refusal(declare).await, (403, text("queue", "q")));
    let get = basic::Get { queue: short("q"), ..Default::default() };
    assert_eq!(client.refusal(get).await, (403, text("queue", "q")));
    let bind =
        queue::Bind { queue: short("ana.q"), exchange: short("amq.topic"), ..Default::default() };
    assert_eq!(client.refusal(bind).await, (403, text("exchange", "amq.topic")));
    client.publish("", "ana.q", "x").await;
    assert_eq!(client.get("ana.q").await.unwrap().text(), "x");
}

#[tokio::test]
async fn virtual_hosts_exist_once_they_are_created() {
    let world = World::new();
    let mut client = world.dial();
    client.sign_in("guest", "guest").await;
    client.send(0, connection::Open { virtual_host: short("dev"), ..Default::default() }).await;
    let Method::ConnectionClose(close) = client.method().await else { panic!("accepted") };
    assert_eq!((close.reply_code, &*close.reply_text), (530, "NOT_ALLOWED - vhost dev not found"));
    world.front.create_vhost("dev").await.unwrap();
    let mut dev = world.dial();
    dev.sign_in("guest", "guest").await;
    dev.open("dev").await;
    dev.open_channel(1).await;
    dev.declare("q", FieldTable::default()).await;
    dev.publish("", "q", "x").await;
    let mut client = world.channel().await;
    let passive = queue::Declare { queue: short("q"), passive: true, ..Default::default() };
    assert_eq!(client.refusal(passive).await.0, 404);
    assert_eq!(dev.get("q").await.unwrap().text(), "x");
}

#[tokio::test]
async fn channels_are_opened_once_and_closed_by_number() {
    let world = World::new();
    let mut client = world.client().await;
    client.open_channel(3000).await;
    client.send(3000, channel::Close::default()).await;
    assert!(matches!(client.method().await, Method::ChannelCloseOk(_)));
    client.open_channel(3000).await;
    client.send(3000, channel::Open::default()).await;
    let expected = (504, "CHANNEL_ERROR - second 'channel.open' seen".to_owned());
    assert_eq!(client.closed().await, expected);
    let mut client = world.client().await;
    client.send(9, basic::Qos::default()).await;
    assert_eq!(client.closed().await, (504, "CHANNEL_ERROR - expected 'channel.open'".into()));
    let mut client = world.channel().await;
    assert_eq!(
        client.refusal(basic::Qos { prefetch_size: 100, ..Default::default() }).await,
        (540, "NOT_IMPLEMENTED - prefetch_size!=0 (100)".into())
    );
}

#[tokio::test]
async fn a_shutdown_is_announced() {
    let world = World::new();
    let mut client = world.channel().await;
    world.shutdown.cancel();
    assert_eq!(
        client.closed().await,
        (320, "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'".into())
    );
}

#[tokio::test]
async fn exclusive_queues_end_with_their_connection_and_messages_return() {
    let world = World::new();
    let mut client = world.channel().await;
    client.declare("q", FieldTable::default()).await;
    let own = queue::Declare { exclusive: true, ..Default::default() };
    let Method::QueueDeclareOk(own) = client.call(own).await else { panic!("not declared") };
    assert!(own.queue.starts_with("amq.gen-") && own.queue.len() == 30, "{}", own.queue);
    client.publish("", "q", "x").await;
    client.get("q").await.unwrap();
    drop(client);
    let mut client = world.channel().await;
    assert!(client.get_soon("q").await.get_ok().redelivered);
    let passive = queue::Declare { queue: own.queue, passive: true, ..Default::default() };
    assert_eq!(client.refusal(passive).await.0, 404);
}
