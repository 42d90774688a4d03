//! `--scale`: a process that starts and stops replicas of the same worker.
//!
//! It handles no messages itself. Each replica is this program with the same arguments. It reports its metrics and stops
//! when this process is gone (`parent.rs`). A replica that exits by itself is replaced after a pause, which grows while
//! replicas keep exiting. The least busy replica is stopped first: it gets SIGTERM, and its running handlers finish.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use malote::metrics::{Kind, Page};
use malote::scale::{Decision, Reason, Signals};
use malote::{Bounds, BrokerError, Depth, Malote, Metrics, QueueName, Scaler};
use malote_connectors::RetryDelay;
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};
use tokio::net::UnixStream;
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout};

use super::observe::{self, WorkerStatus};
use super::parent::ReportReader;
use super::{DEPTH_MAX, Work, is_quiet, print_totals, waits};
use crate::output::note;

/// Maximum number of processes.
const REPLICAS_MAX: usize = 256;
/// Delay before a replica that exited by itself is replaced.
const RESTART: RetryDelay = RetryDelay::new(Duration::from_millis(200), Duration::from_secs(30));
/// After a replica ran for this long, the next delay is the first one again.
const STABLE_AFTER: Duration = Duration::from_secs(60);
/// A replica that was asked to stop is killed after this time: all phases of its shutdown, and some reserve.
const END_MAX: Duration = Duration::from_secs(40);

/// What a replica reports.
enum Report {
    Metrics(Box<Metrics>),
    Exited(ExitStatus),
}

struct Replica {
    pid: u32,
    metrics: Metrics,
    begun: Instant,
    /// It has reported its metrics.
    has_reported: bool,
    /// How often it was asked to stop.
    asked: watch::Sender<u32>,
}

impl Replica {
    fn is_ending(&self) -> bool {
        *self.asked.borrow() > 0
    }

    fn stop(&self) {
        self.asked.send_modify(|asked| *asked += 1);
    }
}

/// All replicas, and the totals of those that exited.
struct Replicas {
    scaler: Scaler,
    /// Replicas get the resolved address in the environment, so that a password is asked for once.
    broker_url: String,
    all: BTreeMap<u64, Replica>,
    next: u64,
    reports: mpsc::Sender<(u64, Report)>,
    /// Totals of the replicas that exited.
    exited: Metrics,
    replaced: u64,
    restart: RetryDelay,
    /// No replica is started before this time.
    not_before: Instant,
    decision: Option<Decision>,
    ups: u64,
    downs: u64,
}

impl Work {
    /// Starts and stops processes until a signal, or until they were idle for long enough.
    pub(super) async fn work_with(self, bounds: Bounds) -> Result<()> {
        if bounds.max > REPLICAS_MAX {
            bail!("--scale {bounds}: the maximum is {REPLICAS_MAX} processes");
        }
        if self.url().starts_with("embedded:") {
            bail!(
                "--scale: only one process at a time can open a data directory; use --slots 2..64, or a server"
            );
        }
        let (malote, queue) = (self.connect().await?, QueueName::new(&self.queue)?);
        // A missing queue is reported here, and not by every replica.
        let reports_depth = match malote.broker().depth(&queue).await {
            Ok(_) => true,
            Err(BrokerError::Unsupported { broker, .. }) => {
                note(format_args!(
                    "scale: {broker} does not report how many messages are waiting; scaling by busy slots"
                ));
                false
            }
            Err(error) => return Err(error.into()),
        };
        let (pace, begun) = (self.pace(), Instant::now());
        let (reports, mut incoming) = mpsc::channel(REPLICAS_MAX);
        let (depth_reports, mut depths) = mpsc::channel(1);
        let polling = tokio::spawn(poll_depth(
            malote.clone(),
            queue,
            reports_depth,
            pace.look_every(),
            depth_reports,
        ));
        let mut replicas = Replicas::new(Scaler::new(bounds, pace), self.url().to_owned(), reports);
        let shared = Arc::new(Mutex::new((Page::default(), false)));
        let observed = match self.metrics {
            Some(at) => {
                let shared = shared.clone();
                let status = move || {
                    let (page, ready) = shared.lock().clone();
                    WorkerStatus { page, ready }
                };
                Some(observe::serve(at, status).await?)
            }
            None => None,
        };
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut tick = tokio::time::interval(pace.look_every());
        let (mut asked, mut quiet_since, mut seen) = (false, Instant::now(), None);
        while !(asked && replicas.all.is_empty()) {
            let mut end = false;
            tokio::select! {
                _ = interrupt.recv() => end = true,
                _ = terminate.recv() => end = true,
                Some((id, report)) = incoming.recv() => replicas.receive(id, report),
                Some(depth_report) = depths.recv(), if !asked => {
                    let decision = match depth_report {
                        Ok(depth) => {
                            if depth.as_ref().is_some_and(waits) {
                                quiet_since = Instant::now();
                            }
                            let signals = replicas.signals(depth, self.slots.max);
                            replicas.scaler.decide(begun.elapsed(), &signals)
                        }
                        Err(DepthUnknown) => {
                            quiet_since = Instant::now(); // messages may be waiting
                            replicas.scaler.unknown()
                        }
                    };
                    replicas.decided(decision);
                }
                _ = tick.tick() => {
                    let now = replicas.together();
                    // A replica that has not reported yet is still starting.
                    let begins = !replicas.all.values().any(|replica| replica.has_reported);
                    if begins || seen.is_none_or(|seen| !is_quiet(&now, &seen)) {
                        (quiet_since, seen) = (Instant::now(), Some(now.counts));
                    }
                    end = !asked && self.exit_when_idle.is_some_and(|idle| quiet_since.elapsed() >= idle);
                }
            }
            if end {
                // A second request makes replicas stop without waiting for running handlers.
                let all = replicas.all.values().filter(|replica| asked || !replica.is_ending());
                all.for_each(Replica::stop);
                asked = true;
            }
            if !asked {
                replicas.adjust();
            }
            *shared.lock() = (replicas.page(&self.queue), replicas.together().taking);
        }
        polling.abort();
        drop(observed);
        print_totals(&replicas.exited.counts);
        Ok(malote.close().await?)
    }

