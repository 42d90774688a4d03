//! Data directories of earlier versions: every version must be able to read them.
//!
//! `fixtures/*.backup` are data directories in the backup format, each with a description of its content. A released
//! fixture never changes. When records change, add one:
//!
//! ```sh
//! MALOTE_FIXTURE=v2 cargo test -p malote-engine --test fixtures
//! UPDATE_EXPECT=1 cargo test -p malote-engine --test fixtures
//! ```
//!
//! The first command writes `v2.backup`, the second its description; then review the difference. The clock of these tests
//! stands still, so that leases, delays and schedules of a fixture do not expire.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)] // a test, and files of its own

use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use expect_test::expect_file;
use malote_engine::command::{Accept, AcceptedSession, Attach, Command, MoveItem, MoveWhy, Reply};
use malote_engine::compact::{Compaction, LIVE_RECORDS_MAX};
use malote_engine::core::{Core, Effect, RecordCopy, Relocation, Turn};
use malote_engine::disk::OsDisk;
use malote_engine::journal::{Options, Recovered, recover, restore, verify};
use malote_engine::{ConsumerId, EncodedMessage, Peek, StateChange, Stored, Wants, read_state};
use malote_model::{
    Address, Body, BodyKind, Changes, DeadLetterTarget, Dedup, Durability, Filter, LeaseToken,
    Message, Native, QueueName, QueueSpec, Refusal, RetryOrder, Rule, Seq, SessionId, Sessions,
    Settlement, SqlAction, Status, Timestamp, TopicName, TopicSpec, Value, When,
};

/// The date of all fixtures.
const THEN: u64 = 1_800_000_000_000;

/// The engine without its threads and its clock.
struct ManualEngine {
    core: Core,
    journal: Recovered,
    now: u64,
    next: u64,
}

fn name(text: &str) -> QueueName {
    QueueName::new(text).unwrap()
}

fn session(id: &str) -> SessionId {
    SessionId::new(id).unwrap()
}

fn options() -> Options {
    Options {
        segment_bytes: 96 << 10,
        first_segment_bytes: 8 << 10,
        free_bytes_min: 0,
        salt: 7,
        snapshot_after_bytes: 1,
        compact_floor_bytes: 0,
        ..Options::default()
    }
}

impl ManualEngine {
    fn open(dir: &Path, now: u64) -> Self {
        let mut core = Core::new(1);
        let disk = Arc::new(OsDisk::open(dir).unwrap());
        let mut journal = recover(disk, &options(), &mut core).unwrap();
        assert!(journal.report.damaged.is_empty());
        core.go_live(&mut journal.appender, Timestamp(now), 11).unwrap();
        let mut manual = Self { core, journal, now, next: 0 };
        manual.flush();
        manual
    }

    fn flush(&mut self) {
        for chunk in self.journal.appender.take().unwrap_or_default() {
            self.journal.writer.write(&chunk).unwrap();
        }
        self.journal.syncer.sync().unwrap();
    }

    fn try_ask(&mut self, command: Command) -> Result<Reply, Refusal> {
        (self.now, self.next) = (self.now + 1, self.next + 1);
        let (now, request, mut out) = (Timestamp(self.now), self.next, Vec::new());
        let mut turn = Turn::new(&mut self.core, &mut self.journal.appender, now, &mut out, true);
        turn.expire();
        turn.command(request, command);
        turn.dispatch();
        self.flush();
        let answers = out.into_iter().filter_map(|output| match output.effect {
            Effect::Request(r, answer) if r == request => Some(answer),
            _ => None,
        });
        answers.last().expect("every command here is answered at once")
    }

    fn ask(&mut self, command: Command) -> Reply {
        self.try_ask(command).unwrap()
    }

    fn declare(&mut self, queue: &str, spec: QueueSpec) {
        self.ask(Command::Declare { name: name(queue), spec: Box::new(spec), connection: None });
    }

    fn send(&mut self, queue: &str, message: Message) {
        let items =
            vec![(Address::Queue(name(queue)), EncodedMessage::new(&message, false).unwrap())];
        self.ask(Command::Send { items });
    }

    fn receive(&mut self, queue: &str, credit: u32, wants: Wants) -> Vec<LeaseToken> {
        self.next += 1;
        let attach = Attach {
            consumer: ConsumerId(self.next),
            connection: None,
            free_standing: true,
            queue: name(queue),
            wants,
            credit,
            take: false,
            lock_ms: Some(600_000),
            once_until: Some(Timestamp(self.now)),
            priority: 0,
            exclusive: false,
        };
        let Reply::Delivered(grants) = self.ask(Command::Attach(attach)) else { panic!("no") };
        grants.into_iter().filter_map(|grant| grant.lease).collect()
    }

