//! The engine with a socket: queues in memory that Service Bus clients can send to and receive from.
//!
//! `cargo run -p malote-wire-amqp --example tiny_broker`, then connect with
//! `Endpoint=sb://localhost:5672;SharedAccessKeyName=any;SharedAccessKey=any;UseDevelopmentEmulator=true`. It shows the
//! owner's loop, and what clients insist on. It is not a real broker: nothing is checked or bounded.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};

use bytes::{Bytes, BytesMut};
use malote_wire_amqp::connection::*;
use malote_wire_amqp::message::*;
use malote_wire_amqp::performative::*;
use malote_wire_amqp::types::{Map, Symbol, Value};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::time::{Duration, Instant};

/// Bare messages by queue, and a notification for waiting receivers.
#[derive(Default)]
struct Queues {
    messages: Mutex<HashMap<String, VecDeque<Bytes>>>,
    arrivals: Notify,
}

impl Queues {
    fn push(&self, queue: &str, message: Bytes) {
        self.messages
            .lock()
            .expect("no thread panics while it holds the lock")
            .entry(queue.to_owned())
            .or_default()
            .push_back(message);
        self.arrivals.notify_waiters();
    }

    fn pop(&self, queue: &str) -> Option<Bytes> {
        self.messages
            .lock()
            .expect("no thread panics while it holds the lock")
            .get_mut(queue)?
            .pop_front()
    }
}

struct Client {
    connection: Connection,
    queues: Arc<Queues>,
    /// The node of each link.
    links: HashMap<LinkId, (Role, String)>,
    /// Replies waiting for credit. A client may send requests before it grants credit.
    answers: VecDeque<(LinkId, Bytes)>,
    /// Unsettled deliveries by key.
    out: HashMap<u64, (String, Bytes)>,
    next_key: u64,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> std::io::Result<()> {
    let port = std::env::args().nth(1).unwrap_or("5672".to_owned());
    let listener = TcpListener::bind(format!("127.0.0.1:{port}")).await?;
    let queues = Arc::new(Queues::default());
    loop {
        let (socket, _) = listener.accept().await?;
        let queues = queues.clone();
        tokio::spawn(async move {
            if let Err(error) = serve(socket, queues).await {
                eprintln!("connection lost: {error}");
            }
        });
    }
}

async fn serve(mut socket: TcpStream, queues: Arc<Queues>) -> std::io::Result<()> {
    let begun = Instant::now();
    let now_ms = || begun.elapsed().as_millis() as u64;
    let mechanisms = ["MSSBCBS", "PLAIN", "ANONYMOUS", "EXTERNAL"];
    let mechanisms = mechanisms.into_iter().map(Symbol::from_static).collect();
    let config = Config { mechanisms, ..Config::default() };
    let connection = Connection::server(config, 0);
    let mut client = Client {
        connection,
        queues,
        links: HashMap::new(),
        answers: VecDeque::new(),
        out: HashMap::new(),
        next_key: 1,
    };
    loop {
        let queues = client.queues.clone();
        let arrivals = queues.arrivals.notified();
        while let Some(event) = client.connection.next_event() {
            client.take(event);
        }
        client.deliver();
        socket.write_all(&client.connection.take_output()).await?;
        if client.connection.is_finished() {
            return Ok(());
        }
        let tick_ms = client.connection.next_tick_ms().unwrap_or(u64::MAX / 2);
        tokio::select! {
            read = socket.read_buf(client.connection.input()) => match read? {
                0 => return Ok(()),
                _ => client.connection.received(now_ms()),
            },
            () = arrivals => {}
            () = tokio::time::sleep_until(begun + Duration::from_millis(tick_ms)) => {
                client.connection.tick(now_ms());
            }
        }
    }
}

impl Client {
    fn take(&mut self, event: Event) {
        match self.answer(event) {
            Ok(()) | Err(UseError::Gone) => {}
            Err(error) => eprintln!("not answered: {error}"),
        }
    }

    fn answer(&mut self, event: Event) -> Result<(), UseError> {
        match event {
            Event::SaslInit(_) => self.connection.sasl_outcome(SaslCode::Ok),
            Event::Open(_) => self.connection.open(Open::default()),
            Event::Attach { link, attach } => self.attach(link, &attach),
            Event::Delivery(incoming) => self.receive(incoming),
            Event::Flow(flow) if flow.drain => {
                self.deliver();
                self.connection.drained(flow.link)
            }
            Event::Disposition(disposed) => self.settle(disposed),
            Event::Detach { link, closed, .. } => {
                self.links.remove(&link);
                self.connection.detach(link, closed, None)
            }
            Event::End { session, .. } => {
                self.links.retain(|link, _| link.session() != session);
                self.connection.end(session, None)
            }
            Event::Close { .. } => self.connection.close(None),
            _ => Ok(()),
        }
    }

