//! `malote work`: a worker whose handler is a command, an address, or the terminal.

mod command;
mod http;
mod observe;
mod parent;
mod replicas;

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use malote::{
    Bounds, Breaker, Capability, Counts, Depth, Malote, Meta, Metrics, Outcome, QueueName, Retry,
    Running, Scale, Sessions, Shutdown, Worker,
};
use malote_connectors::BrokerError;
use tokio::time::timeout;

use self::observe::Observed;
use self::parent::Parent;

use crate::output::note;
use crate::when;

/// How often it looks whether there is anything left to do.
const LOOK: Duration = Duration::from_millis(50);
/// How long a broker may take to tell what waits.
const DEPTH_MAX: Duration = Duration::from_secs(5);

/// Handle the messages of a queue: with a command, over HTTP, or by printing them
///
/// A command gets the body on standard input and the rest as MALOTE_… variables. Its exit code is the outcome: 0 done,
/// 65 dead-letter, 75 later and not counted, anything else try again. An address gets a POST: 2xx done, 429 and 5xx try
/// again, any other 4xx dead-letter. When half of the last ten or more ended with 69, 5xx or no connection, what they need
/// is down, and nothing is taken for a while. Messages of a session are handled in order, one at a time. Ctrl-C lets what
/// runs finish; a second one does not wait.
#[derive(clap::Args)]
pub(crate) struct Work {
    /// The queue
    #[arg(env = "SERVICEBUS_QUEUE_NAME", hide_env_values = true)]
    queue: String,
    /// Run this shell command for each message
    #[arg(long, value_name = "COMMAND", conflicts_with = "http")]
    exec: Option<String>,
    /// POST each message to this http:// address
    #[arg(long, value_name = "URL")]
    http: Option<String>,
    /// The broker: malote://[USER:PASSWORD@]HOST:PORT, malote+tls://…[?ca=FILE], embedded:DIR, amqp://[USER:PASSWORD@]HOST[:PORT][/VHOST], postgres://[USER[:PASSWORD]@]HOST/DATABASE or servicebus://CONNECTION-STRING
    #[arg(
        long,
        visible_alias = "url",
        value_name = "URL",
        env = "MALOTE_WORK_URL",
        hide_env_values = true
    )]
    broker: Option<String>,
    /// A Service Bus connection string, where no --broker is given
    #[arg(long, value_name = "TEXT", env = "SERVICEBUS_CONNECTION_STRING", hide_env_values = true)]
    connection_string: Option<String>,
    /// Sessions, or messages of a queue without sessions, at once: a number, or as in 2..64 as many as there is work for
    #[arg(
        long,
        value_name = "N",
        env = "WORKER_COUNT",
        hide_env_values = true,
        default_value = "100"
    )]
    slots: Bounds,
    /// Work with several processes: a number, or as in 1..8 as many as there is work for
    #[arg(long, value_name = "N")]
    scale: Option<Bounds>,
    /// Begin more when more were needed for so long
    #[arg(long, value_name = "TIME", default_value = "15s", value_parser = when::duration)]
    scale_up_after: Duration,
    /// End some when fewer would have done for so long
    #[arg(long, value_name = "TIME", default_value = "2m", value_parser = when::duration)]
    scale_down_after: Duration,
    /// Messages that may wait for each slot
    #[arg(long, value_name = "N", default_value_t = 10)]
    scale_waiting: u32,
    /// How long a message may wait
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = when::duration)]
    scale_age: Duration,
    /// Answer /metrics for Prometheus, /healthz and /readyz at this address
    #[arg(long, value_name = "HOST:PORT")]
    metrics: Option<SocketAddr>,
    /// This process is one of several; standard input leads to the one that started it
    #[arg(long, hide = true)]
    replica: bool,
    /// Attempts before a message is dead-lettered
    #[arg(long, value_name = "N", default_value_t = 10)]
    attempts: u32,
    /// Time until the second attempt, doubled each time; 0s for at once
    #[arg(long, value_name = "TIME", value_parser = when::duration)]
    backoff: Option<Duration>,
    /// How long one attempt may take
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = when::duration)]
    timeout: Duration,
    /// How long a lock lasts; it is renewed by itself
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = when::duration)]
    lock: Duration,
    /// Messages of a session before it makes way for another one that is ready
    #[arg(long, value_name = "N", default_value_t = Sessions::default().quantum)]
    session_quantum: u32,
    /// How long a session without messages is kept
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = when::duration)]
    session_idle: Duration,
    /// Messages of a session fetched at once
    #[arg(long, value_name = "N", default_value_t = Sessions::default().prefetch)]
    session_prefetch: u32,
    /// How long what runs may finish when it is asked to end; then it is told, and after three more seconds given back
    #[arg(long, value_name = "TIME", default_value = "24s", value_parser = when::duration)]
    drain: Duration,
    /// End when there was nothing to do for so long
    #[arg(long, value_name = "TIME", value_parser = when::duration)]
    exit_when_idle: Option<Duration>,
}

