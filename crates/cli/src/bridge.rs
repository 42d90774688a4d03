//! `malote bridge`: moves the messages of a queue from one broker to another.
//!
//! It is a worker whose handler sends. A message is completed on the source when the target has it; sessions stay in
//! order. Messages in flight at an interruption are sent again with the same id, which a target with a de-duplication
//! window recognizes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use malote::{Batch, Body, Cancelled, Capability, Malote, Outcome, Retry, State, Worker};
use malote_connectors::{BrokerError, Delivery, RetryDelay};
use malote_model::{
    Address, Dedup, Message, QueueName, QueueSpec, Seq, Sessions, Timestamp, Value, When,
};
use parking_lot::Mutex;

use crate::output::note;
use crate::when;
use crate::work::{Idle, until_end};

/// Messages in one request to the target.
const TOGETHER: usize = 256;
/// Delays between attempts to reach the target.
const RETRY: RetryDelay = RetryDelay::new(Duration::from_millis(100), Duration::from_secs(5));
/// Lock time of the session that is accepted to see whether the queue has sessions.
const SESSION_CHECK_LOCK: Duration = Duration::from_secs(5);
/// How often the progress is printed.
const PROGRESS_EVERY: Duration = Duration::from_secs(10);
/// De-duplication window of a target queue created with --declare.
const WINDOW_MS: u64 = 600_000;
/// Properties with the reason of a dead letter, named as in Service Bus.
const REASON: &str = "DeadLetterReason";
const DESCRIPTION: &str = "DeadLetterErrorDescription";
/// No time limit for an attempt: the target may be unreachable for long.
const FOREVER: Duration = Duration::from_secs(365 * 24 * 3600);

/// Move the messages of a queue from one broker to another
///
/// Sessions, properties and ids are kept, and messages stay in order within each session. A message is completed on the
/// source when the target has stored it, so an interruption loses nothing, and the same command continues. Messages in
/// flight at an interruption may be sent twice with the same id; a target with a de-duplication window stores them once.
///
/// The command stops at a message that the target refuses, and prints its id. It runs until Ctrl-C, or with
/// --exit-when-idle until no messages are left.
#[derive(clap::Args)]
pub(crate) struct Bridge {
    /// Queue to move
    queue: String,
    /// Source broker: any URL that `malote work --broker` takes
    #[arg(long, value_name = "URL")]
    from: String,
    /// URL of the broker that receives the messages
    #[arg(long, value_name = "URL")]
    to: String,
    /// Queue on the target [default: the same name]
    #[arg(long, value_name = "QUEUE")]
    into: Option<String>,
    /// Create the target queue, with sessions if the source has them, and with a de-duplication window if the target supports it
    #[arg(long)]
    declare: bool,
    /// Concurrent sessions, or batches of a queue without sessions
    #[arg(long, value_name = "N", default_value_t = 16)]
    slots: usize,
    /// Exit after this long without messages
    #[arg(long, value_name = "TIME", value_parser = when::duration)]
    exit_when_idle: Option<Duration>,
}

impl Bridge {
    pub(crate) fn run(self) -> Result<()> {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        runtime.block_on(self.carry())
    }

    async fn carry(self) -> Result<()> {
        let queue = QueueName::new(&self.queue)?;
        let into = match &self.into {
            Some(name) => QueueName::new(name).context("--into")?,
            None => queue.clone(),
        };
        if broker_identity(&self.from) == broker_identity(&self.to) && queue == into {
            bail!("source and target are the same queue `{queue}`: give another queue with --into");
        }
        let from = Malote::connect(&self.from).await.context("--from")?;
        let to = Malote::connect(&self.to).await.context("--to")?;
        let target = Arc::new(BridgeTarget {
            to: to.clone(),
            from: crc32c::crc32c(
                format!("{} {}", broker_identity(&self.from), self.queue).as_bytes(),
            ),
            can_dedup: to.broker().capabilities().has(Capability::Dedup),
            into: into.clone(),
            carried: AtomicU64::new(0),
            again: AtomicU64::new(0),
            refused: Mutex::new(None),
        });
        let sessions = has_sessions(&from, &queue).await.context("--from")?;
        if self.declare {
            declare(&to, &into, sessions).await?;
        }
        let running = self.worker(&from, &target, sessions).start().await?;
        let telling = tokio::spawn(print_progress(target.clone()));
        let idle = self.exit_when_idle.map(|after| Idle { after, malote: &from, queue: &queue });
        let ended = until_end(running, idle, || target.refused.lock().is_some()).await?;
        telling.abort();
        let left = left(&from, &queue).await;
        // All outcomes are sent. Closing the connections releases the remaining sessions.
        let closed = [from.close().await, to.close().await];
        let (carried, again) =
            (target.carried.load(Ordering::SeqCst), target.again.load(Ordering::SeqCst));
        note(format_args!(
            "{carried} moved ({again} were on the target already), {} released",
            ended.counts.released
        ));
        note(format_args!("{left}"));
        closed.into_iter().filter_map(Result::err).for_each(|error| note(format_args!("{error}")));
        if let Some(why) = target.refused.lock().take() {
            bail!("the target refused a message: {why}. It stays in the source queue");
        }
        Ok(())
    }