    fn attach(&mut self, link: LinkId, attach: &Attach) -> Result<(), UseError> {
        let address = match (attach.role, &attach.source, &attach.target) {
            (Role::Receiver, Some(source), _) => source.address.clone(),
            (Role::Sender, _, Some(AnyTarget::Target(target))) => target.address.clone(),
            _ => None,
        };
        let Some(address) = address.as_ref().and_then(Value::as_str) else {
            let error = AmqpError::new(condition::NOT_FOUND, "no address");
            return self.connection.refuse(link, error);
        };
        // Some clients write `amqps://host/queue`, others only `queue`.
        let path = address.split_once("://").and_then(|(_, rest)| rest.split_once('/'));
        let node = path.map_or(address, |(_, path)| path).to_owned();
        if node == "missing" {
            let error = AmqpError::new(condition::NOT_FOUND, "the entity could not be found");
            return self.connection.refuse(link, error);
        }
        self.connection.accept(link, attach.answer())?;
        if attach.role == Role::Sender {
            self.connection.grant(link, 100)?;
        }
        self.links.insert(link, (attach.role.opposite(), node));
        Ok(())
    }

    fn receive(&mut self, incoming: Incoming) -> Result<(), UseError> {
        let Some((_, node)) = self.links.get(&incoming.link).cloned() else { return Ok(()) };
        let state = match self.store(&node, &incoming) {
            Ok(()) => DeliveryState::Accepted,
            Err(error) => DeliveryState::rejected(error),
        };
        self.connection.dispose(incoming.link, incoming.delivery, true, Some(state))?;
        if self.connection.credit(incoming.link) < 50 {
            self.connection.grant(incoming.link, 100)?;
        }
        Ok(())
    }

    fn store(&mut self, node: &str, incoming: &Incoming) -> Result<(), AmqpError> {
        let message = Message::parse(incoming.payload.clone())?;
        if node == "$cbs" {
            return self.put_token(incoming.link, &message);
        }
        if incoming.message_format != BATCH_FORMAT {
            self.queues.push(node, message.bare());
            return Ok(());
        }
        let batch = decode_batch(&message, 1_000)?.map_err(|error| {
            AmqpError::new(condition::RESOURCE_LIMIT_EXCEEDED, error.to_string())
        })?;
        batch.iter().for_each(|message| self.queues.push(node, message.bare()));
        Ok(())
    }

    /// Accepts any token. The reply goes to the other `$cbs` link of the session, whatever its address.
    fn put_token(&mut self, request: LinkId, message: &Message) -> Result<(), AmqpError> {
        let reply = self.links.iter().find(|(link, (role, node))| {
            link.session() == request.session() && *role == Role::Sender && node == "$cbs"
        });
        let Some(reply) = reply.map(|(link, _)| *link) else { return Ok(()) };
        let correlation_id = message.properties()?.message_id;
        let answer = Draft {
            properties: Some(Properties { correlation_id, ..Properties::default() }),
            application_properties: Map::default()
                .with_string("status-code", 202_i32)
                .with_string("status-description", "Accepted"),
            ..Draft::value(Value::Null)
        };
        self.answers.push_back((reply, answer.to_bytes()));
        Ok(())
    }

    fn settle(&mut self, disposed: Disposed) -> Result<(), UseError> {
        let out = self.out.remove(&disposed.key);
        let state = match disposed.state {
            Some(DeliveryState::Released | DeliveryState::Modified(_)) => {
                if let Some((queue, message)) = out {
                    self.queues.push(&queue, message);
                }
                disposed.state
            }
            // The same outcome without the error, which would mean that settling failed.
            Some(DeliveryState::Rejected(_)) => Some(DeliveryState::Rejected(Rejected::default())),
            state => state,
        };
        if !disposed.settled {
            self.connection.dispose(disposed.link, disposed.delivery, true, state)?;
        }
        Ok(())
    }

    /// Sends to every receiver as much as it has credit for.
    fn deliver(&mut self) {
        for (link, answer) in std::mem::take(&mut self.answers) {
            if self.connection.credit(link) > 0 {
                self.send(link, answer, true);
            } else if self.links.contains_key(&link) {
                self.answers.push_back((link, answer));
            }
        }
        let receivers: Vec<(LinkId, String)> = self
            .links
            .iter()
            .filter(|(_, (role, node))| *role == Role::Sender && node != "$cbs")
            .map(|(link, (_, node))| (*link, node.clone()))
            .collect();
        for (link, queue) in receivers {
            while self.connection.credit(link) > 0 && self.connection.free_output_bytes() > 0 {
                let Some(bare) = self.queues.pop(&queue) else { break };
                let mut message = BytesMut::new();
                let annotations = Map::default()
                    .with("x-opt-sequence-number", self.next_key as i64)
                    .with("x-opt-enqueued-time", Value::Timestamp(1_700_000_000_000))
                    .with("x-opt-locked-until", Value::Timestamp(4_000_000_000_000));
                let header = Some(Header::default());
                Draft { header, message_annotations: annotations, ..Draft::default() }
                    .encode(&mut message);
                message.extend_from_slice(&bare);
                self.out.insert(self.next_key, (queue.clone(), bare));
                self.send(link, message.freeze(), false);
            }
        }
    }

    /// The delivery tag is the lock token, which always has sixteen bytes.
    fn send(&mut self, link: LinkId, payload: Bytes, settled: bool) {
        let key = self.next_key;
        self.next_key += 1;
        let tag = Bytes::copy_from_slice(&u128::from(key).to_le_bytes());
        let outgoing = Outgoing { key, tag, settled, payload, ..Outgoing::default() };
        if let Err(error) = self.connection.send(link, outgoing) {
            eprintln!("not sent: {error}");
        }
    }
}
