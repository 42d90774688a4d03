//! `--scale`: a process that starts and stops others of the same worker.
//!
//! It handles no messages itself. Each replica is this program again with the same arguments, tells how it does and ends
//! when this process is gone (`parent.rs`). One that ends unasked is replaced, after a pause that grows while that goes
//! on. Of several the one with the least to do is stopped first, in order: by SIGTERM, and what it runs finishes.

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
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};
use tokio::net::UnixStream;
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout};

use super::observe::{self, Observed};
use super::parent::Lines;
use super::{DEPTH_MAX, Work, is_quiet, say, waits};
use crate::output::note;

/// Processes of one worker.
const REPLICAS_MAX: usize = 256;
/// How long to wait before one that ended unasked is replaced; doubled each time, until one lived for long.
const PAUSE_FIRST: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(30);
const LIVED: Duration = Duration::from_secs(60);
/// One that was asked to end has so long: the phases of its end, and some time to tell the broker.
const END_MAX: Duration = Duration::from_secs(40);

/// What is heard of a replica.
enum Said {
    Does(Box<Metrics>),
    Ended(ExitStatus),
}

struct Replica {
    pid: u32,
    metrics: Metrics,
    begun: Instant,
    /// It has said how it does.
    has_begun: bool,
    /// How often it was asked to end.
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

/// All replicas, and those that were.
struct Replicas {
    scaler: Scaler,
    all: BTreeMap<u64, Replica>,
    next: u64,
    heard: mpsc::Sender<(u64, Said)>,
    /// What those did that have ended.
    ended: Metrics,
    replaced: u64,
    pause: Duration,
    /// Nothing is started before this.
    not_before: Instant,
    decision: Option<Decision>,
    ups: u64,
    downs: u64,
}

impl Work {
    /// Starts and stops processes until a signal, or until there was nothing to do for long enough.
    pub(super) async fn work_with(self, bounds: Bounds) -> Result<()> {
        if bounds.max > REPLICAS_MAX {
            bail!("--scale {bounds}: at most {REPLICAS_MAX} processes");
        }
        if self.url().starts_with("embedded:") {
            bail!(
                "--scale: one process at a time can open a data directory; use --slots 2..64, or a server"
            );
        }
        let (malote, queue) = (self.connect().await?, QueueName::new(&self.queue)?);
        // A queue that is not there is found now, and not by every replica.
        let tells = match malote.broker().depth(&queue).await {
            Ok(_) => true,
            Err(BrokerError::Unsupported { broker, .. }) => {
                note(format_args!("scale: {broker} does not tell what waits: busy slots count"));
                false
            }
            Err(error) => return Err(error.into()),
        };
        let (pace, begun) = (self.pace(), Instant::now());
        let (heard, mut hears) = mpsc::channel(REPLICAS_MAX);
        let (looked, mut depths) = mpsc::channel(1);
        let looking = tokio::spawn(look(malote.clone(), queue, tells, pace.look_every(), looked));
        let mut replicas = Replicas::new(Scaler::new(bounds, pace), heard);
        let shared = Arc::new(Mutex::new((Page::default(), false)));
        let observed = match self.metrics {
            Some(at) => {
                let shared = shared.clone();
                let look = move || {
                    let (page, ready) = shared.lock().clone();
                    Observed { page, ready }
                };
                Some(observe::serve(at, look).await?)
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
                Some((id, said)) = hears.recv() => replicas.hear(id, said),
                Some(looked) = depths.recv(), if !asked => {
                    let decision = match looked {
                        Ok(depth) => {
                            if depth.as_ref().is_some_and(waits) {
                                quiet_since = Instant::now();
                            }
                            let signals = replicas.signals(depth, self.slots.max);
                            replicas.scaler.decide(begun.elapsed(), &signals)
                        }
                        Err(Unanswered) => {
                            quiet_since = Instant::now(); // nobody knows whether messages wait
                            replicas.scaler.unknown()
                        }
                    };
                    replicas.decided(decision);
                }
                _ = tick.tick() => {
                    let now = replicas.together();
                    // One that has not said anything yet is about to begin.
                    let begins = !replicas.all.values().any(|replica| replica.has_begun);
                    if begins || seen.is_none_or(|seen| !is_quiet(&now, &seen)) {
                        (quiet_since, seen) = (Instant::now(), Some(now.counts));
                    }
                    end = !asked && self.exit_when_idle.is_some_and(|idle| quiet_since.elapsed() >= idle);
                }
            }
            if end {
                // Told a second time, they do not wait for what runs.
                let all = replicas.all.values().filter(|replica| asked || !replica.is_ending());
                all.for_each(Replica::stop);
                asked = true;
            }
            if !asked {
                replicas.adjust();
            }
            *shared.lock() = (replicas.page(&self.queue), replicas.together().taking);
        }
        looking.abort();
        drop(observed);
        say(&replicas.ended.counts);
        Ok(malote.close().await?)
    }