impl Work {
    pub(crate) fn run(self) -> Result<()> {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        match self.scale {
            Some(replicas) if !self.replica => runtime.block_on(self.work_with(replicas)),
            _ => runtime.block_on(self.work()),
        }
    }

    fn pace(&self) -> Scale {
        Scale {
            up_after: self.scale_up_after,
            down_after: self.scale_down_after,
            waiting_each: self.scale_waiting,
            waiting_for: self.scale_age,
        }
    }

    fn url(&self) -> String {
        match (&self.broker, &self.connection_string) {
            (Some(url), _) => url.clone(),
            (None, Some(text)) => format!("servicebus://{text}"),
            (None, None) => "malote://127.0.0.1:8080".to_owned(),
        }
    }

    fn sessions(&self) -> Sessions {
        let (quantum, idle) = (self.session_quantum, self.session_idle);
        Sessions { quantum, idle, prefetch: self.session_prefetch, ..Sessions::default() }
    }

    fn worker(&self, malote: &Malote, sessions: bool) -> Worker {
        let worker = Worker::new(malote, &self.queue)
            .timeout(self.timeout)
            .lock(self.lock)
            .retry(self.retry(malote))
            .shutdown(Shutdown { drain: self.drain, ..Shutdown::default() })
            .scale(self.pace());
        let worker = match sessions {
            true => worker.with_sessions(self.sessions()).slots(self.slots),
            false => worker.slots(self.slots),
        };
        match (&self.exec, &self.http) {
            (Some(line), _) => worker
                .state(command::Line(line.clone()))
                .breaker(Breaker::of(command::DEPENDENCY))
                .handle(command::run),
            (None, Some(url)) => worker
                .state(http::Target(url.clone()))
                .breaker(Breaker::of(http::DEPENDENCY))
                .handle(http::post),
            (None, None) => worker.handle(print),
        }
    }

    /// A broker without delays tries again at once, unless it is told what it cannot do.
    fn retry(&self, malote: &Malote) -> Retry {
        let delays = malote.broker().capabilities().has(Capability::Delay);
        match self.backoff {
            Some(base) if base.is_zero() => Retry::at_once(self.attempts),
            Some(base) => Retry::exponential(base, self.attempts),
            None if delays => Retry { attempts: self.attempts, ..Retry::default() },
            None => Retry::at_once(self.attempts),
        }
    }

    async fn work(self) -> Result<()> {
        let mut parent = self.replica.then(Parent::at_stdin).transpose()?;
        let malote = Malote::connect(&self.url()).await.context("no broker")?;
        // With sessions if the queue has some.
        let running = match self.worker(&malote, true).start().await {
            Err(malote::Error::Broker(BrokerError::Refused { code, .. }))
                if code != "queue_not_found" =>
            {
                self.worker(&malote, false).start().await?
            }
            started => started.inspect(|_| {
                let can = malote.broker().capabilities();
                note(format_args!(
                    "sessions of {}: a delayed retry holds back {}",
                    can.broker, can.retry_hold
                ));
            })?,
        };
        // Those of a replica are a part of its parent's.
        let observed = match (self.metrics, self.replica) {
            (Some(at), false) => {
                let metrics = running.observer();
                Some(observe::serve(at, move || Observed::of(&metrics())).await?)
            }
            _ => None,
        };
        // The parent says when its replicas end.
        let idle = self.exit_when_idle.filter(|_| !self.replica);
        let queue = QueueName::new(&self.queue)?;
        let idle = idle.map(|after| Idle { after, malote: &malote, queue: &queue });
        let every = self.pace().look_every();
        until_told(&running, idle, || false, parent.as_mut(), every).await?;
        let mut last = running.metrics();
        last.counts = running.ended().await?.counts;
        drop(observed);
        malote.close().await?;
        match &mut parent {
            Some(parent) => parent.tell(&last).await.unwrap_or(()), // nobody is there to know
            None => say(&last.counts),
        }
        Ok(())
    }
}

fn say(counts: &Counts) {
    let Counts { done, retried, dead, released, lost, .. } = counts;
    note(format_args!(
        "{done} done, {retried} tried again, {dead} dead-lettered, {released} given back, {lost} lost"
    ));
}

/// An end after so long without work.
pub(crate) struct Idle<'a> {
    pub after: Duration,
    pub malote: &'a Malote,
    pub queue: &'a QueueName,
}