    fn any(&mut self, queue: &str, credit: u32) -> Vec<LeaseToken> {
        self.receive(queue, credit, Wants::Any { per_session: 1 })
    }

    fn settle(&mut self, leases: Vec<LeaseToken>, settlement: Settlement) {
        let command = Command::Settle { leases, settlement, state: None };
        let Reply::Settled(each) = self.ask(command) else { panic!("no") };
        assert!(each.iter().all(Result::is_ok), "{each:?}");
    }

    fn accept(&mut self, queue: &str, id: &str) -> AcceptedSession {
        self.next += 1;
        let accept = Accept {
            consumer: ConsumerId(self.next),
            connection: None,
            queue: name(queue),
            session: Some(session(id)),
            lock_ms: Some(600_000),
            until: Timestamp(self.now),
        };
        let Reply::Accepted(Some(held)) = self.ask(Command::Accept(accept)) else { panic!("no") };
        held
    }

    /// Makes a snapshot and copies live records. Returns how many, and how many of them are shared by several queues.
    fn keep_house(&mut self) -> (u64, u64) {
        let mut core = Core::new(1);
        self.journal.snapshotter.run(&mut core).unwrap();
        let victims = self.journal.snapshotter.victims();
        let residents = core.live_records_in(&victims, LIVE_RECORDS_MAX);
        let mut compaction = Compaction::new(residents, options().segment_bytes);
        let (mut copied, mut shared) = (0, 0);
        let several = |item: &Relocation| match &item.copy {
            RecordCopy::Message(kept) => kept.places.len() > 1,
            RecordCopy::State(..) => false,
        };
        while let Some(items) = compaction.next_batch(&self.journal.segments) {
            shared += items.iter().filter(|item| several(item)).count() as u64;
            let Reply::Count(n) = self.ask(Command::Relocate { items }) else { panic!("no") };
            copied += n;
        }
        (copied, shared)
    }
}

fn message(id: &str, of: Option<&str>, body: &str) -> Message {
    Message {
        message_id: Some(id.into()),
        origin_id: Some(id.into()),
        session: of.map(session),
        body: Body { bytes: Bytes::copy_from_slice(body.as_bytes()), kind: BodyKind::Text },
        ..Message::default()
    }
}

/// A message with all possible attributes.
fn rich(id: &str) -> Message {
    let text = |text: &str| Some(String::from(text));
    let properties = [
        ("null", Value::Null),
        ("bool", Value::Bool(true)),
        ("i8", Value::I8(-8)),
        ("i16", Value::I16(-16)),
        ("i32", Value::I32(-32)),
        ("i64", Value::I64(-64)),
        ("u8", Value::U8(8)),
        ("u16", Value::U16(16)),
        ("u32", Value::U32(32)),
        ("u64", Value::U64(64)),
        ("f32", Value::F32(0.5)),
        ("f64", Value::F64(0.25)),
        ("time", Value::Time(1)),
        ("uuid", Value::Uuid([9; 16])),
        ("string", Value::String("é".into())),
        ("bytes", Value::Bytes(Bytes::from_static(&[0, 255]))),
        ("list", Value::List(vec![Value::U8(1), Value::Null])),
        ("map", Value::Map(vec![("k".into(), Value::Bool(false))])),
    ];
    Message {
        key: text("key"),
        subject: text("subject"),
        to: text("to"),
        reply_to: text("reply"),
        reply_to_session: text("reply session"),
        correlation_id: text("correlation"),
        content_type: text("text/plain"),
        content_encoding: text("none"),
        user_id: text("user"),
        app_id: text("app"),
        properties: properties.into_iter().map(|(n, v)| (n.to_owned(), v)).collect(),
        priority: 4,
        ttl_ms: Some(3_600_000),
        dedup_id: text("dedup"),
        native: Some(Native { protocol: 2, bytes: Bytes::from_static(b"native") }),
        ..message(id, None, "rich")
    }
}

fn changes(n: u32) -> Changes {
    let properties = [("changed".to_owned(), Value::U32(n))].into_iter().collect();
    Changes { properties }
}

