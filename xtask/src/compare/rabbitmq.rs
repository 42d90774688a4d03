//! RabbitMQ, driven by a light client (`light`) and by its own benchmark PerfTest. Both brokers take turns in one run.
//!
//! Classic durable queues with confirms are compared, and one row with a quorum queue is reported. Malote syncs each
//! message before it confirms it; a classic queue does not. Latencies are taken at a fixed rate. Memory and the time of a
//! restart are taken with a million messages waiting.

mod light;
mod perf_test;
mod process;

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use anyhow::{Context, Result};
use malote_services::RabbitMq;
use serde_json::{Value, json};

use super::{Malote, ROUNDS, classpath, median, table};
use crate::cargo;
use perf_test::{PerfTest, Summary};

/// In rate, or in processor time of the server for each message.
const GOAL: f64 = 5.0;
/// RabbitMQ's memory for the backlog, divided by ours.
const MEMORY_GOAL: f64 = 10.0;

/// How long the comparison takes.
struct Scale {
    rounds: usize,
    seconds: &'static str,
    /// Messages that a consumer drains.
    drained: u64,
    /// Messages that wait while memory and the time of a restart are measured.
    backlog: u64,
    workloads: &'static [Workload],
}

const FULL: Scale = Scale {
    rounds: ROUNDS,
    seconds: "10",
    drained: 100_000,
    backlog: 1_000_000,
    workloads: WORKLOADS,
};
/// To try the command: its figures mean little.
const SHORT: Scale = Scale {
    rounds: 1,
    seconds: "3",
    drained: 20_000,
    backlog: 100_000,
    workloads: &[WORKLOADS[0], WORKLOADS[4]],
};

/// Messages per second while latencies are taken.
const FIXED_RATE: &str = "1000";
/// The queue that `malote-bench amqp --fill` fills.
const BACKLOG_QUEUE: &str = "bench-backlog";
/// Publications without a confirm, and deliveries without an acknowledgement.
const IN_FLIGHT: &str = "1000";

/// A workload, named in the first column.
#[derive(Clone, Copy)]
struct Workload {
    what: &'static str,
    kind: Kind,
    body_bytes: &'static str,
    queues: u16,
    quorum: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Publish,
    Consume,
    Both,
}

const fn classic(
    what: &'static str,
    kind: Kind,
    body_bytes: &'static str,
    queues: u16,
) -> Workload {
    Workload { what, kind, body_bytes, queues, quorum: false }
}

const WORKLOADS: &[Workload] = &[
    classic("publish, 100 B, 1 queue", Kind::Publish, "100", 1),
    classic("publish, 1 KiB, 1 queue", Kind::Publish, "1024", 1),
    classic("publish, 100 B, 10 queues", Kind::Publish, "100", 10),
    classic("consume, 100 B, 1 queue", Kind::Consume, "100", 1),
    classic("both, 100 B, 1 queue", Kind::Both, "100", 1),
    classic("both, 1 KiB, 1 queue", Kind::Both, "1024", 1),
    classic("both, 100 B, 10 queues", Kind::Both, "100", 10),
    Workload {
        what: "both, 100 B, 1 quorum queue",
        kind: Kind::Both,
        body_bytes: "100",
        queues: 1,
        quorum: true,
    },
];

/// A broker under test.
struct Broker {
    url: String,
    pid: u32,
}

impl Broker {
    fn malote(server: &Malote) -> Broker {
        let url = format!("amqp://guest:guest@127.0.0.1:{}/%2F", server.port);
        Broker { url, pid: server.child.id() }
    }

    fn rabbitmq(server: &RabbitMq) -> Broker {
        Broker { url: server.url(0), pid: server.pid(0) }
    }
}

