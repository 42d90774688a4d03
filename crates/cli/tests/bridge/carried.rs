//! Messages of every kind, from a Malote server over another broker to a second server, with bridges that are killed. The
//! second server de-duplicates, so all messages arrive there once and in order.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use malote_connectors::{Broker, Delivery, Settle};
use malote_model::{
    Address, Body, BodyKind, Message, Properties, QueueName, QueueSpec, SessionId, Sessions, Value,
};

use crate::common::{CommandOutput, Server, malote, words};

/// Longer than a slow machine needs.
pub const PATIENCE: Duration = Duration::from_secs(120);
const LOCK: Duration = Duration::from_secs(3600);
pub const QUEUE: &str = "orders";
const COUNT: usize = 360;
const SESSIONS: usize = 12;
/// The bridge reports the remaining messages at its end.
const TTL_MS: u64 = 24 * 3600 * 1000;

pub fn native(server: &Server) -> String {
    server.url.replace("http://", "malote://")
}

pub fn queue(name: &str) -> QueueName {
    QueueName::new(name).unwrap()
}

pub fn bridge(home: &Path, from: &str, to: &str, line: &str) -> Command {
    let mut command = malote(home);
    command.args(["bridge", "--from", from, "--to", to]).args(words(line));
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

pub fn bridged(home: &Path, from: &str, to: &str, line: &str) -> CommandOutput {
    bridge(home, from, to, line).output().unwrap().into()
}

/// Every kind of value.
fn properties(nth: usize) -> Properties {
    let all = [
        ("null", Value::Null),
        ("bool", Value::Bool(true)),
        ("i8", Value::I8(-8)),
        ("i16", Value::I16(-16)),
        ("i32", Value::I32(-32)),
        ("i64", Value::I64(i64::MIN)),
        ("u8", Value::U8(8)),
        ("u16", Value::U16(16)),
        ("u32", Value::U32(32)),
        ("u64", Value::U64(u64::MAX)),
        ("f32", Value::F32(0.5)),
        ("f64", Value::F64(-0.25)),
        ("text", Value::String("caf\u{e9} \u{1f4ee}".into())),
        ("bytes", Value::Bytes(vec![0, 1, 255].into())),
        ("time", Value::Time(1_700_000_000_123)),
        ("birthday", Value::Time(-1)),
        ("uuid", Value::Uuid([7; 16])),
        ("list", Value::List(vec![Value::I32(1), Value::List(vec![Value::Null])])),
        ("map", Value::Map(vec![("b".into(), Value::U8(1)), ("a".into(), Value::Null)])),
    ];
    let mut properties = Properties::new();
    for (name, value) in all {
        properties.set(name, value);
    }
    properties.set("n", Value::I64(nth as i64));
    properties
}

fn message(nth: usize, sessions: bool) -> Message {
    let some = |text: &str| Some(format!("{text} {nth}"));
    let id = SessionId::new(&format!("s{}", nth % SESSIONS)).unwrap();
    // Several messages have the same id. They are different messages.
    let message_id = if sessions { some("m") } else { Some(format!("m {}", nth / 2)) };
    Message {
        origin_id: message_id.clone(),
        message_id,
        session: sessions.then_some(id),
        key: some("k"),
        subject: some("placed"),
        to: some("t"),
        reply_to: some("r"),
        reply_to_session: some("rs"),
        correlation_id: some("c"),
        content_type: some("text/plain; n="),
        content_encoding: some("e"),
        user_id: some("u"),
        app_id: some("a"),
        properties: properties(nth),
        ttl_ms: Some(TTL_MS),
        body: Body { bytes: format!("body {nth}").into(), kind: BodyKind::Text },
        ..Message::default()
    }
}

fn number(message: &Message) -> usize {
    let Some(Value::I64(n)) = message.properties.get("n") else { panic!("{message:?}") };
    *n as usize
}

pub struct Trip<'a> {
    /// The broker in the middle.
    pub other: &'a str,
    pub sessions: bool,
    /// Whether bridges can create queues there.
    pub declares: bool,
    /// Whether the broker numbers its messages. If not, messages with the same id are duplicates.
    pub numbers: bool,
    /// The parts of a message that the broker preserves.
    pub through: fn(Message) -> Message,
}

