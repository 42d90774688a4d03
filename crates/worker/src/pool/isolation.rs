//! Handles a message alone if one more lost worker would dead-letter it.
//!
//! When a worker dies, the broker counts a loss for every message that the worker had fetched. It cannot tell which
//! message caused the crash. Therefore a message before its last allowed loss is handled only while the worker has no
//! other message. If the worker dies then, the loss is counted for that message only.

use std::sync::Arc;

use malote_connectors::{Delivery, Settle};
use malote_model::Settlement;
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock, watch};

use super::lock_renewal::LockGuard;
use super::settle::PendingSettlement;
use super::{Count, Pool};
use crate::incoming::count_attempts;

/// A message that cannot be isolated now is delivered again after this delay.
const RETRY_MS: u64 = 1000;

pub(super) struct Isolation {
    /// Read-locked by every slot that has fetched messages, write-locked by an isolated message.
    fetched: Arc<RwLock<()>>,
    requested: watch::Sender<bool>,
}

/// Permits a slot to fetch and keep messages.
pub(super) type FetchPermit = Arc<OwnedRwLockReadGuard<()>>;

/// Asks all slots to release their messages while it exists. There is at most one.
pub(super) struct IsolationRequest<'a>(&'a Isolation);

impl Drop for IsolationRequest<'_> {
    fn drop(&mut self) {
        self.0.requested.send_replace(false);
    }
}

impl Isolation {
    pub(super) fn new() -> Self {
        Self { fetched: Arc::default(), requested: watch::Sender::new(false) }
    }

    /// Whether slots must release their messages.
    pub(super) fn is_requested(&self) -> bool {
        *self.requested.borrow()
    }

    /// Waits until slots must release their messages.
    pub(super) async fn requested(&self) {
        // `self` owns the sender, so the channel cannot close during the wait.
        let _ = self.requested.subscribe().wait_for(|requested| *requested).await;
    }

    /// Waits until messages may be fetched.
    pub(super) async fn fetch_permit(&self) -> FetchPermit {
        loop {
            let _ = self.requested.subscribe().wait_for(|requested| !*requested).await;
            let permit = self.fetched.clone().read_owned().await;
            if !self.is_requested() {
                return Arc::new(permit);
            }
        }
    }

    /// None if another message has requested isolation.
    pub(super) fn request(&self) -> Option<IsolationRequest<'_>> {
        let is_first = |requested: &mut bool| !std::mem::replace(requested, true);
        self.requested.send_if_modified(is_first).then(|| IsolationRequest(self))
    }
}

impl Pool {
    /// Whether one more loss would dead-letter this message. It must have been lost before.
    pub(super) fn needs_isolation(&self, delivery: &Delivery) -> bool {
        let (_, lost) = count_attempts(delivery, self.broker.capabilities().changes);
        lost > 0 && lost + 1 == self.settings.retry.lost
    }

    /// Whether a worker died while it had this message.
    pub(super) fn was_lost(&self, delivery: &Delivery) -> bool {
        count_attempts(delivery, self.broker.capabilities().changes).1 > 0
    }

    /// Waits until no slot has messages and all settlements are sent. None if the worker stops first.
    pub(super) async fn isolate(
        &self,
        request: &IsolationRequest<'_>,
    ) -> Option<OwnedRwLockWriteGuard<()>> {
        let isolated = request.0.fetched.clone().write_owned();
        let isolated = self.phases.stop_fetching.run_until_cancelled(isolated).await?;
        self.flushed().await;
        Some(isolated)
    }

    /// Returns a message to the queue that could not be isolated.
    pub(super) fn retry_isolation(
        &self,
        delivery: &Delivery,
        lock: &LockGuard,
    ) -> PendingSettlement {
        self.limiter.return_unused(1);
        let settlement = Settlement::Release { delay_ms: RETRY_MS };
        let settle = Settle { lease: delivery.lease, settlement, state: None };
        PendingSettlement { settle, count: Count::released, lost: lock.lost().clone(), open: None }
    }
}
