//! Replies to requests over HTTP. The process has one exclusive reply queue, created on first use, and a bounded list of
//! pending requests.
//!
//! A responder sends its reply to the queue in `reply_to` with the request's `correlation_id`. A reply without a pending
//! request is dropped.

use std::collections::HashMap;
use std::sync::Arc;

use malote_engine::{
    Connection, Consume, ConsumerId, Delivery, EngineError, Outbound, Outbox, Wants,
};
use malote_model::{DeadLetterTarget, Durability, QueueName, QueueSpec, limits};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::Api;
use crate::problem::{Code, Problem};

/// Credit of the consumer of the reply queue.
const CREDIT: u32 = 256;

/// Prefix of the names of reply queues. A responder needs the grant to send to them.
pub(crate) const REPLY_PREFIX: &str = "reply-";

/// The reply queue of the process, created on first use.
#[derive(Default)]
pub(crate) struct Replies {
    reply_queue: tokio::sync::Mutex<Option<Arc<ReplyQueue>>>,
}

struct ReplyQueue {
    queue: QueueName,
    /// Pending requests by correlation id. `None` if the queue was deleted.
    waiting: Mutex<Option<HashMap<String, oneshot::Sender<Delivery>>>>,
}

/// A request that waits for its reply. Dropping it cancels the wait.
pub(crate) struct PendingReply {
    reply_queue: Arc<ReplyQueue>,
    correlation_id: String,
    reply: oneshot::Receiver<Delivery>,
}

/// A unique name.
pub(crate) fn reply_name() -> Result<QueueName, Problem> {
    Ok(QueueName::new(&format!("{REPLY_PREFIX}{}", random_id()))?)
}

/// A random id. A client that guesses it could send a forged reply.
fn random_id() -> String {
    // A secret must not depend on the seed of a simulation.
    #[allow(clippy::disallowed_methods)]
    uuid::Uuid::new_v4().simple().to_string()
}

impl Replies {
    /// Registers a request that waits for a reply.
    pub(crate) async fn wait(&self, api: &Api) -> Result<PendingReply, Problem> {
        let reply_queue = self.reply_queue(api).await?;
        let correlation_id = random_id();
        let (sender, reply) = oneshot::channel();
        {
            let mut waiting = reply_queue.waiting.lock();
            let deleted = || Problem::new(Code::Busy, "the reply queue is being created again");
            let waiting = waiting.as_mut().ok_or_else(deleted)?;
            if waiting.len() >= api.limits.replies_max {
                return Err(Problem::new(Code::Busy, "too many requests wait for a reply"));
            }
            waiting.insert(correlation_id.clone(), sender);
        }
        Ok(PendingReply { reply_queue, correlation_id, reply })
    }

    async fn reply_queue(&self, api: &Api) -> Result<Arc<ReplyQueue>, Problem> {
        let mut reply_queue = self.reply_queue.lock().await;
        if let Some(reply_queue) =
            reply_queue.as_ref().filter(|reply_queue| reply_queue.waiting.lock().is_some())
        {
            return Ok(reply_queue.clone());
        }
        if api.shutdown.is_cancelled() {
            return Err(Problem::new(Code::Stopping, "the broker is stopping"));
        }
        let queue = reply_name()?;
        let (connection, outbox) = api.engine.connect();
        let consumer = open(&connection, &queue).await?;
        let waiting = Mutex::new(Some(HashMap::new()));
        let opened = Arc::new(ReplyQueue { queue, waiting });
        let shutdown = api.shutdown.clone();
        let pump = opened.clone().pump(connection, outbox, consumer);
        let over = opened.clone();
        api.tasks.spawn(async move {
            tokio::select! {
                () = pump => {}
                () = shutdown.cancelled() => {}
            }
            // Dropping the senders ends the pending waits.
            over.waiting.lock().take();
        });
        Ok(reply_queue.insert(opened).clone())
    }
}

/// Creates the queue and consumes from it. Replies need not survive a power loss.
async fn open(connection: &Connection, queue: &QueueName) -> Result<ConsumerId, EngineError> {
    let spec = QueueSpec {
        exclusive: true,
        durability: Durability::Relaxed,
        dead_letter: DeadLetterTarget::Drop,
        message_bytes_max: limits::MESSAGE_BYTES_MAX,
        ..QueueSpec::default()
    };
    connection.declare(queue.clone(), spec).await?;
    let consume = Consume {
        queue: queue.clone(),
        wants: Wants::Any { per_session: 1 },
        credit: CREDIT,
        take: true,
        lock_ms: None,
        free_standing: false,
        priority: 0,
        exclusive: false,
    };
    connection.attach(consume).await
}

impl ReplyQueue {
    /// Passes replies to pending requests until the queue is deleted.
    async fn pump(
        self: Arc<Self>,
        connection: Connection,
        mut outbox: Outbox,
        consumer: ConsumerId,
    ) {
        loop {
            let (replies, count) = match outbox.next().await {
                Some(Outbound::Deliver(_, replies)) => {
                    let count = replies.len() as u32;
                    (replies, count)
                }
                Some(Outbound::Damaged(_, count)) => (Vec::new(), count),
                Some(Outbound::Ended(..)) | None => break,
            };
            for reply in replies {
                let id = reply.stored.message.correlation_id.as_deref().unwrap_or_default();
                let waiting = self.waiting.lock().as_mut().and_then(|all| all.remove(id));
                if let Some(waiting) = waiting {
                    // The request may have been cancelled just now.
                    let _ = waiting.send(reply);
                }
            }
            if connection.credit(consumer, count, false).await.is_err() {
                break;
            }
        }
    }
}

impl PendingReply {
    /// The reply queue.
    pub(crate) fn queue(&self) -> &QueueName {
        &self.reply_queue.queue
    }

    /// The correlation id that the reply must have.
    pub(crate) fn correlation_id(&self) -> &str {
        &self.correlation_id
    }

    /// Waits for the reply. `None` if the reply queue was deleted.
    pub(crate) async fn reply(mut self) -> Option<Delivery> {
        (&mut self.reply).await.ok()
    }
}

impl Drop for PendingReply {
    fn drop(&mut self) {
        if let Some(waiting) = self.reply_queue.waiting.lock().as_mut() {
            waiting.remove(&self.correlation_id);
        }
    }
}
