//! A client built on the AMQP engine, connected by a pipe to a served connection.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use malote_engine::{Engine, Running, Settings};
use malote_front_servicebus::{Front, Key, Keys, Verified, serve_connection};
use malote_model::access::AllowAll;
use malote_model::{Access, Message, Principal, QueueName, QueueSpec, SessionId, Sessions};
use malote_wire_amqp::connection::{
    Config, Connection, Event, LinkId, Outgoing, SessionId as Channel,
};
use malote_wire_amqp::message::{Draft, Message as AmqpMessage, Properties};
use malote_wire_amqp::performative::*;
use malote_wire_amqp::types::{Map, Str, Symbol, Value};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio_util::sync::CancellationToken;

/// A store without credentials.
pub struct NoKeys;

impl Keys for NoKeys {
    fn is_open(&self) -> bool {
        true
    }
    fn key(&self, _: &str) -> Option<Key> {
        None
    }
    fn verify_password<'a>(&'a self, _: &'a str, _: &'a str, _: std::net::IpAddr) -> Verified<'a> {
        Box::pin(async { None })
    }
    fn verify_token(&self, _: &str) -> Option<Principal> {
        None
    }
}

pub struct World {
    pub engine: Engine,
    pub front: Arc<Front>,
    pub shutdown: CancellationToken,
    _running: Running,
    _data: tempfile::TempDir,
}

impl World {
    pub async fn new() -> World {
        World::with(Arc::new(AllowAll), Arc::new(NoKeys))
    }

    /// A broker with credentials.
    pub fn with(access: Arc<dyn Access>, keys: Arc<dyn Keys>) -> World {
        let data = tempfile::tempdir().unwrap();
        let (engine, running) = Engine::open(Settings::at(data.path())).unwrap();
        let front = Front { engine: engine.clone(), access, keys };
        World {
            engine,
            front: Arc::new(front),
            shutdown: CancellationToken::new(),
            _running: running,
            _data: data,
        }
    }

    pub async fn queue(&self, name: &str, sessions: bool) -> QueueName {
        let name = QueueName::new(name).unwrap();
        let sessions = if sessions { Sessions::Dynamic } else { Sessions::None };
        let spec = QueueSpec { sessions, ..QueueSpec::default() };
        self.engine.declare(name.clone(), spec).await.unwrap();
        name
    }

    pub async fn put(&self, queue: &QueueName, messages: &[(&str, &str)]) {
        let message = |(session, body): &(&str, &str)| Message {
            session: SessionId::new(session).ok(),
            body: malote_model::Body {
                bytes: Bytes::copy_from_slice(body.as_bytes()),
                ..Default::default()
            },
            ..Message::default()
        };
        let all = messages.iter().map(|one| (queue.clone(), message(one))).collect();
        self.engine.send(all).await.unwrap();
    }

    /// A client that has opened its connection.
    pub async fn client(&self) -> Client {
        let (ours, theirs) = tokio::io::duplex(1 << 20);
        let (front, shutdown) = (self.front.clone(), self.shutdown.clone());
        tokio::spawn(async move { serve_connection(theirs, front, shutdown).await });
        let config = Config { channel_max: 1000, ..Config::default() };
        let mut client =
            Client { amqp: Connection::client(config, 0), stream: ours, put_back: VecDeque::new() };
        while !matches!(client.next().await, Event::SaslMechanisms(_)) {}
        let mechanism = Symbol::from_static("ANONYMOUS");
        let init = SaslInit { mechanism, initial_response: None, hostname: None };
        client.amqp.sasl_init(init).unwrap();
        while !matches!(client.next().await, Event::SaslOutcome(_)) {}
        client.amqp.open(malote_wire_amqp::performative::Open::default()).unwrap();
        while !matches!(client.next().await, Event::Open(_)) {}
        client
    }
}

impl World {
    /// Whether a client can authenticate with this mechanism.
    pub async fn signs_in(&self, mechanism: &'static str, response: &'static [u8]) -> bool {
        let (ours, theirs) = tokio::io::duplex(1 << 20);
        let (front, shutdown) = (self.front.clone(), self.shutdown.clone());
        tokio::spawn(async move { serve_connection(theirs, front, shutdown).await });
        let amqp = Connection::client(Config::default(), 0);
        let mut client = Client { amqp, stream: ours, put_back: VecDeque::new() };
        while !matches!(client.next().await, Event::SaslMechanisms(_)) {}
        let (mechanism, response) = (Symbol::from_static(mechanism), Bytes::from_static(response));
        let init = SaslInit { mechanism, initial_response: Some(response), hostname: None };
        client.amqp.sasl_init(init).unwrap();
        loop {
            if let Event::SaslOutcome(outcome) = client.next().await {
                return outcome.code == SaslCode::Ok;
            }
        }
    }
}

pub struct Client {
    pub amqp: Connection,
    stream: DuplexStream,
    put_back: VecDeque<Event>,
}

impl Client {
    /// Waits for the next event.
    pub async fn next(&mut self) -> Event {
        loop {
            let output = self.amqp.take_output();
            self.stream.write_all(&output).await.unwrap();
            if let Some(event) = self.put_back.pop_front().or_else(|| self.amqp.next_event()) {
                return event;
            }
            let output = self.amqp.take_output();
            self.stream.write_all(&output).await.unwrap();
            let read = self.stream.read_buf(self.amqp.input());
            let read = tokio::time::timeout(std::time::Duration::from_secs(60), read).await;
            assert_ne!(read.expect("an answer in time").unwrap(), 0, "the server hung up");
            self.amqp.received(0);
        }
    }

