//! Compares Malote with similar systems: one client drives both, in turns, in one run.
//!
//! The other system is installed from its published artifacts and has its own port. Compare only figures of the same
//! run.

mod artemis;
mod bullmq;
mod elasticmq;
mod lapin;
mod pgboss;
mod rabbitmq;

use std::io::{BufRead as _, BufReader, ErrorKind};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::cargo;

/// Number of measurements of each system.
const ROUNDS: usize = 3;

/// Compares with this system. Returns whether the goal was reached.
pub(crate) fn run(system: &str, short: bool) -> Result<bool> {
    cargo::run(&cargo::RELEASE_WITH_BENCH)?;
    match system {
        "artemis" => artemis::run(),
        "bullmq" => bullmq::run(),
        "elasticmq" => elasticmq::run(),
        "lapin" => lapin::run(),
        "pgboss" => pgboss::run(),
        "rabbitmq" => rabbitmq::run(short),
        unknown => bail!(
            "unknown system `{unknown}`; choose one of artemis, bullmq, elasticmq, lapin, pgboss, rabbitmq"
        ),
    }
}

/// Runs one benchmark and lets it print its report. Returns whether it ran.
pub(crate) fn bench_and_print(args: &[String]) -> Result<bool> {
    cargo::run(&cargo::RELEASE_WITH_BENCH)?;
    let status = Command::new(bench_binary()).args(args).status();
    Ok(status.context("cannot start malote-bench")?.success())
}

fn bench_binary() -> PathBuf {
    cargo::target().join("release/malote-bench")
}

fn binary() -> PathBuf {
    cargo::target().join("release/malote")
}

/// The folder for downloads and data.
fn home() -> Result<PathBuf> {
    let home = cargo::target().join("compare");
    std::fs::create_dir_all(&home).context("cannot create the download folder")?;
    Ok(home)
}

/// Downloads what a folder's `pom.xml` names; returns the class path.
#[allow(clippy::disallowed_methods, reason = "not a file of the engine")]
fn classpath(folder: &Path) -> Result<String> {
    let classpath = home()?.join("classpath");
    let mut maven = Command::new("mvn");
    maven.args(["--quiet", "--file"]).arg(folder.join("pom.xml"));
    maven.arg("dependency:build-classpath");
    maven.arg(format!("-Dmdep.outputFile={}", classpath.display()));
    let status = maven.status().context("Maven is needed (mvn)")?;
    if !status.success() {
        bail!("{maven:?} failed: {status}");
    }
    let text = std::fs::read_to_string(&classpath).context("Maven wrote no class path")?;
    Ok(text.trim().to_owned())
}

/// A Java server: the artifacts of a folder's `pom.xml` and its `Main.java`.
struct JavaServer {
    child: Child,
    port: u16,
    /// The server stops when this is closed.
    _input: Option<ChildStdin>,
}

impl JavaServer {
    fn start(folder: &Path) -> Result<JavaServer> {
        let (home, classpath) = (home()?, classpath(folder)?);
        let port = cargo::free_port()?;
        let mut java = Command::new("java");
        java.arg("-cp").arg(classpath).arg(folder.join("Main.java")).arg(port.to_string());
        java.current_dir(&home).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = java.spawn().context("Java 17 is needed (java)")?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let server = JavaServer { child, port, _input: input };
        let output = output.context("the server has no stdout")?;
        let ready = BufReader::new(output).lines().any(|line| line.is_ok_and(|l| l == "ready"));
        if !ready {
            bail!("{} did not start", folder.display());
        }
        Ok(server)
    }
}

impl Drop for JavaServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A Malote server with a queue `bench`.
struct Malote {
    child: Child,
    port: u16,
}

