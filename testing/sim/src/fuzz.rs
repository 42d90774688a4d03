//! Fuzzes decoders with mutated valid encodings. It is seeded and needs only stable Rust.
//!
//! A target is a name and a function over bytes. It fails by panicking, or by using much more memory than its input
//! justifies. A new front end adds its decoder to [`TARGETS`] and its valid inputs to [`Corpus`].

mod amqp;
mod amqp091;
mod atom;
mod servicebus;
mod sqs;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use malote_engine::core::Core;
use malote_engine::disk::Disk;
use malote_engine::journal::{
    HEADER_BYTES, HeaderBlock, KIND_MARK, Options, Pos, Recovered, Replay, decode_frame,
    decode_header, decode_snapshot, recover,
};
use malote_engine::topic::TopicRouter;
use malote_engine::{Stored, decode_rule, decode_topic_spec, encode_rule};

use malote_front_http::native::{Encoding, decode_frame as decode_native};
use malote_model::{
    Correlation, Facts, Filter, Headers, HeadersMatch, Message, Rule, SqlAction, SqlFilter,
    Timestamp, Value,
};

use crate::alloc::peak_of;
use crate::disk::SimDisk;
use crate::rng::Rng;
use crate::world::World;

/// Valid encodings by kind.
#[derive(Default)]
pub struct Corpus {
    frames: Vec<Vec<u8>>,
    headers: Vec<Vec<u8>>,
    snapshots: Vec<Vec<u8>>,
    states: Vec<Vec<u8>>,
    /// The kind byte, then the body.
    records: Vec<Vec<u8>>,
    /// Bodies of requests of the HTTP API.
    requests: Vec<Vec<u8>>,
    /// Messages of the native connection, as JSON and as MessagePack.
    frames_json: Vec<Vec<u8>>,
    frames_msgpack: Vec<Vec<u8>>,
    amqp_frames: Vec<Vec<u8>>,
    amqp_messages: Vec<Vec<u8>>,
    amqp_conversations: Vec<Vec<u8>>,
    amqp091_streams: Vec<Vec<u8>>,
    amqp091_methods: Vec<Vec<u8>>,
    amqp091_tables: Vec<Vec<u8>>,
    amqp091_properties: Vec<Vec<u8>>,
    /// Bodies of Service Bus administration.
    atom: Vec<Vec<u8>>,
    servicebus_requests: Vec<Vec<u8>>,
    servicebus_texts: Vec<Vec<u8>>,
    sqs_json: Vec<Vec<u8>>,
    sqs_forms: Vec<Vec<u8>>,
    sqs_cbor: Vec<Vec<u8>>,
    /// Texts of filters and actions.
    sql: Vec<Vec<u8>>,
    rules: Vec<Vec<u8>>,
}

type SelectInputs = fn(&Corpus) -> &[Vec<u8>];
type Decode = fn(&mut TargetState, &[u8]);

