//! Transactions: declared at the coordinator, staged here, committed as one command of the engine.
//!
//! What was staged goes with the connection. A part that cannot be staged ends its transaction: a discharge then finds
//! none, and nothing of it happens.

use std::collections::HashMap;

use bytes::Bytes;
use malote_engine::{Engine, Transaction};
use malote_model::{Address, LeaseToken, Message, QueueName};
use malote_wire_amqp::connection::{DeliveryId, Incoming, LinkId, UseError};
use malote_wire_amqp::message::Message as Wire;
use malote_wire_amqp::performative::{
    AmqpError, Declare, Declared, DeliveryState, Discharge, TransactionalState, condition,
};

use super::link::Link;
use super::{Conn, Done};
use crate::limits;
use crate::ops::settle::settlement_of;
use crate::refusal::{Lock, error_of};

const UNKNOWN_ID: &str = "amqp:transaction:unknown-id";
const ROLLBACK: &str = "amqp:transaction:rollback";

/// Those that are under way on a connection.
#[derive(Default)]
pub(super) struct Transactions {
    open: HashMap<Bytes, Transaction>,
    declared: u64,
}

impl Transactions {
    fn declare(&mut self, engine: &Engine) -> Result<Bytes, AmqpError> {
        self.open.retain(|_, transaction| !transaction.is_over());
        if self.open.len() >= limits::TRANSACTIONS_MAX {
            let text = "too many transactions are under way on this connection";
            return Err(AmqpError::new(condition::RESOURCE_LIMIT_EXCEEDED, text));
        }
        self.declared += 1;
        let id = Bytes::copy_from_slice(&self.declared.to_be_bytes());
        self.open.insert(id.clone(), engine.transaction());
        Ok(id)
    }

    fn take(&mut self, id: &Bytes) -> Result<Transaction, AmqpError> {
        let unknown = || AmqpError::new(UNKNOWN_ID, "there is no such transaction, or no more");
        self.open.remove(id).ok_or_else(unknown)
    }

    /// Stages messages.
    pub fn send(
        &mut self,
        id: &Bytes,
        to: &Address,
        all: impl IntoIterator<Item = Message>,
    ) -> Result<(), AmqpError> {
        let mut transaction = self.take(id)?;
        for message in all {
            transaction.send(to.clone(), message).map_err(|e| error_of(e, Lock::Message))?;
        }
        self.open.insert(id.clone(), transaction);
        Ok(())
    }

    /// Stages the end of a lease. Tells what is echoed.
    pub fn settle(
        &mut self,
        state: &TransactionalState,
        queue: &QueueName,
        lease: LeaseToken,
    ) -> Result<DeliveryState, AmqpError> {
        let mut transaction = self.take(&state.txn_id)?;
        let Some((settlement, echo)) = settlement_of(state.outcome.as_deref()) else {
            let text = "what becomes of the message is not an outcome";
            return Err(AmqpError::new(condition::INVALID_FIELD, text));
        };
        let staged = transaction.settle(Some(queue.clone()), lease, settlement);
        staged.map_err(|error| error_of(error, Lock::Message))?;
        self.open.insert(state.txn_id.clone(), transaction);
        Ok(within(state.txn_id.clone(), echo))
    }
}

/// An outcome as a part of a transaction.
pub(super) fn within(txn_id: Bytes, outcome: DeliveryState) -> DeliveryState {
    DeliveryState::Transactional(TransactionalState { txn_id, outcome: Some(Box::new(outcome)) })
}

enum Wanted {
    Declare,
    Discharge(Discharge),
}

fn read(payload: &Bytes) -> Result<Wanted, AmqpError> {
    let message = Wire::parse(payload.clone())?;
    if let Ok(Some(discharge)) = message.value_as::<Discharge>() {
        return Ok(Wanted::Discharge(discharge));
    }
    match message.value_as::<Declare>()? {
        Some(_) => Ok(Wanted::Declare),
        None => {
            let text = "a coordinator is sent a declare or a discharge";
            Err(AmqpError::new(condition::NOT_IMPLEMENTED, text))
        }
    }
}

impl Conn {
    /// A message for the coordinator.
    pub(super) fn coordinate(&mut self, incoming: Incoming) -> Result<(), UseError> {
        let Incoming { link, delivery, settled, payload, .. } = incoming;
        let now = match read(&payload) {
            Ok(Wanted::Declare) => {
                let declared = self.transactions.declare(&self.front.engine);
                declared.map(|txn_id| DeliveryState::Declared(Declared { txn_id }))
            }
            Ok(Wanted::Discharge(discharge)) => match self.transactions.take(&discharge.txn_id) {
                Ok(_) if discharge.fail == Some(true) => Ok(DeliveryState::Accepted),
                Ok(transaction) => {
                    self.start(async move {
                        let committed = transaction.commit().await;
                        let outcome = match committed {
                            Ok(_) => DeliveryState::Accepted,
                            Err(error) => {
                                DeliveryState::rejected(AmqpError::new(ROLLBACK, error.to_string()))
                            }
                        };
                        Done::Coordinated { link, delivery, settled, outcome }
                    });
                    return Ok(());
                }
                Err(error) => Err(error),
            },
            Err(error) => Err(error),
        };
        let outcome = now.unwrap_or_else(DeliveryState::rejected);
        self.coordinated(link, delivery, settled, outcome);
        Ok(())
    }

    pub(super) fn coordinated(
        &mut self,
        link: LinkId,
        delivery: DeliveryId,
        settled: bool,
        outcome: DeliveryState,
    ) {
        if !settled {
            let _ = self.amqp.dispose(link, delivery, true, Some(outcome));
        }
        if let Some(Link::Coordinator { under_way }) = self.links.get_mut(&link) {
            *under_way = under_way.saturating_sub(1);
            let under_way = *under_way;
            self.grant_again(link, under_way, limits::REQUEST_CREDIT);
        }
    }
}
