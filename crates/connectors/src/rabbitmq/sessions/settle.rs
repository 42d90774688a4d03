//! How leases of a session end.
//!
//! A message that goes back stays in its place, here, with its count and its changes: nothing in RabbitMQ can change a
//! message that has a place. This process remembers them when it loses the partition and gets it again; another one does
//! not know of them.

use std::sync::Arc;
use std::time::Duration;

use malote_model::{DeadReason, SessionId, Settlement};
use tokio::time::Instant;

use super::{Hall, Item, State};
use crate::broker::{BrokerError, Settle};
use crate::rabbitmq::RETRY_HOLD_MAX;
use crate::rabbitmq::settle::{Letter, laid_over, letter, unsupported};
use crate::rabbitmq::way::Way;

/// What is done of one way: places in the call, and tags.
type OfWay = (Arc<Way>, Vec<(usize, u64)>);

/// A message whose fate is decided, by its place in the call.
struct Decided {
    nth: usize,
    settle: Settle,
    letter: Letter,
}

impl Hall {
    pub(in crate::rabbitmq) async fn settle(
        self: &Arc<Self>,
        items: Vec<Settle>,
    ) -> Vec<Result<(), BrokerError>> {
        let mut all = vec![Err(BrokerError::LockLost); items.len()];
        let mut acks = Vec::new();
        let mut letters = Vec::new();
        {
            let mut state = self.state.lock();
            for (nth, settle) in items.into_iter().enumerate() {
                if let Some(error) = unsupported(&settle) {
                    all[nth] = Err(error);
                    continue;
                }
                match self.decide(&mut state, nth, settle) {
                    Fate::Done(item) => note(&mut acks, nth, &item),
                    Fate::Letter(decided) => letters.push(*decided),
                    Fate::Said(answer) => all[nth] = answer,
                }
            }
        }
        if !letters.is_empty() {
            for (nth, settle, stored) in self.post(letters).await {
                let mut state = self.state.lock();
                match stored.map(|()| self.remove(&mut state, &settle)) {
                    Ok(Some((_, item))) => note(&mut acks, nth, &item),
                    Ok(None) => {} // its hold was lost meanwhile: it comes again
                    Err(error) => all[nth] = Err(error),
                }
            }
        }
        for (way, some) in acks {
            let tags: Vec<u64> = some.iter().map(|(_, tag)| *tag).collect();
            let acked = way.ack(&tags).await;
            for (nth, _) in some {
                all[nth] = acked.clone();
            }
        }
        all
    }

    /// Publishes what goes to the dead letters.
    async fn post(&self, letters: Vec<Decided>) -> Vec<(usize, Settle, Result<(), BrokerError>)> {
        let (mut said, mut parcels, mut sent) = (Vec::new(), Vec::new(), Vec::new());
        for Decided { nth, settle, letter } in letters {
            match letter.parcel(&self.tools, &self.topology).await {
                Ok(parcel) => {
                    parcels.push(parcel);
                    sent.push((nth, settle));
                }
                Err(error) => said.push((nth, settle, Err(error))),
            }
        }
        if !parcels.is_empty() {
            match self.tools.publisher.publish(parcels).await {
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

    fn decide(self: &Arc<Self>, state: &mut State, nth: usize, settle: Settle) -> Fate {
        let lost = || Fate::Said(Err(BrokerError::LockLost));
        let Some((id, number)) = state.leases.get(&settle.lease).cloned() else { return lost() };
        let Some(item) = state.item(&id, number) else { return lost() };
        let (delay_ms, arrived) = match settle.settlement.clone() {
            Settlement::Complete | Settlement::Defer { .. } => {
                return self.remove(state, &settle).map_or_else(lost, |(_, item)| Fate::Done(item));
            }
            Settlement::DeadLetter { reason, text, changes } => {
                let letter = letter(laid_over(&item.arrived, changes), reason, text);
                return Fate::Letter(Box::new(Decided { nth, settle, letter }));
            }
            Settlement::Release { delay_ms } => (delay_ms, item.arrived),
            Settlement::Abandon { delay_ms, changes } => {
                let mut arrived = laid_over(&item.arrived, changes);
                arrived.failed = arrived.failed.saturating_add(1);
                let max = self.topology.spec.failed_max;
                if let Some(failed_max) = max.filter(|&max| arrived.failed >= max) {
                    let reason = DeadReason::MaxFailed { failed: arrived.failed, failed_max };
                    let letter = letter(arrived, reason.word().to_owned(), reason.text());
                    return Fate::Letter(Box::new(Decided { nth, settle, letter }));
                }
                (delay_ms, arrived)
            }
        };
        let delay = Duration::from_millis(delay_ms).min(RETRY_HOLD_MAX);
        if Duration::from_millis(delay_ms) > delay {
            let queue = self.topology.names.queue();
            tracing::warn!(%queue, session = %id, asked_ms = delay_ms, "a retry in a session waits for 20 minutes at most: RabbitMQ takes back what is unsettled for longer");
        }
        let Some((_, mut item)) = self.remove(state, &settle) else { return lost() };
        item.arrived = arrived;
        item.arrived.not_before = (!delay.is_zero()).then(|| Instant::now() + delay);
        item.altered = true;
        // What is out is out to a holder, so the session is there.
        let Some(session) = state.sessions.get_mut(&id) else { return lost() };
        session.here.insert(number, item);
        match session.hold.clone() {
            // The session waits for it: whoever holds it has nothing to do.
            Some(hold) if delay_ms > 0 => self.end(state, &hold),
            Some(hold) => hold.came.notify_one(),
            None => self.look(state, &id),
        }
        Fate::Said(Ok(()))
    }

    /// Takes a message out of hand.
    fn remove(self: &Arc<Self>, state: &mut State, settle: &Settle) -> Option<(SessionId, Item)> {
        let (id, number) = state.leases.remove(&settle.lease)?;
        let session = state.sessions.get_mut(&id)?;
        let (_, item) = session.out.remove(&number)?;
        if session.is_empty() {
            state.sessions.remove(&id);
        } else if state.is_leaving(&id) {
            self.end_idle(state, &id);
        }
        Some((id, item))
    }
}

enum Fate {
    Done(Item),
    Letter(Box<Decided>),
    Said(Result<(), BrokerError>),
}

impl State {
    fn item(&self, id: &SessionId, number: u64) -> Option<Item> {
        self.sessions.get(id)?.out.get(&number).map(|(_, item)| item.clone())
    }
}

/// What is told over one way; there are few.
fn note(all: &mut Vec<OfWay>, nth: usize, item: &Item) {
    match all.iter_mut().find(|(way, _)| Arc::ptr_eq(way, &item.way)) {
        Some((_, some)) => some.push((nth, item.tag)),
        None => all.push((item.way.clone(), vec![(nth, item.tag)])),
    }
}