/// Name, corpus, decoder, and bytes of memory allowed in addition to 64 times the input.
const TARGETS: &[(&str, SelectInputs, Decode, u64)] = &[
    ("journal-frame", |c| &c.frames, frame, 64 << 10),
    ("segment-header", |c| &c.headers, header, 64 << 10),
    ("snapshot-file", |c| &c.snapshots, snapshot, 64 << 10),
    ("core-snapshot", |c| &c.states, core_snapshot, 1 << 20),
    ("event", |c| &c.records, event, 4 << 20),
    ("stored-message", |c| &c.records, stored, 1 << 20),
    ("api-json", |c| &c.requests, api_json, 1 << 20),
    ("native-json", |c| &c.frames_json, native_json, 1 << 20),
    // A map or list that announces many entries gets at most a megabyte of capacity at a time.
    ("native-msgpack", |c| &c.frames_msgpack, native_msgpack, 4 << 20),
    // Values of a few bytes take forty in memory, up to 65,536 of them, and are compared as text.
    ("amqp-frames", |c| &c.amqp_frames, |_, bytes| amqp::try_frames(bytes), 16 << 20),
    ("amqp-message", |c| &c.amqp_messages, |_, bytes| amqp::try_message(bytes), 8 << 20),
    // Up to a megabyte of messages may be buffered in each direction.
    ("amqp-connection", |c| &c.amqp_conversations, |_, bytes| amqp::try_connection(bytes), 8 << 20),
    // The texts of an exception and of `Debug` are longer than what they show.
    ("amqp091-stream", |c| &c.amqp091_streams, |_, bytes| amqp091::try_stream(bytes), 1 << 20),
    ("amqp091-method", |c| &c.amqp091_methods, |_, bytes| amqp091::try_method(bytes), 256 << 10),
    ("amqp091-table", |c| &c.amqp091_tables, |_, bytes| amqp091::try_table(bytes), 256 << 10),
    (
        "amqp091-properties",
        |c| &c.amqp091_properties,
        |_, bytes| amqp091::try_properties(bytes),
        64 << 10,
    ),
    ("servicebus-atom", |c| &c.atom, |_, bytes| atom::try_body(bytes), 1 << 20),
    (
        "servicebus-message",
        |c| &c.amqp_messages,
        |_, bytes| servicebus::try_message(bytes),
        16 << 20,
    ),
    (
        "servicebus-request",
        |c| &c.servicebus_requests,
        |_, bytes| servicebus::try_request(bytes),
        16 << 20,
    ),
    ("servicebus-text", |c| &c.servicebus_texts, |_, bytes| servicebus::try_text(bytes), 1 << 20),
    ("sqs-json", |c| &c.sqs_json, |_, bytes| sqs::try_json(bytes), 1 << 20),
    ("sqs-query", |c| &c.sqs_forms, |_, bytes| sqs::try_form(bytes), 1 << 20),
    ("sqs-cbor", |c| &c.sqs_cbor, |_, bytes| sqs::try_cbor(bytes), 1 << 20),
    ("sql", |c| &c.sql, sql, 256 << 10),
    ("rule", |c| &c.rules, rule, 256 << 10),
];

/// Covers every part of the SQL filter language.
const SQL: &[&str] = &[
    "color = 'blue' AND (size > 10 OR NOT sys.Label LIKE '%b_s!%' ESCAPE '!') AND user.[a b] IS NOT NULL",
    "EXISTS(\"x\") OR a NOT IN (1, 2.5, 'x', -3E-5, @p) AND p('sys.' + name) <> -(1 + 2) * 3 % 4 / 5",
    "((((a=1)))) OR TRUE AND FALSE OR NULL IS NULL AND property(name) LIKE pattern + '%'",
    "SET a = 1; SET sys.Label = 'x' + color; REMOVE user.b, SET size = size * 2 - -1 REMOVE sys.To",
    "SET [c d] = @p; SET sys.TimeToLive = 5; SET sys.SessionId = p('name'); SET l = list",
];

/// One request of each kind.
const REQUESTS: &[&str] = &[
    r#"{"sessions":["one","two"],"lock_ms":30000,"failed_max":10,"receives_max":null,"dead_letter":{"queue":"graves"},"durability":"relaxed","retry":"skip","delay_ms":5,"message_bytes_max":1024,"backlog_warning":7}"#,
    r#"{"messages":[{"queue":"q","body":{"a":[1,2.5,null,true]},"session":"s","id":"1","delay_ms":5,"priority":3,"ttl_ms":9,"properties":{"x":1,"y":{"$type":"i32","value":7},"z":[1,{"k":"v"}]}},{"body_base64":"aGVsbG8=","at":1794797062000}]}"#,
    r#"{"max":10,"wait_ms":20000,"lock_ms":1000,"mode":"delete","session_token":"000000010000000000000001fdb39786","per_session":3}"#,
    r#"{"leases":["000000010000000000000001fdb39786"],"outcome":"dead_letter","reason":"bad","text":"why","properties":{"a":"b"},"session_state":{"token":"000000010000000000000001fdb39786","state_base64":"AA=="}}"#,
    r#"{"seqs":[1,2,18446744073709551615],"to":"other","limit":5,"dry_run":true}"#,
    r#"{"session":"one","wait_ms":5,"lock_ms":7}"#,
    r#"{"ttl_ms":5,"on_expiry":"dead_letter","priority_max":9,"dedup":{"window_ms":5,"per_session":true,"content":true},"length_max":7,"bytes_max":null,"overflow":"drop_oldest","auto_delete":true,"idle_ms_max":5,"exclusive":true,"forward_to":{"topic":"t"},"dead_letter":{"topic":"t","key":"k"}}"#,
    r#"{"kind":"headers","auto_delete":true,"internal":true,"dedup":{"window_ms":5}}"#,
    r##"{"spec":{"lock_ms":5},"rules":[{"name":"a","filter":"all"},{"name":"b","filter":{"key":"k"}},{"name":"c","filter":{"pattern":"a.*.#"}},{"name":"d","filter":{"sql":"a > 1 AND sys.Label LIKE 'x%'"},"action":"SET a = 1; REMOVE b"}]}"##,
    r#"{"filter":{"headers":{"match":"any_with_x","values":{"a":1,"x-b":null,"c":{"$type":"uuid","value":"01a1e23d-c770-7ab7-9f95-bed9c63d4f67"}}}}}"#,
    r#"{"filter":{"correlation":{"id":"1","subject":"s","session":"x","properties":{"p":[1,{"k":true}]}}},"action":{"text":"SET a = @b","parameters":{"@b":1.5}},"message":{"subject":"s","properties":{"p":1}}}"#,
    r#"{"filter":{"sql":{"text":"a = @b OR NOT EXISTS(c)","parameters":{"@b":"x"}}},"message":{"key":"k","body":{"a":1}}}"#,
    r#"{"send":[{"queue":"q","body":"x"},{"topic":"t","at":5}],"settle":[{"queue":"q","items":[{"leases":["000000010000000000000001fdb39786"],"outcome":"abandon","properties":{"a":1}}]}],"state":[{"queue":"q","change":{"token":"000000010000000000000001fdb39786","state_base64":"AA=="}}]}"#,
];

