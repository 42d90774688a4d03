//! Settles leases of sessions.
//!
//! A returned message stays in this process, at its position, with its counters and changes: RabbitMQ cannot change a
//! stored message. If the partition is lost, this process remembers them in case it gets the partition again. Another
//! process does not know them.

use std::sync::Arc;
use std::time::Duration;

use malote_model::{DeadReason, SessionId, Settlement};
use tokio::time::Instant;

use super::{PartitionedQueue, PartitionedState, SessionMessage};
use crate::broker::{BrokerError, Settle};
use crate::rabbitmq::RETRY_HOLD_MAX;
use crate::rabbitmq::settle::{Republish, dead_letter, unsupported, with_changes};
use crate::rabbitmq::tracked_channel::TrackedChannel;

/// The messages to acknowledge on one channel: index in the call, and tag.
type ChannelAcks = (Arc<TrackedChannel>, Vec<(usize, u64)>);

/// A message that must be published to the dead letters; `index` is its position in the call.
struct PendingDeadLetter {
    index: usize,
    settle: Settle,
    republish: Republish,
}

impl PartitionedQueue {
    pub(in crate::rabbitmq) async fn settle(
        self: &Arc<Self>,
        items: Vec<Settle>,
    ) -> Vec<Result<(), BrokerError>> {
        let mut all = vec![Err(BrokerError::LockLost); items.len()];
        let mut acks = Vec::new();
        let mut dead_letters = Vec::new();
        {
            let mut state = self.state.lock();
            for (index, settle) in items.into_iter().enumerate() {
                if let Some(error) = unsupported(&settle) {
                    all[index] = Err(error);
                    continue;
                }
                match self.decide(&mut state, index, settle) {
                    Decision::Ack(item) => add_ack(&mut acks, index, &item),
                    Decision::DeadLetter(decided) => dead_letters.push(*decided),
                    Decision::Answer(answer) => all[index] = answer,
                }
            }
        }
        if !dead_letters.is_empty() {
            for (index, settle, stored) in self.publish_dead_letters(dead_letters).await {
                let mut state = self.state.lock();
                match stored.map(|()| self.remove(&mut state, &settle)) {
                    Ok(Some((_, item))) => add_ack(&mut acks, index, &item),
                    Ok(None) => {} // its hold was lost meanwhile: RabbitMQ redelivers it
                    Err(error) => all[index] = Err(error),
                }
            }
        }
        for (tracked, some) in acks {
            let tags: Vec<u64> = some.iter().map(|(_, tag)| *tag).collect();
            let acked = tracked.ack(&tags).await;
            for (index, _) in some {
                all[index] = acked.clone();
            }
        }
        all
    }

    /// Publishes dead letters.
    async fn publish_dead_letters(
        &self,
        dead_letters: Vec<PendingDeadLetter>,
    ) -> Vec<(usize, Settle, Result<(), BrokerError>)> {
        let (mut said, mut publications, mut sent) = (Vec::new(), Vec::new(), Vec::new());
        for PendingDeadLetter { index, settle, republish } in dead_letters {
            match republish.publication(&self.context, &self.topology).await {
                Ok(publication) => {
                    publications.push(publication);
                    sent.push((index, settle));
                }
                Err(error) => said.push((index, settle, Err(error))),
            }
        }
        if !publications.is_empty() {
            match self.context.publisher.publish(publications).await {
                Ok(each) => {
                    said.extend(sent.into_iter().zip(each).map(|((n, s), one)| (n, s, one)));
                }
                Err(error) => {
                    said.extend(sent.into_iter().map(|(n, s)| (n, s, Err(error.clone()))));
                }
            }
        }
        said
    }

