//! A core on a real journal, with a manual clock and names for leases.

mod tell;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use malote_model::{
    Address, Body, BodyKind, Changes, DeadLetterTarget, Dedup, Durability, LeaseToken, Message,
    OnExpiry, Overflow, QueueName, QueueSpec, RetryOrder, Seq, SessionId, Sessions, Settlement,
    Timestamp, TopicKind, TopicName, TopicSpec, Value, When,
};

use super::fillable::Fillable;
use super::script::{address, hide, name_of, rule, status};
use crate::codec::{EncodedMessage, Stored};
use crate::command::*;
use crate::core::{Core, Effect, Output, Turn};
use crate::disk::OsDisk;
use crate::event::{Event, LeasedEvent};
use crate::facts::Totals;
use crate::journal::{FRAME_HEADER_BYTES, Options, Pos, ReadMode, Recovered, Replay, recover};

pub(super) struct World {
    core: Core,
    journal: Recovered,
    now: u64,
    /// A forward step of the wall clock that the next turn takes.
    stepped_ms: u64,
    /// Leases and holds by the names that scripts use: a, b, c …
    tokens: BTreeMap<String, LeaseToken>,
    granted: usize,
    consumers: BTreeMap<String, ConsumerId>,
    requests: u64,
    pub said: String,
    /// The number of turns, and the most that one of them processed.
    pub turns: usize,
    pub most_touched: usize,
    /// The end of the journal before the last turn with an eager record.
    rests_from: Pos,
    /// Whether to print if replies wait for that turn.
    tell_waits: bool,
    /// Whether to print when messages were first granted.
    tell_firsts: bool,
    full: Arc<AtomicBool>,
    _dir: tempfile::TempDir,
}

impl World {
    pub(super) fn new(segment_bytes: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut core = Core::new(1);
        let full = Arc::new(AtomicBool::new(false));
        let disk = Fillable { disk: OsDisk::open(dir.path()).unwrap(), full: full.clone() };
        let options = Options { segment_bytes, ..Options::default() };
        let mut journal = recover(Arc::new(disk), &options, &mut core).unwrap();
        core.go_live(&mut journal.appender, Timestamp(0), 7).unwrap();
        let (tokens, consumers) = (BTreeMap::new(), BTreeMap::new());
        Self {
            core,
            journal,
            now: 0,
            stepped_ms: 0,
            tokens,
            granted: 0,
            consumers,
            requests: 0,
            said: String::new(),
            turns: 0,
            most_touched: 0,
            rests_from: Pos::ZERO,
            tell_waits: false,
            tell_firsts: false,
            full,
            _dir: dir,
        }
    }

    pub(super) fn core(&mut self) -> &mut Core {
        &mut self.core
    }

