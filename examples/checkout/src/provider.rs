//! The e-mail provider: somebody else's system, slow and sometimes away. It writes down what it sent.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Mutex;

#[derive(Clone)]
pub struct Provider {
    takes: Duration,
    down: Arc<AtomicBool>,
    calls: Arc<AtomicU64>,
    sent: Arc<Mutex<Vec<u64>>>,
}

/// It does not answer.
#[derive(Debug)]
pub struct Unavailable;

impl std::fmt::Display for Unavailable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("503 from the mail provider")
    }
}

impl Provider {
    pub fn that_takes(takes: Duration) -> Self {
        Self { takes, down: Arc::default(), calls: Arc::default(), sent: Arc::default() }
    }

    /// Sends the mail of an order.
    pub async fn send(&self, order: u64) -> Result<(), Unavailable> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        if self.down.load(Ordering::SeqCst) {
            return Err(Unavailable);
        }
        tokio::time::sleep(self.takes).await;
        self.sent.lock().await.push(order);
        Ok(())
    }

    /// While it is down, nothing is sent.
    pub fn set_down(&self, down: bool) {
        self.down.store(down, Ordering::SeqCst);
    }

    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::SeqCst)
    }

    /// Orders whose mails it sent so far.
    pub async fn sent(&self) -> Vec<u64> {
        self.sent.lock().await.clone()
    }
}