/// Writes everything that a journal can contain, with this version.
fn make(dir: &Path) -> ManualEngine {
    let mut manual = ManualEngine::open(dir, THEN);
    let plain = QueueSpec { failed_max: Some(2), ..QueueSpec::default() };
    manual.declare("plain", plain.clone());
    manual.declare("gone", QueueSpec::default());
    manual.declare("graves", QueueSpec::default());
    let dynamic = QueueSpec {
        sessions: Sessions::Dynamic,
        dead_letter: DeadLetterTarget::Queue(name("graves")),
        retry: RetryOrder::Skip,
        ..QueueSpec::default()
    };
    manual.declare("sessions", dynamic);
    let fixed = QueueSpec {
        sessions: Sessions::Fixed(vec![session("a"), session("b")]),
        durability: Durability::Relaxed,
        ..QueueSpec::default()
    };
    manual.declare("fixed", fixed);

    manual.send("plain", rich("rich"));
    for n in 0..8 {
        manual.send("plain", message(&format!("p{n}"), None, &format!("body {n}")));
    }
    manual.send("plain", Message { when: When::Delay(500_000), ..message("late", None, "late") });
    let at = When::At(Timestamp(THEN + 700_000));
    manual.send("plain", Message { when: at, ..message("planned", None, "planned") });
    let soon = When::At(Timestamp(THEN + 40));
    manual.send("plain", Message { when: soon, ..message("soon", None, "soon") });
    for n in 0..9 {
        let of = ["a", "b", "c"][n % 3];
        manual.send("sessions", message(&format!("s{n}"), Some(of), &format!("{of} {n}")));
        let of = ["a", "b"][n % 2];
        manual.send("fixed", message(&format!("f{n}"), Some(of), "fixed"));
    }
    let topic = TopicName::new("news").unwrap();
    let spec = Box::<TopicSpec>::default();
    manual.ask(Command::DeclareTopic { name: topic.clone(), spec });
    for (queue, action) in [("east", None), ("west", None), ("north", Some("SET changed = 6"))] {
        manual.declare(queue, QueueSpec::default());
        let action = action.map(|text| SqlAction::new(text, Vec::new()).unwrap());
        let rule = Rule { name: "all".into(), filter: Filter::All, action };
        let (topic, rule) = (topic.clone(), Box::new(rule));
        manual.ask(Command::Bind { topic, target: name(queue).into(), rule });
    }
    let news = EncodedMessage::to_topic(message("news", None, "to three queues"), false).unwrap();
    manual.ask(Command::Send { items: vec![(Address::Topic(topic), news)] });
    manual.send("gone", message("gone", None, "gone"));
    manual.ask(Command::Delete { name: name("gone") });

    // A few hundred messages that are sent and completed, and between them one of each kind that stays.
    let leases = manual.any("plain", 6);
    let [a, b, c, d, e, f] = leases[..] else { panic!("{leases:?}") };
    manual.settle(vec![a], Settlement::Abandon { delay_ms: 0, changes: changes(1) });
    manual.settle(vec![b], Settlement::Defer { changes: changes(2) });
    let (reason, text) = ("bad".into(), "It can never succeed".into());
    manual.settle(vec![c], Settlement::DeadLetter { reason, text, changes: changes(3) });
    manual.settle(vec![d], Settlement::Complete);
    manual.settle(vec![e], Settlement::Abandon { delay_ms: 0, changes: Changes::default() });
    let leases = manual.any("plain", 2);
    manual.settle(leases, Settlement::Abandon { delay_ms: 0, changes: Changes::default() });
    manual.settle(vec![f], Settlement::Release { delay_ms: 300_000 });
    let held = manual.accept("sessions", "a");
    let change = StateChange { hold: held.hold, state: Some(Bytes::from_static(b"state of a")) };
    manual.ask(Command::SetState { change });
    let leases = manual.receive("sessions", 3, Wants::Held(held.hold));
    manual.settle(vec![leases[0]], Settlement::Abandon { delay_ms: 900_000, changes: changes(4) });
    let (reason, text) = ("bad".into(), "To the graves".into());
    manual.settle(vec![leases[1]], Settlement::DeadLetter { reason, text, changes: changes(5) });
    manual.ask(Command::Pause { queue: name("fixed"), paused: true });
    manual.ask(Command::Update { name: name("plain"), spec: Box::new(plain) });
    let (mut copied, mut shared) = (0, 0);
    for round in 0..6 {
        for n in 0..40 {
            manual.send("graves", message(&format!("n{round}-{n}"), None, &"noise ".repeat(100)));
        }
        let mut leases = manual.any("graves", 100);
        // The first ones were dead-lettered here: one stays, and one of the others.
        let keep = leases.split_off(leases.len() - 1);
        manual.settle(leases.split_off(1), Settlement::Complete);
        manual.settle(keep, Settlement::Release { delay_ms: 0 });
        manual.settle(leases, Settlement::Release { delay_ms: 0 });
        let (n, of_them) = manual.keep_house();
        (copied, shared) = (copied + n, shared + of_them);
    }
    assert!(copied > 10 && shared == 1, "{copied} were copied, {shared} for several queues");
    newer(&mut manual, "before");
    manual.keep_house();
    // After the last snapshot.
    newer(&mut manual, "behind");
    manual.send("plain", message("last", None, "last"));
    let message_id = Some("anew".to_owned());
    let items = vec![MoveItem { seq: Seq(1), to: name("plain"), message_id }];
    let from = name("plain").dead_letters();
    manual.ask(Command::Move { from, items, why: MoveWhy::Redrive });
    manual.any("plain", 1);
    manual
}