    async fn connect(&self) -> Result<Malote> {
        Malote::connect(&self.url()).await.context("no broker")
    }
}

/// The broker did not say what waits.
struct Unanswered;

/// Looks what waits, again and again. None of a broker that does not tell.
async fn look(
    malote: Malote,
    queue: QueueName,
    tells: bool,
    every: Duration,
    looked: mpsc::Sender<Result<Option<Depth>, Unanswered>>,
) {
    loop {
        tokio::time::sleep(every).await;
        let depth = match tells {
            true => match timeout(DEPTH_MAX, malote.broker().depth(&queue)).await {
                Ok(Ok(depth)) => Ok(Some(depth)),
                _ => Err(Unanswered),
            },
            false => Ok(None),
        };
        if looked.send(depth).await.is_err() {
            return;
        }
    }
}

impl Replicas {
    fn new(scaler: Scaler, heard: mpsc::Sender<(u64, Said)>) -> Self {
        Self {
            scaler,
            all: BTreeMap::new(),
            next: 1,
            heard,
            ended: Metrics::default(),
            replaced: 0,
            pause: PAUSE_FIRST,
            not_before: Instant::now(),
            decision: None,
            ups: 0,
            downs: 0,
        }
    }

    /// Those that are not about to end.
    fn present(&self) -> usize {
        self.all.values().filter(|replica| !replica.is_ending()).count()
    }

    /// How all of them do, with what those did that have ended.
    fn together(&self) -> Metrics {
        let mut all = self.ended.clone();
        self.all.values().for_each(|replica| all.add(&replica.metrics));
        all
    }

    fn signals(&self, mut depth: Option<Depth>, slots_each: usize) -> Signals {
        let Metrics { busy, idle, times, hold, .. } = self.together();
        if let Some(sessions) = depth.as_mut().and_then(|depth| depth.sessions.as_mut()) {
            // Those in hand without messages need nobody.
            sessions.held = sessions.held.saturating_sub(idle as u64);
        }
        Signals { depth, slots_each, busy, ended: times.count(), took: times.sum, hold }
    }

    fn hear(&mut self, id: u64, said: Said) {
        let Some(replica) = self.all.get_mut(&id) else { return };
        match said {
            Said::Does(metrics) => (replica.metrics, replica.has_begun) = (*metrics, true),
            Said::Ended(status) => {
                let Some(replica) = self.all.remove(&id) else { return };
                self.ended.add_ended(&replica.metrics);
                if replica.is_ending() {
                    return;
                }
                if replica.begun.elapsed() >= LIVED {
                    self.pause = PAUSE_FIRST;
                }
                let (pid, pause) = (replica.pid, self.pause);
                note(format_args!(
                    "scale: process {pid} ended by itself: {status}; another one is started in {pause:?}"
                ));
                self.replaced += 1;
                self.put_off();
            }
        }
    }

    fn put_off(&mut self) {
        self.not_before = Instant::now() + self.pause;
        self.pause = (self.pause * 2).min(PAUSE_MAX);
    }

    /// One line for each change, and for each time that something stands against more.
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

    /// Starts those that are missing, and stops those that are too many.
    fn adjust(&mut self) {
        let wanted = self.scaler.wanted();
        while self.present() < wanted && Instant::now() >= self.not_before {
            if let Err(error) = self.start() {
                note(format_args!("scale: no process can be started: {error:#}"));
                self.put_off();
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
        // A group of its own: Ctrl-C is for this process, which tells the others.
        command.args(arguments(std::env::args_os())?).process_group(0);
        let child = command.stdin(Stdio::from(OwnedFd::from(theirs))).spawn()?;
        let pid = child.id().context("it ended at once")?;
        let (id, (asked, asks)) = (self.next, watch::channel(0));
        self.next += 1;
        tokio::spawn(attend(id, child, ours, asks, self.heard.clone()));
        let (metrics, begun) = (Metrics::default(), Instant::now());
        self.all.insert(id, Replica { pid, metrics, begun, has_begun: false, asked });
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

/// Hears what a replica says until it has ended, and tells it to end.
async fn attend(
    id: u64,
    mut child: Child,
    mut line: UnixStream,
    mut asks: watch::Receiver<u32>,
    heard: mpsc::Sender<(u64, Said)>,
) {
    let (mut lines, mut open, mut until) = (Lines::default(), true, None);
    loop {
        let over = async {
            match until {
                Some(until) => tokio::time::sleep_until(until).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            // All that it said is heard before its end.
            biased;
            more = lines.more(&mut line), if open => {
                open = more;
                if let Some(metrics) = lines.newest() {
                    let _ = heard.send((id, Said::Does(Box::new(metrics)))).await; // nobody is left to tell
                }
            }
            status = child.wait() => {
                let status = status.unwrap_or_default();
                let _ = heard.send((id, Said::Ended(status))).await; // nobody is left to tell
                return;
            }
            Ok(()) = asks.changed() => {
                until.get_or_insert_with(|| Instant::now() + END_MAX);
                let pid = child.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
                if let Some(pid) = pid {
                    let _ = kill_process(pid, Signal::TERM); // it has ended, and is about to be heard of
                }
            }
            () = over => {
                until = None;
                let _ = child.start_kill(); // it has ended, and is about to be heard of
            }
        }
    }
}

/// This program, also when its file was replaced by a newer one meanwhile.
fn program() -> Result<PathBuf> {
    let own = Path::new("/proc/self/exe");
    if own.exists() { Ok(own.to_owned()) } else { Ok(std::env::current_exe()?) }
}

/// The arguments of a replica: those of this process.
fn arguments(own: impl Iterator<Item = OsString>) -> Result<Vec<OsString>> {
    let mut all: Vec<OsString> = own.skip(1).collect();
    let at = all.iter().position(|word| word == "work").context("this is not `malote work`")?;
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
        assert!(arguments(["malote"].into_iter().map(OsString::from)).is_err());
    }
}
