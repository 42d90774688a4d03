//! Where answers to requests over HTTP come in: one exclusive queue for the whole process, made on first use, and a
//! bounded list of who waits for which answer.
//!
//! A responder sends its answer to the queue named in `reply_to` with the request's `correlation_id`. What nobody
//! waits for any more is dropped.

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

/// How many answers may be on their way from the queue to those who wait.
const CREDIT: u32 = 256;

/// Names of reply queues begin so; a responder needs the grant to send to them.
pub(crate) const REPLY_PREFIX: &str = "reply-";

/// The reply queue of the process, once there is one.
#[derive(Default)]
pub(crate) struct Replies {
    desk: tokio::sync::Mutex<Option<Arc<Desk>>>,
}

struct Desk {
    queue: QueueName,
    /// None when the queue is gone.
    waiting: Mutex<Option<HashMap<String, oneshot::Sender<Delivery>>>>,
}

/// A request whose answer is waited for. Dropped, nobody waits any more.
pub(crate) struct Waiting {
    desk: Arc<Desk>,
    correlation_id: String,
    answer: oneshot::Receiver<Delivery>,
}

/// A name that nobody else has.
pub(crate) fn reply_name() -> Result<QueueName, Problem> {
    Ok(QueueName::new(&format!("{REPLY_PREFIX}{}", unguessable()))?)
}

/// Whoever can guess it could answer in another's name.
fn unguessable() -> String {
    // A secret is not part of any run that a seed replays.
    #[allow(clippy::disallowed_methods)]
    uuid::Uuid::new_v4().simple().to_string()
}

impl Replies {
    /// A place for one answer.
    pub(crate) async fn wait(&self, api: &Api) -> Result<Waiting, Problem> {
        let desk = self.desk(api).await?;
        let correlation_id = unguessable();
        let (sender, answer) = oneshot::channel();
        {
            let mut waiting = desk.waiting.lock();
            let gone = || Problem::new(Code::Busy, "the reply queue is being made anew");
            let waiting = waiting.as_mut().ok_or_else(gone)?;
            if waiting.len() >= api.limits.replies_max {
                return Err(Problem::new(Code::Busy, "too many requests wait for their answers"));
            }
            waiting.insert(correlation_id.clone(), sender);
        }
        Ok(Waiting { desk, correlation_id, answer })
    }

    async fn desk(&self, api: &Api) -> Result<Arc<Desk>, Problem> {
        let mut desk = self.desk.lock().await;
        if let Some(desk) = desk.as_ref().filter(|desk| desk.waiting.lock().is_some()) {
            return Ok(desk.clone());
        }
        if api.shutdown.is_cancelled() {
            return Err(Problem::new(Code::Stopping, "the broker is stopping"));
        }
        let queue = reply_name()?;
        let (connection, outbox) = api.engine.connect();
        let consumer = open(&connection, &queue).await?;
        let waiting = Mutex::new(Some(HashMap::new()));
        let opened = Arc::new(Desk { queue, waiting });
        let shutdown = api.shutdown.clone();
        let pump = opened.clone().pump(connection, outbox, consumer);
        let over = opened.clone();
        api.tasks.spawn(async move {
            tokio::select! {
                () = pump => {}
                () = shutdown.cancelled() => {}
            }
            // Whoever waits is told by their dropped sender.
            over.waiting.lock().take();
        });
        Ok(desk.insert(opened).clone())
    }
}

/// Makes the queue and consumes from it. Answers are for those who wait now: none needs to survive a power loss.
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
    };
    connection.attach(consume).await
}

impl Desk {
    /// Hands answers out until the queue is gone.
    async fn pump(
        self: Arc<Self>,
        connection: Connection,
        mut outbox: Outbox,
        consumer: ConsumerId,
    ) {
        loop {
            let (answers, count) = match outbox.next().await {
                Some(Outbound::Deliver(_, answers)) => {
                    let count = answers.len() as u32;
                    (answers, count)
                }
                Some(Outbound::Damaged(_, count)) => (Vec::new(), count),
                Some(Outbound::Ended(..)) | None => break,
            };
            for answer in answers {
                let id = answer.stored.message.correlation_id.as_deref().unwrap_or_default();
                let waiting = self.waiting.lock().as_mut().and_then(|all| all.remove(id));
                if let Some(waiting) = waiting {
                    // Gone between the two lines: then nobody wants it.
                    let _ = waiting.send(answer);
                }
            }
            if connection.credit(consumer, count, false).await.is_err() {
                break;
            }
        }
    }
}

impl Waiting {
    /// Where the answer is to be sent.
    pub(crate) fn queue(&self) -> &QueueName {
        &self.desk.queue
    }

    /// What the answer must bring.
    pub(crate) fn correlation_id(&self) -> &str {
        &self.correlation_id
    }

    /// The answer; none when the queue is gone.
    pub(crate) async fn answer(mut self) -> Option<Delivery> {
        (&mut self.answer).await.ok()
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(waiting) = self.desk.waiting.lock().as_mut() {
            waiting.remove(&self.correlation_id);
        }
    }
}
