//! Delayed messages wait in queues with a message TTL, which dead-letter them to the target queue.
//!
//! RabbitMQ expires messages only at the head of a queue, so each delay queue has one TTL for all its messages. TTLs
//! double from queue to queue. A message waits in the longest one that does not exceed the rest of its delay; a
//! consumer that receives it too early sends it through the next one. So a few queues serve every delay, with an
//! error of at most the shortest TTL. Delay queues are never deleted: RabbitMQ would delete their messages as well.

use malote_model::Timestamp;

use super::convert::{DeliveryMetadata, InboundMessage, encode_properties};
use super::publish::Publication;
use super::topology::{QueueTopology, declare_delay_queue};
use super::{RabbitContext, now_ms};
use crate::broker::BrokerError;

/// The shortest TTL, and the most by which a message can be late.
const STEP_MS: u64 = 50;
/// RabbitMQ's TTL has 32 bits: the longest is 38 days. Longer delays pass through it several times.
const STEPS: u32 = 27;

/// The TTL of the delay queue for a message with this much delay left.
fn step_ms(left_ms: u64) -> u64 {
    let doublings = (left_ms / STEP_MS).max(1).ilog2().min(STEPS - 1);
    STEP_MS << doublings
}

/// The exchange of the delay queue for a message that is due at `at`. Declares both if needed.
pub(super) async fn exchange_for(
    context: &RabbitContext,
    topology: &QueueTopology,
    at: Timestamp,
) -> Result<lapin::types::ShortString, BrokerError> {
    let ms = step_ms(at.0.saturating_sub(now_ms()));
    let name = topology.names.delay_queue(ms);
    if !context.declared_delay_queues.lock().contains(name.as_str()) {
        declare_delay_queue(&context.publish_connection, topology, ms).await?;
        context.declared_delay_queues.lock().insert(name.to_string());
    }
    Ok(name)
}

/// Publishes a received message again, due at `at`.
pub(super) async fn publication(
    context: &RabbitContext,
    topology: &QueueTopology,
    inbound: &InboundMessage,
    at: Timestamp,
) -> Result<Publication, BrokerError> {
    let message = &inbound.message;
    let metadata = DeliveryMetadata {
        id: message.message_id.as_deref(),
        enqueued_at: inbound.enqueued_at,
        failed: inbound.failed,
        receives: inbound.receives,
        not_before: None,
        at: Some(at),
        dead: None,
    };
    let (_, key) = topology.route(message.session.as_ref().map(|id| id.as_str()));
    Ok(Publication {
        exchange: exchange_for(context, topology, at).await?,
        key,
        properties: encode_properties(message, &metadata)?,
        body: message.body.bytes.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_delay_queues_serve_every_delay_without_exceeding_it() {
        assert_eq!([0, 1, 99, 100, 1000].map(step_ms), [50, 50, 50, 100, 800]);
        for left in [50, 51, 12_345, 3_600_000, u64::MAX] {
            assert!(step_ms(left) <= left && step_ms(left) <= u64::from(u32::MAX));
        }
    }
}
