//! A small client built on the codec, connected by a pipe to a served connection.
#![allow(dead_code, reason = "not every test uses everything")]
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test by the real clock")]

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use malote_engine::{Engine, Running, Settings};
use malote_front_amqp091::wire::content::put_content;
use malote_front_amqp091::wire::frame::{
    Frame, FrameDecoder, FrameKind, PROTOCOL_HEADER, put_method,
};
use malote_front_amqp091::wire::method::{
    EncodeMethod, Method, basic, channel, connection, exchange, queue,
};
use malote_front_amqp091::wire::properties::{BasicProperties, ContentHeader, Properties};
use malote_front_amqp091::wire::table::FieldTable;
use malote_front_amqp091::wire::text::ShortString;
use malote_front_amqp091::{Front, Keys, Verified, serve_connection};
use malote_model::access::AllowAll;
use malote_model::{Access, Principal};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio_util::sync::CancellationToken;

/// The longest that an answer may take on a slow machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A server without credentials.
pub struct Open;

impl Keys for Open {
    fn is_open(&self) -> bool {
        true
    }
    fn verify_password<'a>(&'a self, _: &'a str, _: &'a str, _: IpAddr) -> Verified<'a> {
        Box::pin(async { None })
    }
}

/// A server with the user `ana`, whose password is `secret`.
pub struct Ana;

impl Keys for Ana {
    fn is_open(&self) -> bool {
        false
    }
    fn verify_password<'a>(&'a self, user: &'a str, word: &'a str, _: IpAddr) -> Verified<'a> {
        let good = user == "ana" && word == "secret";
        Box::pin(async move { good.then(|| Principal::named("ana")) })
    }
}

pub struct World {
    pub engine: Engine,
    pub front: Arc<Front>,
    pub shutdown: CancellationToken,
    running: Option<Running>,
    pub data: tempfile::TempDir,
}

impl World {
    pub fn new() -> World {
        World::with(Arc::new(AllowAll), Arc::new(Open))
    }

    pub fn with(access: Arc<dyn Access>, keys: Arc<dyn Keys>) -> World {
        World::at(tempfile::tempdir().unwrap(), access, keys)
    }

    fn at(data: tempfile::TempDir, access: Arc<dyn Access>, keys: Arc<dyn Keys>) -> World {
        let (engine, running) = Engine::open(Settings::at(data.path())).unwrap();
        let front = Arc::new(Front::new(engine.clone(), access, keys));
        let shutdown = CancellationToken::new();
        World { engine, front, shutdown, running: Some(running), data }
    }

    /// Stops the engine and opens its directory again.
    pub async fn restarted(mut self) -> World {
        self.shutdown.cancel();
        let Some(running) = self.running.take() else { unreachable!("it runs") };
        running.stop().await;
        let (access, keys) = (self.front.access.clone(), self.front.keys.clone());
        World::at(self.data, access, keys)
    }

    /// A raw connection, before the protocol header.
    pub fn dial(&self) -> Client {
        let (ours, theirs) = tokio::io::duplex(1 << 20);
        let (front, shutdown) = (self.front.clone(), self.shutdown.clone());
        tokio::spawn(async move { serve_connection(theirs, front, shutdown).await });
        let mut decoder = FrameDecoder::default();
        decoder.set_frame_max(131_072);
        Client { stream: ours, input: BytesMut::new(), decoder }
    }

    /// A client with an open connection.
    pub async fn client(&self) -> Client {
        let mut client = self.dial();
        client.sign_in("guest", "guest").await;
        client.open("/").await;
        client
    }

    /// A client with channel 1 open.
    pub async fn channel(&self) -> Client {
        let mut client = self.client().await;
        client.open_channel(1).await;
        client
    }
}

pub struct Client {
    pub stream: DuplexStream,
    input: BytesMut,
    decoder: FrameDecoder,
}

/// Content that the server sent, with its method.
#[derive(Debug)]
pub struct Received {
    pub method: Method,
    pub properties: Properties,
    pub body: Bytes,
}

