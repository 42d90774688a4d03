//! Hostile clients against the built binary, on loopback, for a bounded time: what they cost the server, and whether a
//! well-behaved client beside them is still served.
//!
//! Each attack runs alone for some seconds. Before, during and after it the memory of the server is measured; a
//! well-behaved client connects anew all the time, from the same address as the attackers, and measures its latency.
//! A run fails if memory grows by more than the attack's bound, if that client is refused, or if an attack gets what it
//! must not have. It does not fail on times: machines differ.
#![allow(clippy::disallowed_methods, reason = "a real process, by the machine's clock")]

mod hostile;
mod neighbour;
mod process;

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
use neighbour::Neighbour;
use process::Process;

/// How long each attack lasts, unless another time is asked for.
pub const SECONDS: u64 = 10;

/// Connections that the server allows: few, so that attacks reach the bound.
const CONNECTIONS: &str = "256";

/// The user of the well-behaved client, as the server is started with.
const PASSWORD: &str = "attack";
/// `admin` and that password.
pub(crate) const AUTHORIZATION: &str = "authorization: Basic YWRtaW46YXR0YWNr\r\n";

/// Where memory is looked at.
const SAMPLE: Duration = Duration::from_millis(20);

const MIB: u64 = 1 << 20;

/// Where the server listens.
#[derive(Clone)]
pub(crate) struct Target {
    http: SocketAddr,
    amqp: SocketAddr,
    /// Of the key that may use `a*`.
    secret: String,
}

/// One kind of hostile clients.
struct Attack {
    name: &'static str,
    /// Begins the attack and holds it until told to stop. What it says is a failure.
    run: fn(&Target, &AtomicBool) -> Result<()>,
    /// Bytes by which the server may grow.
    growth_max: u64,
}

const ATTACKS: &[Attack] = &[
    Attack { name: "half-heads", run: hostile::half_heads, growth_max: 96 * MIB },
    Attack { name: "slowloris", run: hostile::slowloris, growth_max: 96 * MIB },
    Attack { name: "anonymous-connects", run: hostile::anonymous_connects, growth_max: 96 * MIB },
    Attack { name: "huge-frames", run: hostile::huge_frames, growth_max: 96 * MIB },
    Attack { name: "management-links", run: hostile::management_links, growth_max: 96 * MIB },
    Attack { name: "unread-peeks", run: hostile::unread_peeks, growth_max: 640 * MIB },
    Attack { name: "failed-logins", run: hostile::failed_logins, growth_max: 160 * MIB },
    Attack { name: "forged-names", run: hostile::forged_names, growth_max: 64 * MIB },
];

/// Runs every attack, or the one of that name. False if one of them got through.
pub fn run(seconds: u64, only: Option<&str>, binary: &Path) -> Result<bool> {
    let chosen: Vec<&Attack> =
        ATTACKS.iter().filter(|attack| only.is_none_or(|name| attack.name == name)).collect();
    if chosen.is_empty() {
        let names: Vec<&str> = ATTACKS.iter().map(|attack| attack.name).collect();
        bail!("there is no such attack: choose one of {}", names.join(", "));
    }
    let data = tempfile::tempdir()?;
    let mut server = Server::new(binary, data.path())?;
    let (amqp, http) = (server.listen_amqp()?, server.at);
    server.set("MALOTE_ADMIN_PASSWORD", PASSWORD);
    server.set("MALOTE_LIMITS_CONNECTIONS", CONNECTIONS);
    // The first start makes the user; the key is taken up while the server runs.
    server.start()?;
    let target = Target { http, amqp, secret: process::add_key(binary, data.path())? };
    prepare(&target)?;
    let process = Process::new(server.pid().context("the server runs")?);
    println!(
        "{:<20}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}",
        "attack", "before", "peak", "after", "requests", "refused", "p50 ms", "p99 ms"
    );
    let mut passed = true;
    for attack in chosen {
        passed &= try_one(attack, &target, &process, Duration::from_secs(seconds.max(1)))?;
    }
    Ok(passed)
}

fn try_one(attack: &Attack, target: &Target, process: &Process, lasts: Duration) -> Result<bool> {
    let before = process.resident()?;
    let stop = Arc::new(AtomicBool::new(false));
    let neighbour = Neighbour::start(target.http, stop.clone());
    let hostile = {
        let (stop, run, target) = (stop.clone(), attack.run, target.clone());
        spawn(move || run(&target, &stop))
    };
    let mut peak = before;
    let begun = Instant::now();
    while begun.elapsed() < lasts {
        peak = peak.max(process.resident()?);
        sleep(SAMPLE);
    }
    stop.store(true, Ordering::Relaxed);
    let attacked = hostile.join().unwrap_or_else(|_| bail!("the attack itself panicked"));
    let served = neighbour.finish();
    let after = process.resident()?;
    let mib = |bytes: u64| format!("{:.0} MiB", bytes as f64 / MIB as f64);
    let (p50, p99) = served.latency_ms();
    println!(
        "{:<20}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10.1}{:>10.1}",
        attack.name,
        mib(before),
        mib(peak),
        mib(after),
        served.requests(),
        served.refused.len(),
        p50,
        p99
    );
    let mut failures = Vec::new();
    let growth = peak.saturating_sub(before);
    if growth > attack.growth_max {
        failures.push(format!("memory grew by {}, over {}", mib(growth), mib(attack.growth_max)));
    }
    if let Some(first) = served.refused.first() {
        failures.push(format!("the well-behaved client was refused: {first}"));
    }
    if served.requests() == 0 {
        failures.push("the well-behaved client was not served once".to_owned());
    }
    if let Err(error) = attacked {
        failures.push(format!("{error:#}"));
    }
    failures.iter().for_each(|failure| println!("  {}: {failure}", attack.name));
    Ok(failures.is_empty())
}

/// Queues, and messages to peek at.
fn prepare(target: &Target) -> Result<()> {
    let mut http = Http::connect(target.http)?;
    let mut ask = |method: &str, path: &str, body: &Value| -> Result<()> {
        let (status, answer) = http.ask_headed(method, path, AUTHORIZATION, body)?;
        if !(200..300).contains(&status) {
            bail!("{method} {path}: {status} {answer}");
        }
        Ok(())
    };
    for queue in ["good", "peeked", "Admin-q", "alpha"] {
        ask("PUT", &format!("/api/v1/queues/{queue}"), &json!({}))?;
    }
    let body = "x".repeat(256 << 10);
    for _ in 0..64 {
        let message = json!({"messages": [{"body": body}]});
        ask("POST", "/api/v1/queues/peeked/messages/batch", &message)?;
    }
    Ok(())
}