pub(super) fn run(short: bool) -> Result<bool> {
    let scale = if short { SHORT } else { FULL };
    let perf = PerfTest::new(classpath(&cargo::root().join("testing/compare/rabbitmq"))?);
    let mut other = RabbitMq::start(1).context("RabbitMQ does not start")?;
    let malote = Malote::start()?;
    let brokers = [Broker::malote(&malote), Broker::rabbitmq(&other)];
    let mut met = light::compare(&brokers, &scale)?;
    let mut rates: [Vec<Vec<Value>>; 2] = Default::default();
    let mut latencies: [Vec<Summary>; 2] = Default::default();
    // Both are faster once they are warm: the first round is not counted.
    for counts in std::iter::once(false).chain(vec![true; scale.rounds]) {
        for (index, broker) in brokers.iter().enumerate() {
            let rows = scale.workloads.iter().map(|workload| workload.run(&perf, broker, &scale));
            let (rows, latency) =
                (rows.collect::<Result<_>>()?, at_fixed_rate(&perf, broker, &scale)?);
            if counts {
                rates[index].push(rows);
                latencies[index].push(latency);
            }
        }
    }
    println!("PerfTest:");
    met &= table(&rates[0], &rates[1], "RabbitMQ", GOAL);
    print_latencies(&latencies);
    met &= compare_memory(&brokers, &scale)?;
    let Malote { port, .. } = malote;
    drop(malote);
    let ours = time_restart(&perf, || {
        Malote::serve(port).map(|malote| (Broker::malote(&malote), malote))
    })?;
    other.kill(0);
    let theirs = time_restart(&perf, || {
        other.restart(0)?;
        Ok((Broker::rabbitmq(&other), ()))
    })?;
    println!("restart until a message is received: Malote {ours:.1} s, RabbitMQ {theirs:.1} s");
    Ok(met)
}

impl Workload {
    /// One row, as [`table`] reads it.
    fn run(&self, perf: &PerfTest, broker: &Broker, scale: &Scale) -> Result<Value> {
        let queue = QueueName::new(self.queues);
        let mut common = queue.arguments();
        common.extend(["-f", "persistent", "-s", self.body_bytes].map(str::to_owned));
        if self.quorum {
            common.push("--quorum-queue".to_owned());
        }
        let clients = self.queues.to_string();
        let (publish, consume) = (["-c", IN_FLIGHT], ["-q", IN_FLIGHT]);
        if self.kind == Kind::Consume {
            let count = scale.drained.to_string();
            let fill = [
                ["-x", "1", "-y", "0", "-C", &count],
                ["-c", IN_FLIGHT, "-z", "600", "--id", "fill"],
            ];
            perf.run(&broker.url, &common, &fill.concat())?;
        }
        let count = (scale.drained / u64::from(self.queues)).to_string();
        let roles: Vec<&str> = match self.kind {
            Kind::Publish => {
                [&["-x", &clients, "-y", "0", "-z", scale.seconds], &publish[..]].concat()
            }
            Kind::Consume => [&["-x", "0", "-y", &clients, "-D", &count], &consume[..]].concat(),
            Kind::Both => {
                let both = ["-x", &clients, "-y", &clients, "-z", scale.seconds];
                [&both[..], &publish, &consume].concat()
            }
        };
        let (cpu, begun) = (process::cpu_seconds(broker.pid)?, now());
        let summary = perf.run(&broker.url, &common, &roles)?;
        let (cpu, seconds) =
            (process::cpu_seconds(broker.pid)? - cpu, begun.elapsed().as_secs_f64());
        let per_s = match self.kind {
            Kind::Publish => summary.sent_per_s,
            Kind::Consume | Kind::Both => summary.received_per_s,
        };
        let messages = match self.kind {
            Kind::Consume => scale.drained as f64,
            Kind::Publish | Kind::Both => per_s * scale.seconds.parse().unwrap_or(seconds),
        };
        Ok(json!({ "what": self.what, "per_s": per_s, "cpu_us": cpu * 1e6 / messages }))
    }
}

/// A queue of its own for every run. The broker deletes it a minute after its last use.
struct QueueName {
    name: String,
    count: u16,
}

impl QueueName {
    fn new(count: u16) -> QueueName {
        static RUNS: AtomicU32 = AtomicU32::new(0);
        QueueName { name: format!("perf-{}", RUNS.fetch_add(1, Ordering::Relaxed)), count }
    }

