//! Workers on the engine in memory.
#![allow(clippy::unwrap_used, clippy::expect_used)] // a test

mod batches;
mod breaker;
mod killed;
mod native;
mod outcomes;
mod remote;
mod requests;
mod sagas;
mod sagas_killed;
#[cfg(feature = "sqlite")]
#[path = "../../../connectors/tests/contract/servicebus_server.rs"]
mod servicebus_server;
mod sessions;
mod shutdown;
mod slots;
#[cfg(feature = "sqlite")]
mod sqlite;

use std::time::Duration;

use malote::testing::{TestBroker, TestQueueCounts};

/// Longer than a slow machine needs.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Waits until a condition is true.
async fn until(condition: &str, is_true: impl AsyncFn() -> bool) {
    let end = tokio::time::Instant::now() + TIMEOUT;
    while !is_true().await {
        assert!(tokio::time::Instant::now() < end, "timed out waiting for: {condition}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Waits until a queue has these counts. A fetch that was running when its worker ended returns its messages a little
/// later.
async fn until_counts(broker: &TestBroker, queue: &str, counts: TestQueueCounts) {
    let is_equal = async || broker.counts(queue).await.unwrap() == counts;
    until(&format!("{counts:?}"), is_equal).await;
}
