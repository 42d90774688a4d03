//! Transactions: declared at the coordinator, staged here, committed as one command of the engine.
//!
//! A rollback abandons the messages that the client settled in the transaction, because the client no longer tracks
//! them. They return to their positions in the queue. Messages whose dispositions were not settled by the client stay
//! locked: the client still has them, and clients of Service Bus settle them again. A transaction is rolled back by its
//! discharge, when its commit fails, and when its coordinator link or its connection ends.

use std::collections::HashMap;

use bytes::Bytes;
use malote_engine::{Engine, EngineError, Transaction};
use malote_model::{Action, Address, Changes, LeaseToken, Message, QueueName, Settlement};
use malote_wire_amqp::connection::{DeliveryId, Incoming, LinkId, UseError};
use malote_wire_amqp::message::Message as Wire;
use malote_wire_amqp::performative::{
    AmqpError, Declare, Declared, DeliveryState, Discharge, TransactionalState, condition,
};

use crate::conn::link::LinkState;
use crate::conn::{Completion, Conn};
use crate::limits;
use crate::ops::resolve::Entity;
use crate::ops::settle::settlement_of;
use crate::refusal::{LockKind, engine_error};

const UNKNOWN_ID: &str = "amqp:transaction:unknown-id";
const ROLLBACK: &str = "amqp:transaction:rollback";

/// The open transactions of a connection.
#[derive(Default)]
pub(crate) struct Transactions {
    open: HashMap<Bytes, OpenTransaction>,
    declared: u64,
}

struct OpenTransaction {
    transaction: Transaction,
    /// The link that declared it.
    coordinator: LinkId,
    /// Staging failed, so the transaction can only be rolled back.
    failed: Option<AmqpError>,
    settled: SettledLeases,
    /// Permissions that are checked again at the commit.
    permissions: Vec<(Action, Entity)>,
}

/// Leases of messages that the client settled in a transaction, in order.
#[derive(Default, Clone)]
struct SettledLeases(Vec<(QueueName, LeaseToken)>);

impl SettledLeases {
    /// Abandons the messages. The client gets its reply afterwards, so that it receives them in order.
    async fn return_all(self, engine: &Engine) {
        let mut by_queue: Vec<(QueueName, Vec<LeaseToken>)> = Vec::new();
        for (queue, lease) in self.0 {
            match by_queue.iter_mut().find(|(have, _)| *have == queue) {
                Some((_, leases)) => leases.push(lease),
                None => by_queue.push((queue, vec![lease])),
            }
        }
        for (queue, leases) in by_queue {
            for leases in leases.chunks(malote_model::limits::SETTLE_BATCH_MAX) {
                let abandon = Settlement::Abandon { delay_ms: 0, changes: Changes::default() };
                // Fails harmlessly for leases that have expired.
                let _ = engine.settle(Some(&queue), leases.to_vec(), abandon, None).await;
            }
        }
    }
}

impl Transactions {
    /// Declares a transaction. Expired ones are removed; their leases are returned.
    fn declare(
        &mut self,
        engine: &Engine,
        coordinator: LinkId,
    ) -> (Result<Bytes, AmqpError>, SettledLeases) {
        let over = self.remove(|staged| staged.transaction.is_over());
        if self.open.len() >= limits::TRANSACTIONS_MAX {
            let text = "too many open transactions on this connection";
            return (Err(AmqpError::new(condition::RESOURCE_LIMIT_EXCEEDED, text)), over);
        }
        self.declared += 1;
        let id = Bytes::copy_from_slice(&self.declared.to_be_bytes());
        let (transaction, settled) = (engine.transaction(), SettledLeases::default());
        let staged = OpenTransaction {
            transaction,
            coordinator,
            failed: None,
            settled,
            permissions: Vec::new(),
        };
        self.open.insert(id.clone(), staged);
        (Ok(id), over)
    }

    /// Removes the transactions for which `gone` is true, and returns their leases.
    fn remove(&mut self, gone: impl Fn(&OpenTransaction) -> bool) -> SettledLeases {
        let ids: Vec<Bytes> =
            self.open.iter().filter(|(_, staged)| gone(staged)).map(|(id, _)| id.clone()).collect();
        let staged = ids.iter().filter_map(|id| self.open.remove(id));
        SettledLeases(staged.flat_map(|staged| staged.settled.0).collect())
    }

    fn staged(&mut self, id: &Bytes) -> Result<&mut OpenTransaction, AmqpError> {
        let staged = self.open.get_mut(id).ok_or_else(unknown_transaction)?;
        match &staged.failed {
            Some(error) => Err(error.clone()),
            None => Ok(staged),
        }
    }

    pub fn send(
        &mut self,
        id: &Bytes,
        to: &Address,
        all: impl IntoIterator<Item = Message>,
    ) -> Result<(), AmqpError> {
        let staged = self.staged(id)?;
        staged.permissions(Action::Send, to.into());
        let sent = all.into_iter().try_for_each(|one| staged.transaction.send(to.clone(), one));
        sent.map_err(|error| staged.fail(error))
    }

