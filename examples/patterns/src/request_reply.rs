//! A question and its answer. The request names where the answer goes and what it must carry; `malote.request` and
//! `Reply` do both.
//!
//! A request expires when nobody waits for its answer any more: a service that comes back from a long pause does not
//! work through questions whose askers are gone.

use std::time::Duration;

use malote::{Error, Failure, Malote, QueueSpec, Reply, Worker};
use serde::{Deserialize, Serialize};

use crate::Checks;

const QUEUE: &str = "prices";

#[derive(Serialize, Deserialize)]
struct Question {
    item: String,
    count: u64,
}

#[derive(Serialize, Deserialize)]
struct Price {
    cents: u64,
}

async fn price(question: Question, reply: Reply) -> Result<(), Failure> {
    let each = question.item.len() as u64 * 100;
    reply.send(&Price { cents: each * question.count }).await
}

pub async fn run(malote: &Malote, checks: &mut Checks) -> anyhow::Result<()> {
    malote.declare(QUEUE, QueueSpec::default()).await?;
    let ask = |count| Question { item: "book".into(), count };
    // Nobody is there to answer yet.
    let short = Duration::from_millis(50);
    let unanswered = malote.request(QUEUE, &ask(1)).timeout(short).await;
    checks.line(
        "a question that nobody answers ends with its time",
        matches!(unanswered, Err(Error::NoAnswer { .. })),
        unanswered.err().map_or_else(|| "it was answered".into(), |error| error.to_string()),
    );
    tokio::time::sleep(short).await;
    let worker = Worker::new(malote, QUEUE).handle(price).start().await?;
    let mut asked = Vec::new();
    for count in 1..=50 {
        let asking = malote.request(QUEUE, &ask(count));
        asked.push(tokio::spawn(async move {
            let price: Price = asking.await?.json()?;
            anyhow::Ok(price.cents == 400 * count)
        }));
    }
    let mut right = 0;
    for one in asked {
        right += usize::from(one.await??);
    }
    checks.line("fifty at once got the answer to their own", right == 50, format!("{right} of 50"));
    let worked = worker.counts().started;
    worker.stop();
    worker.ended().await?;
    checks.line(
        "nobody worked on the one that had expired",
        worked == 50,
        format!("{worked} questions were worked on"),
    );
    Ok(())
}
