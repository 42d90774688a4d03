//! Senders and receivers, and their shared state.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Result, bail};
use serde_json::{Value, json};

use super::Protocol;
use super::history::{History, ReceivedMessage, name};
use super::wire::{Http, Native, SenderConnection, SettleApi, in_path};
use crate::rng::Rng;

/// State shared by all clients.
pub(crate) struct Shared {
    at: SocketAddr,
    /// Upper bound for the padding of a body, in bytes.
    padding_max: u64,
    history: Mutex<History>,
    /// Senders pause while this is set.
    paused: AtomicBool,
    /// Receivers take longer for each message while this is set.
    pub(crate) slow: AtomicBool,
    /// All clients stop once this is set.
    done: AtomicBool,
    holders: AtomicU64,
}

/// What a worker does with a received message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkerAction {
    Complete,
    /// Abandons it until the broker dead-letters it.
    Abandon,
    /// Completes it and sends it to another queue, in one transaction.
    Move(&'static str),
}

impl Shared {
    pub(crate) fn new(at: SocketAddr, padding_max: u64) -> Arc<Shared> {
        Arc::new(Shared {
            at,
            padding_max,
            history: Mutex::default(),
            paused: AtomicBool::new(false),
            slow: AtomicBool::new(false),
            done: AtomicBool::new(false),
            holders: AtomicU64::new(1),
        })
    }

    pub(crate) fn at(&self) -> SocketAddr {
        self.at
    }

    pub(crate) fn padding(&self, rng: &mut Rng) -> String {
        "x".repeat(rng.below(self.padding_max) as usize)
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.paused.load(Ordering::Relaxed)
    }

    pub(crate) fn is_done(&self) -> bool {
        self.done.load(Ordering::Relaxed)
    }

