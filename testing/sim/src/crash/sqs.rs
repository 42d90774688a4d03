//! A FIFO queue under load from SQS clients: 1,000 groups, senders without pauses, and 16 consumers that fail,
//! release, extend and disappear, while the server is killed with kill -9.
//!
//! Senders repeat an unanswered batch with the same de-duplication ids until it is answered, so every message is
//! delivered exactly once. Each group has one sender, so its order is known. A receive hides its messages for a known
//! time. If another consumer gets one of them, or a later one of its group, before that time, it got the message too
//! early, even if the server was restarted.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::clients::{Shared, now};
use super::history::ReceivedMessage;
use super::server::Server;
use super::wire::Http;
use crate::rng::Rng;

const QUEUE: &str = "pressure.fifo";
const SENDERS: u64 = 8;
const GROUPS_EACH: u64 = 125;
/// Senders wait at this backlog, because the remaining messages must be received at the end.
const BACKLOG_MAX: u64 = 4000;
const CONSUMERS: u64 = 16;
/// Short, so that messages of a consumer that disappeared are redelivered soon.
const VISIBILITY_S: u64 = 2;
const EXTENDED_S: u64 = 4;
/// How long to wait at the end until the queue is empty.
const EMPTY_MAX: Duration = Duration::from_secs(60);

/// State shared by the clients of this load.
struct Load {
    shared: Arc<Shared>,
    at: SocketAddr,
    /// Set: senders stop, and consumers no longer fail.
    calm: AtomicBool,
    done: AtomicBool,
    holders: AtomicU64,
    /// Messages that were accepted, and messages that a consumer began to delete.
    accepted: AtomicU64,
    deleted: AtomicU64,
    released: AtomicU64,
    extended: AtomicU64,
    vanished: AtomicU64,
    repeated: AtomicU64,
}

/// Kills and restarts the server `cycles` times. Returns whether there was no violation.
pub fn run(cycles: u64, binary: &Path, seed: u64) -> Result<bool> {
    let dir = tempfile::tempdir().context("cannot create a data directory")?;
    let mut server = Server::new(binary, dir.path())?;
    server.start()?;
    let attributes = json!({ "FifoQueue": "true", "DeduplicationScope": "messageGroup" });
    let mut http = Http::connect(server.at).context("the server does not answer")?;
    let made =
        call(&mut http, "CreateQueue", &json!({ "QueueName": QUEUE, "Attributes": attributes }))?;
    if let Err(problem) = made {
        bail!("CreateQueue: {problem}");
    }
    let load = Arc::new(Load {
        shared: Shared::new(server.at, 0),
        at: server.at,
        calm: AtomicBool::new(false),
        done: AtomicBool::new(false),
        holders: AtomicU64::new(1),
        accepted: AtomicU64::new(0),
        deleted: AtomicU64::new(0),
        released: AtomicU64::new(0),
        extended: AtomicU64::new(0),
        vanished: AtomicU64::new(0),
        repeated: AtomicU64::new(0),
    });
    let mut threads = Vec::new();
    for n in 0..SENDERS {
        let load = load.clone();
        threads.push(spawn(move || send(&load, n, seed)));
    }
    for n in 0..CONSUMERS {
        let load = load.clone();
        threads.push(spawn(move || consume(&load, n, seed)));
    }
    let begun = Instant::now();
    let mut rng = Rng::new(seed);
    let mut slowest = Duration::ZERO;
    for _ in 0..cycles {
        sleep(Duration::from_millis(300 + rng.below(2500)));
        server.kill()?;
        load.shared.history().killed(now());
        let down = Instant::now();
        server.start()?;
        slowest = slowest.max(down.elapsed());
    }
    load.calm.store(true, Ordering::Relaxed);
    let loaded = begun.elapsed();
    load.shared.wait_until_drained();
    let empty = wait_until_empty(load.at)?;
    let count = |of: &AtomicU64| of.load(Ordering::Relaxed);
    println!(
        "Sqs: {cycles} cycles in {:.1} s, slowest restart {} ms, {} groups, {CONSUMERS} consumers, {:.0} messages/s",
        begun.elapsed().as_secs_f32(),
        slowest.as_millis(),
        SENDERS * GROUPS_EACH,
        count(&load.accepted) as f32 / loaded.as_secs_f32()
    );
    println!(
        "batches repeated {}, messages released {}, extended {}, abandoned {}",
        count(&load.repeated),
        count(&load.released),
        count(&load.extended),
        count(&load.vanished)
    );
    load.done.store(true, Ordering::Relaxed);
    let clean = load.shared.finish(threads)?;
    if !empty {
        println!("the queue is not empty at the end");
    }
    Ok(clean && empty)
}