impl Idle<'_> {
    /// Whether there is nothing to do, as far as the broker tells: it may have been away.
    async fn is_true(&self) -> bool {
        let why = match timeout(DEPTH_MAX, self.malote.broker().depth(self.queue)).await {
            Ok(Ok(depth)) => return !waits(&depth),
            Ok(Err(error)) if error.is_transient() => error.to_string(),
            Ok(Err(_)) => return true,
            Err(_) => "the broker does not answer".to_owned(),
        };
        note(format_args!("{why}; nobody knows whether messages wait, so this goes on"));
        false
    }
}

/// Whether somebody could work on something.
fn waits(depth: &Depth) -> bool {
    !depth.paused && depth.sessions.map_or(depth.ready, |sessions| sessions.runnable) > 0
}

/// Whether nothing happened since. A breaker that is open keeps from what there is.
fn is_quiet(now: &Metrics, seen: &Counts) -> bool {
    now.busy == 0 && now.taking && now.counts == *seen
}

/// Runs until a signal, until there was nothing to do for long enough, or until something says that it is over.
pub(crate) async fn until_end(
    running: Running,
    idle: Option<Idle<'_>>,
    is_over: impl Fn() -> bool,
) -> Result<malote::Report> {
    until_told(&running, idle, is_over, None, LOOK).await?;
    Ok(running.ended().await?)
}

/// The same, or until the parent is gone, which is told how it does.
async fn until_told(
    running: &Running,
    idle: Option<Idle<'_>>,
    is_over: impl Fn() -> bool,
    mut parent: Option<&mut Parent>,
    tell_every: Duration,
) -> Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut asked = false;
    let mut quiet_since = tokio::time::Instant::now();
    let mut seen = running.counts();
    let mut tell = tokio::time::interval(tell_every);
    let mut slots = running.slots();
    while !running.is_over() {
        let tells = parent.is_some();
        let gone = async {
            match &mut parent {
                Some(parent) => parent.gone().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            () = gone => {
                parent = None;
                running.stop();
                continue;
            }
            _ = tell.tick(), if tells => {
                if let Some(to) = &mut parent
                    && to.tell(&running.metrics()).await.is_err()
                {
                    parent = None;
                    running.stop();
                }
                continue;
            }
            () = tokio::time::sleep(LOOK) => {
                let now = running.metrics();
                if let Some(scaled) = now.scaled
                    && now.slots != slots
                {
                    note(format_args!("slots: {slots} -> {}: {}", now.slots, scaled.reason.word()));
                    slots = now.slots;
                }
                if !is_quiet(&now, &seen) {
                    (quiet_since, seen) = (tokio::time::Instant::now(), now.counts);
                }
                let mut ends = is_over();
                if let Some(idle) = &idle
                    && quiet_since.elapsed() >= idle.after
                {
                    ends |= idle.is_true().await;
                    quiet_since = tokio::time::Instant::now();
                }
                if ends {
                    running.stop();
                }
                continue;
            }
        }
        if asked {
            running.stop_now();
        }
        running.stop();
        asked = true;
    }
    Ok(())
}

/// Prints a message: sequence, session and body.
async fn print(meta: Meta) -> Outcome {
    let message = meta.message();
    let session = message.session.as_ref().map_or("-", |session| session.as_str());
    let body = String::from_utf8_lossy(&message.body.bytes);
    let line = format!("{}\t{session}\t{body}\n", meta.delivery().seq.0);
    match std::io::Write::write_all(&mut std::io::stdout(), line.as_bytes()) {
        Ok(()) => Outcome::Done,
        // Nobody reads it: then it was not handled.
        Err(_) => Outcome::Release,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use malote_connectors::SessionDepth;

    #[test]
    fn a_breaker_that_is_open_is_no_idleness() {
        let (closed, seen) = (Metrics { taking: true, ..Metrics::default() }, Counts::default());
        assert!(is_quiet(&closed, &seen));
        assert!(!is_quiet(&Metrics { taking: false, ..closed.clone() }, &seen));
        assert!(!is_quiet(&Metrics { busy: 1, ..closed.clone() }, &seen));
        assert!(!is_quiet(&closed, &Counts { done: 1, ..seen }));
    }

    #[test]
    fn what_others_hold_or_nobody_may_have_does_not_wait_for_us() {
        let ready = Depth { ready: 5, ..Depth::default() };
        assert!(waits(&ready) && !waits(&Depth::default()));
        assert!(!waits(&Depth { paused: true, ..ready }));
        let held = SessionDepth { held: 1, ..SessionDepth::default() };
        assert!(!waits(&Depth { sessions: Some(held), ..ready }));
        let runnable = SessionDepth { runnable: 1, ..held };
        assert!(waits(&Depth { sessions: Some(runnable), ..ready }));
    }
}
