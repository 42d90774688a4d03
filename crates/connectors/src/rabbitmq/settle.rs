//! What a settlement means here: which are refused, and what goes on to another place.

use std::sync::Arc;

use malote_model::{Changes, Settlement, Timestamp};

use super::convert::{Arrived, Marks, outgoing};
use super::publish::Parcel;
use super::topology::Topology;
use super::{BROKER, Tools, wait, wall_ms};
use crate::broker::{BrokerError, Settle};

/// What a settlement asks for and RabbitMQ has not.
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

/// The same with changes laid over it.
pub(super) fn laid_over(arrived: &Arrived, changes: Changes) -> Arrived {
    let mut arrived = arrived.clone();
    if !changes.is_empty() {
        Arc::make_mut(&mut arrived.message).properties.lay_over(changes.properties);
    }
    arrived
}

/// A message that leaves its place for another.
pub(super) enum Letter {
    /// Its queue once more, after a delay.
    Later { arrived: Arrived, delay_ms: u64 },
    /// The dead letters.
    Dead { arrived: Arrived, reason: String, text: String },
}

pub(super) fn letter(arrived: Arrived, reason: String, text: String) -> Letter {
    Letter::Dead { arrived, reason, text }
}

impl Letter {
    pub(super) async fn parcel(
        self,
        tools: &Tools,
        topology: &Topology,
    ) -> Result<Parcel, BrokerError> {
        let (arrived, dead) = match &self {
            Self::Later { arrived, delay_ms } if *delay_ms > 0 => {
                let at = Timestamp(wall_ms()).plus_ms(*delay_ms);
                return wait::parcel(tools, topology, arrived, at).await;
            }
            Self::Later { arrived, .. } => (arrived, None),
            Self::Dead { arrived, reason, text } => {
                (arrived, Some((reason.as_str(), text.as_str())))
            }
        };
        let mut message = Arc::clone(&arrived.message);
        let (exchange, key) = match dead {
            None => topology.route(message.session.as_ref().map(|id| id.as_str())),
            Some(_) => (Default::default(), topology.names.letters()),
        };
        if dead.is_some() && message.ttl_ms.is_some() {
            // Dead letters do not expire.
            Arc::make_mut(&mut message).ttl_ms = None;
        }
        let marks = Marks {
            id: message.message_id.as_deref(),
            enqueued_at: arrived.enqueued_at,
            failed: if dead.is_some() { 0 } else { arrived.failed },
            receives: if dead.is_some() { 0 } else { arrived.receives },
            not_before: None,
            at: None,
            dead,
        };
        let properties = outgoing(&message, &marks)?;
        Ok(Parcel { exchange, key, properties, body: message.body.bytes.clone() })
    }
}