/// Calls one action in AWS JSON and returns its result or its problem. An error means that the connection failed.
fn call(http: &mut Http, action: &str, ask: &Value) -> io::Result<Result<Value, Value>> {
    let head = format!("x-amz-target: AmazonSQS.{action}\r\n");
    let (status, answer) = http.request_with_headers("POST", "/", &head, ask)?;
    Ok(if status < 300 { Ok(answer) } else { Err(answer) })
}

fn queue_url() -> String {
    format!("http://localhost/000000000000/{QUEUE}")
}

/// Waits until the queue is empty. Messages whose deletion was not answered are delivered and deleted again.
fn wait_until_empty(at: SocketAddr) -> Result<bool> {
    let ask = json!({ "QueueUrl": queue_url(), "AttributeNames": ["All"] });
    let begun = Instant::now();
    while begun.elapsed() < EMPTY_MAX {
        let mut http = Http::connect(at).context("the server does not answer")?;
        let Ok(answer) = call(&mut http, "GetQueueAttributes", &ask)? else {
            bail!("the queue does not exist")
        };
        let count = |name: &str| answer["Attributes"][name] == "0";
        let names = [
            "ApproximateNumberOfMessages",
            "ApproximateNumberOfMessagesNotVisible",
            "ApproximateNumberOfMessagesDelayed",
        ];
        if names.into_iter().all(count) {
            return Ok(true);
        }
        sleep(Duration::from_millis(100));
    }
    Ok(false)
}

/// Sends batches to the groups of this sender, and repeats each until it is answered.
fn send(load: &Load, me: u64, seed: u64) {
    let mut rng = Rng::new(seed ^ (0x5e4d_0000 + me));
    let mut numbers = vec![0_u64; GROUPS_EACH as usize];
    let mut http: Option<Http> = None;
    let mut total = 0_u64;
    while !load.calm.load(Ordering::Relaxed) {
        let deleted = load.deleted.load(Ordering::Relaxed);
        if load.accepted.load(Ordering::Relaxed).saturating_sub(deleted) >= BACKLOG_MAX {
            sleep(Duration::from_millis(1));
            continue;
        }
        let mut ids = Vec::new();
        let mut entries = Vec::new();
        for _ in 0..if rng.chance(80) { 10 } else { 1 + rng.below(9) } {
            total += 1;
            let (id, group) = (format!("{me}-{total}"), rng.below(GROUPS_EACH) as usize);
            numbers[group] += 1;
            let (name, number) = (format!("g{me}-{group}"), numbers[group]);
            load.shared.history().sending(&id, Some(&name), number);
            let body = json!({ "id": id, "number": number }).to_string();
            entries.push(json!({
                "Id": ids.len().to_string(), "MessageBody": body, "MessageGroupId": name,
                "MessageDeduplicationId": id,
            }));
            ids.push(id);
        }
        let ask = json!({ "QueueUrl": queue_url(), "Entries": entries });
        let mut tries = 0;
        let answer = loop {
            let Some(mut connection) = http.take().or_else(|| Http::connect(load.at).ok()) else {
                sleep(Duration::from_millis(5));
                continue;
            };
            if let Ok(answer) = call(&mut connection, "SendMessageBatch", &ask) {
                http = Some(connection);
                break answer;
            }
            // The result is unknown: repeat with the same ids.
            tries += 1;
            load.repeated.fetch_add(u64::from(tries == 1), Ordering::Relaxed);
        };
        let mut history = load.shared.history();
        match answer {
            Ok(answer) => {
                for entry in items(&answer, "Successful") {
                    if let Some(id) = message_of_entry(entry, &ids) {
                        load.accepted.fetch_add(1, Ordering::Relaxed);
                        history.acknowledged(id);
                    }
                }
                for entry in items(&answer, "Failed") {
                    if let Some(id) = message_of_entry(entry, &ids) {
                        let code = entry["Code"].as_str().unwrap_or("no code").to_owned();
                        history.refused(&[id.to_owned()], &code);
                    }
                }
            }
            Err(problem) => {
                let code = problem["__type"].as_str().unwrap_or("no code").to_owned();
                history.refused(&ids, &code);
            }
        }
        drop(history);
    }
}

