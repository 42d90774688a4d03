//! Ten million messages that wait: what each costs in memory, how soon the broker is back after a kill, and whether
//! publishing notices them. The backlog lives in a process of its own, which is killed.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};
use malote_engine::{Engine, Settings};
use malote_model::{QueueSpec, SessionId, Sessions};

use super::engine::{body, in_flight, queue};
use super::measure::{Watch, resident_bytes};

/// Messages of one send.
const BATCH: u64 = 1000;
/// Looks at the memory, a fifth of a second apart, that find no less of it.
const QUIET_LOOKS: u32 = 20;
/// Messages of each session, where there are sessions.
const PER_SESSION: u64 = 10;

/// The process in which a backlog lives
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The data directory
    dir: PathBuf,
    /// Messages to add to it first
    #[arg(long, default_value_t = 0)]
    fill: u64,
    /// Ten messages of each session
    #[arg(long)]
    sessions: bool,
    /// Milliseconds of publishing to measure afterwards
    #[arg(long, default_value_t = 0)]
    publish_ms: u64,
}

/// Opens, fills, publishes; says after each what it took, and stays until it is killed.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build()?;
    let watch = Watch::start();
    let (engine, running) = Engine::open(Settings::at(&args.dir))?;
    let sessions = if args.sessions { Sessions::Dynamic } else { Sessions::None };
    runtime.block_on(engine.declare(queue(), QueueSpec { sessions, ..QueueSpec::default() }))?;
    let ready = watch.elapsed();
    say(format!("ready {} {}", ready.as_millis(), settled_bytes()))?;
    runtime.block_on(fill(&engine, args.fill, args.sessions))?;
    say(format!("filled {}", args.fill))?;
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
        say(format!("published {}", (n as f64 / elapsed.as_secs_f64()) as u64))?;
    }
    // The parent kills this process; should it be gone, its pipe is closed and the read ends.
    std::io::stdin().read_line(&mut String::new())?;
    drop(running);
    Ok(())
}

/// Memory once nothing moves any more: recovery, and the snapshot that may follow it, need more for a moment.
fn settled_bytes() -> u64 {
    let (mut least, mut quiet) = (resident_bytes(), 0);
    while quiet < QUIET_LOOKS {
        std::thread::sleep(Duration::from_millis(200));
        let now = resident_bytes();
        quiet = if now < least - least / 100 { 0 } else { quiet + 1 };
        least = least.min(now);
    }
    least
}

fn say(line: String) -> anyhow::Result<()> {
    let mut out = std::io::stdout();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

fn message(n: u64, sessioned: bool) -> malote_model::Message {
    let mut message = body(100);
    if sessioned {
        let id = SessionId::new(&format!("session-{:08}", n / PER_SESSION));
        message.session = Some(id.expect("a good id"));
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

/// What came of a backlog.
pub(crate) struct Backlog {
    pub messages: u64,
    pub bytes_each: f64,
    pub ready: Duration,
    /// Messages a second, on an empty queue and on top of the backlog.
    pub publish: (f64, f64),
}

impl Backlog {
    pub(crate) fn measure(dir: &Path, messages: u64, sessions: bool) -> anyhow::Result<Self> {
        let data = tempfile::Builder::new().prefix("backlog-").tempdir_in(dir)?;
        let empty = Process::start(data.path().join("empty"), 0, sessions, 2000)?;
        let (_, empty_bytes) = empty.ready;
        let on_empty = empty.published;
        drop(empty);
        let full = data.path().join("full");
        // Killed the moment all is acknowledged.
        drop(Process::start(full.clone(), messages, sessions, 0)?);
        let again = Process::start(full, 0, sessions, 2000)?;
        let (ready, bytes) = again.ready;
        Ok(Self {
            messages,
            bytes_each: bytes.saturating_sub(empty_bytes) as f64 / messages as f64,
            ready,
            publish: (on_empty, again.published),
        })
    }
}

/// A running child; dropping it is a kill -9.
struct Process {
    child: Child,
    ready: (Duration, u64),
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
        let mut process = Self { child, ready: (Duration::ZERO, 0), published: 0.0 };
        let last = if publish_ms > 0 { "published" } else { "filled" };
        for line in BufReader::new(out).lines() {
            let line = line?;
            let mut words = line.split(' ');
            let word = words.next().unwrap_or_default();
            let mut number = || words.next().and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
            match word {
                "ready" => process.ready = (Duration::from_millis(number()), number()),
                "published" => process.published = number() as f64,
                _ => {}
            }
            if word == last {
                return Ok(process);
            }
        }
        bail!("the process with the backlog ended early")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended by itself
        let _ = self.child.wait();
    }
}