/// One frame of each kind.
const FRAMES: &[&str] = &[
    r#"{"send":{"id":1,"messages":[{"queue":"q","body":"x","session":"s","properties":{"a":{"$type":"uuid","value":"01a1e23d-c770-7ab7-9f95-bed9c63d4f67"}}}]}}"#,
    r#"[{"attach":{"id":2,"consumer":1,"queue":"q","credit":100,"mode":"lock","per_session":2}},{"credit":{"id":3,"consumer":1,"credit":5,"replace":true}},{"detach":{"id":4,"consumer":1}}]"#,
    r#"{"settle":{"id":5,"queue":"q","items":[{"leases":["000000010000000000000001fdb39786"],"outcome":"abandon","delay_ms":5}]}}"#,
    r#"{"accept":{"id":6,"queue":"q","session":"one","wait_ms":5}}"#,
    r#"[{"renew":{"id":7,"queue":"q","leases":[]}},{"release":{"id":8,"queue":"q","token":"x"}},{"get_state":{"id":9,"queue":"q","session":"s"}},{"set_state":{"id":10,"queue":"q","change":{"token":"x"}}}]"#,
    r#"{"resume":{"id":11,"connection":1,"secret":"x","leases":["x"]}}"#,
    r#"{"receive_deferred":{"id":12,"queue":"q","seqs":[1],"mode":"delete"}}"#,
    r#"[{"ping":{"id":13}},{"depth":{"id":22,"queue":"q"}}]"#,
    r#"[{"begin":{"id":14,"transaction":1}},{"send":{"id":15,"transaction":1,"messages":[{"topic":"t","key":"a.b"}]}},{"settle":{"id":16,"transaction":1,"queue":"q","items":[{"leases":["x"],"outcome":"complete"}]}},{"set_state":{"id":17,"transaction":1,"queue":"q","change":{"token":"x","state_base64":"AA=="}}},{"commit":{"id":18,"transaction":1}},{"rollback":{"id":19,"transaction":2}}]"#,
    r#"[{"declare":{"id":20}},{"declare":{"id":21,"queue":"mine","spec":{"exclusive":true,"durability":"relaxed","sessions":["a"]}}}]"#,
];

/// State that targets need in addition to their input.
struct TargetState {
    core: Core,
    state: Vec<u8>,
    journal: Option<Recovered>,
    executions: u64,
}

/// The input begins with the frame's position and the journal's salt, because a frame elsewhere is refused at once.
fn frame(_: &mut TargetState, bytes: &[u8]) {
    if let Some((pos, rest)) = bytes.split_first_chunk::<8>()
        && let Some((salt, frame)) = rest.split_first_chunk::<4>()
    {
        let pos = Pos::from_u64(u64::from_le_bytes(*pos));
        let _ = decode_frame(frame, pos, u32::from_le_bytes(*salt));
    }
}

fn header(_: &mut TargetState, bytes: &[u8]) {
    let _ = decode_header(bytes);
}

fn snapshot(_: &mut TargetState, bytes: &[u8]) {
    let _ = decode_snapshot(bytes);
}

