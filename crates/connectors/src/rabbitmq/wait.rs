//! Messages that come later: they wait in queues whose messages expire into the queue that they are for.
//!
//! Such a queue gives back what it has in the order in which it came, so each has one time for all. Times are doubled
//! from step to step: a message waits in the longest that is not too long, and whoever receives it too early sends it
//! through the next one. So a few queues serve every delay to within a step of the shortest. They are never removed: a
//! queue that goes by itself takes its messages with it.

use malote_model::Timestamp;

use super::convert::{Arrived, Marks, outgoing};
use super::publish::Parcel;
use super::topology::{Topology, declare_wait};
use super::{Tools, wall_ms};
use crate::broker::BrokerError;

/// The shortest time; what has less left comes late by at most as much.
const STEP_MS: u64 = 50;
/// RabbitMQ's time to live has 32 bits: the longest is 38 days, and more of them for more.
const STEPS: u32 = 27;

/// The queue for a message with so much time left.
fn step_ms(left_ms: u64) -> u64 {
    let doublings = (left_ms / STEP_MS).max(1).ilog2().min(STEPS - 1);
    STEP_MS << doublings
}

/// Where a message waits that comes at `at`, made if it is not there.
pub(super) async fn place(
    tools: &Tools,
    topology: &Topology,
    at: Timestamp,
) -> Result<lapin::types::ShortString, BrokerError> {
    let ms = step_ms(at.0.saturating_sub(wall_ms()));
    let name = topology.names.wait(ms);
    if !tools.waits.lock().contains(name.as_str()) {
        declare_wait(&tools.out, topology, ms).await?;
        tools.waits.lock().insert(name.to_string());
    }
    Ok(name)
}

/// The same message, to come at `at`.
pub(super) async fn parcel(
    tools: &Tools,
    topology: &Topology,
    arrived: &Arrived,
    at: Timestamp,
) -> Result<Parcel, BrokerError> {
    let message = &arrived.message;
    let marks = Marks {
        id: message.message_id.as_deref(),
        enqueued_at: arrived.enqueued_at,
        failed: arrived.failed,
        receives: arrived.receives,
        not_before: None,
        at: Some(at),
        dead: None,
    };
    let (_, key) = topology.route(message.session.as_ref().map(|id| id.as_str()));
    Ok(Parcel {
        exchange: place(tools, topology, at).await?,
        key,
        properties: outgoing(message, &marks)?,
        body: message.body.bytes.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_steps_serve_every_delay_and_none_is_too_long() {
        assert_eq!([0, 1, 99, 100, 1000].map(step_ms), [50, 50, 50, 100, 800]);
        for left in [50, 51, 12_345, 3_600_000, u64::MAX] {
            assert!(step_ms(left) <= left && step_ms(left) <= u64::from(u32::MAX));
        }
    }
}