    fn arguments(&self) -> Vec<String> {
        let lasting = ["-ad", "false", "-qa", "x-expires=60000"].map(str::to_owned);
        let named = match self.count {
            1 => vec!["-u".to_owned(), self.name.clone()],
            count => {
                let pattern = format!("{}-%d", self.name);
                let range = ["--queue-pattern-from", "1", "--queue-pattern-to"].map(str::to_owned);
                let pattern = vec!["--queue-pattern".to_owned(), pattern];
                pattern.into_iter().chain(range).chain([count.to_string()]).collect()
            }
        };
        named.into_iter().chain(lasting).collect()
    }
}

fn at_fixed_rate(perf: &PerfTest, broker: &Broker, scale: &Scale) -> Result<Summary> {
    let mut common = QueueName::new(1).arguments();
    common.extend(["-f", "persistent", "-s", "100"].map(str::to_owned));
    let rate = [
        "-x",
        "1",
        "-y",
        "1",
        "-r",
        FIXED_RATE,
        "-c",
        IN_FLIGHT,
        "-q",
        IN_FLIGHT,
        "-z",
        scale.seconds,
    ];
    perf.run(&broker.url, &common, &rate)
}

fn print_latencies(latencies: &[Vec<Summary>; 2]) {
    type Figure = fn(&Summary) -> f64;
    let ms = |rounds: &[Summary], which: Figure| median(rounds.iter().map(which).collect()) / 1e3;
    println!("{:54} {:>9} {:>9}", format!("at {FIXED_RATE} messages/s, ms"), "Malote", "RabbitMQ");
    let rows: [(&str, Figure); 4] = [
        ("confirm, median", |summary| summary.confirm.median_us),
        ("confirm, 99th percentile", |summary| summary.confirm.p99_us),
        ("publish to receive, median", |summary| summary.consumer.median_us),
        ("publish to receive, 99th percentile", |summary| summary.consumer.p99_us),
    ];
    for (what, which) in rows {
        let [ours, theirs] = [&latencies[0], &latencies[1]].map(|rounds| ms(rounds, which));
        println!("{what:54} {ours:9.1} {theirs:9.1}");
    }
}

/// Fills a queue of each broker and compares how much memory that took.
fn compare_memory(brokers: &[Broker; 2], scale: &Scale) -> Result<bool> {
    let mut grown = [0.0; 2];
    for (grown, broker) in grown.iter_mut().zip(brokers) {
        let before = process::memory_bytes(broker.pid)?;
        light::fill(broker, scale.backlog)?;
        *grown =
            process::memory_bytes(broker.pid)?.saturating_sub(before) as f64 / f64::from(1 << 20);
    }
    let [ours, theirs] = grown;
    // A queue that takes no memory at all would be a ratio without meaning.
    let ratio = theirs / ours.max(1.0);
    let met = ratio >= MEMORY_GOAL;
    println!(
        "memory of {} messages: Malote {ours:.0} MiB, RabbitMQ {theirs:.0} MiB, ratio {ratio:.1}",
        scale.backlog
    );
    println!("goal: {MEMORY_GOAL} x: {}", if met { "met" } else { "not met" });
    Ok(met)
}

/// Seconds until a client has received the first message of the backlog. `start` also returns what keeps the broker
/// running.
fn time_restart<T>(perf: &PerfTest, start: impl FnOnce() -> Result<(Broker, T)>) -> Result<f64> {
    let begun = now();
    let (broker, _running) = start()?;
    let common = ["-u", BACKLOG_QUEUE, "-ad", "false", "-f", "persistent"].map(str::to_owned);
    perf.run(&broker.url, &common, &["-x", "0", "-y", "1", "-D", "1", "-q", "1"])?;
    Ok(begun.elapsed().as_secs_f64())
}

#[allow(clippy::disallowed_methods, reason = "a measurement is not the engine's time")]
fn now() -> Instant {
    Instant::now()
}
