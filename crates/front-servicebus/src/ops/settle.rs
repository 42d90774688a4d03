//! Dispositions: what a receiver says of its messages, in batches of the same outcome.

use malote_model::{Changes, LeaseToken, Properties, QueueName, Refusal, Settlement, limits};
use malote_wire_amqp::connection::{DeliveryId, Disposed, LinkId};
use malote_wire_amqp::performative::{AmqpError, DeliveryState, Modified, Rejected};
use malote_wire_amqp::types::{Map, Value};

use crate::conn::link::Link;
use crate::conn::{Conn, Done};
use crate::refusal::{Lock, error_of, of_refusal};
use crate::wire::value::{text, to_model};

/// Dispositions of the same outcome, on their way to the engine.
#[derive(Default)]
pub(crate) struct Settles {
    batch: Option<Batch>,
}

/// Dispositions of one kind.
pub(crate) struct Batch {
    queue: QueueName,
    lock: Lock,
    settlement: Settlement,
    /// What is echoed when it is done.
    echo: DeliveryState,
    items: Vec<Item>,
}

/// One delivery.
pub(crate) struct Item {
    pub link: LinkId,
    pub delivery: DeliveryId,
    pub key: u64,
    /// The client has forgotten it and hears nothing.
    pub forgotten: bool,
    pub lease: LeaseToken,
}

/// What has become of them.
pub(crate) struct Settled {
    pub items: Vec<(Item, DeliveryState)>,
}

impl Settles {
    /// Adds one. A batch of another kind, or a full one, makes room: it must be run.
    pub fn add(
        &mut self,
        queue: &QueueName,
        lock: Lock,
        state: Option<&DeliveryState>,
        item: Item,
    ) -> Option<Batch> {
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
                self.batch.replace(Batch { queue, lock, settlement, echo, items })
            }
        }
    }

    /// What waits to be run.
    pub fn take(&mut self) -> Option<Batch> {
        self.batch.take()
    }
}

impl Batch {
    /// Ends the leases.
    pub async fn run(self, engine: malote_engine::Engine) -> Done {
        let Batch { queue, lock, settlement, echo, items } = self;
        let leases: Vec<LeaseToken> = items.iter().map(|item| item.lease).collect();
        let count = leases.len();
        let each = engine.settle(Some(&queue), leases, settlement, None).await;
        let state = |one: Result<(), Refusal>| match one {
            Ok(()) => echo.clone(),
            Err(refusal) => DeliveryState::rejected(of_refusal(&refusal, lock)),
        };
        let states: Vec<DeliveryState> = match each {
            Ok(each) => each.into_iter().map(state).collect(),
            Err(error) => vec![DeliveryState::rejected(error_of(error, lock)); count],
        };
        Done::Settled(Settled { items: items.into_iter().zip(states).collect() })
    }
}

/// What an outcome means, and what is echoed: the same outcome, but an error in it would say that settling failed.
/// None for a state that is no outcome.
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
        // Settled without a word: it was not tried, as far as anybody knows.
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
        // A client of another make: its own error is the reason.
        reason = reason.or_else(|| Some(error.condition.as_str().to_owned()));
        text = text.or_else(|| error.description.as_deref().map(str::to_owned));
    }
    let rest = info.0.iter().filter(|(key, _)| !matches!(key.as_str(), Some(REASON | DESCRIPTION)));
    let changes = changes(Some(&Map(rest.cloned().collect())));
    let (reason, text) = (reason.unwrap_or_default(), text.unwrap_or_default());
    Settlement::DeadLetter { reason, text, changes }
}

/// Properties to modify.
pub(crate) fn changes(map: Option<&Map>) -> Changes {
    let entries = map.map_or(&[][..], |map| &map.0[..]);
    let properties = entries.iter().map(|(name, value)| (text(name), to_model(value)));
    Changes { properties: Properties::from_iter(properties) }
}

impl Item {
    pub fn of(disposed: &Disposed, lease: LeaseToken) -> Item {
        Item {
            link: disposed.link,
            delivery: disposed.delivery,
            key: disposed.key,
            forgotten: disposed.settled,
            lease,
        }
    }
}

impl Conn {
    /// The client tells what it makes of a message.
    pub(crate) fn disposed(&mut self, disposed: Disposed) {
        let Some(Link::Receiver(receiver)) = self.links.get(&disposed.link) else { return };
        let Some(lease) = receiver.out.get(&disposed.key).copied() else { return };
        let (queue, lock) = (receiver.queue.clone(), receiver.lock());
        if let Some(DeliveryState::Transactional(state)) = &disposed.state {
            let staged = self.transactions.settle(state, &queue, lease, disposed.settled);
            let state = staged.unwrap_or_else(DeliveryState::rejected);
            let item = Item::of(&disposed, lease);
            return self.settled(Settled { items: vec![(item, state)] });
        }
        let item = Item::of(&disposed, lease);
        if let Some(batch) = self.settles.add(&queue, lock, disposed.state.as_ref(), item) {
            self.start(batch.run(self.front.engine.clone()));
        }
    }

    /// Hands dispositions over; false if there are none.
    pub(crate) fn flush_settles(&mut self) -> bool {
        let Some(batch) = self.settles.take() else { return false };
        self.start(batch.run(self.front.engine.clone()));
        true
    }

    /// The engine tells what has become of dispositions.
    pub(crate) fn settled(&mut self, settled: Settled) {
        for (item, state) in settled.items {
            if let Some(Link::Receiver(receiver)) = self.links.get_mut(&item.link) {
                receiver.out.remove(&item.key);
            }
            if !item.forgotten {
                // Gone: the client has detached meanwhile.
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
    fn outcomes_mean_what_clients_mean_by_them() {
        let word =
            |state: Option<DeliveryState>| settlement_of(state.as_ref()).map(|(s, _)| s.word());
        // Python and JavaScript write an abandon and a defer each in its own way.
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
