//! A message or a batch, as it was received, for the engine.

use malote_model::{Message, Timestamp};
use malote_wire_amqp::connection::Incoming;
use malote_wire_amqp::message::{BATCH_FORMAT, Message as Wire, decode_batch};
use malote_wire_amqp::performative::{AmqpError, condition};
use smallvec::{SmallVec, smallvec};

use crate::limits;
use crate::refusal::servicebus;
use crate::wire::message::read as canonical;

/// The messages of a transfer, in order. A batch is all or nothing.
pub(crate) fn read(
    incoming: &Incoming,
    now: impl Fn() -> Timestamp,
) -> Result<SmallVec<[Message; 1]>, AmqpError> {
    let wire = Wire::parse_any_order(incoming.payload.clone())?;
    match incoming.message_format {
        BATCH_FORMAT => {
            let batch = decode_batch(&wire, limits::BATCH_MAX)?;
            let batch = batch.map_err(|error| {
                AmqpError::new(servicebus::ARGUMENT_OUT_OF_RANGE, error.to_string())
            })?;
            batch.iter().map(|wire| canonical(wire, &now)).collect()
        }
        0 => Ok(smallvec![canonical(&wire, now)?]),
        other => {
            let text = format!("message format {other:#x} is not known");
            Err(AmqpError::new(condition::NOT_IMPLEMENTED, text))
        }
    }
}
