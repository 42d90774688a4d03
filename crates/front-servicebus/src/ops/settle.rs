//! Settle: dispositions of a receiver, batched by outcome.

use malote_model::{Changes, LeaseToken, Properties, QueueName, Refusal, Settlement, limits};
use malote_wire_amqp::connection::{DeliveryId, Disposed, LinkId};
use malote_wire_amqp::performative::{AmqpError, DeliveryState, Modified, Rejected};
use malote_wire_amqp::types::{Map, Value};

use crate::conn::link::LinkState;
use crate::conn::{Completion, Conn};
use crate::refusal::{LockKind, engine_error, refusal_error};
use crate::wire::value::{text, to_model};

/// Dispositions waiting for the engine.
#[derive(Default)]
pub(crate) struct SettleQueue {
    batch: Option<SettleBatch>,
}

/// Dispositions with the same outcome.
pub(crate) struct SettleBatch {
    queue: QueueName,
    lock: LockKind,
    settlement: Settlement,
    /// The outcome reported to the client on success.
    echo: DeliveryState,
    items: Vec<DispositionItem>,
}

pub(crate) struct DispositionItem {
    pub link: LinkId,
    pub delivery: DeliveryId,
    pub key: u64,
    /// The client has already settled the delivery and expects no reply.
    pub settled_by_client: bool,
    pub lease: LeaseToken,
}

pub(crate) struct SettleResults {
    pub items: Vec<(DispositionItem, DeliveryState)>,
}

impl SettleQueue {
    /// Adds a disposition. Returns the current batch if the disposition does not fit into it; the caller must run it.
    pub fn add(
        &mut self,
        queue: &QueueName,
        lock: LockKind,
        state: Option<&DeliveryState>,
        item: DispositionItem,
    ) -> Option<SettleBatch> {
        let (settlement, echo) = settlement_of(state)?;
        match &mut self.batch {
            Some(batch)
                if batch.queue == *queue
                    && batch.lock == lock
                    && batch.echo == echo
                    && batch.settlement == settlement
                    && batch.items.len() < limits::SETTLE_BATCH_MAX =>
            {
                batch.items.push(item);
                None
            }
            _ => {
                let (queue, items) = (queue.clone(), vec![item]);
                self.batch.replace(SettleBatch { queue, lock, settlement, echo, items })
            }
        }
    }

    pub fn take(&mut self) -> Option<SettleBatch> {
        self.batch.take()
    }
}

impl SettleBatch {
    /// Settles the leases.
    pub async fn run(self, engine: malote_engine::Engine) -> Completion {
        let SettleBatch { queue, lock, settlement, echo, items } = self;
        let leases: Vec<LeaseToken> = items.iter().map(|item| item.lease).collect();
        let count = leases.len();
        let each = engine.settle(Some(&queue), leases, settlement, None).await;
        let state = |one: Result<(), Refusal>| match one {
            Ok(()) => echo.clone(),
            Err(refusal) => DeliveryState::rejected(refusal_error(&refusal, lock)),
        };
        let states: Vec<DeliveryState> = match each {
            Ok(each) => each.into_iter().map(state).collect(),
            Err(error) => vec![DeliveryState::rejected(engine_error(error, lock)); count],
        };
        Completion::Settled(SettleResults { items: items.into_iter().zip(states).collect() })
    }
}

/// The settlement that an outcome means, and the outcome to report. The reported one carries no error, which would mean
/// that settling failed. None for a state that is not an outcome.
pub(crate) fn settlement_of(state: Option<&DeliveryState>) -> Option<(Settlement, DeliveryState)> {
    Some(match state {
        Some(DeliveryState::Accepted) => (Settlement::Complete, DeliveryState::Accepted),
        Some(DeliveryState::Modified(modified)) => {
            let changes = changes(modified.message_annotations.as_ref());
            let settlement = match modified.undeliverable_here {
                Some(true) => Settlement::Defer { changes },
                _ => Settlement::Abandon { delay_ms: 0, changes },
            };
            let (delivery_failed, undeliverable_here) =
                (modified.delivery_failed, modified.undeliverable_here);
            let echo = Modified { delivery_failed, undeliverable_here, message_annotations: None };
            (settlement, DeliveryState::Modified(echo))
        }
        Some(DeliveryState::Rejected(rejected)) => {
            let echo = DeliveryState::Rejected(Rejected { error: None });
            (dead_letter(rejected.error.as_ref()), echo)
        }
        // Settled without an outcome: treated as not processed.
        Some(DeliveryState::Released) | None => {
            (Settlement::Release { delay_ms: 0 }, DeliveryState::Released)
        }
        Some(
            DeliveryState::Received(_)
            | DeliveryState::Declared(_)
            | DeliveryState::Transactional(_)
            | DeliveryState::Other(_),
        ) => return None,
    })
}

const REASON: &str = "DeadLetterReason";
const DESCRIPTION: &str = "DeadLetterErrorDescription";