fn items<'a>(answer: &'a Value, name: &str) -> &'a [Value] {
    answer[name].as_array().map_or(&[], |all| all)
}

/// The index in the batch, which is used as the entry's id.
fn entry_index(entry: &Value) -> Option<usize> {
    entry["Id"].as_str()?.parse().ok()
}

fn message_of_entry<'a>(entry: &Value, ids: &'a [String]) -> Option<&'a str> {
    ids.get(entry_index(entry)?).map(String::as_str)
}

fn contains_index(entries: &[Value], at: usize) -> bool {
    entries.iter().any(|entry| entry_index(entry) == Some(at))
}

fn consume(load: &Load, n: u64, seed: u64) {
    let mut rng = Rng::new(seed ^ (0x7ece_0000 + n));
    let mut http: Option<Http> = None;
    while !load.done.load(Ordering::Relaxed) {
        let Some(mut connection) = http.take().or_else(|| Http::connect(load.at).ok()) else {
            sleep(Duration::from_millis(5));
            continue;
        };
        if consume_once(load, &mut connection, &mut rng).is_ok() {
            http = Some(connection);
        }
    }
}

/// One receive. Each of its groups is completed, extended, released or abandoned.
fn consume_once(load: &Load, http: &mut Http, rng: &mut Rng) -> io::Result<()> {
    let most = if rng.chance(80) { 10 } else { 1 + rng.below(9) };
    let ask = json!({
        "QueueUrl": queue_url(), "MaxNumberOfMessages": most, "WaitTimeSeconds": 1,
        "VisibilityTimeout": VISIBILITY_S, "MessageSystemAttributeNames": ["MessageGroupId", "SequenceNumber"],
    });
    let asked = now();
    let answer = match call(http, "ReceiveMessage", &ask)? {
        Ok(answer) => answer,
        Err(problem) => {
            let how = format!("ReceiveMessage: {problem}");
            load.shared.history().violation("settlement refused", how);
            return Ok(());
        }
    };
    // The messages become invisible after the request was sent, so they are hidden at least until this time.
    let until = asked + VISIBILITY_S * 1000;
    let messages = items(&answer, "Messages");
    let got: Vec<ReceivedMessage> =
        messages.iter().filter_map(|message| parse_message(message, until)).collect();
    assert_eq!(got.len(), messages.len(), "a message could not be parsed");
    let holder = load.holders.fetch_add(1, Ordering::Relaxed);
    load.shared.history().received(holder, false, asked, now(), &got);
    let mut groups: BTreeMap<Option<String>, Vec<ReceivedMessage>> = BTreeMap::new();
    for got in got {
        groups.entry(got.session.clone()).or_default().push(got);
    }
    let (mut keeps, mut done, mut fails) = (Vec::new(), Vec::new(), Vec::new());
    for mut group in groups.into_values() {
        let calm = load.calm.load(Ordering::Relaxed);
        match rng.below(100) {
            // The consumer disappears.
            0..2 if !calm => {
                load.vanished.fetch_add(group.len() as u64, Ordering::Relaxed);
            }
            // The consumer extends the visibility timeout first and then disappears.
            2..3 if !calm => {
                load.vanished.fetch_add(group.len() as u64, Ordering::Relaxed);
                keeps.extend(group);
            }
            // The consumer fails at one message, and releases it and the later ones.
            3..10 if !calm => {
                fails.extend(group.split_off(rng.below(group.len() as u64) as usize));
                done.extend(group);
            }
            // The consumer extends the visibility timeout, then completes.
            10..16 if !calm => {
                keeps.extend(group.iter().cloned());
                done.extend(group);
            }
            _ => done.extend(group),
        }
    }
    extend(load, http, &keeps)?;
    sleep(Duration::from_millis(if keeps.is_empty() { rng.below(3) } else { rng.below(40) }));
    delete(load, http, &done)?;
    release(load, http, &fails)
}

