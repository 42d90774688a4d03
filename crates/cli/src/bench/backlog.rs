//! A large backlog: memory per message, time to recover after a kill, and the rate of publishing on top of it.
//!
//! The backlog is measured in a child process, `malote bench backlog`, which can be killed.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};
use malote_engine::{Engine, Settings};
use malote_measure::Stopwatch;
use malote_model::{QueueSpec, SessionId, Sessions};

use super::engine::{body, in_flight, queue};
use super::process::resident_bytes;

/// Messages per send.
const BATCH: u64 = 1000;
/// Memory is stable if it did not shrink in this many samples.
const STABLE_SAMPLES: u32 = 20;
const SAMPLE_EVERY: Duration = Duration::from_millis(200);
/// Messages per session, in a queue with sessions.
const PER_SESSION: u64 = 10;

/// Open a data directory, fill it and publish to it, for `malote bench engine`
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// Data directory
    dir: PathBuf,
    /// Number of messages to add first
    #[arg(long, default_value_t = 0)]
    fill: u64,
    /// Use sessions, with ten messages each
    #[arg(long)]
    sessions: bool,
    /// How long to publish afterwards, in milliseconds
    #[arg(long, default_value_t = 0)]
    publish_ms: u64,
}

/// Prints a line after each step, then waits to be killed.
pub(super) fn run(args: Args) -> anyhow::Result<()> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build()?;
    let stopwatch = Stopwatch::start();
    let (engine, running) = Engine::open(Settings::at(&args.dir))?;
    let sessions = if args.sessions { Sessions::Dynamic } else { Sessions::None };
    runtime.block_on(engine.declare(queue(), QueueSpec { sessions, ..QueueSpec::default() }))?;
    let ready = stopwatch.elapsed();
    print_line(format!("ready {} {}", ready.as_millis(), stable_bytes()))?;
    runtime.block_on(fill(&engine, args.fill, args.sessions))?;
    print_line(format!("filled {}", args.fill))?;
    if args.publish_ms > 0 {
        let sessioned = args.sessions;
        let publish = move || {
            let engine = engine.clone();
            async move {
                engine.send((0..BATCH).map(|n| (queue(), message(n, sessioned))).collect()).await?;
                Ok(BATCH)
            }
        };
        let time = Duration::from_millis(args.publish_ms);
        let (n, elapsed, _) = in_flight(&runtime, time, publish)?;
        print_line(format!("published {}", (n as f64 / elapsed.as_secs_f64()) as u64))?;
    }
    // The parent kills this process. If the parent ends first, the pipe is closed and the read returns.
    std::io::stdin().read_line(&mut String::new())?;
    drop(running);
    Ok(())
}

/// Memory once it no longer shrinks. Recovery, and a snapshot after it, need more for a short time.
fn stable_bytes() -> u64 {
    let (mut least, mut stable) = (resident_bytes(), 0);
    while stable < STABLE_SAMPLES {
        std::thread::sleep(SAMPLE_EVERY);
        let now = resident_bytes();
        stable = if now < least - least / 100 { 0 } else { stable + 1 };
        least = least.min(now);
    }
    least
}

fn print_line(line: String) -> anyhow::Result<()> {
    let mut out = std::io::stdout();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

fn message(n: u64, sessioned: bool) -> malote_model::Message {
    let mut message = body(100);
    if sessioned {
        let id = SessionId::new(&format!("session-{:08}", n / PER_SESSION));
        message.session = Some(id.expect("the id is valid"));
    }
    message
}

async fn fill(engine: &Engine, messages: u64, sessioned: bool) -> anyhow::Result<()> {
    let mut at = 0;
    while at < messages {
        let end = (at + BATCH).min(messages);
        engine.send((at..end).map(|n| (queue(), message(n, sessioned))).collect()).await?;
        at = end;
    }
    Ok(())
}

/// The results for one backlog.
pub(super) struct Backlog {
    pub messages: u64,
    pub bytes_each: f64,
    pub ready: Duration,
    /// Messages per second to an empty queue.
    pub publish_empty: f64,
    /// Messages per second on top of the backlog.
    pub publish_full: f64,
}

impl Backlog {
    pub(super) fn measure(dir: &Path, messages: u64, sessions: bool) -> anyhow::Result<Self> {
        let data = tempfile::Builder::new().prefix("backlog-").tempdir_in(dir)?;
        let empty = Process::start(data.path().join("empty"), 0, sessions, 2000)?;
        let (empty_bytes, publish_empty) = (empty.resident_bytes, empty.published);
        drop(empty);
        let full = data.path().join("full");
        // Dropping it kills it as soon as everything is acknowledged.
        drop(Process::start(full.clone(), messages, sessions, 0)?);
        let recovered = Process::start(full, 0, sessions, 2000)?;
        let growth_bytes = recovered.resident_bytes.saturating_sub(empty_bytes);
        Ok(Self {
            messages,
            bytes_each: growth_bytes as f64 / messages as f64,
            ready: recovered.ready,
            publish_empty,
            publish_full: recovered.published,
        })
    }
}

/// A child process with a data directory. Dropping it kills it with SIGKILL.
struct Process {
    child: Child,
    ready: Duration,
    resident_bytes: u64,
    /// Messages per second.
    published: f64,
}

impl Process {
    fn start(dir: PathBuf, fill: u64, sessions: bool, publish_ms: u64) -> anyhow::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["bench", "backlog"]).arg(dir);
        command.args(["--fill", &fill.to_string(), "--publish-ms", &publish_ms.to_string()]);
        if sessions {
            command.arg("--sessions");
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let out = child.stdout.take().context("the child has no output")?;
        let mut process = Self { child, ready: Duration::ZERO, resident_bytes: 0, published: 0.0 };
        let last = if publish_ms > 0 { "published" } else { "filled" };
        for line in BufReader::new(out).lines() {
            let line = line?;
            let mut words = line.split(' ');
            let word = words.next().unwrap_or_default();
            let mut number = || words.next().and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
            match word {
                "ready" => {
                    process.ready = Duration::from_millis(number());
                    process.resident_bytes = number();
                }
                "published" => process.published = number() as f64,
                _ => {}
            }
            if word == last {
                return Ok(process);
            }
        }
        bail!("the process with the backlog ended too early")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended already
        let _ = self.child.wait();
    }
}
