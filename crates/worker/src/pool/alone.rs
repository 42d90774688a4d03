//! A message's last life is spent alone.
//!
//! A worker that dies takes all that it had in hand along, and the broker counts a loss for each: it cannot know whose
//! fault it was. So a message that one more loss would kill begins only when nothing else is in hand. If the worker
//! dies now, that message is to blame, and no other one is counted.

use std::sync::Arc;

use malote_connectors::{Delivery, Settle};
use malote_model::Settlement;
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock, watch};

use super::locks::Watch;
use super::settle::Decided;
use super::{Count, Pool};
use crate::incoming::attempts;

/// A message that cannot be alone now comes back after so long.
const LATER_MS: u64 = 1000;

pub(super) struct Alone {
    /// Read by whoever has messages in hand, written by the one that is alone.
    room: Arc<RwLock<()>>,
    wanted: watch::Sender<bool>,
}

/// Has messages in hand, or may get some.
pub(super) type InHand = Arc<OwnedRwLockReadGuard<()>>;

/// The right to be alone next. Others let go of what they have while it lives.
pub(super) struct Turn<'a>(&'a Alone);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.wanted.send_replace(false);
    }
}

impl Alone {
    pub(super) fn new() -> Self {
        Self { room: Arc::default(), wanted: watch::Sender::new(false) }
    }

    /// Whether what is in hand should be let go.
    pub(super) fn is_wanted(&self) -> bool {
        *self.wanted.borrow()
    }

    /// Waits until it should.
    pub(super) async fn wanted(&self) {
        // The sender is ours: it is not gone while this waits.
        let _ = self.wanted.subscribe().wait_for(|wanted| *wanted).await;
    }

    /// Waits until messages may be taken.
    pub(super) async fn share(&self) -> InHand {
        loop {
            let _ = self.wanted.subscribe().wait_for(|wanted| !*wanted).await;
            let in_hand = self.room.clone().read_owned().await;
            if !self.is_wanted() {
                return Arc::new(in_hand);
            }
        }
    }

    /// The turn, unless somebody has it.
    pub(super) fn ask(&self) -> Option<Turn<'_>> {
        self.wanted.send_if_modified(|wanted| !std::mem::replace(wanted, true)).then(|| Turn(self))
    }
}

impl Pool {
    /// Whether one more loss kills this message: it is not the first, and the next is the last.
    pub(super) fn is_last_life(&self, delivery: &Delivery) -> bool {
        let (_, lost) = attempts(delivery, self.broker.capabilities().changes);
        lost > 0 && lost + 1 == self.settings.retry.lost
    }

    /// Whether a worker that had it vanished.
    pub(super) fn was_lost(&self, delivery: &Delivery) -> bool {
        attempts(delivery, self.broker.capabilities().changes).1 > 0
    }

    /// Waits until nothing is in hand and all outcomes are told. None if the worker ends first.
    pub(super) async fn be_alone(&self, turn: &Turn<'_>) -> Option<OwnedRwLockWriteGuard<()>> {
        let room = turn.0.room.clone().write_owned();
        let room = self.phases.quiet.run_until_cancelled(room).await?;
        self.flushed().await;
        Some(room)
    }

    /// A message that was not tried, and is not now.
    pub(super) fn later(&self, delivery: &Delivery, watch: &Watch) -> Decided {
        self.gate.not_used(1);
        let settlement = Settlement::Release { delay_ms: LATER_MS };
        let settle = Settle { lease: delivery.lease, settlement, state: None };
        Decided { settle, count: Count::released, lost: watch.lost().clone(), open: None }
    }
}