    async fn connect(&self) -> Result<Malote> {
        Malote::connect(self.url()).await.context("no broker")
    }
}

/// The broker did not report the depth of the queue.
struct DepthUnknown;

/// Polls the depth of the queue. It is `None` for a broker that does not report it.
async fn poll_depth(
    malote: Malote,
    queue: QueueName,
    reports_depth: bool,
    every: Duration,
    reports: mpsc::Sender<Result<Option<Depth>, DepthUnknown>>,
) {
    loop {
        tokio::time::sleep(every).await;
        let depth = match reports_depth {
            true => match timeout(DEPTH_MAX, malote.broker().depth(&queue)).await {
                Ok(Ok(depth)) => Ok(Some(depth)),
                _ => Err(DepthUnknown),
            },
            false => Ok(None),
        };
        if reports.send(depth).await.is_err() {
            return;
        }
    }
}

impl Replicas {
    fn new(scaler: Scaler, broker_url: String, reports: mpsc::Sender<(u64, Report)>) -> Self {
        Self {
            scaler,
            broker_url,
            all: BTreeMap::new(),
            next: 1,
            reports,
            exited: Metrics::default(),
            replaced: 0,
            restart: RESTART,
            not_before: Instant::now(),
            decision: None,
            ups: 0,
            downs: 0,
        }
    }

    /// The number of replicas that were not asked to stop.
    fn present(&self) -> usize {
        self.all.values().filter(|replica| !replica.is_ending()).count()
    }

    /// The metrics of all replicas, with the totals of those that exited.
    fn together(&self) -> Metrics {
        let mut all = self.exited.clone();
        self.all.values().for_each(|replica| all.add(&replica.metrics));
        all
    }

    fn signals(&self, mut depth: Option<Depth>, slots_each: usize) -> Signals {
        let Metrics { busy, idle, times, hold, .. } = self.together();
        if let Some(sessions) = depth.as_mut().and_then(|depth| depth.sessions.as_mut()) {
            // Held sessions without messages need no slot.
            sessions.held = sessions.held.saturating_sub(idle as u64);
        }
        Signals { depth, slots_each, busy, ended: times.count(), took: times.sum, hold }
    }

    fn receive(&mut self, id: u64, report: Report) {
        let Some(replica) = self.all.get_mut(&id) else { return };
        match report {
            Report::Metrics(metrics) => (replica.metrics, replica.has_reported) = (*metrics, true),
            Report::Exited(status) => {
                let Some(replica) = self.all.remove(&id) else { return };
                self.exited.add_ended(&replica.metrics);
                if replica.is_ending() {
                    return;
                }
                if replica.begun.elapsed() >= STABLE_AFTER {
                    self.restart.reset();
                }
                let (pid, pause) = (replica.pid, self.delay_start());
                note(format_args!(
                    "scale: process {pid} exited by itself ({status}); starting another one in {pause:?}"
                ));
                self.replaced += 1;
            }
        }
    }

    /// Starts no replica for a while. Returns for how long.
    fn delay_start(&mut self) -> Duration {
        let delay = self.restart.pause();
        self.not_before = Instant::now() + delay;
        delay
    }

    /// Prints a line for each change, and when something starts to prevent scaling up.
    fn decided(&mut self, decision: Decision) {
        let holds = |reason| matches!(reason, Reason::Breaker | Reason::Paused | Reason::Limited);
        let before = self.decision.replace(decision).map(|before| before.reason);
        let news = before != Some(decision.reason);
        if decision.is_change() || (news && holds(decision.reason)) {
            note(format_args!("scale: {decision}"));
        }
        self.ups += u64::from(decision.wanted > decision.before);
        self.downs += u64::from(decision.wanted < decision.before);
    }

    /// Starts missing replicas and stops superfluous ones.
    fn adjust(&mut self) {
        let wanted = self.scaler.wanted();
        while self.present() < wanted && Instant::now() >= self.not_before {
            if let Err(error) = self.start() {
                note(format_args!("scale: cannot start a process: {error:#}"));
                self.delay_start();
            }
        }
        for _ in wanted..self.present() {
            let stays = self.all.values().filter(|replica| !replica.is_ending());
            let least = stays.min_by_key(|replica| (replica.metrics.busy, replica.begun.elapsed()));
            least.into_iter().for_each(Replica::stop);
        }
    }