/// What version 1 did not have: a status, purging leased messages, ids of duplicates, a changed topic.
fn newer(manual: &mut ManualEngine, when: &str) {
    let (status, dead_letters_keep_age) = (Status::SendDisabled, true);
    let closed = QueueSpec { status, dead_letters_keep_age, ..QueueSpec::default() };
    manual.declare(&format!("closed-{when}"), closed);
    let purged = format!("purged-{when}");
    manual.declare(&purged, QueueSpec::default());
    manual.send(&purged, message("out", None, "out"));
    manual.any(&purged, 1);
    manual.ask(Command::Purge { queue: name(&purged), leased: true });
    let known = format!("known-{when}");
    let dedup = Some(Dedup { window_ms: 3_600_000, per_session: false, content: false });
    manual.declare(&known, QueueSpec { dedup, ..QueueSpec::default() });
    let id = "01890a5d-ac96-774b-bcce-b302099a8057";
    manual.send(&known, Message { dedup_id: Some("key".into()), ..message(id, None, "known") });
    let (topic, spec) = (format!("changed-{when}"), Box::<TopicSpec>::default());
    let topic = TopicName::new(&topic).unwrap();
    manual.ask(Command::DeclareTopic { name: topic.clone(), spec: spec.clone() });
    let spec = Box::new(TopicSpec { status: Status::Disabled, ..*spec });
    manual.ask(Command::UpdateTopic { name: topic, spec });
}

fn describe(manual: &mut ManualEngine) -> String {
    let mut text = String::new();
    let Reply::Queues(mut all) = manual.ask(Command::List { after: None, max: 100 }) else {
        panic!("no")
    };
    for queue in all.clone() {
        let command = Command::Describe { queue: queue.name.dead_letters() };
        let Reply::Queues(letters) = manual.ask(command) else { panic!("no") };
        all.extend(letters);
    }
    for q in all {
        let spec = &q.spec;
        writeln!(
            text,
            "{}: ready {} locked {} delayed {} scheduled {} deferred {}, paused {}, lock {} failed_max {:?}, {:?}",
            q.name, q.ready, q.locked, q.delayed, q.scheduled, q.deferred, q.paused, spec.lock_ms, spec.failed_max,
            spec.sessions,
        )
        .unwrap();
        if spec.status != Status::Active {
            let age = spec.dead_letters_keep_age;
            writeln!(text, "  {}, dead letters keep their age: {age}", spec.status.word()).unwrap();
        }
        let t = q.totals;
        let totals = [t.sent, t.delivered, t.completed, t.abandoned, t.dead_lettered, t.deferred];
        writeln!(text, "  totals {totals:?}").unwrap();
        let (queue, from, max, session, state) = (q.name.clone(), Seq(0), 1000, None, None);
        let peek = Peek { queue, from, max, session, state };
        let Reply::Peeked { items, .. } = manual.ask(Command::Peek(peek)) else { panic!("no") };
        for p in items {
            let due = p.due.map(|due| due.0 - THEN);
            let state = (p.state, due, p.receives, p.failed);
            let stored = Stored::read_now(&manual.journal.segments, p.pos).unwrap();
            writeln!(text, "  {} {state:?} {}", p.seq, describe_message(&stored)).unwrap();
            if let Some(first) = p.first_at {
                writeln!(text, "    first granted at {}", first.0 - THEN).unwrap();
            }
        }
        let command = Command::Sessions { queue: q.name.clone(), from: 0, max: 100 };
        let Ok(Reply::Sessions { sessions, .. }) = manual.try_ask(command) else { continue };
        for s in sessions {
            let queue = q.name.clone();
            let command = Command::GetState { queue, session: s.session.clone(), hold: None };
            let Reply::State(pos) = manual.ask(command) else { panic!("no") };
            let state = pos.map(|pos| read_state(&manual.journal.segments, pos).unwrap().unwrap());
            let held = s.held_until.map(|until| until.0 - THEN);
            let facts = (s.messages, s.locked, held, s.first.map(|first| first.0));
            writeln!(text, "  session {} {facts:?} {state:?}", s.session).unwrap();
            if s.state_at.0 > 0 {
                writeln!(text, "    state set at {}", s.state_at.0 - THEN).unwrap();
            }
        }
    }
    let Reply::Topics(topics) = manual.ask(Command::ListTopics { after: None, max: 100 }) else {
        panic!("no")
    };
    for topic in topics.iter().filter(|topic| topic.spec.status != Status::Active) {
        writeln!(text, "topic {}: {}", topic.name, topic.spec.status.word()).unwrap();
    }
    for queue in ["known-before", "known-behind"] {
        let again = Message { dedup_id: Some("key".into()), ..message("other", None, "again") };
        let again = EncodedMessage::new(&again, false).unwrap();
        let items = vec![(Address::Queue(name(queue)), again)];
        if let Ok(Reply::Sent(receipts)) = manual.try_ask(Command::Send { items }) {
            writeln!(text, "{queue}: {:x?}", receipts[0].first_id).unwrap();
        }
    }
    text
}

