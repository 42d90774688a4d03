//! The kill -9 loop: the built binary is killed again and again under load, and the whole history is checked.
//!
//! Clients use HTTP, the native connection, or an official client library in a separate program, and record every
//! acknowledgement. Each session has one sender, so its order is known. Other messages go through topics,
//! transactions and dead letters, or are retried when no answer came (`flows`). `sqs` is a different load: a FIFO
//! queue with SQS clients, and so is `amqp`, with RabbitMQ clients. At the end the queues are drained, and every acknowledged message must have been received.
#![allow(clippy::disallowed_methods, reason = "runs a real process on a real disk, in real time")]

#[cfg(feature = "protocols")]
pub mod amqp;
pub(crate) mod clients;
mod flows;
pub(crate) mod history;
mod program;
pub(crate) mod server;
pub mod sqs;
pub(crate) mod wire;

use std::path::Path;
use std::sync::Arc;
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::rng::Rng;
use clients::{Shared, consume, now, receive, send};
use program::Program;
use server::Server;
use wire::Http;

/// The protocol of the clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Http,
    Native,
}

/// Small messages, so that many are in flight when the server is killed.
const PADDING_MAX: u64 = 300;
const SENDERS: u64 = 3;

/// Kills and restarts the server `cycles` times. Returns whether there was no violation.
pub fn run(protocol: Protocol, cycles: u64, binary: &Path, seed: u64) -> Result<bool> {
    let dir = tempfile::tempdir().context("cannot create a data directory")?;
    let mut server = Server::new(binary, dir.path())?;
    server.start()?;
    declare(&server)?;
    let shared = Shared::new(server.at, PADDING_MAX);
    let mut threads = Vec::new();
    for n in 0..SENDERS {
        let shared = shared.clone();
        threads.push(spawn(move || send(&shared, protocol, n, seed + n)));
    }
    for n in 0..6_u64 {
        threads.push(receiver(&shared, protocol, n));
    }
    threads.extend(flows::clients(&shared, protocol, seed));
    let cycled = cycle(&mut server, &shared, cycles, seed, &Pace::of(Duration::from_millis(120)))?;
    shared.set_paused(true);
    // Wait until the leases of killed clients have expired and everything was received.
    shared.wait_until_drained();
    println!("{protocol:?}: {cycled}");
    let fine = shared.finish(threads)?;
    let unused = flows::unused_queues(&shared);
    if !unused.is_empty() {
        println!("no messages were received from {unused:?}; the run proves nothing");
    }
    Ok(fine && unused.is_empty())
}

/// The same with Service Bus clients, in a separate program.
pub fn run_servicebus(program: &Path, cycles: u64, binary: &Path, seed: u64) -> Result<bool> {
    let dir = tempfile::tempdir().context("cannot create a data directory")?;
    let mut server = Server::new(binary, dir.path())?;
    let amqp = server.listen_amqp()?;
    server.start()?;
    let mut http = Http::connect(server.at).context("the server does not answer")?;
    // The client retries sends whose result it does not know.
    let dedup = json!({ "window_ms": 600_000 });
    let plain = json!({ "failed_max": null, "lock_ms": LOCK_MS, "dedup": dedup });
    let ordered =
        json!({ "failed_max": null, "lock_ms": LOCK_MS, "dedup": dedup, "sessions": "dynamic" });
    put(&mut http, "queues/plain", &plain)?;
    put(&mut http, "queues/ordered", &ordered)?;
    let shared = Shared::new(server.at, PADDING_MAX);
    let mut clients = Program::start(program, amqp, &shared)?;
    // The client needs time to notice the restart and to reconnect.
    let cycled = cycle(&mut server, &shared, cycles, seed, &Pace::of(Duration::from_millis(1500)))?;
    clients.pause()?;
    shared.wait_until_drained();
    println!("ServiceBus: {cycled}");
    clients.finish()?;
    shared.finish(Vec::new())
}

/// Short, so that messages are redelivered soon.
const LOCK_MS: u64 = 3_000;

/// When a restarted server is killed again.
struct Pace<'a> {
    /// Not before it was up for this time.
    up_min: Duration,
    /// Not before the clients have done this much since the restart, of what `done` counts: on a slow machine, a kill
    /// would otherwise find no client that is connected.
    work_min: [u64; 2],
    done: &'a dyn Fn() -> [u64; 2],
}

impl Pace<'_> {
    fn of(up_min: Duration) -> Pace<'static> {
        Pace { up_min, work_min: [0; 2], done: &|| [0; 2] }
    }

    /// Waits until the clients have worked. Fails if they never do.
    fn wait(&self) -> Result<()> {
        let (begun, before) = (Instant::now(), (self.done)());
        loop {
            let now = (self.done)();
            let enough = |n: usize| now[n] - before[n] >= self.work_min[n];
            if enough(0) && enough(1) {
                return Ok(());
            }
            ensure!(begun.elapsed() < WORK_MAX, "the clients do nothing after a restart");
            sleep(Duration::from_millis(5));
        }
    }
}

/// The longest wait for the clients of a restarted server.
const WORK_MAX: Duration = Duration::from_secs(120);

/// Kills and restarts the server. Returns a summary.
fn cycle(
    server: &mut Server,
    shared: &Shared,
    cycles: u64,
    seed: u64,
    pace: &Pace<'_>,
) -> Result<String> {
    let begun = Instant::now();
    let mut rng = Rng::new(seed);
    let mut slowest = Duration::ZERO;
    for _ in 0..cycles {
        pace.wait()?;
        sleep(pace.up_min + Duration::from_millis(rng.below(500)));
        server.kill()?;
        shared.history().killed(now());
        let down = Instant::now();
        server.start()?;
        slowest = slowest.max(down.elapsed());
    }
    let (seconds, ms) = (begun.elapsed().as_secs_f32(), slowest.as_millis());
    Ok(format!("{cycles} cycles in {seconds:.1} s, slowest restart {ms} ms"))
}

/// Declares the queues and topics of the clients.
pub(crate) fn declare(server: &Server) -> Result<()> {
    let mut http = Http::connect(server.at).context("the server does not answer")?;
    let own = [
        ("queues/plain", json!({"failed_max": null})),
        ("queues/ordered", json!({"sessions": "dynamic", "failed_max": null})),
    ];
    for (what, spec) in own.into_iter().chain(flows::specs()) {
        put(&mut http, what, &spec)?;
    }
    Ok(())
}

fn put(http: &mut Http, what: &str, spec: &Value) -> Result<()> {
    let (status, answer) = http.request("PUT", &format!("/api/v1/{what}"), spec)?;
    if status != 201 && status != 200 {
        bail!("declaring {what}: {status} {answer}");
    }
    Ok(())
}

/// Starts a receiver; its number selects what it does.
pub(crate) fn receiver(shared: &Arc<Shared>, protocol: Protocol, n: u64) -> JoinHandle<()> {
    let shared = shared.clone();
    spawn(move || match protocol {
        Protocol::Http => receive(&shared, n),
        Protocol::Native => consume(&shared, n),
    })
}
