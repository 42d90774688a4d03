//! Hostile clients against the built binary, on loopback, for a limited time. They show what an attack costs the
//! server and whether a well-behaved client is still served.
//!
//! Each attack runs alone for some seconds. The server's memory is measured before, during and after it. A
//! well-behaved client from the same address opens new connections all the time and measures its latency. A run fails
//! if memory grows by more than the attack's bound, if that client is refused, or if an attack succeeds. Latency
//! never fails a run, because machines differ.
#![allow(clippy::disallowed_methods, reason = "runs a real process and measures real time")]

mod hostile;
mod process;
mod rabbitmq;
mod well_behaved;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::crash::server::Server;
use crate::crash::wire::Http;
use process::Process;
use well_behaved::WellBehavedClient;

/// Duration of each attack (default).
pub const SECONDS: u64 = 10;

/// The server's connection limit. It is low so that attacks reach it.
const CONNECTIONS_MAX: &str = "256";

/// Password of the user `admin`, with which the server is started.
const PASSWORD: &str = "attack";
/// Header with the credentials of `admin`.
pub(crate) const AUTHORIZATION: &str = "authorization: Basic YWRtaW46YXR0YWNr\r\n";

/// Interval between two measurements of memory.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(20);

const MIB: u64 = 1 << 20;

/// Addresses of the server under attack.
#[derive(Clone)]
pub(crate) struct Target {
    http: SocketAddr,
    amqp: SocketAddr,
    /// Secret of the key that may use `a*`.
    secret: String,
}

struct Attack {
    name: &'static str,
    /// Runs the attack until the flag is set. An error means that the attack succeeded.
    run: fn(&Target, &AtomicBool) -> Result<()>,
    /// The most bytes by which the server's memory may grow.
    growth_max: u64,
}

const ATTACKS: &[Attack] = &[
    Attack { name: "incomplete-headers", run: hostile::incomplete_headers, growth_max: 96 * MIB },
    Attack { name: "slowloris", run: hostile::slowloris, growth_max: 96 * MIB },
    Attack { name: "anonymous-connects", run: hostile::anonymous_connects, growth_max: 96 * MIB },
    Attack { name: "huge-frames", run: hostile::huge_frames, growth_max: 96 * MIB },
    Attack { name: "management-links", run: hostile::management_links, growth_max: 96 * MIB },
    Attack { name: "unread-peeks", run: hostile::unread_peeks, growth_max: 640 * MIB },
    Attack { name: "failed-logins", run: hostile::failed_logins, growth_max: 160 * MIB },
    Attack { name: "forged-names", run: hostile::forged_names, growth_max: 64 * MIB },
    Attack { name: "half-handshakes", run: rabbitmq::half_handshakes, growth_max: 96 * MIB },
    Attack { name: "slow-handshakes", run: rabbitmq::slow_handshakes, growth_max: 96 * MIB },
    Attack { name: "too-many-channels", run: rabbitmq::too_many_channels, growth_max: 64 * MIB },
    Attack { name: "many-consumers", run: rabbitmq::many_consumers, growth_max: 64 * MIB },
    Attack { name: "table-bombs", run: rabbitmq::table_bombs, growth_max: 64 * MIB },
    Attack { name: "frame-size-lies", run: rabbitmq::frame_size_lies, growth_max: 64 * MIB },
    Attack { name: "endless-bodies", run: rabbitmq::endless_bodies, growth_max: 160 * MIB },
    Attack { name: "stalled-bodies", run: rabbitmq::stalled_bodies, growth_max: 512 * MIB },
    // Twenty connections with at most 8 MiB from the engine and 1 MiB of output each, and the queue's own 64 MiB.
    Attack { name: "unread-consumers", run: rabbitmq::unread_consumers, growth_max: 384 * MIB },
    // Ten connections with 16 MiB on their way and 16 MiB of output each.
    Attack { name: "unread-returns", run: rabbitmq::unread_returns, growth_max: 384 * MIB },
    Attack { name: "unread-confirms", run: rabbitmq::unread_confirms, growth_max: 384 * MIB },
    Attack { name: "unread-replies", run: rabbitmq::unread_replies, growth_max: 64 * MIB },
    Attack { name: "transactions", run: rabbitmq::endless_transactions, growth_max: 96 * MIB },
    Attack { name: "many-copies", run: rabbitmq::many_copies, growth_max: 96 * MIB },
    Attack { name: "many-queues", run: rabbitmq::many_queues, growth_max: 256 * MIB },
    // Twelve connections with at most 8 MiB of output each, and unacknowledged messages.
    Attack { name: "get-loops", run: rabbitmq::get_loops, growth_max: 384 * MIB },
    Attack { name: "connection-churn", run: rabbitmq::connection_churn, growth_max: 64 * MIB },
    Attack { name: "abandoned", run: rabbitmq::abandoned_connections, growth_max: 96 * MIB },
];