fn describe_message(stored: &Stored) -> String {
    let m = &stored.message;
    let texts = [
        &m.message_id,
        &m.key,
        &m.subject,
        &m.to,
        &m.reply_to,
        &m.reply_to_session,
        &m.correlation_id,
        &m.content_type,
        &m.content_encoding,
        &m.user_id,
        &m.app_id,
        &m.dedup_id,
    ];
    let texts: Vec<&str> = texts.into_iter().flatten().map(String::as_str).collect();
    let properties: Vec<String> = m.properties.iter().map(|(n, v)| format!("{n}={v:?}")).collect();
    let body = String::from_utf8_lossy(&m.body.bytes[..m.body.bytes.len().min(24)]).into_owned();
    let mut text = format!(
        "{} {} at {} priority {} ttl {:?} {body:?} {:?} {properties:?}",
        texts.join("|"),
        m.session.as_ref().map_or("-", |s| s.as_str()),
        stored.enqueued_at.0 - THEN,
        m.priority,
        m.ttl_ms,
        m.body.kind,
    );
    if let Some(native) = &m.native {
        write!(text, " native {} {:?}", native.protocol, native.bytes).unwrap();
    }
    if let Some(d) = &stored.dead {
        let (at, counts) = (d.at.0 - THEN, (d.receives, d.failed));
        write!(
            text,
            " dead {} `{}` at {at} from {} {} {counts:?}",
            d.reason, d.text, d.from, d.from_seq
        )
        .unwrap();
    }
    text
}

/// Restores a fixture, a little later.
fn restored(backup: &[u8]) -> (tempfile::TempDir, ManualEngine) {
    let dir = tempfile::tempdir().unwrap();
    restore(&mut &backup[..], &OsDisk::open(dir.path()).unwrap()).unwrap();
    let verified = verify(&OsDisk::read_only(dir.path()).unwrap()).unwrap();
    assert!(verified.refused.is_none() && verified.recovery.damaged.is_empty());
    let manual = ManualEngine::open(dir.path(), THEN + 10_000);
    (dir, manual)
}

#[test]
fn this_version_reads_what_it_writes() {
    let dir = tempfile::tempdir().unwrap();
    let mut manual = make(dir.path());
    let backup: Vec<u8> =
        manual.journal.backups.begin().unwrap().flat_map(Result::unwrap).collect();
    manual.now = THEN + 10_000;
    let before = describe(&mut manual);
    let (_dir, mut again) = restored(&backup);
    assert_eq!(before, describe(&mut again));
    if let Ok(version) = std::env::var("MALOTE_FIXTURE") {
        let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
        std::fs::write(here.join(format!("{version}.backup")), backup).unwrap();
    }
}

#[test]
fn data_of_earlier_versions_is_read() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let mut seen = 0;
    for entry in std::fs::read_dir(&here).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "backup") {
            let (_dir, mut manual) = restored(&std::fs::read(&path).unwrap());
            expect_file![path.with_extension("txt")].assert_eq(&describe(&mut manual));
            seen += 1;
        }
    }
    assert!(seen > 0, "there is at least one fixture");
}
