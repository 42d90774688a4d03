//! Transactions: sends, settlements and session states that take effect together or not at all.

use hashbrown::HashSet;
use malote_model::{LeaseToken, QueueName, Refusal, Settlement, limits};

use super::settle::check_settlement;
use super::{Decided, FRAME_ROOM, FixedState, Turn, WaitFor};
use crate::command::{Reply, TransactionWork};

impl Turn<'_> {
    /// Checks everything first. One invalid lease refuses the whole transaction.
    pub(super) fn transact(&mut self, work: TransactionWork) -> Decided {
        let TransactionWork { sends, mut settles, states } = work;
        if settles.len() + states.len() > limits::SETTLE_BATCH_MAX {
            return Err(Refusal::BatchTooLarge {
                what: "settlements in one transaction",
                limit: limits::SETTLE_BATCH_MAX as u64,
            });
        }
        let plan = if sends.is_empty() { None } else { Some(self.plan(&sends)?) };
        let mut room = plan.as_ref().map_or(0, |plan| plan.room) + FRAME_ROOM;
        let mut durable = plan.as_ref().is_some_and(|plan| plan.durable) || !states.is_empty();
        let mut seen: HashSet<LeaseToken, FixedState> = HashSet::with_hasher(FixedState);
        for (queue, lease, settlement) in &settles {
            self.within(queue.as_ref())?;
            let lost = Refusal::LeaseLost { lease: *lease };
            let (_, queue, _) = self.leased_message(*lease).ok_or(lost.clone())?;
            if !seen.insert(*lease) {
                return Err(lost);
            }
            durable |= self.durable(queue);
            room += check_settlement(settlement)? + self.delay_room(&[*lease], settlement);
        }
        for (queue, change) in &states {
            self.within(queue.as_ref())?;
            self.check_state_room(change)?;
            room += change.state.as_ref().map_or(0, |state| state.len()) + FRAME_ROOM;
        }
        self.scope = None;
        self.begin(room)?;
        // A delayed return ends the hold that other parts need, so it comes last.
        settles.sort_by_key(|(_, _, settlement)| {
            matches!(settlement, Settlement::Abandon { .. } | Settlement::Release { .. })
        });
        states.into_iter().for_each(|(_, change)| self.commit_state(change));
        for (_, lease, settlement) in settles {
            // Of two delayed returns in one session, the first has already returned the other message.
            let _ = self.settle_one(lease, &settlement);
        }
        let receipts = plan.map(|plan| self.store_planned(plan, sends.into()).0.into_vec());
        Ok(Some((Reply::Sent(receipts.unwrap_or_default()), WaitFor::of(durable))))
    }

    /// From here on, tokens of other queues are treated as lost.
    fn within(&mut self, queue: Option<&QueueName>) -> Result<(), Refusal> {
        self.scope = queue.map(|queue| self.core.queue(queue)).transpose()?.map(|(id, _)| id);
        Ok(())
    }
}