fn parse_message(message: &Value, until: u64) -> Option<ReceivedMessage> {
    let body: Value = serde_json::from_str(message["Body"].as_str()?).ok()?;
    Some(ReceivedMessage {
        id: body["id"].as_str()?.to_owned(),
        seq: message["Attributes"]["SequenceNumber"].as_str()?.parse().ok()?,
        session: message["Attributes"]["MessageGroupId"].as_str().map(str::to_owned),
        number: body["number"].as_u64()?,
        lease: message["ReceiptHandle"].as_str()?.to_owned(),
        until,
    })
}

/// Batch entries for these messages.
fn entries(group: &[ReceivedMessage], visibility_s: Option<u64>) -> Value {
    let entry = |(n, got): (usize, &ReceivedMessage)| {
        let mut entry = json!({ "Id": n.to_string(), "ReceiptHandle": got.lease });
        if let Some(visibility_s) = visibility_s {
            entry["VisibilityTimeout"] = visibility_s.into();
        }
        entry
    };
    group.iter().enumerate().map(entry).collect()
}

fn delete(load: &Load, http: &mut Http, group: &[ReceivedMessage]) -> io::Result<()> {
    if group.is_empty() {
        return Ok(());
    }
    {
        let mut history = load.shared.history();
        let fresh = group.iter().filter(|got| history.completing(&got.id, now()));
        load.deleted.fetch_add(fresh.count() as u64, Ordering::Relaxed);
    }
    let ask = json!({ "QueueUrl": queue_url(), "Entries": entries(group, None) });
    let answer = call(http, "DeleteMessageBatch", &ask)?;
    let mut history = load.shared.history();
    match answer {
        Ok(answer) => {
            let gone = items(&answer, "Successful");
            for (n, got) in group.iter().enumerate() {
                history.completed(&got.id, contains_index(gone, n), now());
            }
        }
        Err(problem) => {
            history.violation("settlement refused", format!("DeleteMessageBatch: {problem}"));
        }
    }
    Ok(())
}

fn release(load: &Load, http: &mut Http, group: &[ReceivedMessage]) -> io::Result<()> {
    if group.is_empty() {
        return Ok(());
    }
    {
        let mut history = load.shared.history();
        group.iter().for_each(|got| history.release(&got.id));
    }
    load.released.fetch_add(group.len() as u64, Ordering::Relaxed);
    let ask = json!({ "QueueUrl": queue_url(), "Entries": entries(group, Some(0)) });
    if let Err(problem) = call(http, "ChangeMessageVisibilityBatch", &ask)? {
        let how = format!("ChangeMessageVisibilityBatch: {problem}");
        load.shared.history().violation("settlement refused", how);
    }
    Ok(())
}

fn extend(load: &Load, http: &mut Http, group: &[ReceivedMessage]) -> io::Result<()> {
    if group.is_empty() {
        return Ok(());
    }
    let ask = json!({ "QueueUrl": queue_url(), "Entries": entries(group, Some(EXTENDED_S)) });
    let asked = now();
    let answer = call(http, "ChangeMessageVisibilityBatch", &ask)?;
    let mut history = load.shared.history();
    match answer {
        Ok(answer) => {
            let held = items(&answer, "Successful");
            for (n, got) in group.iter().enumerate() {
                if contains_index(held, n) {
                    load.extended.fetch_add(1, Ordering::Relaxed);
                    history.extended(&got.id, asked + EXTENDED_S * 1000);
                }
            }
        }
        Err(problem) => {
            let how = format!("ChangeMessageVisibilityBatch: {problem}");
            history.violation("settlement refused", how);
        }
    }
    Ok(())
}
