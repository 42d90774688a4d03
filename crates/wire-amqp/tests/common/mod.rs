//! A client and a server, connected to each other. Tests choose how the bytes are split.

#![allow(dead_code, reason = "each test uses its part")]

use bytes::Bytes;
use malote_wire_amqp::connection::*;
use malote_wire_amqp::performative::*;
use malote_wire_amqp::types::{Str, Symbol};

pub struct Pair {
    pub client: Connection,
    pub server: Connection,
    /// Lengths of the parts, used in turn.
    cuts: Vec<usize>,
    cut: usize,
    pub now_ms: u64,
}

#[derive(Debug, Default)]
pub struct Seen {
    pub client: Vec<Event>,
    pub server: Vec<Event>,
}

pub fn server_config() -> Config {
    Config { mechanisms: vec![Symbol::from_static("ANONYMOUS")], ..Config::default() }
}

impl Pair {
    pub fn new(client: Config, server: Config) -> Pair {
        Pair {
            client: Connection::client(client, 0),
            server: Connection::server(server, 0),
            cuts: vec![usize::MAX],
            cut: 0,
            now_ms: 0,
        }
    }

    pub fn cut(mut self, cuts: Vec<usize>) -> Pair {
        self.cuts = cuts;
        self
    }

    /// Transfers bytes once in each direction, and collects the events. Returns whether there were any bytes.
    pub fn travel(&mut self, seen: &mut Seen) -> bool {
        let up = self.client.take_output();
        let down = self.server.take_output();
        let moved = !up.is_empty() || !down.is_empty();
        for (bytes, to, events) in
            [(up, &mut self.server, &mut seen.server), (down, &mut self.client, &mut seen.client)]
        {
            let mut rest = bytes;
            while !rest.is_empty() {
                let len = self.cuts[self.cut % self.cuts.len()].clamp(1, rest.len());
                self.cut += 1;
                to.feed(&rest.split_to(len), self.now_ms);
                events.extend(std::iter::from_fn(|| to.next_event()));
            }
            events.extend(std::iter::from_fn(|| to.next_event()));
        }
        moved
    }

    /// Transfers until neither end has output.
    pub fn settle(&mut self) -> Seen {
        let mut seen = Seen::default();
        while self.travel(&mut seen) || self.client.has_output() || self.server.has_output() {}
        seen
    }

    /// As [`Pair::new`], after SASL and open on both sides.
    pub fn opened(client: Config, server: Config) -> Pair {
        let mut pair = Pair::new(client, server);
        pair.shake_hands();
        pair
    }

    pub fn shake_hands(&mut self) {
        let seen = self.settle();
        assert!(matches!(seen.client[..], [Event::SaslMechanisms(_)]), "{seen:?}");
        let mechanism = Symbol::from_static("ANONYMOUS");
        self.client.sasl_init(SaslInit { mechanism, ..SaslInit::default() }).unwrap();
        let seen = self.settle();
        assert!(matches!(seen.server[..], [Event::SaslInit(_)]), "{seen:?}");
        self.server.sasl_outcome(SaslCode::Ok).unwrap();
        let seen = self.settle();
        assert!(matches!(seen.client[..], [Event::SaslOutcome(_)]), "{seen:?}");
        self.client.open(Open::default()).unwrap();
        let seen = self.settle();
        assert!(matches!(seen.server[..], [Event::Open(_)]), "{seen:?}");
        self.server.open(Open::default()).unwrap();
        let seen = self.settle();
        assert!(matches!(seen.client[..], [Event::Open(_)]), "{seen:?}");
    }

    /// A link on its own session: the client's end and the server's.
    pub fn link(&mut self, attach: Attach) -> (LinkId, LinkId) {
        let session = self.client.begin().unwrap();
        self.link_on(session, attach)
    }

    pub fn link_on(&mut self, session: SessionId, attach: Attach) -> (LinkId, LinkId) {
        let client = self.client.attach(session, attach).unwrap();
        let seen = self.settle();
        let (server, attach) = seen
            .server
            .into_iter()
            .find_map(|event| match event {
                Event::Attach { link, attach } => Some((link, attach)),
                _ => None,
            })
            .expect("the server hears of the link");
        self.server.accept(server, attach.answer()).unwrap();
        let seen = self.settle();
        assert!(matches!(seen.client[..], [Event::Attached { .. }]), "{seen:?}");
        (client, server)
    }
}

pub fn sender(name: &'static str) -> Attach {
    Attach {
        name: Str::from_static(name),
        role: Role::Sender,
        snd_settle_mode: SenderSettleMode::Unsettled,
        source: Some(Source::default()),
        target: Some(Target::at("queue").into()),
        ..Attach::default()
    }
}

pub fn receiver(name: &'static str) -> Attach {
    Attach {
        name: Str::from_static(name),
        role: Role::Receiver,
        rcv_settle_mode: ReceiverSettleMode::Second,
        source: Some(Source::at("queue")),
        target: Some(Target::default().into()),
        ..Attach::default()
    }
}

pub fn message(key: u64, payload: impl Into<Bytes>) -> Outgoing {
    let tag = Bytes::copy_from_slice(&key.to_be_bytes());
    Outgoing { key, tag, payload: payload.into(), ..Outgoing::default() }
}

pub fn deliveries(events: &[Event]) -> Vec<&Incoming> {
    let found = events.iter().filter_map(|event| match event {
        Event::Delivery(incoming) => Some(incoming),
        _ => None,
    });
    found.collect()
}

pub fn dispositions(events: &[Event]) -> Vec<&Disposed> {
    let found = events.iter().filter_map(|event| match event {
        Event::Disposition(disposed) => Some(disposed),
        _ => None,
    });
    found.collect()
}