    fn start(&mut self) -> Result<()> {
        let (ours, theirs) = StdUnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let ours = UnixStream::from_std(ours)?;
        let mut command = Command::new(program()?);
        command.arg0("malote");
        // A process group of its own: the terminal sends Ctrl-C to this process only, which stops the replicas.
        command.args(arguments(std::env::args_os())?).process_group(0);
        command.env("MALOTE_WORK_URL", &self.broker_url);
        let child = command.stdin(Stdio::from(OwnedFd::from(theirs))).spawn()?;
        let pid = child.id().context("the process exited at once")?;
        let (id, (asked, asks)) = (self.next, watch::channel(0));
        self.next += 1;
        tokio::spawn(supervise(id, child, ours, asks, self.reports.clone()));
        let (metrics, begun) = (Metrics::default(), Instant::now());
        self.all.insert(id, Replica { pid, metrics, begun, has_reported: false, asked });
        Ok(())
    }

    fn page(&self, queue: &str) -> Page {
        let mut together = self.together();
        together.queue = queue.to_owned();
        let mut page = Page::default();
        together.write(&mut page);
        let queue = ("queue", queue);
        page.head("worker_replicas", Kind::Gauge, "Processes that there are");
        page.sample(&[queue], self.present());
        page.head("worker_replicas_wanted", Kind::Gauge, "Processes that there should be, and why");
        let reason = self.decision.map_or(Reason::Unknown, |decision| decision.reason);
        let labels = [queue, ("reason", reason.word())];
        page.sample(&labels, self.scaler.wanted());
        page.head("worker_scaled", Kind::Counter, "Times that the number of processes was changed");
        for (direction, count) in [("up", self.ups), ("down", self.downs)] {
            page.sample(&[queue, ("direction", direction)], count);
        }
        page.head("worker_replaced", Kind::Counter, "Processes that ended unasked");
        page.sample(&[queue], self.replaced);
        page
    }
}

/// Forwards the reports of a replica until it exits, and stops it on request.
async fn supervise(
    id: u64,
    mut child: Child,
    mut line: UnixStream,
    mut asks: watch::Receiver<u32>,
    reports: mpsc::Sender<(u64, Report)>,
) {
    let (mut lines, mut open, mut until) = (ReportReader::default(), true, None);
    loop {
        let over = async {
            match until {
                Some(until) => tokio::time::sleep_until(until).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            // Read all reports before the exit status.
            biased;
            more = lines.more(&mut line), if open => {
                open = more;
                if let Some(metrics) = lines.newest() {
                    let _ = reports.send((id, Report::Metrics(Box::new(metrics)))).await; // the receiver is gone on shutdown
                }
            }
            status = child.wait() => {
                let status = status.unwrap_or_default();
                let _ = reports.send((id, Report::Exited(status))).await; // the receiver is gone on shutdown
                return;
            }
            Ok(()) = asks.changed() => {
                until.get_or_insert_with(|| Instant::now() + END_MAX);
                let pid = child.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
                if let Some(pid) = pid {
                    let _ = kill_process(pid, Signal::TERM); // it exited, which is reported next
                }
            }
            () = over => {
                until = None;
                let _ = child.start_kill(); // it exited, which is reported next
            }
        }
    }
}

/// The path of this program, even if its file was replaced by a newer one.
fn program() -> Result<PathBuf> {
    let own = Path::new("/proc/self/exe");
    if own.exists() { Ok(own.to_owned()) } else { Ok(std::env::current_exe()?) }
}

/// The arguments of a replica: those of this process, and `--replica`.
fn arguments(own: impl Iterator<Item = OsString>) -> Result<Vec<OsString>> {
    let mut all: Vec<OsString> = own.skip(1).collect();
    // `work` can also be the value of a global flag before the command.
    let is_value = |at: usize| {
        let before = at.checked_sub(1).and_then(|at| all[at].to_str());
        before
            .is_some_and(|flag| ["--url", "--context", "-o", "--output", "--color"].contains(&flag))
    };
    let command = (0..all.len()).find(|at| all[*at] == "work" && !is_value(*at));
    let at = command.context("this is not `malote work`")?;
    all.insert(at + 1, "--replica".into());
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replica_has_the_same_arguments() {
        let own = ["malote", "work", "--exec", "work", "--scale", "1..8", "--", "work"];
        let all = arguments(own.into_iter().map(OsString::from)).unwrap();
        let expected = ["work", "--replica", "--exec", "work", "--scale", "1..8", "--", "work"];
        assert_eq!(all, expected);
        let own = ["malote", "--context", "work", "work", "jobs"];
        let all = arguments(own.into_iter().map(OsString::from)).unwrap();
        assert_eq!(all, ["--context", "work", "work", "--replica", "jobs"]);
        assert!(arguments(["malote"].into_iter().map(OsString::from)).is_err());
    }
}