fn api_json(_: &mut TargetState, bytes: &[u8]) {
    malote_front_http::requests::try_every_request(bytes);
}

fn native_json(_: &mut TargetState, bytes: &[u8]) {
    let _ = decode_native(bytes, Encoding::Json);
}

fn native_msgpack(_: &mut TargetState, bytes: &[u8]) {
    let _ = decode_native(bytes, Encoding::MessagePack);
}

/// A message with a value for every name in the corpus.
fn routed_message() -> Message {
    let properties = [
        ("color", Value::String("blue".into())),
        ("size", Value::I32(i32::MAX)),
        ("a", Value::U64(u64::MAX)),
        ("a b", Value::Null),
        ("name", Value::String("Label".into())),
        ("pattern", Value::String("%_%".repeat(100))),
        ("list", Value::List(vec![Value::F64(f64::NAN)])),
    ];
    Message {
        subject: Some("bus".repeat(100)),
        key: Some("a.b.c".into()),
        properties: properties.into_iter().map(|(name, v)| (name.to_owned(), v)).collect(),
        ..Message::default()
    }
}

/// Text that parses can be evaluated, and its own text parses again.
fn sql(_: &mut TargetState, bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let parameters = vec![("@p".to_owned(), Value::I64(i64::MIN))];
    let mut message = routed_message();
    if let Ok(filter) = SqlFilter::new(&text, parameters.clone()) {
        let _ = filter.evaluate(&Facts::new(&message, Timestamp(5)));
        assert!(
            SqlFilter::new(filter.text(), parameters.clone()).is_ok(),
            "the text of a filter parses again"
        );
    }
    if let Ok(action) = SqlAction::new(&text, parameters) {
        action.apply(&mut message, Timestamp(5));
    }
}

/// A decoded rule can be encoded again, and the router's index agrees with the rule's own definition.
fn rule(_: &mut TargetState, bytes: &[u8]) {
    let _ = decode_topic_spec(bytes);
    let Some(rule) = decode_rule(bytes) else { return };
    let encoded = encode_rule(&rule)
        .unwrap_or_else(|refusal| panic!("a decoded rule cannot be encoded: {refusal}"));
    assert!(decode_rule(&encoded).is_some(), "the encoded rule cannot be decoded");
    let message = routed_message();
    let facts = Facts::new(&message, Timestamp(5));
    let mut router = TopicRouter::new(1);
    router.insert(1, rule.clone());
    let mut hits = Vec::new();
    router.route(&facts, &mut hits);
    assert_eq!(!hits.is_empty(), rule.filter.matches(&facts), "the router and the filter disagree");
    assert_eq!(router.remove_target(1), 1);
}

/// A restored state must be usable: it can be listed and saved again.
fn core_snapshot(_: &mut TargetState, bytes: &[u8]) {
    let mut core = Core::new(1);
    if core.restore(bytes).is_ok() {
        core.live(&mut |_, _| {});
        let mut saved = Vec::new();
        core.save(&mut saved);
    }
}

/// Applies one record to a real state. The state is replaced from time to time.
fn event(target: &mut TargetState, bytes: &[u8]) {
    if let Some((&kind, body)) = bytes.split_first() {
        Replay::apply(&mut target.core, Pos::new(9, 5000), kind, body);
    }
}

/// Writes a record with a valid checksum to a journal, and reads it as a message.
fn stored(target: &mut TargetState, bytes: &[u8]) {
    let Some((&kind, body)) = bytes.split_first() else { return };
    let Some(journal) = target.journal.as_mut() else { return };
    journal.appender.begin();
    let placed = journal.appender.frame(kind.max(KIND_MARK + 1), |out| out.extend_from_slice(body));
    let Ok(group) = journal.appender.end(true) else { return };
    let pos = group.pos(placed);
    for chunk in journal.appender.take().unwrap_or_default() {
        let _ = journal.writer.write(&chunk);
    }
    let _ = Stored::read_now(&journal.segments, pos);
}

impl TargetState {
    /// Replaces the state from time to time.
    fn refresh(&mut self) {
        if self.executions.is_multiple_of(64) {
            self.core = Core::new(1);
            let restored = self.core.restore(&self.state);
            restored.unwrap_or_else(|error| panic!("cannot restore a valid state: {error}"));
        }
        if self.executions.is_multiple_of(512) {
            self.journal = Some(empty_journal());
        }
    }
}

