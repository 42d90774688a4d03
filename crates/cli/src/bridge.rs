//! `malote bridge`: carries the messages of a queue from one broker to another.
//!
//! It is a worker whose handler sends: a message leaves the one broker when the other has it, sessions in order. What was
//! under way when it ended is carried again with the same id; a target with a de-duplication window takes it once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use malote::{Batch, Body, Cancelled, Capability, Malote, Outcome, Retry, State, Worker};
use malote_connectors::{BrokerError, Delivery};
use malote_model::{
    Address, Dedup, Message, QueueName, QueueSpec, Seq, Sessions, Timestamp, Value, When,
};
use parking_lot::Mutex;

use crate::output::note;
use crate::when;
use crate::work::{Idle, until_end};

/// Messages that are sent together.
const TOGETHER: usize = 256;
/// Waits between tries to reach the target: doubled up to the second.
const PAUSES: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(5)];
/// For long enough to let go of a session again.
const LOOK: Duration = Duration::from_secs(5);
/// How often it says how far it is.
const TELL_EVERY: Duration = Duration::from_secs(10);
/// What a target that is made for it remembers.
const WINDOW_MS: u64 = 600_000;
/// Why a dead letter is one, as Service Bus names it.
const REASON: &str = "DeadLetterReason";
const DESCRIPTION: &str = "DeadLetterErrorDescription";
/// No attempt ends by itself: the target may be away for long.
const FOREVER: Duration = Duration::from_secs(365 * 24 * 3600);