    fn worker(&self, from: &Malote, target: &Arc<BridgeTarget>, sessions: bool) -> Worker {
        let worker = Worker::new(from, &self.queue)
            .timeout(FOREVER)
            // The handler releases messages instead of failing them.
            .retry(Retry::at_once(u32::MAX))
            .state(target.clone())
            .handle_batch(carry, TOGETHER, Duration::ZERO);
        match sessions {
            true => worker.with_sessions(malote::SessionOptions {
                max: self.slots,
                ..malote::SessionOptions::default()
            }),
            false => worker.slots(self.slots),
        }
    }
}

/// Whether the source queue has sessions.
async fn has_sessions(from: &Malote, queue: &QueueName) -> Result<bool, BrokerError> {
    match from.broker().accept(queue, None, SESSION_CHECK_LOCK, Duration::ZERO).await {
        Ok(held) => {
            if let Some(held) = held {
                held.close().await?;
            }
            Ok(true)
        }
        Err(BrokerError::Unsupported { .. }) => Ok(false),
        Err(error @ BrokerError::Refused { .. }) if !is_missing(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

/// The part of a URL that identifies the broker, without credentials and options.
fn broker_identity(url: &str) -> &str {
    let url = url.split(['?', ';']).next().unwrap_or_default();
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    rest.rsplit('@').next().unwrap_or_default().trim_end_matches('/')
}

/// Prints the progress while it changes.
async fn print_progress(target: Arc<BridgeTarget>) {
    let mut before = 0;
    loop {
        tokio::time::sleep(PROGRESS_EVERY).await;
        let carried = target.carried.load(Ordering::SeqCst);
        if std::mem::replace(&mut before, carried) != carried {
            note(format_args!("{carried} moved so far"));
        }
    }
}

/// The messages left in the source queue, if the broker reports them.
async fn left(from: &Malote, queue: &QueueName) -> String {
    let asked = tokio::time::timeout(SESSION_CHECK_LOCK, from.broker().depth(queue)).await;
    let Some(depth) = asked.ok().and_then(Result::ok) else {
        return "the source does not report how many messages are left".to_owned();
    };
    let all = [
        (depth.ready, "ready"),
        (depth.delayed, "not yet due"),
        (depth.in_flight, "locked by other receivers"),
    ];
    let some: Vec<_> = all.iter().filter(|one| one.0 > 0).collect();
    let words: Vec<_> = some.iter().map(|(count, what)| format!("{count} {what}")).collect();
    match words.is_empty() {
        true => "no messages are left that are due".to_owned(),
        false => format!("left in the source queue: {}", words.join(", ")),
    }
}

async fn declare(to: &Malote, into: &QueueName, sessions: bool) -> Result<()> {
    let can = to.broker().capabilities();
    let window = Dedup { window_ms: WINDOW_MS, per_session: false, content: false };
    let spec = QueueSpec {
        sessions: if sessions { Sessions::Dynamic } else { Sessions::None },
        dedup: can.has(Capability::Dedup).then_some(window),
        ..QueueSpec::default()
    };
    to.declare(into.as_str(), spec).await.context("--declare")
}

/// The target queue, and what was sent there.
struct BridgeTarget {
    to: Malote,
    /// Identifies the source broker and queue in de-duplication ids.
    from: u32,
    can_dedup: bool,
    into: QueueName,
    carried: AtomicU64,
    again: AtomicU64,
    refused: Mutex<Option<String>>,
}

async fn carry(
    batch: Batch<Body>,
    target: State<Arc<BridgeTarget>>,
    cancelled: Cancelled,
) -> Vec<Outcome> {
    let now = Timestamp(when::now());
    let each = batch.iter().map(|one| target.copy(one.meta.delivery(), now));
    let messages: Vec<(Address, Message)> = each.collect();
    let mut sent = 0;
    match target.send(&messages, &cancelled).await {
        Ok(()) => sent = messages.len(),
        Err(Stop::Cancelled) => {}
        // Send one by one, in order: the messages before the refused one are moved, and the refused one is named.
        Err(Stop::Refused(_)) => {
            for one in messages.chunks(1) {
                match target.send(one, &cancelled).await {
                    Ok(()) => sent += 1,
                    Err(Stop::Cancelled) => break,
                    Err(Stop::Refused(why)) => {
                        let id = one[0].1.message_id.as_deref().unwrap_or("without an id");
                        let makes_it =
                            if is_missing(&why) { " (--declare creates it)" } else { "" };
                        let mut refused = target.refused.lock();
                        refused.get_or_insert_with(|| format!("message {id}: {why}{makes_it}"));
                        break;
                    }
                }
            }
        }
    }
    let done = |nth| if nth < sent { Outcome::Done } else { Outcome::Release };
    (0..messages.len()).map(done).collect()
}

fn is_missing(why: &BrokerError) -> bool {
    matches!(why, BrokerError::Refused { code, .. } if code == "queue_not_found")
}

/// Why sending stopped.
enum Stop {
    Cancelled,
    /// A retry would not help.
    Refused(BrokerError),
}

impl BridgeTarget {
    /// Sends, and retries while the target is unreachable.
    async fn send(
        &self,
        messages: &[(Address, Message)],
        cancelled: &Cancelled,
    ) -> Result<(), Stop> {
        let mut backoff = RETRY;
        loop {
            match self.to.broker().send(messages.to_vec()).await {
                Ok(sent) => {
                    let again = sent.iter().filter(|sent| sent.duplicate).count() as u64;
                    self.carried.fetch_add(sent.len() as u64, Ordering::SeqCst);
                    self.again.fetch_add(again, Ordering::SeqCst);
                    return Ok(());
                }
                Err(error) if error.is_transient() => {
                    if backoff.is_first() {
                        note(format_args!("{error}; retrying"));
                    }
                    tokio::select! {
                        () = tokio::time::sleep(backoff.pause()) => {}
                        () = cancelled.wait() => return Err(Stop::Cancelled),
                    }
                }
                Err(error) => return Err(Stop::Refused(error)),
            }
        }
    }

    /// The message to send: with a de-duplication id if the target supports it, and with the remaining time to live.
    fn copy(&self, delivery: &Delivery, now: Timestamp) -> (Address, Message) {
        let mut message = delivery.message.clone();
        message.when = When::Now;
        // Without a sequence number from the source, only the message id can identify a repetition.
        if delivery.seq != Seq(0) {
            let key = format!("{:08x}-{}-{}", self.from, delivery.seq.0, delivery.enqueued_at.0);
            message.message_id.get_or_insert_with(|| key.clone());
            // Several messages may have the same id, and all of them are moved.
            if self.can_dedup {
                message.dedup_id = Some(key);
            }
        }
        // To the target, a dead letter is an ordinary message: keep its reason as properties.
        if let Some((reason, text)) = &delivery.dead {
            for (name, value) in [(REASON, reason), (DESCRIPTION, text)] {
                if message.properties.get(name).is_none() && !value.is_empty() {
                    message.properties.set(name, Value::String(value.clone()));
                }
            }
        }
        if let Some(ttl_ms) = &mut message.ttl_ms {
            let age = now.0.saturating_sub(delivery.enqueued_at.0);
            *ttl_ms = ttl_ms.saturating_sub(age).max(1);
        }
        (Address::Queue(self.into.clone()), message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_not_part_of_the_identity() {
        for url in [
            "malote://h:8080",
            "malote://h:8080/",
            "malote://me:secret@h:8080",
            "malote+tls://me:s@cret@h:8080?ca=/x",
        ] {
            assert_eq!(broker_identity(url), "h:8080", "{url}");
        }
        assert_eq!(broker_identity("postgres://me@a,b/shop?sslmode=disable"), "a,b/shop");
        assert_eq!(broker_identity("embedded:./data"), "embedded:./data");
        let azure =
            "servicebus://Endpoint=sb://shop.example;SharedAccessKeyName=R;SharedAccessKey=k";
        assert_eq!(broker_identity(azure), "Endpoint=sb://shop.example");
    }
}