    /// Stages a settlement. Returns the outcome to report.
    pub fn settle(
        &mut self,
        state: &TransactionalState,
        queue: &QueueName,
        lease: LeaseToken,
        settled_by_client: bool,
    ) -> Result<DeliveryState, AmqpError> {
        let staged = self.staged(&state.txn_id)?;
        if settled_by_client {
            staged.settled.0.push((queue.clone(), lease));
        }
        let Some((settlement, echo)) = settlement_of(state.outcome.as_deref()) else {
            let text = "the delivery state is not an outcome";
            let error = AmqpError::new(condition::INVALID_FIELD, text);
            staged.failed = Some(error.clone());
            return Err(error);
        };
        let settled = staged.transaction.settle(Some(queue.clone()), lease, settlement);
        settled.map_err(|error| staged.fail(error))?;
        staged.permissions(Action::Receive, Entity::Queue(queue.clone()));
        Ok(transactional(state.txn_id.clone(), echo))
    }
}

impl OpenTransaction {
    fn permissions(&mut self, action: Action, entity: Entity) {
        // A short list: one entry per link that takes part.
        if !self.permissions.iter().any(|need| need.0 == action && need.1 == entity) {
            self.permissions.push((action, entity));
        }
    }

    fn fail(&mut self, error: EngineError) -> AmqpError {
        let error = engine_error(error, LockKind::Message);
        self.failed = Some(error.clone());
        error
    }

    /// Commits, or rolls back. `denied`: a permission that the client has lost since.
    async fn discharge(
        self,
        engine: Engine,
        fail: bool,
        denied: Option<AmqpError>,
    ) -> DeliveryState {
        let OpenTransaction { transaction, failed, settled, .. } = self;
        let rolled_back = |why: String| Some(AmqpError::new(ROLLBACK, why));
        let outcome = match (failed, denied) {
            _ if fail => Err(None),
            (Some(failed), _) => Err(rolled_back(failed.to_string())),
            (None, Some(denied)) => Err(Some(denied)),
            (None, None) => {
                transaction.commit().await.map_err(|error| rolled_back(error.to_string()))
            }
        };
        match outcome {
            Ok(_) => DeliveryState::Accepted,
            Err(error) => {
                settled.return_all(&engine).await;
                error.map_or(DeliveryState::Accepted, DeliveryState::rejected)
            }
        }
    }
}

fn unknown_transaction() -> AmqpError {
    AmqpError::new(UNKNOWN_ID, "the transaction does not exist or has ended")
}

pub(crate) fn transactional(txn_id: Bytes, outcome: DeliveryState) -> DeliveryState {
    DeliveryState::Transactional(TransactionalState { txn_id, outcome: Some(Box::new(outcome)) })
}

enum CoordinatorRequest {
    Declare,
    Discharge(Discharge),
}

fn read(payload: &Bytes) -> Result<CoordinatorRequest, AmqpError> {
    let message = Wire::parse(payload.clone())?;
    if let Ok(Some(discharge)) = message.value_as::<Discharge>() {
        return Ok(CoordinatorRequest::Discharge(discharge));
    }
    match message.value_as::<Declare>()? {
        Some(_) => Ok(CoordinatorRequest::Declare),
        None => {
            let text = "a coordinator accepts only declare and discharge";
            Err(AmqpError::new(condition::NOT_IMPLEMENTED, text))
        }
    }
}

impl Conn {
    /// Handles a message for the coordinator.
    pub(crate) fn handle_coordinator(&mut self, incoming: Incoming) -> Result<(), UseError> {
        let Incoming { link, delivery, settled, payload, .. } = incoming;
        let now = match read(&payload) {
            Ok(CoordinatorRequest::Declare) => {
                let (declared, over) = self.transactions.declare(&self.front.engine, link);
                self.return_settled(over);
                declared.map(|txn_id| DeliveryState::Declared(Declared { txn_id }))
            }
            Ok(CoordinatorRequest::Discharge(Discharge { txn_id, fail })) => {
                match self.transactions.open.remove(&txn_id) {
                    Some(staged) => {
                        // A permission may have been revoked since the operation was staged.
                        let checked = staged.permissions.iter().try_for_each(|(action, entity)| {
                            self.claims.check(&self.front, *action, entity)
                        });
                        let engine = self.front.engine.clone();
                        self.start(async move {
                            let fail = fail == Some(true);
                            let outcome = staged.discharge(engine, fail, checked.err()).await;
                            Completion::Discharged { link, delivery, settled, outcome }
                        });
                        return Ok(());
                    }
                    None => Err(unknown_transaction()),
                }
            }
            Err(error) => Err(error),
        };
        let outcome = now.unwrap_or_else(DeliveryState::rejected);
        self.finish_coordinator(link, delivery, settled, outcome);
        Ok(())
    }

    /// Rolls back the open transactions of a coordinator link, or all of them.
    pub(crate) fn roll_back(&mut self, coordinator: Option<LinkId>) {
        let gone =
            |staged: &OpenTransaction| coordinator.is_none_or(|link| staged.coordinator == link);
        let settled = self.transactions.remove(gone);
        self.return_settled(settled);
    }

    fn return_settled(&mut self, settled: SettledLeases) {
        if settled.0.is_empty() {
            return;
        }
        let engine = self.front.engine.clone();
        self.start(async move {
            settled.return_all(&engine).await;
            Completion::Ignored
        });
    }

    pub(crate) fn finish_coordinator(
        &mut self,
        link: LinkId,
        delivery: DeliveryId,
        settled: bool,
        outcome: DeliveryState,
    ) {
        if !settled {
            let _ = self.amqp.dispose(link, delivery, true, Some(outcome));
        }
        if let Some(LinkState::Coordinator { in_progress }) = self.links.get_mut(&link) {
            *in_progress = in_progress.saturating_sub(1);
            let in_progress = *in_progress;
            self.grant_again(link, in_progress, limits::REQUEST_CREDIT);
        }
    }
}
