//! The real binary, killed with -9 again and again under load, and a checker of the whole history.
//!
//! Senders and receivers speak HTTP or the native connection and note every acknowledgement. Each session has one
//! sender, so its order is known. `sqs` is another load: a FIFO queue under SQS clients. At the end the queues are drained: what was acknowledged must have come.
#![allow(
    clippy::disallowed_methods,
    reason = "a real process on a real disk, by the machine's clock"
)]

pub(crate) mod clients;
pub(crate) mod history;
pub(crate) mod server;
pub mod sqs;
pub(crate) mod wire;

use std::path::Path;
use std::sync::Arc;
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::json;

use crate::rng::Rng;
use clients::{Shared, consume, now, receive, send};
use server::Server;
use wire::Http;

/// How clients speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Http,
    Native,
}

/// Small messages: many of them are under way when the server dies.
const PADDING_MAX: u64 = 300;
const SENDERS: u64 = 3;

/// Kills and restarts `cycles` times; says whether nothing was violated.
pub fn run(protocol: Protocol, cycles: u64, binary: &Path, seed: u64) -> Result<bool> {
    let dir = tempfile::tempdir().context("no room for the data")?;
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
    shared.quiet(true);
    // Leases of the dead run out; then everything has been received.
    shared.drained();
    println!(
        "{protocol:?}: {cycles} cycles in {:.1} s, slowest restart {} ms",
        begun.elapsed().as_secs_f32(),
        slowest.as_millis()
    );
    shared.finish(threads)
}

/// The two queues that clients use.
pub(crate) fn declare(server: &Server) -> Result<()> {
    let mut http = Http::connect(server.at).context("the server does not answer")?;
    for (queue, spec) in [
        ("plain", json!({"failed_max": null})),
        ("ordered", json!({"sessions": "dynamic", "failed_max": null})),
    ] {
        let (status, answer) = http.ask("PUT", &format!("/api/v1/queues/{queue}"), &spec)?;
        if status != 201 && status != 200 {
            bail!("declaring {queue}: {status} {answer}");
        }
    }
    Ok(())
}

/// A receiver of its own kind by its number.
pub(crate) fn receiver(shared: &Arc<Shared>, protocol: Protocol, n: u64) -> JoinHandle<()> {
    let shared = shared.clone();
    spawn(move || match protocol {
        Protocol::Http => receive(&shared, n),
        Protocol::Native => consume(&shared, n),
    })
}
