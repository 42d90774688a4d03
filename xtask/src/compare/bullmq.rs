//! BullMQ on Redis, compared with a Malote worker. Both have empty handlers, and both have each result on disk before
//! it counts: Redis syncs its log with every write.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::{ROUNDS, bench, median, results};
use crate::{cargo, conformance};

/// Number of jobs, and of messages.
const JOBS: &str = "100000";
/// Concurrency: BullMQ's `concurrency`, Malote's slots.
const CONCURRENCY: &str = "50,100";
/// Factors of BullMQ's rate to reach, over the native connection and embedded.
const GOALS: [(&str, f64); 2] = [("native", 5.0), ("embedded", 15.0)];

/// Attempts and interval when waiting until Redis accepts connections.
const START_ATTEMPTS: u32 = 200;
const START_INTERVAL: Duration = Duration::from_millis(50);

pub(super) fn run() -> Result<bool> {
    let source = cargo::root().join("testing/compare/bullmq");
    let home = cargo::target().join("compare/bullmq");
    conformance::npm(&source, &home).context("npm is needed")?;
    let redis = Redis::start(home.join("redis"))?;
    let (port, pid) = (redis.port.to_string(), redis.child.id().to_string());
    let theirs = || {
        let mut node = Command::new("node");
        node.arg(source.join("main.mjs")).arg(&home).args([&port, &pid, JOBS, CONCURRENCY]);
        results(node.stderr(Stdio::inherit()))
    };
    let dir = cargo::target();
    let dir = dir.to_string_lossy();
    let ours =
        ["worker", "--messages", JOBS, "--slots", CONCURRENCY, "--only", "plain", "--dir", &dir];
    // The first round is not counted: JavaScript is compiled while it runs.
    theirs()?;
    let (mut ours_all, mut theirs_all) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        ours_all.push(bench(&ours)?);
        theirs_all.push(theirs()?);
    }
    Ok(table(&ours_all, &theirs_all))
}

/// A Redis server that syncs its log with every write and writes no other file. Dropping it stops it.
struct Redis {
    child: Child,
    port: u16,
    data: PathBuf,
}

impl Redis {
    fn start(data: PathBuf) -> Result<Self> {
        install()?;
        if data.exists() {
            // Left over from a run that was killed.
            std::fs::remove_dir_all(&data).context("cannot remove old data")?;
        }
        std::fs::create_dir_all(&data).context("cannot create the data folder")?;
        let port = cargo::free_port()?;
        let mut command = Command::new("redis-server");
        command.args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--save", ""]);
        command.args(["--appendonly", "yes", "--appendfsync", "always", "--daemonize", "no"]);
        command.arg("--dir").arg(&data).stdin(Stdio::null()).stdout(Stdio::null());
        let child = command.spawn().context("cannot start redis-server")?;
        let mut redis = Self { child, port, data };
        for _ in 0..START_ATTEMPTS {
            if std::net::TcpStream::connect(("127.0.0.1", port)).is_ok() {
                return Ok(redis);
            }
            if let Some(status) = redis.child.try_wait()? {
                bail!("redis-server ended: {status}");
            }
            std::thread::sleep(START_INTERVAL);
        }
        bail!("redis-server does not accept connections")
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.data);
    }
}

/// Installs Redis from the distribution's packages if it is missing.
fn install() -> Result<()> {
    let found = Command::new("redis-server").arg("--version").stdout(Stdio::null()).status();
    if found.is_ok_and(|status| status.success()) {
        return Ok(());
    }
    let mut apt = Command::new("apt-get");
    apt.args(["install", "--yes", "--no-install-recommends", "redis-server"]);
    // At this run level the package does not start a service.
    apt.env("RUNLEVEL", "1").env("DEBIAN_FRONTEND", "noninteractive").stdout(Stdio::null());
    let status = apt.status().context("redis-server is missing, and apt-get cannot be started")?;
    if !status.success() {
        bail!("redis-server is missing, and {apt:?} failed: {status}");
    }
    Ok(())
}

/// Prints one line for each of our rows and their row with the same concurrency. Returns whether all rates reach
/// their goals.
fn table(ours: &[Vec<Value>], theirs: &[Vec<Value>]) -> bool {
    let of = |rounds: &[Vec<Value>], wanted: &dyn Fn(&str) -> bool, key: &str| {
        let rows = rounds.iter().flatten();
        let rows = rows.filter(|row| row["what"].as_str().is_some_and(wanted));
        median(rows.filter_map(|row| row[key].as_f64()).collect())
    };
    println!("{:30} {:>10} {:>10} {:>7} {:>6}", "messages/s", "Malote", "BullMQ", "ratio", "goal");
    let (mut met, mut cpu) = (true, Vec::new());
    for (name, goal) in GOALS {
        for concurrency in CONCURRENCY.split(',') {
            let what = format!("{name}, plain, {concurrency} slots");
            let (we, they) =
                (|row: &str| row == what, |row: &str| row == format!("{concurrency} at once"));
            let [rate, other] = [of(ours, &we, "per_s"), of(theirs, &they, "per_s")];
            let ratio = rate / other;
            met &= ratio >= goal;
            println!("{what:30} {rate:10.0} {other:10.0} {ratio:6.1}x {goal:5.0}x");
            let each = |key| [of(ours, &we, key), of(theirs, &they, key)];
            cpu.push((what.clone(), each("worker_cpu_us"), each("server_cpu_us")));
        }
    }
    println!("{:30} {:>21} {:>21}", "\nCPU µs each, worker + server", "Malote", "BullMQ");
    for (what, [worker, other_worker], [server, other_server]) in cpu {
        // An embedded engine runs in the worker's process.
        let server = if server.is_nan() { 0.0 } else { server };
        println!("{what:30} {worker:11.1} + {server:7.1} {other_worker:11.1} + {other_server:7.1}");
    }
    println!("goals: {}", if met { "met" } else { "not met" });
    met
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn all_goals_must_be_reached_and_measured() {
        let ours = |native: f64| {
            let row = |what: String, per_s: f64| json!({ "what": what, "per_s": per_s });
            let of = |n: u32| {
                [
                    row(format!("native, plain, {n} slots"), native),
                    row(format!("embedded, plain, {n} slots"), 150.0),
                ]
            };
            vec![[of(50), of(100)].concat()]
        };
        let row = |n: u32| json!({ "what": format!("{n} at once"), "per_s": 10.0 });
        let theirs = [vec![row(50), row(100)]];
        assert!(table(&ours(50.0), &theirs));
        assert!(!table(&ours(49.0), &theirs));
        assert!(!table(&ours(50.0), &[]));
    }
}