    fn decide(
        self: &Arc<Self>,
        state: &mut PartitionedState,
        index: usize,
        settle: Settle,
    ) -> Decision {
        let lost = || Decision::Answer(Err(BrokerError::LockLost));
        let Some((id, number)) = state.leases.get(&settle.lease).cloned() else { return lost() };
        let Some(item) = state.item(&id, number) else { return lost() };
        let (delay_ms, inbound) = match settle.settlement.clone() {
            Settlement::Complete | Settlement::Defer { .. } => {
                return self
                    .remove(state, &settle)
                    .map_or_else(lost, |(_, item)| Decision::Ack(item));
            }
            Settlement::DeadLetter { reason, text, changes } => {
                let republish = dead_letter(with_changes(&item.inbound, changes), reason, text);
                return Decision::DeadLetter(Box::new(PendingDeadLetter {
                    index,
                    settle,
                    republish,
                }));
            }
            Settlement::Release { delay_ms } => (delay_ms, item.inbound),
            Settlement::Abandon { delay_ms, changes } => {
                let mut inbound = with_changes(&item.inbound, changes);
                inbound.failed = inbound.failed.saturating_add(1);
                let max = self.topology.spec.failed_max;
                if let Some(failed_max) = max.filter(|&max| inbound.failed >= max) {
                    let reason = DeadReason::MaxFailed { failed: inbound.failed, failed_max };
                    let republish = dead_letter(inbound, reason.word().to_owned(), reason.text());
                    return Decision::DeadLetter(Box::new(PendingDeadLetter {
                        index,
                        settle,
                        republish,
                    }));
                }
                (delay_ms, inbound)
            }
        };
        let delay = Duration::from_millis(delay_ms).min(RETRY_HOLD_MAX);
        if Duration::from_millis(delay_ms) > delay {
            let queue = self.topology.names.queue();
            tracing::warn!(%queue, session = %id, asked_ms = delay_ms, "the delay of a retry in a session is limited to 20 minutes: RabbitMQ requeues messages that are unsettled for longer");
        }
        let Some((_, mut item)) = self.remove(state, &settle) else { return lost() };
        item.inbound = inbound;
        item.inbound.not_before = (!delay.is_zero()).then(|| Instant::now() + delay);
        item.changed_locally = true;
        // Leased messages have a holder, so the session exists.
        let Some(session) = state.sessions.get_mut(&id) else { return lost() };
        session.buffered.insert(number, item);
        match session.hold.clone() {
            // The session waits for this message, so its holder has nothing to do.
            Some(hold) if delay_ms > 0 => self.end_hold(state, &hold),
            Some(hold) => hold.arrival.notify_one(),
            None => self.update_ready(state, &id),
        }
        Decision::Answer(Ok(()))
    }

    /// Ends a lease and returns its message.
    fn remove(
        self: &Arc<Self>,
        state: &mut PartitionedState,
        settle: &Settle,
    ) -> Option<(SessionId, SessionMessage)> {
        let (id, number) = state.leases.remove(&settle.lease)?;
        let session = state.sessions.get_mut(&id)?;
        let (_, item) = session.leased.remove(&number)?;
        if session.is_empty() {
            state.sessions.remove(&id);
        } else if state.is_leaving(&id) {
            self.end_hold_if_idle(state, &id);
        }
        Some((id, item))
    }
}

enum Decision {
    Ack(SessionMessage),
    DeadLetter(Box<PendingDeadLetter>),
    Answer(Result<(), BrokerError>),
}

impl PartitionedState {
    fn item(&self, id: &SessionId, number: u64) -> Option<SessionMessage> {
        self.sessions.get(id)?.leased.get(&number).map(|(_, item)| item.clone())
    }
}

/// Adds a message to the acknowledgements of its channel.
fn add_ack(all: &mut Vec<ChannelAcks>, index: usize, item: &SessionMessage) {
    match all.iter_mut().find(|(tracked, _)| Arc::ptr_eq(tracked, &item.tracked)) {
        Some((_, some)) => some.push((index, item.tag)),
        None => all.push((item.tracked.clone(), vec![(index, item.tag)])),
    }
}