    pub(crate) fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of a new holder of leases.
    #[cfg(feature = "protocols")]
    pub(crate) fn new_holder(&self) -> u64 {
        self.holders.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn set_paused(&self, paused: bool) {
        self.paused.store(paused, Ordering::Relaxed);
    }

    /// Waits until all acknowledged messages were received. Gives up after two minutes without progress.
    pub(crate) fn wait_until_drained(&self) {
        let (mut last_progress, mut left) = (Instant::now(), usize::MAX);
        while left > 0 && last_progress.elapsed() < Duration::from_secs(120) {
            sleep(Duration::from_millis(100));
            let missing = self.history().missing().len();
            if missing < left {
                (last_progress, left) = (Instant::now(), missing);
            }
        }
    }

    /// Stops all clients, prints the history and returns whether it has no violations.
    pub(crate) fn finish(&self, threads: Vec<JoinHandle<()>>) -> Result<bool> {
        sleep(Duration::from_millis(300));
        self.done.store(true, Ordering::Relaxed);
        for thread in threads {
            if thread.join().is_err() {
                bail!("a client panicked");
            }
        }
        Ok(self.history().report())
    }
}

pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// Short, so that messages of a killed client are redelivered soon.
const LOCK_MS: u64 = 1500;
const SESSIONS_EACH: u64 = 4;

/// Sends batches, some to sessions of this sender, some without a session.
pub(crate) fn send(shared: &Shared, protocol: Protocol, me: u64, seed: u64) {
    let mut rng = Rng::new(seed ^ 0x5e4d);
    let mut connection: Option<SenderConnection> = None;
    let mut numbers = vec![0_u64; SESSIONS_EACH as usize];
    let mut total = 0_u64;
    while !shared.is_done() {
        if shared.is_paused() {
            sleep(Duration::from_millis(5));
            continue;
        }
        let connecting =
            connection.take().map_or_else(|| SenderConnection::connect(shared.at, protocol), Ok);
        let Ok(mut connected) = connecting else {
            sleep(Duration::from_millis(5));
            continue;
        };
        let ordered = rng.chance(70);
        let queue = if ordered { "ordered" } else { "plain" };
        let mut messages = Vec::new();
        let mut ids = Vec::new();
        for _ in 0..1 + rng.below(8) {
            total += 1;
            let id = format!("{me}-{total}");
            let at = rng.below(SESSIONS_EACH) as usize;
            let session = ordered.then(|| format!("s{me}-{at}"));
            let number = if ordered {
                numbers[at] += 1;
                numbers[at]
            } else {
                0
            };
            let known = name(&id, queue);
            shared.history().sending(&known, session.as_deref(), number);
            let body = json!({ "number": number, "padding": shared.padding(&mut rng) });
            let mut message = json!({ "id": id, "body": body, "queue": queue });
            if let Some(session) = session {
                message["session"] = session.into();
            }
            messages.push(message);
            ids.push(known);
        }
        let answer = connected.send(&messages).ok();
        connection = answer.is_some().then_some(connected);
        match answer {
            Some(Ok(_)) => {
                let mut history = shared.history();
                ids.iter().for_each(|id| history.acknowledged(id));
            }
            Some(Err(problem)) => {
                let code = problem["code"].as_str().unwrap_or("no code").to_owned();
                shared.history().refused(&ids, &code);
                sleep(Duration::from_millis(20));
            }
            // The server was killed; the result is unknown.
            None => {}
        }
        sleep(Duration::from_millis(rng.below(8)));
    }
}

fn parse_message(queue: &str, message: &Value) -> Option<ReceivedMessage> {
    // A body that was sent as JSON is returned as text.
    let body: Value = match &message["body"] {
        Value::String(text) => serde_json::from_str(text).ok()?,
        other => other.clone(),
    };
    Some(ReceivedMessage {
        id: name(message["id"].as_str()?, queue),
        seq: message["seq"].as_u64()?,
        session: message["session"].as_str().map(str::to_owned),
        number: body["number"].as_u64()?,
        lease: message["lease"].as_str()?.to_owned(),
        until: message["until"].as_u64()?,
    })
}

fn parse_messages(queue: &str, messages: &Value) -> Vec<ReceivedMessage> {
    let messages = messages.as_array().map_or(&[][..], |list| list);
    let parsed: Vec<ReceivedMessage> =
        messages.iter().filter_map(|m| parse_message(queue, m)).collect();
    assert_eq!(parsed.len(), messages.len(), "a message could not be parsed");
    parsed
}

/// Receives over HTTP: without sessions, several messages per session, or with an accepted session.
pub(crate) fn receive(shared: &Shared, n: u64) {
    let several = json!({ "max": 10, "per_session": 5, "wait_ms": 200, "lock_ms": LOCK_MS });
    match n % 3 {
        0 => run_worker(shared, "plain", WorkerAction::Complete),
        1 => repeat(shared, n, |http, holder, rng| {
            receive_once(shared, http, holder, ("ordered", WorkerAction::Complete), &several, rng)
        }),
        _ => {
            repeat(shared, n, |http, holder, rng| hold_once(shared, http, holder, rng).map(|()| 0))
        }
    }
}

/// Receives from one queue over HTTP.
pub(crate) fn run_worker(shared: &Shared, queue: &str, action: WorkerAction) {
    let ask = json!({ "max": 20, "wait_ms": 200, "lock_ms": LOCK_MS });
    repeat(shared, queue.len() as u64, |http, holder, rng| {
        receive_once(shared, http, holder, (queue, action), &ask, rng)
    });
}

/// Repeats `once`, on one connection as long as it works.
fn repeat(
    shared: &Shared,
    n: u64,
    mut once: impl FnMut(&mut Http, u64, &mut Rng) -> io::Result<usize>,
) {
    let mut rng = Rng::new(n ^ 0x7ece);
    let mut http: Option<Http> = None;
    while !shared.is_done() {
        let Some(mut connection) = http.take().or_else(|| Http::connect(shared.at).ok()) else {
            sleep(Duration::from_millis(5));
            continue;
        };
        let holder = shared.holders.fetch_add(1, Ordering::Relaxed);
        if once(&mut connection, holder, &mut rng).is_ok() {
            http = Some(connection);
        }
    }
}

fn receive_once(
    shared: &Shared,
    http: &mut Http,
    holder: u64,
    (queue, action): (&str, WorkerAction),
    ask: &Value,
    rng: &mut Rng,
) -> io::Result<usize> {
    let asked = now();
    let path = format!("/api/v1/queues/{}/receive", in_path(queue));
    let (status, answer) = http.request("POST", &path, ask)?;
    if status >= 300 {
        if status != 503 && status != 409 && status != 410 {
            eprintln!("receive: {status} {answer}");
        }
        sleep(Duration::from_millis(10));
        return Ok(0);
    }
    let got = parse_messages(queue, &answer["messages"]);
    shared.history().received(holder, false, asked, now(), &got);
    if rng.chance(4) && !shared.is_paused() {
        return Ok(got.len()); // a worker that disappears without settling
    }
    if got.is_empty() {
        return Ok(0);
    }
    simulate_work(shared, rng);
    settle_received(shared, http, queue, action, &got)?;
    Ok(got.len())
}

/// Simulates the time between receiving and settling.
fn simulate_work(shared: &Shared, rng: &mut Rng) {
    let slow = if shared.slow.load(Ordering::Relaxed) { 300 } else { 0 };
    sleep(Duration::from_millis(slow + rng.below(20)));
}

/// Settles the received messages.
fn settle_received(
    shared: &Shared,
    connection: &mut impl SettleApi,
    queue: &str,
    action: WorkerAction,
    got: &[ReceivedMessage],
) -> io::Result<()> {
    {
        let mut history = shared.history();
        for got in got {
            history.completing(&got.id, now());
        }
    }
    let leases: Vec<&str> = got.iter().map(|got| got.lease.as_str()).collect();
    let outcome = if action == WorkerAction::Abandon { "abandon" } else { "complete" };
    let items = json!([{ "leases": leases, "outcome": outcome }]);
    let WorkerAction::Move(to) = action else {
        match connection.settle(queue, &items)? {
            Ok(answer) if action == WorkerAction::Complete => {
                record_completed(shared, got, &answer)
            }
            Ok(_) => {}
            Err(problem) => shared.history().violation("settlement refused", problem.to_string()),
        }
        return Ok(());
    };
    let ids = got.iter().map(|got| got.id.rsplit_once('@').map_or("", |(id, _)| id));
    let messages: Vec<_> =
        ids.map(|id| json!({ "id": id, "body": { "number": 0 }, "queue": to })).collect();
    match connection.transact(queue, &items, &messages)? {
        Ok(_) => {
            let mut history = shared.history();
            got.iter().for_each(|got| history.completed(&got.id, true, now()));
        }
        // The lease expired: nothing happened, and another worker has the messages.
        Err(problem) if problem["code"] == "lease_lost" => {}
        Err(problem) => shared.history().violation("settlement refused", problem.to_string()),
    }
    Ok(())
}

fn record_completed(shared: &Shared, got: &[ReceivedMessage], answer: &Value) {
    let results = answer["results"].as_array().map_or(&[][..], |list| list);
    let mut history = shared.history();
    for (got, result) in got.iter().zip(results) {
        history.completed(&got.id, result["ok"] == true, now());
    }
}

fn hold_once(shared: &Shared, http: &mut Http, holder: u64, rng: &mut Rng) -> io::Result<()> {
    let accept = json!({ "wait_ms": 200, "lock_ms": LOCK_MS });
    let (status, held) = http.request("POST", "/api/v1/queues/ordered/sessions/accept", &accept)?;
    if status != 200 {
        sleep(Duration::from_millis(10));
        return Ok(());
    }
    let (Some(session), Some(token)) = (held["session"].as_str(), held["token"].as_str()) else {
        return Ok(());
    };
    for _ in 0..1 + rng.below(4) {
        let ask = json!({ "max": 4, "wait_ms": 20, "session_token": token });
        if receive_once(shared, http, holder, ("ordered", WorkerAction::Complete), &ask, rng)? == 0
        {
            break;
        }
    }
    if rng.chance(90) {
        let path = format!("/api/v1/queues/ordered/sessions/{session}/release");
        shared.history().release_all(holder);
        http.request("POST", &path, &json!({ "token": token }))?;
    }
    Ok(())
}

/// Receives over the native connection, whose leases end with the connection.
pub(crate) fn consume(shared: &Shared, n: u64) {
    let queue = if n.is_multiple_of(2) { "plain" } else { "ordered" };
    consume_from(shared, n, queue, WorkerAction::Complete);
}

/// Receives from one queue over the native connection.
pub(crate) fn consume_from(shared: &Shared, n: u64, queue: &str, action: WorkerAction) {
    let mut rng = Rng::new(n ^ 0xc0de);
    while !shared.is_done() {
        let holder = shared.holders.fetch_add(1, Ordering::Relaxed);
        let _ = consume_once(shared, n, holder, (queue, action), &mut rng);
        shared.history().disconnected(holder);
        sleep(Duration::from_millis(5));
    }
}

fn consume_once(
    shared: &Shared,
    n: u64,
    holder: u64,
    (queue, action): (&str, WorkerAction),
    rng: &mut Rng,
) -> io::Result<()> {
    let (kills, asked) = (shared.history().kills, now());
    let mut native = Native::connect(shared.at)?;
    native.set_timeout(Duration::from_millis(500))?;
    let attach = json!({ "consumer": 1, "queue": queue, "credit": 8, "per_session": 1 + n % 3, "lock_ms": LOCK_MS });
    if let Err(problem) = native.request("attach", attach)? {
        eprintln!("attach: {problem}");
        return Ok(());
    }
    while !shared.is_done() {
        let frame = match native.next_frame() {
            Ok(frame) => frame,
            Err(error)
                if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) =>
            {
                continue;
            }
            Err(error) => return Err(error),
        };
        let Some(delivered) = frame.get("deliver") else { continue };
        let mut got = parse_messages(queue, &delivered["messages"]);
        let count = got.len();
        // A slow worker reads some messages after their lease has expired; it never held those.
        got.retain(|got| got.until > now());
        {
            let mut history = shared.history();
            if history.kills != kills {
                return Ok(()); // sent by a server that was killed
            }
            history.received(holder, true, asked, now(), &got);
            if rng.chance(3) && !shared.is_paused() {
                history.disconnected(holder);
                return Ok(()); // disconnects without settling
            }
        }
        if shared.slow.load(Ordering::Relaxed) {
            simulate_work(shared, rng);
        }
        native.set_timeout(Duration::from_secs(20))?;
        if !got.is_empty() {
            settle_received(shared, &mut native, queue, action, &got)?;
        }
        if let Err(problem) = native.request("credit", json!({ "consumer": 1, "credit": count }))? {
            eprintln!("credit: {problem}");
        }
        native.set_timeout(Duration::from_millis(500))?;
    }
    Ok(())
}
