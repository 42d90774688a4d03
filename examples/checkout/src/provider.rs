//! The mail provider: an external system that is slow and sometimes down. It records what it sent.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Mutex;

#[derive(Clone)]
pub struct Provider {
    latency: Duration,
    down: Arc<AtomicBool>,
    calls: Arc<AtomicU64>,
    sent: Arc<Mutex<Vec<u64>>>,
}

/// The provider is down.
#[derive(Debug)]
pub struct Unavailable;

impl std::fmt::Display for Unavailable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("503 from the mail provider")
    }
}

impl Provider {
    pub fn with_latency(latency: Duration) -> Self {
        Self { latency, down: Arc::default(), calls: Arc::default(), sent: Arc::default() }
    }

    /// Sends the mail of an order.
    pub async fn send(&self, order: u64) -> Result<(), Unavailable> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        if self.down.load(Ordering::SeqCst) {
            return Err(Unavailable);
        }
        tokio::time::sleep(self.latency).await;
        self.sent.lock().await.push(order);
        Ok(())
    }

    /// While the provider is down, it sends nothing.
    pub fn set_down(&self, down: bool) {
        self.down.store(down, Ordering::SeqCst);
    }

    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::SeqCst)
    }

    /// The orders whose mails were sent.
    pub async fn sent(&self) -> Vec<u64> {
        self.sent.lock().await.clone()
    }
}
