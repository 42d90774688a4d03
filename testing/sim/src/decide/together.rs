//! Transactions: all or nothing.

use std::collections::BTreeSet;
use std::rc::Rc;

use bytes::Bytes;
use malote_engine::command::Receipt;
use malote_model::{Address, LeaseToken, QueueName, Refusal, Settlement};

use super::{Model, Need};
use crate::model::SentMessage;

/// The queue that is expected (if any), a lease, and its settlement.
pub type Settle = (Option<QueueName>, LeaseToken, Settlement);
/// The queue that is expected (if any), a hold, and the new state of its session.
pub type SetState = (Option<QueueName>, LeaseToken, Option<Bytes>);

impl Model {
    /// One lease that has ended, or that belongs to another queue, refuses the whole transaction.
    pub(super) fn check_commit(
        &self,
        sends: &[(Address, Rc<SentMessage>)],
        settles: &[Settle],
        states: &[SetState],
    ) -> Result<(), Refusal> {
        self.check_send(sends)?;
        let named = |queue: &Option<QueueName>| match queue {
            Some(queue) if !self.state.queues.contains_key(queue) => {
                Err(Refusal::QueueNotFound { queue: queue.clone() })
            }
            _ => Ok(()),
        };
        let within = |queue: &Option<QueueName>, of: &QueueName| {
            queue.as_ref().is_none_or(|queue| queue == of)
        };
        let mut seen = BTreeSet::new();
        for (queue, lease, _) in settles {
            named(queue)?;
            let leased = self.state.leased(*lease, self.now);
            if !leased.is_some_and(|(of, _)| within(queue, &of)) || !seen.insert(*lease) {
                return Err(Refusal::LeaseLost { lease: *lease });
            }
        }
        for (queue, hold, state) in states {
            named(queue)?;
            let held = self.state.held(*hold, self.now);
            if !held.is_some_and(|(of, _)| within(queue, &of)) {
                return Err(Refusal::LeaseLost { lease: *hold });
            }
            self.check_state_room(*hold, state.as_ref())?;
        }
        Ok(())
    }

    /// States are set first, because a delayed return may end the hold. Such returns follow the other settlements;
    /// sends are last.
    pub(super) fn commit(
        &mut self,
        sends: &[(Address, Rc<SentMessage>)],
        settles: &[Settle],
        states: &[SetState],
        receipts: &[Receipt],
    ) -> Need {
        let mut need = Need::default();
        for (_, hold, state) in states {
            self.set_state(*hold, state);
            need.durable = self.end;
        }
        let returns = |settlement: &Settlement| {
            matches!(settlement, Settlement::Abandon { .. } | Settlement::Release { .. })
        };
        let (last, first): (Vec<_>, Vec<_>) = settles.iter().partition(|(.., how)| returns(how));
        for (_, lease, how) in first.into_iter().chain(last) {
            // The first of two delayed returns in one session also releases the other message.
            if let Some((queue, seq)) = self.state.leased(*lease, self.now) {
                self.settle_one(&queue, seq, how);
                need = need.and(self.done(&queue));
            }
        }
        self.met.count("committed", 1);
        need.and(self.send(sends, receipts))
    }
}
