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
use super::history::{Got, History};
use super::wire::{Http, Native};
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
        while left > 0 && patience.elapsed() < Duration::from_secs(30) {
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

enum Speaker {
    Http(Http),
    Native(Native),
}

/// Sends batches, some to sessions of its own, some to no session.
pub(crate) fn send(shared: &Shared, protocol: Protocol, me: u64, seed: u64) {
    let mut rng = Rng::new(seed ^ 0x5e4d);
    let mut speaker: Option<Speaker> = None;
    let mut numbers = vec![0_u64; SESSIONS_EACH as usize];
    let mut total = 0_u64;
    while !shared.done.load(Ordering::Relaxed) {
        if shared.quiet.load(Ordering::Relaxed) {
            sleep(Duration::from_millis(5));
            continue;
        }
        let speaker_now = match speaker.take() {
            Some(speaker) => speaker,
            None => {
                let connected = match protocol {
                    Protocol::Http => Http::connect(shared.at).map(Speaker::Http),
                    Protocol::Native => Native::connect(shared.at).map(Speaker::Native),
                };
                let Ok(connected) = connected else {
                    sleep(Duration::from_millis(5));
                    continue;
                };
                connected
            }
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
            shared.history().sending(&id, session.as_deref(), number);
            let body = json!({ "number": number, "padding": "x".repeat(rng.below(shared.padding_max) as usize) });
            let mut message = json!({ "id": id, "body": body });
            if let Some(session) = session {
                message["session"] = session.into();
            }
            if protocol == Protocol::Native {
                message["queue"] = queue.into();
            }
            messages.push(message);
            ids.push(id);
        }
        let (kept, answer) = match speaker_now {
            Speaker::Http(mut http) => {
                let path = format!("/api/v1/queues/{queue}/messages/batch");
                match http.ask("POST", &path, &json!({ "messages": messages })) {
                    Ok((status, _)) if status < 300 => (Some(Speaker::Http(http)), Some(Ok(()))),
                    Ok((_, problem)) => (Some(Speaker::Http(http)), Some(Err(problem))),
                    Err(_) => (None, None),
                }
            }
            Speaker::Native(mut native) => {
                match native.ask("send", json!({ "messages": messages })) {
                    Ok(answer) => (Some(Speaker::Native(native)), Some(answer.map(|_| ()))),
                    Err(_) => (None, None),
                }
            }
        };
        speaker = kept;
        match answer {
            Some(Ok(())) => {
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

fn got(message: &Value) -> Option<Got> {
    // A body that was sent as JSON comes back as its text.
    let body: Value = match &message["body"] {
        Value::String(text) => serde_json::from_str(text).ok()?,
        other => other.clone(),
    };
    Some(Got {
        id: message["id"].as_str()?.to_owned(),
        session: message["session"].as_str().map(str::to_owned),
        number: body["number"].as_u64()?,
        lease: message["lease"].as_str()?.to_owned(),
        until: message["until"].as_u64()?,
    })
}

fn all(messages: &Value) -> Vec<Got> {
    let messages = messages.as_array().map_or(&[][..], |all| all);
    let understood: Vec<Got> = messages.iter().filter_map(got).collect();
    assert_eq!(understood.len(), messages.len(), "a message was not understood");
    understood
}

/// Free-standing leases over HTTP: plain, several of a session at a time, or under a hold.
pub(crate) fn receive(shared: &Shared, n: u64) {
    let mut rng = Rng::new(n ^ 0x7ece);
    let mut http: Option<Http> = None;
    while !shared.done.load(Ordering::Relaxed) {
        let Some(mut speaker) = http.take().or_else(|| Http::connect(shared.at).ok()) else {
            sleep(Duration::from_millis(5));
            continue;
        };
        let holder = shared.holders.fetch_add(1, Ordering::Relaxed);
        let done = match n % 3 {
            0 => receive_once(
                shared,
                &mut speaker,
                holder,
                "plain",
                json!({ "max": 20, "wait_ms": 200, "lock_ms": LOCK_MS }),
                &mut rng,
            ),
            1 => {
                let ask =
                    json!({ "max": 10, "per_session": 5, "wait_ms": 200, "lock_ms": LOCK_MS });
                receive_once(shared, &mut speaker, holder, "ordered", ask, &mut rng)
            }
            _ => hold_once(shared, &mut speaker, holder, &mut rng).map(|()| 0),
        };
        if done.is_ok() {
            http = Some(speaker);
        }
    }
}

fn receive_once(
    shared: &Shared,
    http: &mut Http,
    holder: u64,
    queue: &str,
    ask: Value,
    rng: &mut Rng,
) -> io::Result<usize> {
    let asked = now();
    let (status, answer) = http.ask("POST", &format!("/api/v1/queues/{queue}/receive"), &ask)?;
    if status >= 300 {
        if status != 503 && status != 409 && status != 410 {
            eprintln!("receive: {status} {answer}");
        }
        sleep(Duration::from_millis(10));
        return Ok(0);
    }
    let got = all(&answer["messages"]);
    shared.history().received(holder, false, asked, now(), &got);
    if rng.chance(4) && !shared.quiet.load(Ordering::Relaxed) {
        return Ok(got.len()); // a worker that never comes back
    }
    let leases: Vec<&str> = got.iter().map(|got| got.lease.as_str()).collect();
    if leases.is_empty() {
        return Ok(0);
    }
    take_time(shared, rng);
    {
        let mut history = shared.history();
        got.iter().for_each(|got| history.completing(&got.id, now()));
    }
    let settle = json!({ "leases": leases, "outcome": "complete" });
    let (status, answer) = http.ask("POST", &format!("/api/v1/queues/{queue}/settle"), &settle)?;
    if status >= 300 {
        shared.history().wrong("settlement refused", format!("{status} {answer}"));
        return Ok(got.len());
    }
    note_completed(shared, &got, &answer);
    Ok(got.len())
}

/// What a worker does between receiving and settling.
fn take_time(shared: &Shared, rng: &mut Rng) {
    let slow = if shared.slow.load(Ordering::Relaxed) { 300 } else { 0 };
    sleep(Duration::from_millis(slow + rng.below(20)));
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
        if receive_once(shared, http, holder, "ordered", ask, rng)? == 0 {
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
    let mut rng = Rng::new(n ^ 0xc0de);
    while !shared.done.load(Ordering::Relaxed) {
        let holder = shared.holders.fetch_add(1, Ordering::Relaxed);
        let _ = consume_once(shared, n, holder, &mut rng);
        shared.history().disconnected(holder);
        sleep(Duration::from_millis(5));
    }
}

fn consume_once(shared: &Shared, n: u64, holder: u64, rng: &mut Rng) -> io::Result<()> {
    let (kills, asked) = (shared.history().kills, now());
    let mut native = Native::connect(shared.at)?;
    native.patience(Duration::from_millis(500))?;
    let queue = if n.is_multiple_of(2) { "plain" } else { "ordered" };
    let attach = json!({ "consumer": 1, "queue": queue, "credit": 8, "per_session": 1 + n % 3, "lock_ms": LOCK_MS });
    if let Err(problem) = native.ask("attach", attach)? {
        eprintln!("attach: {problem}");
        return Ok(());
    }
    while !shared.done.load(Ordering::Relaxed) {
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
        let mut got = all(&delivered["messages"]);
        let count = got.len();
        // A slow worker comes to some of them too late: it never had those.
        got.retain(|got| got.until > now());
        {
            let mut history = shared.history();
            if history.kills != kills {
                return Ok(()); // said by a server that is no more
            }
            history.received(holder, true, asked, now(), &got);
            if rng.chance(3) && !shared.quiet.load(Ordering::Relaxed) {
                history.disconnected(holder);
                return Ok(()); // gone without a word
            }
        }
        if shared.slow.load(Ordering::Relaxed) {
            take_time(shared, rng);
        }
        {
            let mut history = shared.history();
            got.iter().for_each(|got| history.completing(&got.id, now()));
        }
        let leases: Vec<&str> = got.iter().map(|got| got.lease.as_str()).collect();
        native.patience(Duration::from_secs(20))?;
        if !leases.is_empty() {
            let settle =
                json!({ "queue": queue, "items": [{ "leases": leases, "outcome": "complete" }] });
            match native.ask("settle", settle)? {
                Ok(answer) => note_completed(shared, &got, &answer),
                Err(problem) => {
                    shared.history().wrong("settlement refused", problem.to_string());
                }
            }
        }
        if let Err(problem) = native.ask("credit", json!({ "consumer": 1, "credit": count }))? {
            eprintln!("credit: {problem}");
        }
        native.patience(Duration::from_millis(500))?;
    }
    Ok(())
}