fn empty_journal() -> Recovered {
    let disk = SimDisk::new();
    let options = Options {
        segment_bytes: 1 << 20,
        first_segment_bytes: 1 << 20,
        free_bytes_min: 0,
        ..Options::default()
    };
    recover(Arc::new(disk), &options, &mut Core::new(1))
        .unwrap_or_else(|error| panic!("cannot open an empty disk: {error}"))
}

impl Corpus {
    /// Collects the inputs: what simulations leave on their disks, and the constants above.
    pub fn new() -> Corpus {
        let mut corpus = Corpus::default();
        for seed in 0..6 {
            let mut world = World::new(seed, false);
            for _ in 0..400 {
                world.step();
            }
            world.flush();
            corpus.take_disk(&world.disk);
        }
        corpus.requests = REQUESTS.iter().map(|text| text.as_bytes().to_vec()).collect();
        corpus.frames_json = FRAMES.iter().map(|text| text.as_bytes().to_vec()).collect();
        let packed = |text: &&str| {
            let value: serde_json::Value = serde_json::from_str(text).expect("the corpus is JSON");
            rmp_serde::to_vec_named(&value).expect("any JSON value can be packed")
        };
        corpus.frames_msgpack = FRAMES.iter().map(packed).collect();
        corpus.amqp_frames = amqp::frames();
        corpus.amqp_messages = amqp::messages();
        corpus.amqp_conversations = amqp::conversations();
        corpus.amqp091_streams = amqp091::streams();
        corpus.amqp091_methods = amqp091::methods();
        corpus.amqp091_tables = amqp091::tables();
        corpus.amqp091_properties = amqp091::properties();
        let bytes_of = |texts: &[&str]| texts.iter().map(|text| text.as_bytes().to_vec()).collect();
        corpus.atom = bytes_of(atom::BODIES);
        corpus.servicebus_requests = servicebus::requests();
        corpus.servicebus_texts = bytes_of(servicebus::TEXTS);
        corpus.sqs_json = bytes_of(sqs::JSON);
        corpus.sqs_forms = bytes_of(sqs::FORMS);
        corpus.sqs_cbor = sqs::bodies();
        corpus.sql = bytes_of(SQL);
        corpus.rules = rules().iter().filter_map(|rule| encode_rule(rule).ok()).collect();
        corpus
    }

    fn take_disk(&mut self, disk: &SimDisk) {
        for entry in disk.list().unwrap_or_default() {
            let Ok(file) = disk.open(&entry.name) else { continue };
            let mut bytes = vec![0; entry.len as usize];
            if file.read_at(&mut bytes, 0).is_err() {
                continue;
            }
            if let Ok(snapshot) = decode_snapshot(&bytes) {
                self.states.push(snapshot.body.to_vec());
                self.snapshots.push(bytes);
            } else if let Some(block) = bytes.get(..HEADER_BYTES)
                && let HeaderBlock::Valid(header) = decode_header(block)
            {
                self.headers.push(block.to_vec());
                let mut at = HEADER_BYTES;
                while let Ok(frame) =
                    decode_frame(&bytes[at..], Pos::new(header.generation, at as u32), header.salt)
                {
                    let len = frame.len_bytes();
                    let mut whole =
                        Pos::new(header.generation, at as u32).get().to_le_bytes().to_vec();
                    whole.extend_from_slice(&header.salt.to_le_bytes());
                    whole.extend_from_slice(&bytes[at..at + len]);
                    self.frames.push(whole);
                    if frame.kind != KIND_MARK {
                        let mut record = vec![frame.kind];
                        record.extend_from_slice(frame.body);
                        self.records.push(record);
                    }
                    at += len;
                }
            }
        }
    }
}

/// One rule of each kind.
fn rules() -> Vec<Rule> {
    let parameters = vec![("@p".to_owned(), Value::I64(7))];
    let sql = SqlFilter::new("color = 'blue' AND size <> @p", parameters.clone());
    let action = SqlAction::new("SET a = @p; REMOVE color", parameters).ok();
    let values = vec![("color".to_owned(), None), ("size".to_owned(), Some(Value::U16(7)))];
    let correlation = Correlation {
        subject: Some("bus".into()),
        key: Some("a.b.c".into()),
        properties: vec![("list".into(), Value::List(vec![Value::Map(vec![])]))],
        ..Correlation::default()
    };
    let filters = [
        Filter::All,
        Filter::None,
        Filter::Key("a.b.c".into()),
        Filter::Pattern("a.*.#".into()),
        Filter::Headers(Headers { mode: HeadersMatch::Any, values }),
        Filter::Correlation(Arc::new(correlation)),
        Filter::Sql(sql.expect("it parses")),
    ];
    let name = |i: usize| format!("rule {i}");
    let rule = |(i, filter)| Rule { name: name(i), filter, action: action.clone() };
    filters.into_iter().enumerate().map(rule).collect()
}

