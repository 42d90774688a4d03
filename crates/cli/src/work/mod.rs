//! `malote work`: a worker whose handler is a shell command or an HTTP endpoint, or that prints messages.

mod broker_url;
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
    Running, Scale, SessionOptions, Shutdown, Worker,
};
use malote_connectors::BrokerError;
use tokio::time::timeout;

use self::http::HttpHandler;
use self::observe::WorkerStatus;
use self::parent::Parent;

use crate::api::CredentialArgs;
use crate::args::GlobalArgs;
use crate::failure::Failure;
use crate::output::note;
use crate::when;

/// How often the worker checks whether it is idle.
const IDLE_CHECK_EVERY: Duration = Duration::from_millis(50);
/// Time limit for a request for the depth of the queue.
const DEPTH_MAX: Duration = Duration::from_secs(5);

/// Handle the messages of a queue with a command or an HTTP endpoint, or print them
///
/// One of --exec, --http and --print is required.
///
/// A command gets the body on standard input and the other fields as MALOTE_… variables. Its exit code is the outcome:
/// 0 completes the message, 65 dead-letters it, 75 delivers it again later without counting an attempt, and any other
/// code retries it. An HTTP endpoint gets a POST request: 2xx completes the message, 429 and 5xx retry it, and any other
/// 4xx dead-letters it.
///
/// When half of the last ten or more attempts ended with exit code 69, status 5xx or a failed connection, the worker
/// fetches nothing for a while. Messages of a session are handled in order, one at a time. Ctrl-C waits for running
/// handlers; a second Ctrl-C does not.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  malote work orders --exec ./charge.sh
  malote work orders --http http://127.0.0.1:3000/orders --slots 20
  malote work orders --exec ./charge.sh --broker amqp://127.0.0.1:5672")]
#[command(group = clap::ArgGroup::new("handler").required(true).multiple(false))]
pub(crate) struct Work {
    #[command(flatten)]
    global: GlobalArgs,
    #[command(flatten)]
    credentials: CredentialArgs,
    /// Queue to work on
    #[arg(env = "SERVICEBUS_QUEUE_NAME", hide_env_values = true)]
    queue: String,
    /// Run this shell command for each message
    #[arg(long, value_name = "COMMAND", group = "handler")]
    exec: Option<String>,
    /// POST each message to this http:// address
    #[arg(long, value_name = "URL", group = "handler")]
    http: Option<String>,
    /// Print each message and complete it: sequence, session and body
    #[arg(long, group = "handler")]
    print: bool,
    /// Broker, if it is not the server of --url: malote://[TOKEN@|USER:PASSWORD@]HOST:PORT, malote+tls://…[?ca=FILE], embedded:DIR, amqp://[USER:PASSWORD@]HOST[:PORT][/VHOST], postgres://[USER[:PASSWORD]@]HOST/DATABASE or servicebus://CONNECTION-STRING
    #[arg(long, value_name = "URL", env = "MALOTE_WORK_URL", hide_env_values = true)]
    broker: Option<String>,
    /// Service Bus connection string, if there is no --broker
    #[arg(long, value_name = "TEXT", env = "SERVICEBUS_CONNECTION_STRING", hide_env_values = true)]
    connection_string: Option<String>,
    /// Concurrent sessions, or messages of a queue without sessions: a number, or a range such as 2..64 that follows the load
    #[arg(
        long,
        value_name = "N",
        env = "WORKER_COUNT",
        hide_env_values = true,
        default_value = "100"
    )]
    slots: Bounds,
    /// Worker processes: a number, or a range such as 1..8 that follows the load
    #[arg(long, value_name = "N")]
    scale: Option<Bounds>,
    /// Add processes or slots after they were needed for this long
    #[arg(long, value_name = "TIME", default_value = "15s", value_parser = when::duration)]
    scale_up_after: Duration,
    /// Remove processes or slots after fewer would have sufficed for this long
    #[arg(long, value_name = "TIME", default_value = "2m", value_parser = when::duration)]
    scale_down_after: Duration,
    /// Scale up when more messages than this wait for each slot
    #[arg(long, value_name = "N", default_value_t = 10)]
    scale_waiting: u32,
    /// Scale up when a message waits longer than this
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = when::duration)]
    scale_age: Duration,
    /// Serve /metrics for Prometheus, /healthz and /readyz at this address
    #[arg(long, value_name = "HOST:PORT")]
    metrics: Option<SocketAddr>,
    /// This process was started by `malote work --scale`; standard input is a socket to the parent process
    #[arg(long, hide = true)]
    replica: bool,
    /// Attempts before a message is dead-lettered
    #[arg(long, value_name = "N", default_value_t = 10)]
    attempts: u32,
    /// Delay before the second attempt, doubled for each further one; 0s retries at once
    #[arg(long, value_name = "TIME", value_parser = when::duration)]
    backoff: Option<Duration>,
    /// Time limit for one attempt
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = when::duration)]
    timeout: Duration,
    /// Lock time; locks are renewed automatically
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = when::duration)]
    lock: Duration,
    /// Messages of a session before another ready session gets the slot
    #[arg(long, value_name = "N", default_value_t = SessionOptions::default().quantum)]
    session_quantum: u32,
    /// How long a session without messages keeps its slot
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = when::duration)]
    session_idle: Duration,
    /// Messages of a session to prefetch
    #[arg(long, value_name = "N", default_value_t = SessionOptions::default().prefetch)]
    session_prefetch: u32,
    /// How long running handlers may take to finish on shutdown; then they are cancelled, and three seconds later their messages are released
    #[arg(long, value_name = "TIME", default_value = "24s", value_parser = when::duration)]
    drain: Duration,
    /// Exit after this long without work
    #[arg(long, value_name = "TIME", value_parser = when::duration)]
    exit_when_idle: Option<Duration>,
}