impl Trip<'_> {
    pub fn run(&self) {
        let (a, b) = (Server::start(), Server::start());
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let connect = |server: &Server| -> Arc<dyn Broker> {
            runtime.block_on(malote_connectors::connect(&native(server))).unwrap()
        };
        let (near, far) = (connect(&a), connect(&b));
        let with = if self.sessions { Sessions::Dynamic } else { Sessions::None };
        let spec = QueueSpec { sessions: with, ..QueueSpec::default() };
        let sent: Vec<Message> = (0..COUNT)
            .map(|nth| message(nth, self.sessions || !self.numbers))
            .map(|one| Message { session: one.session.filter(|_| self.sessions), ..one })
            .collect();
        runtime.block_on(async {
            near.declare(&queue(QUEUE), spec).await.unwrap();
            let to = || Address::Queue(queue(QUEUE));
            near.send(sent.iter().map(|one| (to(), one.clone())).collect()).await.unwrap();
        });
        let depth = |broker: &Arc<dyn Broker>| runtime.block_on(broker.depth(&queue(QUEUE)));
        let there = || depth(&far).map_or(0, |depth| depth.ready as usize);
        let left = || depth(&near).map(|d| (d.ready + d.in_flight) as usize).unwrap();

        // Killed after some messages: those in flight are sent again.
        let line = if self.declares { "orders --declare" } else { "orders" };
        let on = [native(&a), self.other.to_owned()];
        killed(a.home.path(), &on, line, || left() < COUNT * 2 / 3);
        killed(a.home.path(), &on, line, || left() == 0);
        let back = [self.other.to_owned(), native(&b)];
        killed(a.home.path(), &back, "orders --declare", || there() > COUNT / 3);
        killed(a.home.path(), &back, "orders --declare", || there() >= COUNT);

        // No more messages follow.
        let said = bridged(a.home.path(), &back[0], &back[1], "orders --exit-when-idle 2s");
        assert_eq!(said.code, 0, "{said}");
        assert_eq!(there(), COUNT, "{said}");
        let got = runtime.block_on(all_of(&far, self.sessions));
        let mut last = [None; SESSIONS];
        for one in got {
            let nth = number(&one.message);
            let mut is = one.message;
            assert!(is.ttl_ms.is_some_and(|ms| ms <= TTL_MS && ms > TTL_MS / 2), "{is:?}");
            is.ttl_ms = Some(TTL_MS);
            // The id that the bridge sets for de-duplication.
            is.dedup_id = None;
            assert_eq!(is, (self.through)(sent[nth].clone()));
            if self.sessions {
                let last = &mut last[nth % SESSIONS];
                let next = last.map_or(nth % SESSIONS, |last| last + SESSIONS);
                assert_eq!(nth, next, "in the order of its session");
                *last = Some(nth);
            }
        }
    }
}

/// Runs a bridge and kills it as soon as the condition is true.
fn killed(home: &Path, [from, to]: &[String; 2], line: &str, condition: impl Fn() -> bool) {
    let mut running = bridge(home, from, to, line).spawn().unwrap();
    let begun = Instant::now();
    while !condition() {
        if let Some(status) = running.try_wait().unwrap() {
            let said: CommandOutput = running.wait_with_output().unwrap().into();
            panic!("it ended, {status}: {said}");
        }
        if begun.elapsed() > PATIENCE {
            running.kill().unwrap();
            let said: CommandOutput = running.wait_with_output().unwrap().into();
            panic!("not all is carried: {said}");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    running.kill().unwrap();
    running.wait().unwrap();
}

/// All messages of a queue.
async fn all_of(broker: &Arc<dyn Broker>, sessions: bool) -> Vec<Delivery> {
    let mut all = Vec::new();
    while all.len() < COUNT {
        let source = match sessions {
            false => broker.open(&queue(QUEUE), LOCK).await.unwrap(),
            true => {
                let next = broker.accept(&queue(QUEUE), None, LOCK, PATIENCE).await.unwrap();
                next.expect("a session is missing")
            }
        };
        loop {
            let some = source.fetch(100, Duration::ZERO).await.unwrap();
            if some.is_empty() {
                break;
            }
            let done = some.iter().map(|one| Settle::complete(one.lease)).collect();
            broker.settle(&queue(QUEUE), done).await.unwrap();
            all.extend(some);
        }
        source.close().await.unwrap();
    }
    all
}