    /// Writes the pending output, and reads nothing.
    pub async fn write(&mut self) {
        let output = self.amqp.take_output();
        self.stream.write_all(&output).await.unwrap();
    }

    /// The first event that matches; others are kept.
    pub async fn until<T>(&mut self, fits: impl Fn(&Event) -> Option<T>) -> T {
        let mut passed = VecDeque::new();
        loop {
            let event = self.next().await;
            if let Some(found) = fits(&event) {
                passed.append(&mut self.put_back);
                self.put_back = passed;
                return found;
            }
            passed.push_back(event);
        }
    }

    pub fn receiver(
        &mut self,
        channel: Channel,
        name: &str,
        at: &str,
        filter: Option<Value>,
    ) -> LinkId {
        let key = Value::Symbol(Symbol::from_static("com.microsoft:session-filter"));
        let source =
            Source { filter: filter.map(|value| Map(vec![(key, value)])), ..Source::at(at) };
        let attach = Attach {
            name: Str::from(name),
            role: Role::Receiver,
            snd_settle_mode: SenderSettleMode::Unsettled,
            rcv_settle_mode: ReceiverSettleMode::Second,
            source: Some(source),
            target: Some(Target::at("here").into()),
            ..Attach::default()
        };
        self.amqp.attach(channel, attach).unwrap()
    }

    pub fn sender(&mut self, channel: Channel, name: &str, at: &str) -> LinkId {
        let attach = Attach {
            name: Str::from(name),
            role: Role::Sender,
            source: Some(Source::at("here")),
            target: Some(Target::at(at).into()),
            ..Attach::default()
        };
        self.amqp.attach(channel, attach).unwrap()
    }

    /// The reply to an attach.
    pub async fn attached(&mut self, link: LinkId) -> Attach {
        self.until(|event| match event {
            Event::Attached { link: id, attach } if *id == link => Some((**attach).clone()),
            _ => None,
        })
        .await
    }

    /// The condition of a detach.
    pub async fn detached(&mut self, link: LinkId) -> String {
        self.until(|event| match event {
            Event::Detach { link: id, error, .. } if *id == link => {
                Some(error.as_ref().map(|error| error.condition.to_string()).unwrap_or_default())
            }
            _ => None,
        })
        .await
    }

    pub async fn credit(&mut self, link: LinkId) {
        self.until(|event| match event {
            Event::Flow(flow) if flow.link == link && flow.credit > 0 => Some(()),
            _ => None,
        })
        .await;
    }

    /// A link to the coordinator of transactions.
    pub fn coordinator(&mut self, channel: Channel) -> LinkId {
        let attach = Attach {
            name: Str::from_static("coordinator"),
            role: Role::Sender,
            source: Some(Source::at("here")),
            target: Some(AnyTarget::Coordinator(Coordinator::default())),
            ..Attach::default()
        };
        self.amqp.attach(channel, attach).unwrap()
    }

    /// A pair of links to a node: requests and replies.
    pub async fn node(&mut self, channel: Channel, at: &str) -> (LinkId, LinkId) {
        let requests = self.sender(channel, "requests", at);
        let answers = self.receiver(channel, "answers", at, None);
        self.attached(requests).await;
        self.attached(answers).await;
        self.credit(requests).await;
        self.amqp.grant(answers, 100).unwrap();
        (requests, answers)
    }

    /// Sends a request to a node; returns the status and the body of the reply.
    pub async fn ask(
        &mut self,
        (requests, answers): (LinkId, LinkId),
        names: Map,
        body: Value,
    ) -> (i64, Map) {
        let properties = Properties {
            message_id: Some(Value::String(Str::from_static("1"))),
            reply_to: Some(Str::from_static("here")),
            ..Properties::default()
        };
        let draft = Draft {
            properties: Some(properties),
            application_properties: names,
            ..Draft::value(body)
        };
        assert_eq!(self.send(requests, draft).await, Some(DeliveryState::Accepted));
        let payload = self
            .until(|event| match event {
                Event::Delivery(incoming) if incoming.link == answers => {
                    Some(incoming.payload.clone())
                }
                _ => None,
            })
            .await;
        let answer = AmqpMessage::parse(payload).unwrap();
        let names = answer.application_properties().unwrap();
        let status = names.get("statusCode").or_else(|| names.get("status-code"));
        let body = match answer.value().unwrap() {
            Some(Value::Map(map)) => map,
            _ => Map::default(),
        };
        (status.and_then(Value::as_i64).unwrap(), body)
    }

    /// Sends a message; returns the outcome.
    pub async fn send(&mut self, link: LinkId, draft: Draft) -> Option<DeliveryState> {
        self.send_bytes(link, draft.to_bytes(), None).await
    }

    /// Like `send`, with a delivery state.
    pub async fn send_bytes(
        &mut self,
        link: LinkId,
        payload: Bytes,
        state: Option<DeliveryState>,
    ) -> Option<DeliveryState> {
        let tag = Bytes::from_static(b"tag");
        let outgoing = Outgoing { key: 7, tag, payload, state, ..Outgoing::default() };
        self.amqp.send(link, outgoing).unwrap();
        self.until(|event| match event {
            Event::Disposition(disposed) if disposed.link == link => Some(disposed.state.clone()),
            _ => None,
        })
        .await
    }
}