impl Malote {
    #[allow(clippy::disallowed_methods, reason = "not a file of the engine")]
    fn start() -> Result<Malote> {
        let home = home()?;
        let data = home.join("malote-data");
        match std::fs::remove_dir_all(&data) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(error).context("cannot remove the data of the last run");
            }
            _ => {}
        }
        let config = home.join("malote-config.json");
        let queue = json!({ "Name": "bench", "Properties": { "LockDuration": "PT5M" } });
        let namespace = json!({ "Name": "bench", "Queues": [queue] });
        let entities = json!({ "UserConfig": { "Namespaces": [namespace] } });
        std::fs::write(&config, entities.to_string())
            .context("cannot write the queue's configuration")?;
        Malote::serve(cargo::free_port()?)
    }

    /// Starts the server on the data that exists.
    fn serve(port: u16) -> Result<Malote> {
        let home = home()?;
        let (data, config) = (home.join("malote-data"), home.join("malote-config.json"));
        let mut serve = Command::new(binary());
        serve.arg("serve").arg("--data").arg(&data).args(["--log", "error", "--sqs", "off"]);
        serve.args(["--http", "127.0.0.1:0", "--servicebus-admin", "off"]);
        serve.args(["--amqp", &format!("127.0.0.1:{port}"), "--servicebus-config"]).arg(&config);
        let child = serve.stdin(Stdio::null()).stdout(Stdio::null()).spawn()?;
        let malote = Malote { child, port };
        let listens = |_: &u32| {
            std::thread::sleep(Duration::from_millis(100));
            TcpStream::connect(("127.0.0.1", port)).is_ok()
        };
        match (0..300).find(listens) {
            Some(_) => Ok(malote),
            None => bail!("Malote did not start"),
        }
    }
}

impl Drop for Malote {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The results of one benchmark, from its JSON.
fn bench(args: &[&str]) -> Result<Vec<Value>> {
    let mut command = Command::new(bench_binary());
    results(command.args(args).arg("--json").stderr(Stdio::inherit()))
}

/// The rows that a program prints as JSON.
fn results(command: &mut Command) -> Result<Vec<Value>> {
    let output = command.output().with_context(|| format!("cannot start {command:?}"))?;
    if !output.status.success() {
        bail!("{command:?} failed: {}", output.status);
    }
    let mut output: Value =
        serde_json::from_slice(&output.stdout).context("the output is not JSON")?;
    match output["results"].take() {
        Value::Array(rows) => Ok(rows),
        _ => bail!("{command:?} printed no results"),
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Prints one line per measurement: rates, CPU time of the server, and both ratios. One of the ratios is enough,
/// because rates mean little where the client is the bottleneck. Returns whether every line reaches the goal.
fn table(ours: &[Vec<Value>], theirs: &[Vec<Value>], name: &str, goal: f64) -> bool {
    let figures = |rounds: &[Vec<Value>], row: usize, key: &str| {
        median(rounds.iter().filter_map(|round| round.get(row)?[key].as_f64()).collect())
    };
    let mut met = true;
    println!("{:54} {:>9} {name:>9} {:>7} {:>9} {name:>9} {:>7}", "", "Malote", "", "Malote", "");
    println!(
        "{:54} {:>19} {:>7} {:>19} {:>7}",
        "", "messages/s", "ratio", "server µs each", "ratio"
    );
    for (row, one) in ours.first().map(Vec::as_slice).unwrap_or_default().iter().enumerate() {
        let what = one["what"].as_str().unwrap_or_default();
        let [rate, other] = [ours, theirs].map(|rounds| figures(rounds, row, "per_s"));
        let [cpu, other_cpu] = [ours, theirs].map(|rounds| figures(rounds, row, "cpu_us"));
        let (rates, cpus) = (rate / other, other_cpu / cpu);
        met &= rates >= goal || cpus >= goal;
        println!(
            "{what:54} {rate:9.0} {other:9.0} {rates:6.1}x {cpu:9.1} {other_cpu:9.1} {cpus:6.1}x"
        );
    }
    println!("goal: {goal}x in rate or CPU time: {}", if met { "met" } else { "not met" });
    met
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_goal_is_met_in_rate_or_in_processor_time() {
        let rows = |per_s: f64, cpu_us: f64| {
            vec![vec![json!({ "what": "x", "per_s": per_s, "cpu_us": cpu_us })]]
        };
        assert!(table(&rows(50.0, 1.0), &rows(10.0, 1.0), "other", 5.0));
        assert!(table(&rows(10.0, 1.0), &rows(10.0, 5.0), "other", 5.0));
        assert!(!table(&rows(40.0, 1.0), &rows(10.0, 4.0), "other", 5.0));
        assert!(
            !table(&rows(40.0, 1.0), &[], "other", 5.0),
            "a goal is not met without a comparison"
        );
    }
}