/// Carry the messages of a queue from one broker to another
///
/// With sessions, properties and ids, in order within each session. A message is taken from the first broker when the
/// second has it on disk: whatever ends in between, nothing is lost, and the same command goes on where it ended. What was
/// under way then may be sent twice, with the same id: a target with a de-duplication window takes it once. A message that
/// the target refuses ends it, and is named; what is behind it in its session waits with it. It runs until Ctrl-C, or with
/// --exit-when-idle until there is nothing left.
#[derive(clap::Args)]
pub(crate) struct Bridge {
    /// The queue
    queue: String,
    /// The broker to take them from: any that `malote work` can reach
    #[arg(long, value_name = "URL")]
    from: String,
    /// The broker to bring them to
    #[arg(long, value_name = "URL")]
    to: String,
    /// The queue there, if it has another name
    #[arg(long, value_name = "QUEUE")]
    into: Option<String>,
    /// Make the queue there first, with sessions if this one has them, and with a de-duplication window where there can be one
    #[arg(long)]
    declare: bool,
    /// Sessions, or batches of a queue without sessions, at once
    #[arg(long, value_name = "N", default_value_t = 16)]
    slots: usize,
    /// End when there was nothing to carry for so long
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
        if place(&self.from) == place(&self.to) && queue == into {
            bail!("`{queue}` would be carried into itself, for ever: give --into another queue");
        }
        let from = Malote::connect(&self.from).await.context("--from")?;
        let to = Malote::connect(&self.to).await.context("--to")?;
        let target = Arc::new(Target {
            to: to.clone(),
            from: crc32c::crc32c(format!("{} {}", place(&self.from), self.queue).as_bytes()),
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
        let telling = tokio::spawn(tell(target.clone()));
        let idle = self.exit_when_idle.map(|after| Idle { after, malote: &from, queue: &queue });
        let ended = until_end(running, idle, || target.refused.lock().is_some()).await?;
        telling.abort();
        let left = left(&from, &queue).await;
        // All that was decided is told; what is not let go goes with its connection.
        let closed = [from.close().await, to.close().await];
        let (carried, again) =
            (target.carried.load(Ordering::SeqCst), target.again.load(Ordering::SeqCst));
        note(format_args!(
            "{carried} carried, of which the target had {again} already; {} given back",
            ended.counts.released
        ));
        note(format_args!("{left}"));
        closed.into_iter().filter_map(Result::err).for_each(|error| note(format_args!("{error}")));
        if let Some(why) = target.refused.lock().take() {
            bail!("the target refuses: {why}. Nothing is lost: what it refused is where it was");
        }
        Ok(())
    }

    fn worker(&self, from: &Malote, target: &Arc<Target>, sessions: bool) -> Worker {
        let worker = Worker::new(from, &self.queue)
            .timeout(FOREVER)
            // Nothing ever fails here: it is given back.
            .retry(Retry::at_once(u32::MAX))
            .state(target.clone())
            .handle_batch(carry, TOGETHER, Duration::ZERO);
        match sessions {
            true => worker
                .with_sessions(malote::Sessions { max: self.slots, ..malote::Sessions::default() }),
            false => worker.slots(self.slots),
        }
    }
}

/// Whether sessions can be held there.
async fn has_sessions(from: &Malote, queue: &QueueName) -> Result<bool, BrokerError> {
    match from.broker().accept(queue, None, LOOK, Duration::ZERO).await {
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

/// What of a URL tells brokers apart: not who asks, nor how.
fn place(url: &str) -> &str {
    let url = url.split(['?', ';']).next().unwrap_or_default();
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    rest.rsplit('@').next().unwrap_or_default().trim_end_matches('/')
}

/// Says how far it is, as long as that changes.
async fn tell(target: Arc<Target>) {
    let mut before = 0;
    loop {
        tokio::time::sleep(TELL_EVERY).await;
        let carried = target.carried.load(Ordering::SeqCst);
        if std::mem::replace(&mut before, carried) != carried {
            note(format_args!("{carried} carried so far"));
        }
    }
}

/// What is not carried, as far as the broker tells.
async fn left(from: &Malote, queue: &QueueName) -> String {
    let asked = tokio::time::timeout(LOOK, from.broker().depth(queue)).await;
    let Some(depth) = asked.ok().and_then(Result::ok) else {
        return "the source does not tell what is left".to_owned();
    };
    let all = [
        (depth.ready, "ready"),
        (depth.delayed, "not yet due"),
        (depth.in_flight, "in the hands of others"),
    ];
    let some: Vec<_> = all.iter().filter(|one| one.0 > 0).collect();
    let words: Vec<_> = some.iter().map(|(count, what)| format!("{count} {what}")).collect();
    match words.is_empty() {
        true => "nothing is left that is due".to_owned(),
        false => format!("left behind: {}", words.join(", ")),
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

/// Where messages go, and what became of them.
struct Target {
    to: Malote,
    /// Whence: another broker's or queue's messages are others.
    from: u32,
    can_dedup: bool,
    into: QueueName,
    carried: AtomicU64,
    again: AtomicU64,
    refused: Mutex<Option<String>>,
}

async fn carry(
    batch: Batch<Body>,
    target: State<Arc<Target>>,
    cancelled: Cancelled,
) -> Vec<Outcome> {
    let now = Timestamp(when::now());
    let each = batch.iter().map(|one| target.copy(one.meta.delivery(), now));
    let messages: Vec<(Address, Message)> = each.collect();
    let mut sent = 0;
    match target.send(&messages, &cancelled).await {
        Ok(()) => sent = messages.len(),
        Err(Stop::Cancelled) => {}
        // One by one, in order: what is before the one that it refuses is carried, and that one is named.
        Err(Stop::Refused(_)) => {
            for one in messages.chunks(1) {
                match target.send(one, &cancelled).await {
                    Ok(()) => sent += 1,
                    Err(Stop::Cancelled) => break,
                    Err(Stop::Refused(why)) => {
                        let id = one[0].1.message_id.as_deref().unwrap_or("without an id");
                        let makes_it = if is_missing(&why) { " (--declare makes it)" } else { "" };
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

/// Why messages were not sent.
enum Stop {
    /// The bridge is to end.
    Cancelled,
    /// Asking again would not help.
    Refused(BrokerError),
}

impl Target {
    /// Sends, for as long as it takes.
    async fn send(
        &self,
        messages: &[(Address, Message)],
        cancelled: &Cancelled,
    ) -> Result<(), Stop> {
        let [mut pause, longest] = PAUSES;
        loop {
            match self.to.broker().send(messages.to_vec()).await {
                Ok(sent) => {
                    let again = sent.iter().filter(|sent| sent.duplicate).count() as u64;
                    self.carried.fetch_add(sent.len() as u64, Ordering::SeqCst);
                    self.again.fetch_add(again, Ordering::SeqCst);
                    return Ok(());
                }
                Err(error) if error.is_transient() => {
                    if pause == PAUSES[0] {
                        note(format_args!("{error}; trying again"));
                    }
                    tokio::select! {
                        () = tokio::time::sleep(pause) => pause = (pause * 2).min(longest),
                        () = cancelled.wait() => return Err(Stop::Cancelled),
                    }
                }
                Err(error) => return Err(Stop::Refused(error)),
            }
        }
    }

    /// The message as it is to be sent: with a key by which a second time is known, if there can be one, and with what is
    /// left of its time.
    fn copy(&self, delivery: &Delivery, now: Timestamp) -> (Address, Message) {
        let mut message = delivery.message.clone();
        message.when = When::Now;
        // A broker that numbers nothing has no name for it: then only its id can tell a second time from another message.
        if delivery.seq != Seq(0) {
            let key = format!("{:08x}-{}-{}", self.from, delivery.seq.0, delivery.enqueued_at.0);
            message.message_id.get_or_insert_with(|| key.clone());
            // Senders may give several messages the same id: all of them are carried.
            if self.can_dedup {
                message.dedup_id = Some(key);
            }
        }
        // Of a dead letter, why it is one: to the target it is a message like others.
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
    fn a_place_is_the_same_whoever_asks() {
        for url in [
            "malote://h:8080",
            "malote://h:8080/",
            "malote://me:secret@h:8080",
            "malote+tls://me:s@cret@h:8080?ca=/x",
        ] {
            assert_eq!(place(url), "h:8080", "{url}");
        }
        assert_eq!(place("postgres://me@a,b/shop?sslmode=disable"), "a,b/shop");
        assert_eq!(place("embedded:./data"), "embedded:./data");
        let azure =
            "servicebus://Endpoint=sb://shop.example;SharedAccessKeyName=R;SharedAccessKey=k";
        assert_eq!(place(azure), "Endpoint=sb://shop.example");
    }
}