    pub(super) fn step(&mut self, line: &str) {
        if let Some(step) = line.strip_prefix("waits ") {
            self.tell_waits = true;
            self.step(step);
            self.tell_waits = false;
            return;
        }
        if let Some(step) = line.strip_prefix("firsts ") {
            self.tell_firsts = true;
            self.step(step);
            self.tell_firsts = false;
            return;
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        let (verb, rest) = words.split_first().unwrap();
        let option = |name: &str| rest.iter().find_map(|w| w.strip_prefix(name)?.strip_prefix('='));
        let number = |name: &str| option(name).map(|n| n.parse::<u64>().unwrap());
        let flag = |name: &str| rest.contains(&name);
        let plain: Vec<&str> = rest.iter().copied().filter(|w| !w.contains('=')).collect();
        let queue = |i: usize| QueueName::new(plain[i]).unwrap();
        let target = |i: usize| address(plain[i]);
        let lease = |i: usize| self.tokens[plain[i]];
        let leases = || plain.iter().map(|name| self.tokens[*name]).collect();
        let state = || {
            let (hold, state) = option("state")?.split_once(':').unwrap();
            let state = Some(Bytes::copy_from_slice(state.as_bytes()));
            Some(StateChange { hold: self.tokens[hold], state })
        };
        let settle = |settlement| Command::Settle { leases: leases(), settlement, state: state() };
        let delay_ms = number("delay").unwrap_or(0);
        let changes = || {
            let mut changes = Changes::default();
            if let Some(value) = option("set") {
                changes.properties.set("set", Value::String(value.into()));
            }
            changes
        };
        let command = match *verb {
            "queue" | "update" => {
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
                spec.session_from = option("from").map(|from| from.parse().unwrap());
                if flag("relaxed") {
                    spec.durability = Durability::Relaxed;
                }
                if flag("skip") {
                    spec.retry = RetryOrder::Skip;
                }
                spec.ttl_ms = number("ttl");
                if flag("bury") {
                    spec.on_expiry = OnExpiry::DeadLetter;
                }
                spec.priority_max = number("prio").unwrap_or(0) as u8;
                spec.dedup = number("dedup").map(|window_ms| Dedup {
                    window_ms,
                    per_session: flag("each"),
                    content: flag("content"),
                });
                spec.length_max = number("max");
                spec.bytes_max = number("bytes");
                spec.overflow = match option("over") {
                    None => Overflow::Reject,
                    Some("drop") => Overflow::DropOldest,
                    Some("newest") => Overflow::DeadLetterNewest,
                    Some(_) => Overflow::DeadLetterOldest,
                };
                spec.status = status(&option);
                spec.dead_letters_keep_age = flag("aged");
                spec.fair = flag("fair");
                spec.auto_delete = flag("auto");
                spec.idle_ms_max = number("idle");
                spec.exclusive = flag("exclusive");
                spec.single_active = flag("single");
                spec.transient = flag("transient");
                spec.discard_unroutable = flag("discard");
                match option("dead") {
                    Some("drop") => spec.dead_letter = DeadLetterTarget::Drop,
                    Some(to) if to.starts_with("topic:") => {
                        let mut parts = to.split(':').skip(1);
                        let topic = TopicName::new(parts.next().unwrap()).unwrap();
                        let key = parts.next().map(Into::into);
                        spec.dead_letter = DeadLetterTarget::Topic { topic, key };
                    }
                    Some(name) => {
                        spec.dead_letter = DeadLetterTarget::Queue(QueueName::new(name).unwrap())
                    }
                    None => {}
                }
                spec.forward_to = option("to").map(address);
                if *verb == "update" {
                    Command::Update { name: queue(0), spec: Box::new(spec) }
                } else if plain[0].contains("/Subscriptions/") {
                    let rules = option("where").map(|filter| vec![rule(filter, &option)]);
                    Command::Subscribe { name: queue(0), spec: Box::new(spec), rules }
                } else {
                    let connection = number("conn").map(ConnectionId);
                    Command::Declare { name: queue(0), spec: Box::new(spec), connection }
                }
            }
            "send" | "each" | "tx" => {
                let item = |body: &str| {
                    let id = option("id").unwrap_or(body);
                    let mut message = Message { message_id: Some(id.into()), ..Message::default() };
                    message.dedup_id = option("known").map(Into::into);
                    message.key = option("key").map(Into::into);
                    message.more_keys = option("also").into_iter().map(Into::into).collect();
                    message.blind_keys = option("blind").into_iter().map(Into::into).collect();
                    message.subject = option("subject").map(Into::into);
                    message.correlation_id = option("corr").map(Into::into);
                    if let Some((name, value)) = option("prop").and_then(|p| p.split_once(':')) {
                        message.properties.set(name, Value::String(value.into()));
                    }
                    message.ttl_ms = number("ttl");
                    message.priority = number("prio").unwrap_or(0) as u8;
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
                    match address(plain[0]) {
                        Address::Queue(_) => {
                            EncodedMessage::new(&message, flag("unnamed")).unwrap()
                        }
                        Address::Topic(_) => {
                            EncodedMessage::to_topic(message, flag("unnamed")).unwrap()
                        }
                    }
                };
                let bodies = plain[1..].iter().filter(|word| **word != "unnamed");
                let sends: Vec<_> = bodies.map(|body| (address(plain[0]), item(body))).collect();
                if *verb == "send" {
                    Command::Send { items: sends }
                } else if *verb == "each" {
                    Command::SendEach { sends: sends.into_iter().map(|one| [one].into()).collect() }
                } else {
                    let leases = option("complete").into_iter().flat_map(|names| names.split(','));
                    let settles = leases
                        .map(|name| (None, self.tokens[name], Settlement::Complete))
                        .chain(option("abandon").map(|name| {
                            let changes = changes();
                            (None, self.tokens[name], Settlement::Abandon { delay_ms, changes })
                        }))
                        .collect();
                    let states = state().map(|change| (None, change)).into_iter().collect();
                    Command::Commit { work: TransactionWork { sends, settles, states } }
                }
            }
            "cancel" => Command::Cancel {
                from: address(plain[0]),
                seqs: vec![Seq(plain[1].parse().unwrap())],
            },
            "topic" | "retopic" => {
                let kind = match option("kind") {
                    None => TopicKind::Filter,
                    Some("direct") => TopicKind::Direct,
                    Some("fanout") => TopicKind::Fanout,
                    Some("topic") => TopicKind::Topic,
                    Some("hash") => TopicKind::Hash,
                    Some("queue") => TopicKind::Queue,
                    Some(_) => TopicKind::Headers,
                };
                let dedup = number("dedup").map(|window_ms| Dedup {
                    window_ms,
                    per_session: false,
                    content: flag("content"),
                });
                let (auto_delete, internal) = (flag("auto"), flag("internal"));
                let status = status(&option);
                let alternate = option("alternate").map(|name| TopicName::new(name).unwrap());
                let transient = flag("transient");
                let spec = TopicSpec {
                    kind,
                    auto_delete,
                    internal,
                    dedup,
                    status,
                    alternate,
                    transient,
                    ..TopicSpec::default()
                };
                let (name, spec) = (TopicName::new(plain[0]).unwrap(), Box::new(spec));
                match *verb {
                    "topic" => Command::DeclareTopic { name, spec },
                    _ => Command::UpdateTopic { name, spec },
                }
            }
            "bind" => Command::Bind {
                topic: TopicName::new(plain[0]).unwrap(),
                target: target(1),
                rule: Box::new(rule(option("where").unwrap_or("all"), &option)),
            },
            "rebind" => Command::Rebind {
                topic: TopicName::new(plain[0]).unwrap(),
                target: target(1),
                rule: Box::new(rule(option("where").unwrap_or("all"), &option)),
            },
            "label" => Command::LabelTopic {
                name: TopicName::new(plain[0]).unwrap(),
                labels: [(plain[1].to_owned(), plain[2].to_owned())].into(),
            },
            "unbind" => Command::Unbind {
                topic: TopicName::new(plain[0]).unwrap(),
                target: target(1),
                rule: plain[2].into(),
            },
            "untopic" => Command::DeleteTopic { name: TopicName::new(plain[0]).unwrap() },
            "rules" => Command::Rules {
                topic: TopicName::new(plain[0]).unwrap(),
                target: None,
                after: None,
                max: 100,
            },
            "topics" => Command::ListTopics { after: None, max: 100 },
            "resolve" => Command::Resolve { name: queue(0) },
            "receive" => Command::Attach(Attach {
                consumer: ConsumerId(1000 + self.requests),
                connection: None,
                free_standing: true,
                queue: queue(0),
                wants: match option("hold") {
                    Some(name) => Wants::Held(self.tokens[name]),
                    None => Wants::Any { per_session: number("per").unwrap_or(1) as u32 },
                },
                credit: number("max").unwrap_or(1) as u32,
                take: flag("take"),
                lock_ms: number("lock"),
                once_until: Some(Timestamp(self.now + number("wait").unwrap_or(0))),
                priority: 0,
                exclusive: false,
            }),
            "attach" => {
                let consumer = ConsumerId(self.requests);
                self.consumers.insert(plain[0].into(), consumer);
                Command::Attach(Attach {
                    consumer,
                    connection: number("conn").map(ConnectionId),
                    free_standing: flag("free"),
                    queue: queue(1),
                    wants: match option("hold") {
                        Some(name) => Wants::Held(self.tokens[name]),
                        None => Wants::Any { per_session: 1 },
                    },
                    credit: number("credit").unwrap_or(1) as u32,
                    take: flag("take"),
                    lock_ms: None,
                    once_until: None,
                    priority: number("priority").unwrap_or(0) as i32,
                    exclusive: flag("exclusive"),
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
            "deferred" => Command::ReceiveDeferred(ReceiveDeferred {
                queue: queue(0),
                seqs: vec![Seq(plain[1].parse().unwrap())],
                hold: option("hold").map(|name| self.tokens[name]),
                lock_ms: None,
                take: flag("take"),
                connection: None,
            }),
            "complete" => Command::Settle {
                leases: leases(),
                settlement: Settlement::Complete,
                state: state(),
            },
            "replace" => {
                let dedup_id = option("known").map(Into::into);
                let mut message = Message { dedup_id, ..Message::default() };
                message.body.bytes = Bytes::copy_from_slice(plain[2].as_bytes());
                message.session = option("s").map(|s| SessionId::new(s).unwrap());
                Command::Replace {
                    from: queue(0),
                    seq: Seq(plain[1].parse().unwrap()),
                    to: queue(0),
                    message: EncodedMessage::new(&message, true).unwrap(),
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
                let seq = Seq(plain[1].parse().unwrap());
                let message_id = option("id").map(Into::into);
                let items = vec![MoveItem { seq, to: to.unwrap(), message_id }];
                Command::Move { from: queue(0), items, why: MoveWhy::Redrive }
            }
            "purge" if plain.len() > 1 && !flag("all") => {
                let session = || option("s").map(|s| SessionId::new(s).unwrap());
                let seqs = plain[1..].iter().map(|seq| (Seq(seq.parse().unwrap()), session()));
                Command::PurgeThese { queue: queue(0), items: seqs.collect() }
            }
            "purge" => Command::Purge { queue: queue(0), leased: flag("all") },
            "late" => {
                let since = Timestamp(number("since").unwrap_or(self.now));
                let items = vec![(Seq(plain[1].parse().unwrap()), since)];
                Command::CompleteLate { queue: queue(0), items }
            }
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
            "sessions" => Command::Sessions {
                queue: queue(0),
                from: number("from").unwrap_or(0) as u32,
                max: number("max").unwrap_or(100) as usize,
            },
            "session" => Command::Session {
                queue: queue(0),
                session: SessionId::new(option("s").unwrap()).unwrap(),
            },
            "facts" => Command::Describe { queue: queue(0) },
            "keys" => return writeln!(self.said, "{} keys", self.core.keys().0).unwrap(),
            "totals" => return self.tell_totals(&queue(0)),
            "wait" => return self.wait(plain[0].parse().unwrap()),
            // Time passes without any turn.
            "later" => return self.now += plain[0].parse::<u64>().unwrap(),
            // The wall clock is set forward.
            "clock" => {
                self.stepped_ms = plain[0].parse().unwrap();
                self.now += self.stepped_ms;
                return self.turn(None);
            }
            "restart" => return self.restart(),
            "replay" => return self.replay(),
            "full" => return self.fill(plain.first().map_or(0, |bytes| bytes.parse().unwrap())),
            "room" => return self.full.store(false, Ordering::Relaxed),
            other => panic!("no such step: {other}"),
        };
        self.requests += 1;
        let request = self.requests - 1;
        self.turn(Some((request, command)));
    }

    fn tell_totals(&mut self, queue: &QueueName) {
        let totals = self.core.queue(queue).unwrap().1.totals;
        let each = Totals::NAMES.iter().zip(totals.values()).filter(|(_, n)| *n > 0);
        let each: Vec<_> = each.map(|(name, n)| format!("{name} {n}")).collect();
        writeln!(self.said, "{}", each.join(", ")).unwrap();
    }

    /// Live records, their bytes, and the bytes counted once for each queue.
    pub(super) fn live(&self) -> (usize, u64, u64) {
        let (mut records, mut bytes) = (0, 0);
        self.core.live(&mut |_, more| (records, bytes) = (records + 1, bytes + more));
        (records, bytes, self.core.counted_bytes())
    }

    /// The number of records of a message.
    pub(super) fn depth(&mut self, queue: &str, seq: u64) -> u32 {
        let (_, q) = self.core.queue(&QueueName::new(queue).unwrap()).unwrap();
        Stored::read_now(&self.journal.segments, q.pos(seq).unwrap()).unwrap().depth
    }

    /// Runs the turns that the core asks for at once.
    pub(super) fn run_background_work(&mut self) {
        let before = self.turns;
        while self.core.next_wake().is_some_and(|wake| wake.0 <= self.now) {
            self.turn(None);
            assert!(self.turns < before + 1000, "work without end");
        }
    }

    /// The number of queues on each page of a list.
    pub(super) fn pages(&mut self) -> Vec<usize> {
        let (mut pages, mut after) = (Vec::new(), None);
        loop {
            let mut out = Vec::new();
            let log = &mut self.journal.appender;
            let mut turn = Turn::new(&mut self.core, log, Timestamp(self.now), &mut out, true);
            turn.command(0, Command::List { after: after.clone(), max: usize::MAX });
            let Some(Effect::Request(_, Ok(Reply::Queues(page)))) = out.pop().map(|out| out.effect)
            else {
                panic!("a list is answered")
            };
            let Some(last) = page.last() else { return pages };
            after = Some(last.name.clone());
            pages.push(page.len());
        }
    }

    fn wait(&mut self, ms: u64) {
        // In the small steps in which the core asks to be woken, so that the order is realistic.
        let until = self.now + ms;
        while let Some(wake) = self.core.next_wake().filter(|wake| wake.0 <= until) {
            // What did not fit into a turn is due at once, and was due before.
            self.now = self.now.max(wake.0);
            self.turn(None);
        }
        self.now = until;
        self.turn(None);
    }

    /// Fills the disk, and the current segment except for `left` bytes.
    fn fill(&mut self, left: usize) {
        self.full.store(true, Ordering::Relaxed);
        for bytes in [4000, 100, 1] {
            let room = bytes + FRAME_HEADER_BYTES + left;
            while self.journal.appender.begin_with_room(room).is_ok() {
                self.journal.appender.frame_at(200, |out| out.resize(out.len() + bytes, 0));
                self.journal.appender.end_group(true);
            }
        }
    }

    /// The core as a replay of the journal restores it.
    pub(super) fn replayed(&self) -> Core {
        let copy = tempfile::tempdir().unwrap();
        for file in std::fs::read_dir(self._dir.path()).unwrap() {
            let file = file.unwrap();
            std::fs::copy(file.path(), copy.path().join(file.file_name())).unwrap();
        }
        let mut core = Core::new(99);
        let disk = OsDisk::open(copy.path()).unwrap();
        recover(Arc::new(disk), &Options::default(), &mut core).unwrap();
        core
    }

    /// Restarts without a snapshot.
    fn replay(&mut self) {
        let mut core = self.replayed();
        core.go_live(&mut self.journal.appender, Timestamp(self.now), 8).unwrap();
        self.core = core;
        self.turn(None);
    }

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
        self.core.processed_items = 0;
        let rests_from = self.rests_from;
        let (end, eager) = (self.journal.appender.end_pos(), self.journal.appender.last_eager());
        let mut turn = Turn::new(
            &mut self.core,
            &mut self.journal.appender,
            Timestamp(self.now),
            &mut out,
            true,
        );
        let stepped_ms = std::mem::take(&mut self.stepped_ms);
        if stepped_ms > 0 {
            turn.clock_stepped(stepped_ms);
        }
        turn.expire();
        if let Some((request, command)) = command {
            turn.command(request, command);
        }
        turn.dispatch();
        self.turns += 1;
        self.most_touched = self.most_touched.max(self.core.processed_items);
        let (counted, held) = self.core.keys();
        assert_eq!(counted, held, "keys that are counted are keys that are held");
        for chunk in self.journal.appender.take().unwrap_or_default() {
            self.journal.writer.write(&chunk).unwrap();
        }
        if self.journal.appender.last_eager() != eager {
            self.rests_from = end;
        }
        for Output { effect, durable, .. } in out {
            if self.tell_waits {
                self.said += if durable > rests_from { "waits: " } else { "at once: " };
            }
            match effect {
                Effect::Route(topic, items) => {
                    let read = crate::reads::route(topic, items, &self.journal.segments);
                    self.requests += 1;
                    self.turn(Some((self.requests - 1, read)));
                }
                Effect::Rewrite(items) => {
                    let read = crate::reads::rewrite(items, &self.journal.segments);
                    self.requests += 1;
                    self.turn(Some((self.requests - 1, read)));
                }
                Effect::Request(_, Err(refusal)) => {
                    writeln!(self.said, "refused: {refusal}").unwrap()
                }
                Effect::Request(_, Ok(reply)) => self.tell(reply),
                Effect::Consumer(consumer, notice) => {
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

    /// Records that only damage or forgery could cause: the slots of their leases are implausible.
    pub(super) fn apply_absurd_leases(&mut self, plain: &str, sessioned: &str) {
        let id = |name: &str| self.core.queue(&QueueName::new(name).unwrap()).unwrap().0;
        let (queue, sessions) = (id(plain), id(sessioned));
        let token = LeaseToken { epoch: 1, slot: 4_000_000_000, grant: 1, random: 1 };
        let (at, until, bound, hold) = (Timestamp(0), Timestamp(1000), false, None);
        let (of, deferred, items) = (Vec::new(), false, vec![(1, token)]);
        let leased = LeasedEvent { queue, at, until, bound, hold, sessions: of, deferred, items };
        self.core.apply(Pos::new(9, 5000), &Event::Leased(leased));
        let session = SessionId::new("one").unwrap();
        let held = Event::Held { queue: sessions, session, token, until, bound };
        self.core.apply(Pos::new(9, 6000), &held);
    }

    fn name(&mut self, token: LeaseToken) -> String {
        let name = name_of(self.granted);
        self.granted += 1;
        self.tokens.insert(name.clone(), token);
        name
    }
}