impl Work {
    pub(crate) fn run(mut self) -> Result<()> {
        self.check_handler()?;
        // The replicas get the resolved address, so that a password is asked for once.
        self.broker = Some(self.broker_url()?);
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

    /// A wrong handler would fail every message, so it is refused before the first one.
    fn check_handler(&self) -> Result<()> {
        match (&self.exec, &self.http) {
            (Some(line), _) => command::check(line),
            (None, Some(url)) => HttpHandler::new(url).map(drop),
            (None, None) => Ok(()),
        }
    }

    fn broker_url(&self) -> Result<String> {
        // The parent process passes the address that it resolved.
        if self.replica && self.broker.is_some() {
            return Ok(self.url().to_owned());
        }
        // An explicit --url wins over the variables that name a broker.
        let explicit = self.global.url.is_some() || self.global.context.is_some();
        match (&self.broker, &self.connection_string) {
            (Some(_), _) if explicit && std::env::var_os("MALOTE_WORK_URL").is_none() => {
                Err(Failure::Usage("give --broker or --url, not both".into()).into())
            }
            (Some(url), _) if !explicit => Ok(url.clone()),
            (None, Some(text)) if !explicit => Ok(format!("servicebus://{text}")),
            _ => broker_url::of_server(&self.global.server()?, &self.credentials),
        }
    }

    fn url(&self) -> &str {
        self.broker.as_deref().unwrap_or_default()
    }

    fn sessions(&self) -> SessionOptions {
        let (quantum, idle) = (self.session_quantum, self.session_idle);
        SessionOptions {
            quantum,
            idle,
            prefetch: self.session_prefetch,
            ..SessionOptions::default()
        }
    }

    fn worker(&self, malote: &Malote, sessions: bool) -> Result<Worker> {
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
        Ok(match (&self.exec, &self.http) {
            (Some(line), _) => worker
                .state(command::CommandLine(line.clone()))
                .breaker(Breaker::of(command::DEPENDENCY))
                .handle(command::run),
            (None, Some(url)) => worker
                .state(HttpHandler::new(url)?)
                .breaker(Breaker::of(http::DEPENDENCY))
                .handle(http::post),
            (None, None) => worker.handle(print),
        })
    }

    /// Without --backoff, a broker that cannot delay messages gets retries without delay.
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
        let malote = Malote::connect(self.url()).await.context("no broker")?;
        // Try with sessions first; a broker refuses that for a queue without sessions.
        let running = match self.worker(&malote, true)?.start().await {
            Err(malote::Error::Broker(BrokerError::Refused { code, .. }))
                if code != "queue_not_found" =>
            {
                self.worker(&malote, false)?.start().await?
            }
            started => started.inspect(|_| {
                let can = malote.broker().capabilities();
                note(format_args!(
                    "working with sessions on {}: a delayed retry holds back {}",
                    can.broker, can.retry_hold
                ));
            })?,
        };
        // The parent process serves the metrics of its replicas.
        let observed = match (self.metrics, self.replica) {
            (Some(at), false) => {
                let metrics = running.observer();
                Some(observe::serve(at, move || WorkerStatus::of(&metrics())).await?)
            }
            _ => None,
        };
        // The parent process decides when its replicas stop.
        let idle = self.exit_when_idle.filter(|_| !self.replica);
        let queue = QueueName::new(&self.queue)?;
        let idle = idle.map(|after| Idle { after, malote: &malote, queue: &queue });
        let every = self.pace().look_every();
        run_until_end(&running, idle, || false, parent.as_mut(), every).await?;
        let mut last = running.metrics();
        last.counts = running.ended().await?.counts;
        drop(observed);
        malote.close().await?;
        match &mut parent {
            Some(parent) => parent.report(&last).await.unwrap_or(()), // the parent may be gone
            None => print_totals(&last.counts),
        }
        Ok(())
    }
}