impl Received {
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub fn deliver(&self) -> &basic::Deliver {
        match &self.method {
            Method::BasicDeliver(deliver) => deliver,
            other => panic!("expected a delivery, not {other:?}"),
        }
    }

    pub fn get_ok(&self) -> &basic::GetOk {
        match &self.method {
            Method::BasicGetOk(get_ok) => get_ok,
            other => panic!("expected an answer to get, not {other:?}"),
        }
    }
}

pub fn short(text: &str) -> ShortString {
    ShortString::try_from(text).unwrap()
}

impl Client {
    pub async fn write(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.unwrap();
    }

    pub async fn send(&mut self, channel: u16, method: impl EncodeMethod) {
        let mut out = BytesMut::new();
        put_method(&mut out, channel, &method);
        self.write(&out).await;
    }

    pub async fn frame(&mut self) -> Option<Frame> {
        let reading = async {
            loop {
                if let Some(frame) = self.decoder.decode(&mut self.input).unwrap() {
                    return Some(frame);
                }
                if self.stream.read_buf(&mut self.input).await.unwrap_or(0) == 0 {
                    return None;
                }
            }
        };
        tokio::time::timeout(PATIENCE, reading).await.expect("an answer in time")
    }

    /// The next method without content.
    pub async fn method(&mut self) -> Method {
        let frame = self.frame().await.expect("the connection is open");
        assert_eq!(frame.kind, FrameKind::Method);
        Method::decode(&frame.payload).unwrap()
    }

    /// Sends a method and reads the answer.
    pub async fn call(&mut self, method: impl EncodeMethod) -> Method {
        self.send(1, method).await;
        self.method().await
    }

    /// The next method with content.
    pub async fn content(&mut self) -> Received {
        let method = self.method().await;
        let header = self.frame().await.unwrap();
        let ContentHeader { body_size, properties } =
            ContentHeader::decode(&header.payload).unwrap();
        let mut body = BytesMut::new();
        while (body.len() as u64) < body_size {
            let frame = self.frame().await.unwrap();
            assert_eq!(frame.kind, FrameKind::Body);
            body.extend_from_slice(&frame.payload);
        }
        Received { method, properties, body: body.freeze() }
    }

    pub async fn sign_in(&mut self, user: &str, password: &str) {
        self.start(user, password, true).await;
        assert!(matches!(self.method().await, Method::ConnectionTune(_)));
        let (channel_max, frame_max, heartbeat) = (2047, 131_072, 0);
        self.send(0, connection::TuneOk { channel_max, frame_max, heartbeat }).await;
    }

    /// Answers `connection.start` with credentials.
    pub async fn start(&mut self, user: &str, password: &str, understands_close: bool) {
        self.write(&PROTOCOL_HEADER).await;
        let Method::ConnectionStart(start) = self.method().await else { panic!("no start") };
        assert_eq!(&start.mechanisms[..], b"PLAIN AMQPLAIN");
        let capabilities = FieldTable::builder()
            .with("authentication_failure_close", understands_close)
            .with("consumer_cancel_notify", true)
            .build();
        let client_properties =
            FieldTable::builder().with("capabilities", capabilities.as_table()).build();
        let response = format!("\0{user}\0{password}").into_bytes().into();
        let (mechanism, locale) = (short("PLAIN"), short("en_US"));
        self.send(0, connection::StartOk { client_properties, mechanism, response, locale }).await;
    }

    pub async fn open(&mut self, host: &str) {
        self.send(0, connection::Open { virtual_host: short(host), ..Default::default() }).await;
        assert!(matches!(self.method().await, Method::ConnectionOpenOk(_)));
    }

    pub async fn open_channel(&mut self, number: u16) {
        self.send(number, channel::Open::default()).await;
        assert!(matches!(self.method().await, Method::ChannelOpenOk(_)));
    }

    /// Declares a durable queue.
    pub async fn declare(&mut self, name: &str, arguments: FieldTable) -> queue::DeclareOk {
        let declare =
            queue::Declare { queue: short(name), durable: true, arguments, ..Default::default() };
        match self.call(declare).await {
            Method::QueueDeclareOk(ok) => ok,
            other => panic!("{other:?}"),
        }
    }

