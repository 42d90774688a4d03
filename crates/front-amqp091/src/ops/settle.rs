//! `basic.ack`, `basic.nack`, `basic.reject`, `basic.recover`. Everything that is read at once is settled at once.

use malote_model::{Changes, LeaseToken, Settlement, limits::SETTLE_BATCH_MAX};

use crate::conn::channel::{Channel, Mode, Unacked, Verdict};
use crate::conn::{Completion, Conn};
use crate::limits::UNACKED_MAX;
use crate::refusal::precondition;
use crate::wire::error::Exception;

/// Why a client rejected a message: the word in `x-death`.
pub(crate) const REJECTED: &str = "rejected";

/// Leases to settle with the next request to the engine.
#[derive(Default)]
pub(crate) struct SettleQueue {
    leases: [Vec<LeaseToken>; 4],
}

const VERDICTS: [Verdict; 4] =
    [Verdict::Complete, Verdict::Requeue, Verdict::Release, Verdict::Reject];

impl SettleQueue {
    pub fn add(&mut self, verdict: Verdict, leases: impl IntoIterator<Item = LeaseToken>) {
        self.leases[verdict as usize].extend(leases);
    }

    /// The next leases with the same verdict.
    fn next(&mut self) -> Option<(Verdict, Vec<LeaseToken>)> {
        let at = self.leases.iter().position(|leases| !leases.is_empty())?;
        let leases = &mut self.leases[at];
        let rest = leases.split_off(leases.len().min(SETTLE_BATCH_MAX));
        Some((VERDICTS[at], std::mem::replace(leases, rest)))
    }
}

pub(crate) fn settlement(verdict: Verdict) -> Settlement {
    match verdict {
        Verdict::Complete => Settlement::Complete,
        Verdict::Requeue => Settlement::Abandon { delay_ms: 0, changes: Changes::default() },
        Verdict::Release => Settlement::Release { delay_ms: 0 },
        Verdict::Reject => Settlement::DeadLetter {
            reason: REJECTED.to_owned(),
            text: String::new(),
            changes: Changes::default(),
        },
    }
}

impl Conn {
    /// Settles a delivery, or all up to it.
    pub(crate) fn settle(
        &mut self,
        number: u16,
        tag: u64,
        multiple: bool,
        verdict: Verdict,
    ) -> Result<(), Exception> {
        let unknown = || precondition(format!("unknown delivery tag {tag}"));
        let channel = self.channel(number);
        if multiple {
            let taken = channel.take_unacked_up_to(tag).ok_or_else(unknown)?;
            self.settle_these(number, taken.into_values(), verdict);
        } else {
            let one = channel.unacked.remove(&tag).ok_or_else(unknown)?;
            self.settle_these(number, std::iter::once(one), verdict);
        }
        Ok(())
    }

    fn settle_these(
        &mut self,
        number: u16,
        taken: impl ExactSizeIterator<Item = Unacked>,
        verdict: Verdict,
    ) {
        let count = taken.len();
        let Some(channel) = self.channels.get_mut(&number) else { return };
        if let Mode::Transaction(staged) = &mut channel.mode {
            return staged.settled.extend(taken.map(|one| (one, verdict)));
        }
        let leases = taken.map(|one| {
            acknowledged(channel, std::iter::once(&one));
            one.lease
        });
        self.settle_queue.add(verdict, leases);
        self.forget_unacked(count);
        self.feed(number);
    }

    /// Returns all unacknowledged messages of a channel to their queues.
    pub(crate) fn recover(&mut self, number: u16) {
        let channel = self.channel(number);
        let taken: Vec<_> = std::mem::take(&mut channel.unacked).into_values().collect();
        acknowledged(channel, taken.iter());
        self.forget_unacked(taken.len());
        self.settle_queue.add(Verdict::Requeue, taken.into_iter().map(|one| one.lease));
        self.feed(number);
    }

    /// Messages are no longer unacknowledged. Consumers that waited for that get credit.
    pub(crate) fn forget_unacked(&mut self, count: usize) {
        let was_full = self.unacked >= UNACKED_MAX;
        self.unacked = self.unacked.saturating_sub(count);
        if was_full && self.unacked < UNACKED_MAX {
            self.hungry.append(&mut self.starved);
        }
    }

    /// Returns a message that the client has not seen.
    pub(crate) fn release(&mut self, lease: Option<LeaseToken>) {
        self.settle_queue.add(Verdict::Release, lease);
    }

    /// Sends what was settled to the engine. Returns whether there was something.
    pub(crate) fn flush_settles(&mut self) -> bool {
        let Some((verdict, leases)) = self.settle_queue.next() else { return false };
        let engine = self.front.engine.clone();
        self.start(async move {
            // A lease may have ended, for example with its queue. The protocol has no reply that could say so.
            if let Err(error) = engine.settle(None, leases, settlement(verdict), None).await {
                tracing::debug!(%error, front = "rabbitmq", "messages were not settled");
            }
            Completion::Nothing
        });
        true
    }
}

/// Gives the consumers of settled deliveries their credit back.
pub(super) fn acknowledged<'a>(channel: &mut Channel, taken: impl Iterator<Item = &'a Unacked>) {
    for tag in taken.filter_map(|one| one.consumer.as_ref()) {
        if let Some(consumer) = channel.consumers.get_mut(tag) {
            consumer.outstanding = consumer.outstanding.saturating_sub(1);
        }
    }
}
