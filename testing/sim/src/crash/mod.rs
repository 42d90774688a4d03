//! The real binary, killed with -9 again and again under load, and a checker of the whole history.
//!
//! Senders and receivers speak HTTP or the native connection and note every acknowledgement. Each session has one
//! sender, so its order is known. At the end the queues are drained: what was acknowledged must have come.
#![allow(
    clippy::disallowed_methods,
    reason = "a real process on a real disk, by the machine's clock"
)]

mod history;
mod wire;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::rng::Rng;
use history::{Got, History};
use wire::{Http, Native};

/// How clients speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Http,
    Native,
}

/// What is shared by all clients.
struct Shared {
    at: SocketAddr,
    history: Mutex<History>,
    /// Senders stop.
    quiet: AtomicBool,
    /// Receivers stop.
    done: AtomicBool,
    holders: AtomicU64,
}

impl Shared {
    fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// Short: what a killed client had comes back soon.
const LOCK_MS: u64 = 1500;
const SENDERS: u64 = 3;
const SESSIONS_EACH: u64 = 4;

/// Kills and restarts `cycles` times; says whether nothing was violated.
pub fn run(protocol: Protocol, cycles: u64, binary: &Path, seed: u64) -> Result<bool> {
    let dir = tempfile::tempdir().context("no room for the data")?;
    let at = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).context("no port")?;
    let mut server =
        Server { binary: binary.to_owned(), data: dir.path().to_owned(), at, child: None };
    server.start()?;
    let mut http = Http::connect(at).context("the server does not answer")?;
    for (queue, spec) in [
        ("plain", json!({"failed_max": null})),
        ("ordered", json!({"sessions": "dynamic", "failed_max": null})),
    ] {
        let (status, answer) = http.ask("PUT", &format!("/api/v1/queues/{queue}"), &spec)?;
        if status != 201 && status != 200 {
            bail!("declaring {queue}: {status} {answer}");
        }
    }
    let shared = Arc::new(Shared {
        at,
        history: Mutex::default(),
        quiet: AtomicBool::new(false),
        done: AtomicBool::new(false),
        holders: AtomicU64::new(1),
    });
    let mut threads: Vec<JoinHandle<()>> = Vec::new();
    for n in 0..SENDERS {
        let shared = shared.clone();
        threads.push(spawn(move || send(&shared, protocol, n, seed + n)));
    }
    for n in 0..6_u64 {
        let shared = shared.clone();
        threads.push(spawn(move || match protocol {
            Protocol::Http => receive(&shared, n),
            Protocol::Native => consume(&shared, n),
        }));
    }
    let begun = Instant::now();
    let mut rng = Rng::new(seed);
    let mut slowest = Duration::ZERO;
    for _ in 0..cycles {
        sleep(Duration::from_millis(120 + rng.below(500)));
        server.kill()?;
        shared.history().killed(now());
        let down = Instant::now();
        server.start()?;
        slowest = slowest.max(down.elapsed());
    }
    shared.quiet.store(true, Ordering::Relaxed);
    // Leases of the dead run out; then everything has been received.
    let (mut patience, mut left) = (Instant::now(), usize::MAX);
    while left > 0 && patience.elapsed() < Duration::from_secs(30) {
        sleep(Duration::from_millis(100));
        let missing = shared.history().missing().len();
        if missing < left {
            (patience, left) = (Instant::now(), missing);
        }
    }
    sleep(Duration::from_millis(300));
    shared.done.store(true, Ordering::Relaxed);
    for thread in threads {
        if thread.join().is_err() {
            bail!("a client panicked");
        }
    }
    server.kill()?;
    let mut history = shared.history();
    let missing = history.missing();
    println!(
        "{protocol:?}: {cycles} cycles in {:.1} s, slowest restart {} ms",
        begun.elapsed().as_secs_f32(),
        slowest.as_millis()
    );
    println!(
        "acknowledged {}, completed {}, deliveries {}, redeliveries {}",
        history.count_acknowledged(),
        history.count_completed(),
        history.deliveries,
        history.redeliveries
    );
    if !missing.is_empty() {
        history.violations.insert("lost", missing);
    }
    for what in ["lost", "duplicated", "out of order", "two holders", "invented", "changed"] {
        let how = history.violations.get(what).map_or(&[][..], |how| how);
        println!("{what} {}", how.len());
        how.iter().take(5).for_each(|how| println!("  {how}"));
    }
    let enough = history.count_acknowledged() > 0 && history.count_completed() > 0;
    if !enough {
        println!("nothing was acknowledged or completed: this proves nothing");
    }
    Ok(history.violations.is_empty() && enough)
}