    pub async fn declare_exchange(&mut self, name: &str, kind: &str, arguments: FieldTable) {
        let declare = exchange::Declare {
            exchange: short(name),
            kind: short(kind),
            durable: true,
            arguments,
            ..Default::default()
        };
        assert!(matches!(self.call(declare).await, Method::ExchangeDeclareOk(_)));
    }

    pub async fn bind(&mut self, queue: &str, exchange: &str, key: &str) {
        let (queue, exchange, routing_key) = (short(queue), short(exchange), short(key));
        let bind = queue::Bind { queue, exchange, routing_key, ..Default::default() };
        assert!(matches!(self.call(bind).await, Method::QueueBindOk(_)));
    }

    pub async fn publish(&mut self, exchange: &str, key: &str, body: &str) {
        self.publish_with(exchange, key, false, BasicProperties::default(), body).await;
    }

    pub async fn publish_with(
        &mut self,
        exchange: &str,
        key: &str,
        mandatory: bool,
        properties: BasicProperties<'_>,
        body: &str,
    ) {
        let publish = basic::Publish {
            exchange: short(exchange),
            routing_key: short(key),
            mandatory,
            ..Default::default()
        };
        let mut out = BytesMut::new();
        put_content(&mut out, 1, 131_072, &publish, &properties.encode(), body.as_bytes());
        self.write(&out).await;
    }

    /// `basic.get`; `None` if the queue is empty.
    pub async fn get(&mut self, queue: &str) -> Option<Received> {
        self.send(1, basic::Get { queue: short(queue), ..Default::default() }).await;
        let frame = self.frame().await.unwrap();
        match Method::decode(&frame.payload).unwrap() {
            Method::BasicGetEmpty(_) => None,
            method @ Method::BasicGetOk(_) => {
                let header = self.frame().await.unwrap();
                let header = ContentHeader::decode(&header.payload).unwrap();
                let body = match header.body_size {
                    0 => Bytes::new(),
                    _ => self.frame().await.unwrap().payload,
                };
                Some(Received { method, properties: header.properties, body })
            }
            other => panic!("{other:?}"),
        }
    }

    /// Gets from a queue until a message is there: routing a dead letter takes a moment.
    pub async fn get_soon(&mut self, queue: &str) -> Received {
        let begun = std::time::Instant::now();
        loop {
            if let Some(received) = self.get(queue).await {
                return received;
            }
            assert!(begun.elapsed() < PATIENCE, "no message in {queue}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    pub async fn consume(&mut self, queue: &str, tag: &str, no_ack: bool) {
        let (queue, consumer_tag) = (short(queue), short(tag));
        let consume = basic::Consume { queue, consumer_tag, no_ack, ..Default::default() };
        assert!(matches!(self.call(consume).await, Method::BasicConsumeOk(_)));
    }

    pub async fn ack(&mut self, delivery_tag: u64, multiple: bool) {
        self.send(1, basic::Ack { delivery_tag, multiple }).await;
    }

    pub async fn confirms(&mut self) {
        let select = malote_front_amqp091::wire::method::confirm::Select { no_wait: false };
        assert!(matches!(self.call(select).await, Method::ConfirmSelectOk(_)));
    }

    /// Waits until `count` publications are confirmed.
    pub async fn confirmed(&mut self, count: u64) {
        loop {
            match self.method().await {
                Method::BasicAck(ack) if ack.delivery_tag >= count => return,
                Method::BasicAck(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// The code and text of the close that answers a method.
    pub async fn refusal(&mut self, method: impl EncodeMethod) -> (u16, String) {
        self.send(1, method).await;
        self.closed().await
    }

    /// The code and text of the next close, of the channel or the connection.
    pub async fn closed(&mut self) -> (u16, String) {
        match self.method().await {
            Method::ChannelClose(close) => {
                self.send(1, channel::CloseOk {}).await;
                self.open_channel(1).await;
                (close.reply_code, close.reply_text.to_string())
            }
            Method::ConnectionClose(close) => (close.reply_code, close.reply_text.to_string()),
            other => panic!("{other:?}"),
        }
    }
}
