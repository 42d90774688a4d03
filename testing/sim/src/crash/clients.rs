//! Senders and receivers, and what they share.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Result, bail};
use serde_json::{Value, json};

use super::Protocol;
use super::history::{Got, History, name};
use super::wire::{Http, Native, Settles, Speaker, in_path};
use crate::rng::Rng;

/// What is shared by all clients.
pub(crate) struct Shared {
    at: SocketAddr,
    /// Largest padding of a body.
    padding_max: u64,
    history: Mutex<History>,
    /// Senders pause.
    quiet: AtomicBool,
    /// Receivers take their time.
    pub(crate) slow: AtomicBool,
    /// Receivers stop.
    done: AtomicBool,
    holders: AtomicU64,
}

/// What becomes of what was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    Complete,
    /// Until the broker has enough of it.
    Abandon,
    /// Completed and sent to another queue, in one transaction.
    Move(&'static str),
}

impl Shared {
    pub(crate) fn new(at: SocketAddr, padding_max: u64) -> Arc<Shared> {
        Arc::new(Shared {
            at,
            padding_max,
            history: Mutex::default(),
            quiet: AtomicBool::new(false),
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

    pub(crate) fn is_quiet(&self) -> bool {
        self.quiet.load(Ordering::Relaxed)
    }

    pub(crate) fn is_done(&self) -> bool {
        self.done.load(Ordering::Relaxed)
    }

    pub(crate) fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Senders pause, or go on.
    pub(crate) fn quiet(&self, quiet: bool) {
        self.quiet.store(quiet, Ordering::Relaxed);
    }

    /// Waits until everything acknowledged was received, as long as there is progress.
    pub(crate) fn drained(&self) {
        let (mut patience, mut left) = (Instant::now(), usize::MAX);
        while left > 0 && patience.elapsed() < Duration::from_secs(120) {
            sleep(Duration::from_millis(100));
            let missing = self.history().missing().len();
            if missing < left {
                (patience, left) = (Instant::now(), missing);
            }
        }
    }

    /// Receivers stop; what the history says is printed, and whether nothing was violated.
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

/// Short: what a killed client had comes back soon.
const LOCK_MS: u64 = 1500;
const SESSIONS_EACH: u64 = 4;

/// Sends batches, some to sessions of its own, some to no session.
pub(crate) fn send(shared: &Shared, protocol: Protocol, me: u64, seed: u64) {
    let mut rng = Rng::new(seed ^ 0x5e4d);
    let mut speaker: Option<Speaker> = None;
    let mut numbers = vec![0_u64; SESSIONS_EACH as usize];
    let mut total = 0_u64;
    while !shared.is_done() {
        if shared.is_quiet() {
            sleep(Duration::from_millis(5));
            continue;
        }
        let connected = speaker.take().map_or_else(|| Speaker::connect(shared.at, protocol), Ok);
        let Ok(mut speaking) = connected else {
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
        let answer = speaking.send(&messages).ok();
        speaker = answer.is_some().then_some(speaking);
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
            // The server is gone: who knows.
            None => {}
        }
        sleep(Duration::from_millis(rng.below(8)));
    }
}

fn got(queue: &str, message: &Value) -> Option<Got> {
    // A body that was sent as JSON comes back as its text.
    let body: Value = match &message["body"] {
        Value::String(text) => serde_json::from_str(text).ok()?,
        other => other.clone(),
    };
    Some(Got {
        id: name(message["id"].as_str()?, queue),
        seq: message["seq"].as_u64()?,
        session: message["session"].as_str().map(str::to_owned),
        number: body["number"].as_u64()?,
        lease: message["lease"].as_str()?.to_owned(),
        until: message["until"].as_u64()?,
    })
}

fn all(queue: &str, messages: &Value) -> Vec<Got> {
    let messages = messages.as_array().map_or(&[][..], |all| all);
    let understood: Vec<Got> = messages.iter().filter_map(|m| got(queue, m)).collect();
    assert_eq!(understood.len(), messages.len(), "a message was not understood");
    understood
}

/// Free-standing leases over HTTP: plain, several of a session at a time, or under a hold.
pub(crate) fn receive(shared: &Shared, n: u64) {
    let several = json!({ "max": 10, "per_session": 5, "wait_ms": 200, "lock_ms": LOCK_MS });
    match n % 3 {
        0 => work(shared, "plain", Then::Complete),
        1 => each(shared, n, |http, holder, rng| {
            receive_once(shared, http, holder, ("ordered", Then::Complete), &several, rng)
        }),
        _ => each(shared, n, |http, holder, rng| hold_once(shared, http, holder, rng).map(|()| 0)),
    }
}

/// A worker of one queue over HTTP.
pub(crate) fn work(shared: &Shared, queue: &str, then: Then) {
    let ask = json!({ "max": 20, "wait_ms": 200, "lock_ms": LOCK_MS });
    each(shared, queue.len() as u64, |http, holder, rng| {
        receive_once(shared, http, holder, (queue, then), &ask, rng)
    });
}

/// Does it again and again, over one connection as long as that holds.
fn each(
    shared: &Shared,
    n: u64,
    mut once: impl FnMut(&mut Http, u64, &mut Rng) -> io::Result<usize>,
) {
    let mut rng = Rng::new(n ^ 0x7ece);
    let mut http: Option<Http> = None;
    while !shared.is_done() {
        let Some(mut speaker) = http.take().or_else(|| Http::connect(shared.at).ok()) else {
            sleep(Duration::from_millis(5));
            continue;
        };
        let holder = shared.holders.fetch_add(1, Ordering::Relaxed);
        if once(&mut speaker, holder, &mut rng).is_ok() {
            http = Some(speaker);
        }
    }
}

fn receive_once(
    shared: &Shared,
    http: &mut Http,
    holder: u64,
    (queue, then): (&str, Then),
    ask: &Value,
    rng: &mut Rng,
) -> io::Result<usize> {
    let asked = now();
    let path = format!("/api/v1/queues/{}/receive", in_path(queue));
    let (status, answer) = http.ask("POST", &path, ask)?;
    if status >= 300 {
        if status != 503 && status != 409 && status != 410 {
            eprintln!("receive: {status} {answer}");
        }
        sleep(Duration::from_millis(10));
        return Ok(0);
    }
    let got = all(queue, &answer["messages"]);
    shared.history().received(holder, false, asked, now(), &got);
    if rng.chance(4) && !shared.is_quiet() {
        return Ok(got.len()); // a worker that never comes back
    }
    if got.is_empty() {
        return Ok(0);
    }
    take_time(shared, rng);
    finish(shared, http, queue, then, &got)?;
    Ok(got.len())
}

/// What a worker does between receiving and settling.
fn take_time(shared: &Shared, rng: &mut Rng) {
    let slow = if shared.slow.load(Ordering::Relaxed) { 300 } else { 0 };
    sleep(Duration::from_millis(slow + rng.below(20)));
}

/// Settles what was received.
fn finish(
    shared: &Shared,
    speaker: &mut impl Settles,
    queue: &str,
    then: Then,
    got: &[Got],
) -> io::Result<()> {
    {
        let mut history = shared.history();
        for got in got {
            history.completing(&got.id, now());
        }
    }
    let leases: Vec<&str> = got.iter().map(|got| got.lease.as_str()).collect();
    let outcome = if then == Then::Abandon { "abandon" } else { "complete" };
    let items = json!([{ "leases": leases, "outcome": outcome }]);
    let Then::Move(to) = then else {
        match speaker.settle(queue, &items)? {
            Ok(answer) if then == Then::Complete => note_completed(shared, got, &answer),
            Ok(_) => {}
            Err(problem) => shared.history().wrong("settlement refused", problem.to_string()),
        }
        return Ok(());
    };
    let ids = got.iter().map(|got| got.id.rsplit_once('@').map_or("", |(id, _)| id));
    let messages: Vec<_> =
        ids.map(|id| json!({ "id": id, "body": { "number": 0 }, "queue": to })).collect();
    match speaker.transact(queue, &items, &messages)? {
        Ok(_) => {
            let mut history = shared.history();
            got.iter().for_each(|got| history.completed(&got.id, true, now()));
        }
        // Too late: nothing of it happened, and another has them.
        Err(problem) if problem["code"] == "lease_lost" => {}
        Err(problem) => shared.history().wrong("settlement refused", problem.to_string()),
    }
    Ok(())
}

fn note_completed(shared: &Shared, got: &[Got], answer: &Value) {
    let results = answer["results"].as_array().map_or(&[][..], |all| all);
    let mut history = shared.history();
    for (got, result) in got.iter().zip(results) {
        history.completed(&got.id, result["ok"] == true, now());
    }
}

fn hold_once(shared: &Shared, http: &mut Http, holder: u64, rng: &mut Rng) -> io::Result<()> {
    let accept = json!({ "wait_ms": 200, "lock_ms": LOCK_MS });
    let (status, held) = http.ask("POST", "/api/v1/queues/ordered/sessions/accept", &accept)?;
    if status != 200 {
        sleep(Duration::from_millis(10));
        return Ok(());
    }
    let (Some(session), Some(token)) = (held["session"].as_str(), held["token"].as_str()) else {
        return Ok(());
    };
    for _ in 0..1 + rng.below(4) {
        let ask = json!({ "max": 4, "wait_ms": 20, "session_token": token });
        if receive_once(shared, http, holder, ("ordered", Then::Complete), &ask, rng)? == 0 {
            break;
        }
    }
    if rng.chance(90) {
        let path = format!("/api/v1/queues/ordered/sessions/{session}/release");
        shared.history().release(holder);
        http.ask("POST", &path, &json!({ "token": token }))?;
    }
    Ok(())
}

/// Connection-bound leases over the native connection.
pub(crate) fn consume(shared: &Shared, n: u64) {
    let queue = if n.is_multiple_of(2) { "plain" } else { "ordered" };
    consume_from(shared, n, queue, Then::Complete);
}

/// The same, of one queue.
pub(crate) fn consume_from(shared: &Shared, n: u64, queue: &str, then: Then) {
    let mut rng = Rng::new(n ^ 0xc0de);
    while !shared.is_done() {
        let holder = shared.holders.fetch_add(1, Ordering::Relaxed);
        let _ = consume_once(shared, n, holder, (queue, then), &mut rng);
        shared.history().disconnected(holder);
        sleep(Duration::from_millis(5));
    }
}

fn consume_once(
    shared: &Shared,
    n: u64,
    holder: u64,
    (queue, then): (&str, Then),
    rng: &mut Rng,
) -> io::Result<()> {
    let (kills, asked) = (shared.history().kills, now());
    let mut native = Native::connect(shared.at)?;
    native.patience(Duration::from_millis(500))?;
    let attach = json!({ "consumer": 1, "queue": queue, "credit": 8, "per_session": 1 + n % 3, "lock_ms": LOCK_MS });
    if let Err(problem) = native.ask("attach", attach)? {
        eprintln!("attach: {problem}");
        return Ok(());
    }
    while !shared.is_done() {
        let said = match native.hear() {
            Ok(said) => said,
            Err(error)
                if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) =>
            {
                continue;
            }
            Err(error) => return Err(error),
        };
        let Some(delivered) = said.get("deliver") else { continue };
        let mut got = all(queue, &delivered["messages"]);
        let count = got.len();
        // A slow worker comes to some of them too late: it never had those.
        got.retain(|got| got.until > now());
        {
            let mut history = shared.history();
            if history.kills != kills {
                return Ok(()); // said by a server that is no more
            }
            history.received(holder, true, asked, now(), &got);
            if rng.chance(3) && !shared.is_quiet() {
                history.disconnected(holder);
                return Ok(()); // gone without a word
            }
        }
        if shared.slow.load(Ordering::Relaxed) {
            take_time(shared, rng);
        }
        native.patience(Duration::from_secs(20))?;
        if !got.is_empty() {
            finish(shared, &mut native, queue, then, &got)?;
        }
        if let Err(problem) = native.ask("credit", json!({ "consumer": 1, "credit": count }))? {
            eprintln!("credit: {problem}");
        }
        native.patience(Duration::from_millis(500))?;
    }
    Ok(())
}
