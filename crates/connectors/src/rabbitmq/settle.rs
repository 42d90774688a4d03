//! Settlements: which ones are refused, and how messages are moved.

use std::sync::Arc;

use malote_model::{Changes, Settlement, Timestamp};

use super::convert::{DeliveryMetadata, InboundMessage, encode_properties};
use super::publish::Publication;
use super::topology::QueueTopology;
use super::{BROKER, RabbitContext, delay_queues, now_ms};
use crate::broker::{BrokerError, Settle};

/// The error for a settlement that RabbitMQ cannot support.
pub(super) fn unsupported(item: &Settle) -> Option<BrokerError> {
    let (what, fix) = match item {
        Settle { state: Some(_), .. } => (
            "state and settlement in one step",
            "keep the state in your own database, with an inbox",
        ),
        Settle { settlement: Settlement::Defer { .. }, .. } => {
            ("deferred messages", "retry with a delay instead")
        }
        _ => return None,
    };
    Some(BrokerError::Unsupported { broker: BROKER, what, fix })
}

/// The message with changed properties.
pub(super) fn with_changes(inbound: &InboundMessage, changes: Changes) -> InboundMessage {
    let mut inbound = inbound.clone();
    if !changes.is_empty() {
        Arc::make_mut(&mut inbound.message).properties.lay_over(changes.properties);
    }
    inbound
}

/// A message that is published to another queue.
pub(super) enum Republish {
    /// To its own queue, after a delay.
    Delayed { inbound: InboundMessage, delay_ms: u64 },
    /// To the dead letters.
    DeadLetter { inbound: InboundMessage, reason: String, text: String },
}

pub(super) fn dead_letter(inbound: InboundMessage, reason: String, text: String) -> Republish {
    Republish::DeadLetter { inbound, reason, text }
}

impl Republish {
    pub(super) async fn publication(
        self,
        context: &RabbitContext,
        topology: &QueueTopology,
    ) -> Result<Publication, BrokerError> {
        let (inbound, dead) = match &self {
            Self::Delayed { inbound, delay_ms } if *delay_ms > 0 => {
                let at = Timestamp(now_ms()).plus_ms(*delay_ms);
                return delay_queues::publication(context, topology, inbound, at).await;
            }
            Self::Delayed { inbound, .. } => (inbound, None),
            Self::DeadLetter { inbound, reason, text } => {
                (inbound, Some((reason.as_str(), text.as_str())))
            }
        };
        let mut message = Arc::clone(&inbound.message);
        let (exchange, key) = match dead {
            None => topology.route(message.session.as_ref().map(|id| id.as_str())),
            Some(_) => (Default::default(), topology.names.dead_letters()),
        };
        if dead.is_some() && message.ttl_ms.is_some() {
            // Dead letters do not expire.
            Arc::make_mut(&mut message).ttl_ms = None;
        }
        let metadata = DeliveryMetadata {
            id: message.message_id.as_deref(),
            enqueued_at: inbound.enqueued_at,
            failed: if dead.is_some() { 0 } else { inbound.failed },
            receives: if dead.is_some() { 0 } else { inbound.receives },
            not_before: None,
            at: None,
            dead,
        };
        let properties = encode_properties(&message, &metadata)?;
        Ok(Publication { exchange, key, properties, body: message.body.bytes.clone() })
    }
}