/// Picks an input and mutates it.
fn mutate(rng: &mut Rng, corpus: &[Vec<u8>]) -> Vec<u8> {
    let one = |rng: &mut Rng| {
        corpus.get(rng.below(corpus.len().max(1) as u64) as usize).cloned().unwrap_or_default()
    };
    let mut bytes = one(rng);
    for _ in 0..1 + rng.below(4) {
        let len = bytes.len() as u64;
        let at = rng.below(len.max(1)) as usize;
        match rng.below(8) {
            0 | 1 if len > 0 => bytes[at] ^= 1 << rng.below(8),
            2 if len > 0 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][rng.below(5) as usize],
            3 => bytes.truncate(at),
            4 => {
                // The start of one input and the end of another.
                let other = one(rng);
                let from = rng.below(other.len().max(1) as u64) as usize;
                bytes.truncate(at);
                bytes.extend_from_slice(other.get(from..).unwrap_or_default());
            }
            5 => {
                // A wrong length or varint.
                let wrong_length = [
                    &[0xff; 4][..],
                    &[0xff; 8],
                    &[0xff, 0xff, 0xff, 0xff, 0x0f],
                    &[0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x01],
                    &[0xff, 0xff, 0x03],
                ];
                let wrong_length = wrong_length[rng.below(5) as usize];
                let end = (at + wrong_length.len()).min(bytes.len());
                bytes.splice(at.min(end)..end, wrong_length.iter().copied());
            }
            6 => {
                let inserted: Vec<u8> = (0..rng.below(16)).map(|_| rng.next_u64() as u8).collect();
                bytes.splice(at.min(bytes.len())..at.min(bytes.len()), inserted);
            }
            _ => {
                let end = (at as u64 + rng.below(16)).min(len) as usize;
                bytes.drain(at.min(end)..end);
            }
        }
    }
    bytes
}

/// Fuzzes all targets, or the named one. Returns whether all passed.
#[allow(clippy::disallowed_methods, reason = "how long to fuzz is not the engine's time")]
pub fn run(seconds: u64, only: Option<&str>, seed: u64) -> anyhow::Result<bool> {
    let chosen: Vec<_> =
        TARGETS.iter().filter(|(name, ..)| only.is_none_or(|only| only == *name)).collect();
    if chosen.is_empty() {
        let names: Vec<_> = TARGETS.iter().map(|(name, ..)| *name).collect();
        anyhow::bail!(
            "unknown target `{}`; choose one of {}",
            only.unwrap_or_default(),
            names.join(", ")
        );
    }
    let corpus = Corpus::new();
    let each = Duration::from_millis(seconds * 1000 / chosen.len() as u64);
    let mut good = true;
    for (name, select, decode, memory_extra) in chosen {
        let inputs = select(&corpus);
        let state = corpus.states.first().cloned().unwrap_or_default();
        let mut target = TargetState { core: Core::new(1), state, journal: None, executions: 0 };
        let mut rng = Rng::new(seed);
        let begun = Instant::now();
        let mut peak_max = 0;
        while begun.elapsed() < each {
            let bytes = mutate(&mut rng, inputs);
            target.refresh();
            let run = || catch_unwind(AssertUnwindSafe(|| decode(&mut target, &bytes)));
            let (done, peak) = peak_of(run);
            target.executions += 1;
            peak_max = peak_max.max(peak);
            let allowed = 64 * bytes.len() as u64 + memory_extra;
            if done.is_err() || peak > allowed {
                let what = if done.is_err() {
                    "panicked".to_owned()
                } else {
                    format!("used {peak} bytes, {allowed} are allowed")
                };
                println!(
                    "{name} {what} at execution {} of seed {seed}, input {}",
                    target.executions,
                    hex(&bytes)
                );
                good = false;
                break;
            }
        }
        println!(
            "{name}: {} executions, {} initial inputs, at most {peak_max} bytes",
            target.executions,
            inputs.len()
        );
    }
    Ok(good)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().take(400).map(|byte| format!("{byte:02x}")).collect()
}
