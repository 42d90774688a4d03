//! Workers on the engine in memory: outcomes, sessions, ends.
#![allow(clippy::unwrap_used, clippy::expect_used)] // a test

#[cfg(feature = "sqlite")]
#[path = "../../../connectors/tests/contract/amqp.rs"]
mod amqp;
mod batches;
mod breaker;
mod ends;
mod far;
mod killed;
mod native;
mod outcomes;
mod requests;
mod sagas;
mod sagas_killed;
mod sessions;
mod slots;
#[cfg(feature = "sqlite")]
mod sqlite;

use std::time::Duration;

use malote::testing::{Held, TestBroker};

/// Longer than any machine may need.
const PATIENCE: Duration = Duration::from_secs(60);

async fn until(what: &str, is_so: impl AsyncFn() -> bool) {
    let end = tokio::time::Instant::now() + PATIENCE;
    while !is_so().await {
        assert!(tokio::time::Instant::now() < end, "it never came to that: {what}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// What a queue holds soon: a fetch that was under way when its worker ended gives back what it was granted, and nobody
/// waits for that.
async fn comes_to(broker: &TestBroker, queue: &str, held: Held) {
    until(&format!("{held:?}"), async || broker.held(queue).await.unwrap() == held).await;
}
