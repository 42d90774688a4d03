//! A core on a real journal, a clock that is moved by hand, and names for what was handed out.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use bytes::Bytes;
use malote_model::{
    Body, BodyKind, Changes, DeadLetterTarget, LeaseToken, Message, QueueName, QueueSpec,
    RetryOrder, Seq, SessionId, Sessions, Settlement, Timestamp, Value, When,
};

use crate::codec::{Outgoing, Stored};
use crate::command::*;
use crate::core::{Core, Output, To, Turn};
use crate::disk::OsDisk;
use crate::journal::{Patience, Recovered, Replay, recover};

pub(super) struct World {
    core: Core,
    journal: Recovered,
    now: u64,
    /// Leases and holds by the names that scripts give them: a, b, c …
    tokens: BTreeMap<String, LeaseToken>,
    granted: usize,
    consumers: BTreeMap<String, ConsumerId>,
    requests: u64,
    pub said: String,
    _dir: tempfile::TempDir,
}

impl World {
    pub(super) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut core = Core::new(1);
        let disk = Arc::new(OsDisk::open(dir.path()).unwrap());
        let mut journal = recover(disk, &Default::default(), &mut core).unwrap();
        core.go_live(&mut journal.appender, Timestamp(0), 7).unwrap();
        let (tokens, consumers) = (BTreeMap::new(), BTreeMap::new());
        Self {
            core,
            journal,
            now: 0,
            tokens,
            granted: 0,
            consumers,
            requests: 0,
            said: String::new(),
            _dir: dir,
        }
    }

    pub(super) fn step(&mut self, line: &str) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (verb, rest) = words.split_first().unwrap();
        let option = |name: &str| rest.iter().find_map(|w| w.strip_prefix(name)?.strip_prefix('='));
        let number = |name: &str| option(name).map(|n| n.parse::<u64>().unwrap());
        let flag = |name: &str| rest.contains(&name);
        let plain: Vec<&str> = rest.iter().copied().filter(|w| !w.contains('=')).collect();
        let queue = |i: usize| QueueName::new(plain[i]).unwrap();
        let lease = |i: usize| self.tokens[plain[i]];
        let state = || {
            let (hold, state) = option("state")?.split_once(':').unwrap();
            let state = Some(Bytes::copy_from_slice(state.as_bytes()));
            Some(StateChange { hold: self.tokens[hold], state })
        };
        let settle =
            |settlement| Command::Settle { leases: vec![lease(0)], settlement, state: state() };
        let delay_ms = number("delay").unwrap_or(0);
        let changes = || {
            let mut changes = Changes::default();
            if let Some(value) = option("set") {
                changes.properties.set("set", Value::String(value.into()));
            }
            changes
        };
        let command = match *verb {
            "queue" => {
                let mut spec =
                    QueueSpec { lock_ms: number("lock").unwrap_or(30_000), ..QueueSpec::default() };
                spec.failed_max = number("failed").map(|n| n as u32);
                spec.receives_max = number("receives").map(|n| n as u32);
                if flag("sessions") {
                    spec.sessions = Sessions::Dynamic;
                }
                if let Some(ids) = option("fixed") {
                    spec.sessions = Sessions::Fixed(
                        ids.split(',').map(|id| SessionId::new(id).unwrap()).collect(),
                    );
                }
                if flag("skip") {
                    spec.retry = RetryOrder::Skip;
                }
                match option("dead") {
                    Some("drop") => spec.dead_letter = DeadLetterTarget::Drop,
                    Some(name) => {
                        spec.dead_letter = DeadLetterTarget::Queue(QueueName::new(name).unwrap())
                    }
                    None => {}
                }
                Command::Declare { name: queue(0), spec: Box::new(spec) }
            }
            "send" => {
                let item = |body: &str| {
                    let mut message =
                        Message { message_id: Some(body.into()), ..Message::default() };
                    message.body = Body {
                        bytes: Bytes::copy_from_slice(body.as_bytes()),
                        kind: BodyKind::Text,
                    };
                    message.session = option("s").map(|s| SessionId::new(s).unwrap());
                    if let Some(ms) = number("delay") {
                        message.when = When::Delay(ms);
                    }
                    if let Some(ms) = number("at") {
                        message.when = When::At(Timestamp(ms));
                    }
                    Outgoing::new(&message).unwrap()
                };
                Command::Send {
                    items: plain[1..].iter().map(|body| (queue(0), item(body))).collect(),
                }
            }
            "cancel" => {
                Command::Cancel { queue: queue(0), seqs: vec![Seq(plain[1].parse().unwrap())] }
            }
            "receive" => Command::Attach(Attach {
                consumer: ConsumerId(1000 + self.requests),
                connection: None,
                queue: queue(0),
                wants: match option("hold") {
                    Some(name) => Wants::Held(self.tokens[name]),
                    None => Wants::Any { per_session: number("per").unwrap_or(1) as u32 },
                },
                credit: number("max").unwrap_or(1) as u32,
                take: flag("take"),
                lock_ms: number("lock"),
                once_until: Some(Timestamp(self.now + number("wait").unwrap_or(0))),
            }),
            "attach" => {
                let consumer = ConsumerId(self.requests);
                self.consumers.insert(plain[0].into(), consumer);
                Command::Attach(Attach {
                    consumer,
                    connection: number("conn").map(ConnectionId),
                    queue: queue(1),
                    wants: match option("hold") {
                        Some(name) => Wants::Held(self.tokens[name]),
                        None => Wants::Any { per_session: 1 },
                    },
                    credit: number("credit").unwrap_or(1) as u32,
                    take: flag("take"),
                    lock_ms: None,
                    once_until: None,
                })
            }
            "credit" => {
                let consumer = self.consumers[plain[0]];
                Command::Credit { consumer, credit: plain[1].parse().unwrap(), replace: false }
            }
            "detach" => Command::Detach { consumer: self.consumers[plain[0]] },
            "disconnect" => Command::Disconnect {
                connection: ConnectionId(number("conn").unwrap()),
                clean: flag("clean"),
            },
            "deferred" => Command::ReceiveDeferred {
                queue: queue(0),
                seqs: vec![Seq(plain[1].parse().unwrap())],
                hold: option("hold").map(|name| self.tokens[name]),
                lock_ms: None,
                take: flag("take"),
                connection: None,
            },
            "complete" => Command::Settle {
                leases: plain.iter().map(|name| self.tokens[*name]).collect(),
                settlement: Settlement::Complete,
                state: state(),
            },
            "replace" => {
                let mut message = Message::default();
                message.body.bytes = Bytes::copy_from_slice(plain[2].as_bytes());
                message.session = option("s").map(|s| SessionId::new(s).unwrap());
                Command::Replace {
                    from: queue(0),
                    seq: Seq(plain[1].parse().unwrap()),
                    to: queue(0),
                    message: Outgoing::new(&message).unwrap(),
                }
            }
            "abandon" => settle(Settlement::Abandon { delay_ms, changes: changes() }),
            "release" => settle(Settlement::Release { delay_ms }),
            "defer" => settle(Settlement::Defer { changes: changes() }),
            "dead" => settle(Settlement::DeadLetter {
                reason: "bad".into(),
                text: "why".into(),
                changes: changes(),
            }),
            "renew" => Command::Renew { leases: vec![lease(0)], lock_ms: number("lock") },
            "accept" => Command::Accept(Accept {
                consumer: ConsumerId(2000 + self.requests),
                connection: number("conn").map(ConnectionId),
                queue: queue(0),
                session: option("s").map(|s| SessionId::new(s).unwrap()),
                lock_ms: number("lock"),
                until: Timestamp(self.now + number("wait").unwrap_or(0)),
            }),
            "unhold" => Command::ReleaseSession { hold: lease(0) },
            "break" => Command::BreakSession {
                queue: queue(0),
                session: SessionId::new(option("s").unwrap()).unwrap(),
            },
            "state" => {
                let state = option("to").map(|state| Bytes::copy_from_slice(state.as_bytes()));
                Command::SetState { change: StateChange { hold: lease(0), state } }
            }
            "redrive" => {
                let to = option("to")
                    .map_or_else(|| QueueName::new(queue(0).owner().unwrap()), QueueName::new);
                let items = vec![(Seq(plain[1].parse().unwrap()), to.unwrap())];
                Command::Move { from: queue(0), items, why: MoveWhy::Redrive }
            }
            "purge" => Command::Purge { queue: queue(0) },
            "pause" => Command::Pause { queue: queue(0), paused: true },
            "resume" => Command::Pause { queue: queue(0), paused: false },
            "delete" => Command::Delete { name: queue(0) },
            "peek" => Command::Peek(Peek {
                queue: queue(0),
                from: Seq(0),
                max: 100,
                session: None,
                state: None,
            }),
            "facts" => Command::Describe { queue: queue(0) },
            "wait" => return self.wait(plain[0].parse().unwrap()),
            "restart" => return self.restart(),
            other => panic!("no such step: {other}"),
        };
        self.requests += 1;
        let request = self.requests - 1;
        self.turn(Some((request, command)));
    }

    fn wait(&mut self, ms: u64) {
        // In the small steps in which the core asks to be woken, so that order is what it would be.
        let until = self.now + ms;
        while let Some(wake) = self.core.next_wake().filter(|wake| wake.0 <= until) {
            self.now = wake.0;
            self.turn(None);
        }
        self.now = until;
        self.turn(None);
    }

    /// The process ends and starts again: what was written is there.
    fn restart(&mut self) {
        let mut saved = Vec::new();
        self.core.save(&mut saved);
        let mut core = Core::new(99);
        core.restore(&saved).unwrap();
        let mut again = Vec::new();
        core.save(&mut again);
        assert_eq!(saved, again, "what is restored saves as what was saved");
        core.go_live(&mut self.journal.appender, Timestamp(self.now), 8).unwrap();
        self.core = core;
        self.turn(None);
    }

    fn turn(&mut self, command: Option<(u64, Command)>) {
        let mut out = Vec::new();
        let mut turn = Turn::new(
            &mut self.core,
            &mut self.journal.appender,
            Timestamp(self.now),
            &mut out,
            true,
        );
        turn.expire();
        if let Some((request, command)) = command {
            turn.command(request, command);
        }
        turn.dispatch();
        for chunk in self.journal.appender.take().unwrap_or_default() {
            self.journal.writer.write(&chunk).unwrap();
        }
        for Output { to, .. } in out {
            match to {
                To::Request(_, Err(refusal)) => writeln!(self.said, "refused: {refusal}").unwrap(),
                To::Request(_, Ok(reply)) => self.tell(reply),
                To::Consumer(consumer, notice) => {
                    let name = self
                        .consumers
                        .iter()
                        .find(|(_, id)| **id == consumer)
                        .map(|(name, _)| name.clone());
                    write!(self.said, "to {}: ", name.unwrap()).unwrap();
                    match notice {
                        Notice::Deliver(grants) => self.tell(Reply::Delivered(grants)),
                        Notice::Ended(why) => {
                            writeln!(self.said, "ended: {}", hide(&why.to_string())).unwrap()
                        }
                    }
                }
            }
        }
    }

    fn name(&mut self, token: LeaseToken) -> String {
        let name = char::from(b'a' + self.granted as u8).to_string();
        self.granted += 1;
        self.tokens.insert(name.clone(), token);
        name
    }

    fn tell(&mut self, reply: Reply) {
        let text = match reply {
            Reply::Done => return,
            Reply::Declared { created } => return assert!(created, "declared twice"),
            Reply::Sent(_) => return,
            Reply::Count(n) => format!("{n}"),
            Reply::Settled(each) => {
                let lost = each.iter().filter(|outcome| outcome.is_err()).count();
                if lost == 0 {
                    return;
                }
                format!("{lost} lost")
            }
            Reply::Renewed(each) => {
                each[0].as_ref().map_or("lost".into(), |until| format!("until {until}"))
            }
            Reply::Accepted(None) => "no session".into(),
            Reply::Accepted(Some(held)) => {
                format!("holds {} as {} until {}", held.session, self.name(held.hold), held.until)
            }
            Reply::Delivered(grants) if grants.is_empty() => "nothing".into(),
            Reply::Delivered(grants) => {
                let each = grants.into_iter().map(|grant| {
                    let Stored { message, dead, .. } = Stored::read(
                        &mut self.journal.segments.reading(false),
                        grant.pos,
                        Patience::Blocking,
                    )
                    .unwrap();
                    let mut text = String::from_utf8(message.body.bytes.to_vec()).unwrap();
                    if let Some(lease) = grant.lease {
                        write!(text, " as {}", self.name(lease)).unwrap();
                    }
                    if grant.receives > 1 || grant.failed > 0 {
                        write!(text, " (receives {}, failed {})", grant.receives, grant.failed)
                            .unwrap();
                    }
                    if let Some(Value::String(value)) = message.properties.get("set") {
                        write!(text, " set={value}").unwrap();
                    }
                    if let Some(dead) = dead {
                        write!(
                            text,
                            " [{}: {}, from {} {}]",
                            dead.reason, dead.text, dead.from, dead.from_seq
                        )
                        .unwrap();
                    }
                    text
                });
                each.collect::<Vec<_>>().join(", ")
            }
            Reply::State(pos) => format!("state at {pos:?}"),
            Reply::Peeked { items, .. } => {
                let each = items
                    .iter()
                    .map(|item| format!("{} {:?}", item.seq, item.state).to_lowercase());
                each.collect::<Vec<_>>().join(", ")
            }
            Reply::Queues(facts) => {
                let f = &facts[0];
                format!(
                    "ready {} locked {} delayed {} scheduled {} deferred {} dead {} sessions {}/{} held {}",
                    f.ready,
                    f.locked,
                    f.delayed,
                    f.scheduled,
                    f.deferred,
                    f.dead_lettered,
                    f.sessions_ready,
                    f.sessions,
                    f.sessions_held
                )
            }
            Reply::Sessions(facts) => format!("{facts:?}"),
            Reply::Located(places) => format!("{} places", places.len()),
        };
        writeln!(self.said, "{text}").unwrap();
    }
}

/// Tokens differ from run to run of the tests' author, not of the reader.
fn hide(text: &str) -> String {
    text.split(' ')
        .map(|word| if word.len() == 32 { "…" } else { word })
        .collect::<Vec<_>>()
        .join(" ")
}