fn print_totals(counts: &Counts) {
    let Counts { done, retried, dead, released, lost, .. } = counts;
    note(format_args!(
        "{done} completed, {retried} retried, {dead} dead-lettered, {released} released, {lost} lost"
    ));
}

/// Stops a worker after some time without work.
pub(crate) struct Idle<'a> {
    pub after: Duration,
    pub malote: &'a Malote,
    pub queue: &'a QueueName,
}

impl Idle<'_> {
    /// Whether the queue has no work. The broker may have been unreachable while the worker was idle.
    async fn is_true(&self) -> bool {
        let why = match timeout(DEPTH_MAX, self.malote.broker().depth(self.queue)).await {
            Ok(Ok(depth)) => return !waits(&depth),
            Ok(Err(error)) if error.is_transient() => error.to_string(),
            Ok(Err(_)) => return true,
            Err(_) => "the broker does not respond".to_owned(),
        };
        note(format_args!("{why}; cannot tell whether messages are waiting, continuing"));
        false
    }
}

/// Whether messages are waiting that a worker could take.
fn waits(depth: &Depth) -> bool {
    !depth.paused && depth.sessions.map_or(depth.ready, |sessions| sessions.runnable) > 0
}

/// Whether nothing happened since. With an open breaker the worker is waiting, not idle.
fn is_quiet(now: &Metrics, seen: &Counts) -> bool {
    now.busy == 0 && now.taking && now.counts == *seen
}

/// Runs until a signal, until the worker was idle for long enough, or until `is_over` returns true.
pub(crate) async fn until_end(
    running: Running,
    idle: Option<Idle<'_>>,
    is_over: impl Fn() -> bool,
) -> Result<malote::Report> {
    run_until_end(&running, idle, is_over, None, IDLE_CHECK_EVERY).await?;
    Ok(running.ended().await?)
}

/// The same for a replica, which reports to its parent and stops when the parent is gone.
async fn run_until_end(
    running: &Running,
    idle: Option<Idle<'_>>,
    is_over: impl Fn() -> bool,
    mut parent: Option<&mut Parent>,
    report_every: Duration,
) -> Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut asked = false;
    let mut quiet_since = tokio::time::Instant::now();
    let mut seen = running.counts();
    let mut report = tokio::time::interval(report_every);
    let mut slots = running.slots();
    while !running.is_over() {
        let has_parent = parent.is_some();
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
            _ = report.tick(), if has_parent => {
                if let Some(to) = &mut parent
                    && to.report(&running.metrics()).await.is_err()
                {
                    parent = None;
                    running.stop();
                }
                continue;
            }
            () = tokio::time::sleep(IDLE_CHECK_EVERY) => {
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

/// Prints the sequence, session and body of a message.
async fn print(meta: Meta) -> Outcome {
    let message = meta.message();
    let session = message.session.as_ref().map_or("-", |session| session.as_str());
    let body = String::from_utf8_lossy(&message.body.bytes);
    let line = format!("{}\t{session}\t{body}\n", meta.delivery().seq.0);
    match std::io::Write::write_all(&mut std::io::stdout(), line.as_bytes()) {
        Ok(()) => Outcome::Done,
        // Standard output is closed, so the message was not handled.
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
    fn sessions_held_by_others_are_not_waited_for() {
        let ready = Depth { ready: 5, ..Depth::default() };
        assert!(waits(&ready) && !waits(&Depth::default()));
        assert!(!waits(&Depth { paused: true, ..ready }));
        let held = SessionDepth { held: 1, ..SessionDepth::default() };
        assert!(!waits(&Depth { sessions: Some(held), ..ready }));
        let runnable = SessionDepth { runnable: 1, ..held };
        assert!(waits(&Depth { sessions: Some(runnable), ..ready }));
    }
}
