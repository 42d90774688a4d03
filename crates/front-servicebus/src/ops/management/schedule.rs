//! `schedule-message` and `cancel-scheduled-message`.

use malote_model::{Address, Message, When};
use malote_wire_amqp::message::Message as Wire;
use malote_wire_amqp::performative::{AmqpError, condition};
use malote_wire_amqp::types::{Array, Map, Value};

use super::{ManagementContext, OperationResult, argument_error};
use crate::limits;
use crate::ops::resolve::Entity;
use crate::refusal::{LockKind, engine_error};
use crate::wire::message::{client_seq, read};

pub(super) async fn schedule(context: &ManagementContext<'_>) -> OperationResult {
    let items = context.items("messages")?;
    if items.is_empty() || items.len() > limits::BATCH_MAX {
        return Err(argument_error(format!(
            "`messages` must contain 1 to {} messages",
            limits::BATCH_MAX
        )));
    }
    let to = address(context.entity)?;
    let now = context.front.engine.now();
    let message = |item: &Value| -> Result<(Address, Message), AmqpError> {
        let Some(Value::Binary(bytes)) = item.as_map().and_then(|map| map.get("message")) else {
            return Err(argument_error(
                "each item of `messages` must contain an encoded `message`".to_owned(),
            ));
        };
        let message = read(&Wire::parse_any_order(bytes.clone())?, || now)?;
        match message.when {
            When::At(_) => Ok((to.clone(), message)),
            When::Now | When::Delay(_) => Err(argument_error(
                "a scheduled message must have the annotation x-opt-scheduled-enqueue-time"
                    .to_owned(),
            )),
        }
    };
    let messages = items.iter().map(message).collect::<Result<Vec<_>, _>>()?;
    let sent = context.front.engine.send(messages).await;
    let sent = sent.map_err(|error| engine_error(error, LockKind::Message))?;
    let seqs: Array = sent.iter().map(|sent| client_seq(sent.seq.0)).collect();
    Ok(Some(Map::default().with_string("sequence-numbers", seqs)))
}

pub(super) async fn cancel(context: &ManagementContext<'_>) -> OperationResult {
    let seqs = context.sequence_numbers()?;
    let cancelled = context.front.engine.cancel(address(context.entity)?, seqs).await;
    cancelled.map_err(|error| engine_error(error, LockKind::Message))?;
    Ok(Some(Map::default()))
}

fn address(entity: &Entity) -> Result<Address, AmqpError> {
    match entity {
        Entity::Queue(name) => Ok(Address::Queue(name.clone())),
        Entity::Topic(name) => Ok(Address::Topic(name.clone())),
        Entity::Transfer(_) => Err(AmqpError::new(
            condition::NOT_ALLOWED,
            "messages cannot be sent to a dead-letter queue",
        )),
    }
}