/// Runs all attacks, or the one with this name. Returns false if an attack succeeded.
pub fn run(seconds: u64, only: Option<&str>, binary: &Path) -> Result<bool> {
    let chosen: Vec<&Attack> =
        ATTACKS.iter().filter(|attack| only.is_none_or(|name| attack.name == name)).collect();
    if chosen.is_empty() {
        let names: Vec<&str> = ATTACKS.iter().map(|attack| attack.name).collect();
        bail!("unknown attack; choose one of {}", names.join(", "));
    }
    let data = tempfile::tempdir()?;
    let mut server = Server::new(binary, data.path())?;
    let (amqp, http) = (server.listen_amqp()?, server.at);
    server.set("MALOTE_ADMIN_PASSWORD", PASSWORD);
    server.set("MALOTE_LIMITS_CONNECTIONS", CONNECTIONS_MAX);
    // The first start creates the user. The running server loads the key.
    server.start()?;
    let target = Target { http, amqp, secret: process::create_key(binary, data.path())? };
    prepare(&target)?;
    let process = Process::new(server.pid().context("the server is not running")?);
    println!(
        "{:<20}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}",
        "attack", "before", "peak", "after", "requests", "refused", "p50 ms", "p99 ms"
    );
    let mut passed = true;
    for attack in chosen {
        passed &= run_attack(attack, &target, &process, Duration::from_secs(seconds.max(1)))?;
    }
    Ok(passed)
}

fn run_attack(
    attack: &Attack,
    target: &Target,
    process: &Process,
    duration: Duration,
) -> Result<bool> {
    let before = process.resident()?;
    let stop = Arc::new(AtomicBool::new(false));
    let client = WellBehavedClient::start(target.http, stop.clone());
    let hostile = {
        let (stop, run, target) = (stop.clone(), attack.run, target.clone());
        spawn(move || run(&target, &stop))
    };
    let mut peak = before;
    let begun = Instant::now();
    while begun.elapsed() < duration {
        peak = peak.max(process.resident()?);
        sleep(SAMPLE_INTERVAL);
    }
    stop.store(true, Ordering::Relaxed);
    let result = hostile.join().unwrap_or_else(|_| bail!("the attack itself panicked"));
    let stats = client.finish();
    let after = process.resident()?;
    let mib = |bytes: u64| format!("{:.0} MiB", bytes as f64 / MIB as f64);
    let (p50, p99) = stats.latency_ms();
    println!(
        "{:<20}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10.1}{:>10.1}",
        attack.name,
        mib(before),
        mib(peak),
        mib(after),
        stats.requests(),
        stats.refusals.len(),
        p50,
        p99
    );
    let mut failures = Vec::new();
    let growth = peak.saturating_sub(before);
    if growth > attack.growth_max {
        failures.push(format!("memory grew by {}, over {}", mib(growth), mib(attack.growth_max)));
    }
    if let Some(first) = stats.refusals.first() {
        failures.push(format!("the well-behaved client was refused: {first}"));
    }
    if stats.requests() == 0 {
        failures.push("the well-behaved client was not served once".to_owned());
    }
    if let Err(error) = result {
        failures.push(format!("{error:#}"));
    }
    failures.iter().for_each(|failure| println!("  {}: {failure}", attack.name));
    Ok(failures.is_empty())
}

/// Creates the queues, and messages to peek at.
fn prepare(target: &Target) -> Result<()> {
    let mut http = Http::connect(target.http)?;
    let mut ask = |method: &str, path: &str, body: &Value| -> Result<()> {
        let (status, answer) = http.request_with_headers(method, path, AUTHORIZATION, body)?;
        if !(200..300).contains(&status) {
            bail!("{method} {path}: {status} {answer}");
        }
        Ok(())
    };
    for queue in ["good", "peeked", "Admin-q", "alpha"] {
        ask("PUT", &format!("/api/v1/queues/{queue}"), &json!({}))?;
    }
    // Attacks that publish without end must not fill the disk.
    ask(
        "PUT",
        "/api/v1/queues/dropped",
        &json!({ "length_max": 1000, "overflow": "drop_oldest" }),
    )?;
    let body = "x".repeat(256 << 10);
    for _ in 0..64 {
        let message = json!({"messages": [{"body": body}]});
        ask("POST", "/api/v1/queues/peeked/messages/batch", &message)?;
    }
    Ok(())
}