fn dead_letter(error: Option<&AmqpError>) -> Settlement {
    let info = error.and_then(|error| error.info.clone()).unwrap_or_default();
    let said = |name: &str| info.get(name).and_then(Value::as_str).map(str::to_owned);
    let (mut reason, mut text) = (said(REASON), said(DESCRIPTION));
    if let Some(error) = error
        && error.condition.as_str() != crate::refusal::servicebus::DEAD_LETTER
    {
        // A client that is not a Service Bus client: its error becomes the reason.
        reason = reason.or_else(|| Some(error.condition.as_str().to_owned()));
        text = text.or_else(|| error.description.as_deref().map(str::to_owned));
    }
    let rest = info.0.iter().filter(|(key, _)| !matches!(key.as_str(), Some(REASON | DESCRIPTION)));
    let changes = changes(Some(&Map(rest.cloned().collect())));
    let (reason, text) = (reason.unwrap_or_default(), text.unwrap_or_default());
    Settlement::DeadLetter { reason, text, changes }
}

pub(crate) fn changes(map: Option<&Map>) -> Changes {
    let entries = map.map_or(&[][..], |map| &map.0[..]);
    let properties = entries.iter().map(|(name, value)| (text(name), to_model(value)));
    Changes { properties: Properties::from_iter(properties) }
}

impl DispositionItem {
    pub fn of(disposed: &Disposed, lease: LeaseToken) -> DispositionItem {
        DispositionItem {
            link: disposed.link,
            delivery: disposed.delivery,
            key: disposed.key,
            settled_by_client: disposed.settled,
            lease,
        }
    }
}

impl Conn {
    /// Handles a disposition of the client.
    pub(crate) fn settle_delivery(&mut self, disposed: Disposed) {
        let Some(LinkState::Receiver(receiver)) = self.links.get(&disposed.link) else { return };
        let Some(lease) = receiver.out.get(&disposed.key).copied() else { return };
        let (queue, lock) = (receiver.queue.clone(), receiver.lock());
        if let Some(DeliveryState::Transactional(state)) = &disposed.state {
            let staged = self.transactions.settle(state, &queue, lease, disposed.settled);
            let state = staged.unwrap_or_else(DeliveryState::rejected);
            let item = DispositionItem::of(&disposed, lease);
            return self.finish_settle(SettleResults { items: vec![(item, state)] });
        }
        let item = DispositionItem::of(&disposed, lease);
        if let Some(batch) = self.settle_queue.add(&queue, lock, disposed.state.as_ref(), item) {
            self.start(batch.run(self.front.engine.clone()));
        }
    }

    /// Runs the waiting batch. Returns whether there was one.
    pub(crate) fn flush_settles(&mut self) -> bool {
        let Some(batch) = self.settle_queue.take() else { return false };
        self.start(batch.run(self.front.engine.clone()));
        true
    }

    pub(crate) fn finish_settle(&mut self, settled: SettleResults) {
        for (item, state) in settled.items {
            if let Some(LinkState::Receiver(receiver)) = self.links.get_mut(&item.link) {
                receiver.out.remove(&item.key);
            }
            if !item.settled_by_client {
                // Fails harmlessly if the client has detached.
                let _ = self.amqp.dispose(item.link, item.delivery, true, Some(state));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use malote_model::Value as Model;

    fn modified(failed: Option<bool>, here: Option<bool>) -> DeliveryState {
        DeliveryState::Modified(Modified {
            delivery_failed: failed,
            undeliverable_here: here,
            message_annotations: None,
        })
    }

    #[test]
    fn outcomes_are_mapped_to_settlements() {
        let word =
            |state: Option<DeliveryState>| settlement_of(state.as_ref()).map(|(s, _)| s.word());
        // The Python and JavaScript clients encode abandon and defer differently.
        assert_eq!(word(Some(modified(Some(true), Some(false)))), Some("abandon"));
        assert_eq!(word(Some(modified(None, Some(false)))), Some("abandon"));
        assert_eq!(word(Some(modified(None, None))), Some("abandon"));
        assert_eq!(word(Some(modified(Some(true), Some(true)))), Some("defer"));
        assert_eq!(word(Some(modified(None, Some(true)))), Some("defer"));
        assert_eq!(word(Some(DeliveryState::Accepted)), Some("complete"));
        assert_eq!(word(Some(DeliveryState::Released)), Some("release"));
        assert_eq!(word(None), Some("release"));
    }

    #[test]
    fn a_dead_letter_has_its_reason_and_the_echo_has_none() {
        let info = Map::default()
            .with_string(REASON, "bad")
            .with_string(DESCRIPTION, "very")
            .with_string("own", 1_i32);
        let condition = malote_wire_amqp::types::Symbol::from_static("com.microsoft:dead-letter");
        let error = AmqpError { condition, description: None, info: Some(info) };
        let (settlement, echo) = settlement_of(Some(&DeliveryState::rejected(error))).unwrap();
        let Settlement::DeadLetter { reason, text, changes } = settlement else { panic!() };
        assert_eq!((reason.as_str(), text.as_str()), ("bad", "very"));
        assert_eq!(changes.properties.get("own"), Some(&Model::I32(1)));
        assert_eq!(changes.properties.len(), 1);
        assert_eq!(echo, DeliveryState::Rejected(Rejected { error: None }));
        let other = AmqpError::new("my:error", "text");
        let Settlement::DeadLetter { reason, text, .. } = dead_letter(Some(&other)) else {
            panic!()
        };
        assert_eq!((reason.as_str(), text.as_str()), ("my:error", "text"));
    }
}
