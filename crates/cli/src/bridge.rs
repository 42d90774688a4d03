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
use malote_model::{Address, Dedup, Message, QueueName, QueueSpec, Seq, Sessions, Timestamp, When};
use parking_lot::Mutex;

use crate::output::note;
use crate::when;
use crate::work::until_end;

/// Messages that are sent together.
const TOGETHER: usize = 256;
/// Waits between tries to reach the target: doubled up to the second.
const PAUSES: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(5)];
/// For long enough to let go of a session again.
const LOOK: Duration = Duration::from_secs(5);
/// What a target that is made for it remembers.
const WINDOW_MS: u64 = 600_000;
/// No attempt ends by itself: the target may be away for long.
const FOREVER: Duration = Duration::from_secs(365 * 24 * 3600);

/// Carry the messages of a queue from one broker to another
///
/// With sessions, properties and ids, in order within each session. A message is taken from the first broker when the
/// second has it on disk: whatever ends in between, nothing is lost, and the same command goes on where it ended. What was
/// under way then may be sent twice, with the same id: a target with a de-duplication window takes it once. It runs until
/// Ctrl-C, or with --exit-when-idle until there is nothing left.
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
        let into = self.into.as_deref().unwrap_or(&self.queue);
        let into = QueueName::new(into).context("--into")?;
        let queue = QueueName::new(&self.queue)?;
        let from = Malote::connect(&self.from).await.context("--from")?;
        let to = Malote::connect(&self.to).await.context("--to")?;
        let target = Arc::new(Target {
            to: to.clone(),
            from: format!("{}:{}", from.broker().capabilities().broker, self.queue),
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
        let ended =
            until_end(running, self.exit_when_idle, || target.refused.lock().is_some()).await?;
        from.close().await?;
        to.close().await?;
        let (carried, again) =
            (target.carried.load(Ordering::SeqCst), target.again.load(Ordering::SeqCst));
        note(format_args!(
            "{carried} carried, of which the target had {again} already; {} given back",
            ended.counts.released
        ));
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
        Err(BrokerError::Refused { code, .. }) if code != "queue_not_found" => Ok(false),
        Err(error) => Err(error),
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
    /// Whence, for the ids of messages that have none.
    from: String,
    into: QueueName,
    carried: AtomicU64,
    again: AtomicU64,
    refused: Mutex<Option<String>>,
}

async fn carry(batch: Batch<Body>, target: State<Arc<Target>>, cancelled: Cancelled) -> Outcome {
    let now = Timestamp(when::now());
    let each = batch.iter().map(|one| target.copy(one.meta.delivery(), now));
    let messages: Vec<(Address, Message)> = each.collect();
    let [mut pause, longest] = PAUSES;
    loop {
        match target.to.broker().send(messages.clone()).await {
            Ok(sent) => {
                let again = sent.iter().filter(|sent| sent.duplicate).count() as u64;
                target.carried.fetch_add(sent.len() as u64, Ordering::SeqCst);
                target.again.fetch_add(again, Ordering::SeqCst);
                return Outcome::Done;
            }
            Err(error) if error.is_transient() => {
                if pause == PAUSES[0] {
                    note(format_args!("{error}; trying again"));
                }
                tokio::select! {
                    () = tokio::time::sleep(pause) => pause = (pause * 2).min(longest),
                    () = cancelled.wait() => return Outcome::Release,
                }
            }
            Err(error) => {
                target.refused.lock().get_or_insert(error.to_string());
                return Outcome::Release;
            }
        }
    }
}

impl Target {
    /// The message as it is to be sent: with an id by which a second time is known, if there can be one, and with what is
    /// left of its time.
    fn copy(&self, delivery: &Delivery, now: Timestamp) -> (Address, Message) {
        let mut message = delivery.message.clone();
        message.when = When::Now;
        // A broker that numbers nothing has no name for it: then a second time cannot be told from another message.
        if message.message_id.is_none() && delivery.seq != Seq(0) {
            message.message_id = Some(format!("{}:{}", self.from, delivery.seq.0));
        }
        if let Some(ttl_ms) = &mut message.ttl_ms {
            let age = now.0.saturating_sub(delivery.enqueued_at.0);
            *ttl_ms = ttl_ms.saturating_sub(age).max(1);
        }
        (Address::Queue(self.into.clone()), message)
    }
}