struct Server {
    binary: PathBuf,
    data: PathBuf,
    at: SocketAddr,
    child: Option<Child>,
}

impl Server {
    fn start(&mut self) -> Result<()> {
        let child = Command::new(&self.binary)
            .arg("serve")
            .args(["--data".as_ref(), self.data.as_os_str()])
            .args([
                "--http",
                &self.at.to_string(),
                "--sqs",
                "off",
                "--amqp",
                "off",
                "--kafka",
                "off",
            ])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {}", self.binary.display()))?;
        let child = self.child.insert(child);
        // Its log is read so that it never waits for us; the last of it tells why it ended.
        let stderr = child.stderr.take();
        let log = spawn(move || {
            let mut text = Vec::new();
            if let Some(mut stderr) = stderr {
                let _ = io::Read::read_to_end(&mut stderr, &mut text);
            }
            text
        });
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(20) {
            if let Some(status) = child.try_wait()? {
                let text = log.join().unwrap_or_default();
                bail!("the server ended with {status}: {}", String::from_utf8_lossy(&text));
            }
            let ready = Http::connect(self.at)
                .and_then(|mut http| http.ask("GET", "/readyz", &Value::Null));
            if ready.is_ok_and(|(status, _)| status == 200) {
                return Ok(());
            }
            sleep(Duration::from_millis(10));
        }
        bail!("the server was not ready within 20 s")
    }

    fn kill(&mut self) -> Result<()> {
        if let Some(mut child) = self.child.take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}

enum Speaker {
    Http(Http),
    Native(Native),
}

/// Sends batches, some to sessions of its own, some to no session.
fn send(shared: &Shared, protocol: Protocol, me: u64, seed: u64) {
    let mut rng = Rng::new(seed ^ 0x5e4d);
    let mut speaker: Option<Speaker> = None;
    let mut numbers = vec![0_u64; SESSIONS_EACH as usize];
    let mut total = 0_u64;
    while !shared.quiet.load(Ordering::Relaxed) {
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
            let body = json!({ "number": number, "padding": "x".repeat(rng.below(300) as usize) });
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
        let (kept, ok) = match speaker_now {
            Speaker::Http(mut http) => {
                let path = format!("/api/v1/queues/{queue}/messages/batch");
                match http.ask("POST", &path, &json!({ "messages": messages })) {
                    Ok((status, answer)) => {
                        if status >= 300 && status != 503 {
                            eprintln!("send: {status} {answer}");
                        }
                        (Some(Speaker::Http(http)), status < 300)
                    }
                    Err(_) => (None, false),
                }
            }
            Speaker::Native(mut native) => {
                match native.ask("send", json!({ "messages": messages })) {
                    Ok(answer) => (Some(Speaker::Native(native)), answer.is_ok()),
                    Err(_) => (None, false),
                }
            }
        };
        speaker = kept;
        if ok {
            let mut history = shared.history();
            ids.iter().for_each(|id| history.acknowledged(id));
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
fn receive(shared: &Shared, n: u64) {
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
    sleep(Duration::from_millis(rng.below(20)));
    {
        let mut history = shared.history();
        got.iter().for_each(|got| history.completing(&got.id, now()));
    }
    let settle = json!({ "leases": leases, "outcome": "complete" });
    let (status, answer) = http.ask("POST", &format!("/api/v1/queues/{queue}/settle"), &settle)?;
    if status >= 300 {
        eprintln!("settle: {status} {answer}");
        return Ok(got.len());
    }
    note_completed(shared, &got, &answer);
    Ok(got.len())
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
fn consume(shared: &Shared, n: u64) {
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
        let got = all(&delivered["messages"]);
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
        {
            let mut history = shared.history();
            got.iter().for_each(|got| history.completing(&got.id, now()));
        }
        let leases: Vec<&str> = got.iter().map(|got| got.lease.as_str()).collect();
        let settle =
            json!({ "queue": queue, "items": [{ "leases": leases, "outcome": "complete" }] });
        native.patience(Duration::from_secs(20))?;
        match native.ask("settle", settle)? {
            Ok(answer) => note_completed(shared, &got, &answer),
            Err(problem) => eprintln!("settle: {problem}"),
        }
        if let Err(problem) = native.ask("credit", json!({ "consumer": 1, "credit": got.len() }))? {
            eprintln!("credit: {problem}");
        }
        native.patience(Duration::from_millis(500))?;
    }
    Ok(())
}
