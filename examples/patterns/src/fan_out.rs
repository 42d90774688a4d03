//! One event for several queues: billing, shipping and mail each get a copy, all of them or none.
//!
//! The broker stores the three messages in one step, so that a crash cannot separate them. If the sender does not know
//! the receivers, publish to a topic instead.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use malote::{Address, Malote, Message, QueueName, QueueSpec, State, Worker};

use crate::Checks;

const QUEUES: [&str; 3] = ["billing", "shipping", "mail"];
const EVENTS: usize = 100;

/// Sends the same message to each of these queues, in one step.
async fn publish(malote: &Malote, queues: &[&str], id: &str, body: &str) -> anyhow::Result<()> {
    let mut all = Vec::new();
    for queue in queues {
        let message = Message {
            message_id: Some(id.to_owned()),
            body: malote::model::Body { bytes: body.to_owned().into(), ..Default::default() },
            ..Message::default()
        };
        all.push((Address::Queue(QueueName::new(queue)?), message));
    }
    malote.send_all(all).await?;
    Ok(())
}

type Seen = Arc<AtomicUsize>;

async fn count(_event: String, seen: State<Seen>) {
    seen.fetch_add(1, Ordering::Relaxed);
}

pub async fn run(malote: &Malote, checks: &mut Checks) -> anyhow::Result<()> {
    for queue in QUEUES {
        malote.declare(queue, QueueSpec::default()).await?;
    }
    for n in 0..EVENTS {
        publish(malote, &QUEUES, &format!("event-{n}"), "an order was placed").await?;
    }
    // One of these queues does not exist, so none of them gets the message.
    let refused = publish(malote, &["billing", "mail", "nowhere"], "lost", "half an event").await;
    checks.check("a fan-out with a missing queue is refused", refused.is_err(), {
        refused.err().map_or_else(|| "it was accepted".into(), |error| error.to_string())
    });
    let mut seen = Vec::new();
    for queue in QUEUES {
        let count_of = Seen::default();
        let worker = Worker::new(malote, queue).handle(count).state(count_of.clone());
        let worker = worker.start().await?;
        crate::work_queue::until(|| worker.counts().done as usize >= EVENTS).await?;
        // Further messages, if there were any, would arrive now.
        tokio::time::sleep(Duration::from_millis(20)).await;
        worker.stop();
        worker.ended().await?;
        seen.push(count_of.load(Ordering::Relaxed));
    }
    checks.check(
        "every queue got every event, and no copy of the refused one",
        seen.iter().all(|count| *count == EVENTS),
        format!("{seen:?} of {EVENTS} each"),
    );
    Ok(())
}
