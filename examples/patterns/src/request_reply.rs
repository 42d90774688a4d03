//! A request and its reply. `malote.request` sets the reply address and the correlation id, and `Reply` uses them.
//!
//! A request expires when its caller stops waiting. A service that was down does not spend time on expired requests.

use std::time::Duration;

use malote::{Error, Failure, Malote, QueueSpec, Reply, Worker};
use serde::{Deserialize, Serialize};

use crate::Checks;

const QUEUE: &str = "prices";

#[derive(Serialize, Deserialize)]
struct PriceRequest {
    item: String,
    count: u64,
}

#[derive(Serialize, Deserialize)]
struct Price {
    cents: u64,
}

async fn price(request: PriceRequest, reply: Reply) -> Result<(), Failure> {
    let each = request.item.len() as u64 * 100;
    reply.send(&Price { cents: each * request.count }).await
}

pub async fn run(malote: &Malote, checks: &mut Checks) -> anyhow::Result<()> {
    malote.declare(QUEUE, QueueSpec::default()).await?;
    let price_request = |count| PriceRequest { item: "book".into(), count };
    // No worker is running yet.
    let short = Duration::from_millis(50);
    let unanswered = malote.request(QUEUE, &price_request(1)).timeout(short).await;
    checks.check(
        "a request without a reply fails after its time-out",
        matches!(unanswered, Err(Error::NoReply { .. })),
        unanswered.err().map_or_else(|| "it got a reply".into(), |error| error.to_string()),
    );
    tokio::time::sleep(short).await;
    let worker = Worker::new(malote, QUEUE).handle(price).start().await?;
    let mut requests = Vec::new();
    for count in 1..=50 {
        let request = malote.request(QUEUE, &price_request(count));
        requests.push(tokio::spawn(async move {
            let price: Price = request.await?.json()?;
            anyhow::Ok(price.cents == 400 * count)
        }));
    }
    let mut correct = 0;
    for one in requests {
        correct += usize::from(one.await??);
    }
    checks.check(
        "fifty concurrent requests got their own replies",
        correct == 50,
        format!("{correct} of 50"),
    );
    let handled = worker.counts().started;
    worker.stop();
    worker.ended().await?;
    checks.check(
        "no handler ran for the expired request",
        handled == 50,
        format!("{handled} requests handled"),
    );
    Ok(())
}
