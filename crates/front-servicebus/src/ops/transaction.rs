//! Transactions: declared at the coordinator, staged here, committed as one command of the engine.
//!
//! A transaction that is rolled back, by its discharge or because it cannot be committed, gives back the messages that
//! the client settled in it: it has forgotten them, so nobody else could. They come back as after an abandon, to their
//! places. A message whose disposition in the transaction was not settled by the client stays locked: the client still
//! has it, and clients of Service Bus settle it again. With its coordinator's link or its connection a transaction is
//! rolled back.

use std::collections::HashMap;

use bytes::Bytes;
use malote_engine::{Engine, EngineError, Transaction};
use malote_model::{Action, Address, Changes, LeaseToken, Message, QueueName, Settlement};
use malote_wire_amqp::connection::{DeliveryId, Incoming, LinkId, UseError};
use malote_wire_amqp::message::Message as Wire;
use malote_wire_amqp::performative::{
    AmqpError, Declare, Declared, DeliveryState, Discharge, TransactionalState, condition,
};

use crate::conn::link::Link;
use crate::conn::{Conn, Done};
use crate::limits;
use crate::ops::resolve::Entity;
use crate::ops::settle::settlement_of;
use crate::refusal::{Lock, error_of};

const UNKNOWN_ID: &str = "amqp:transaction:unknown-id";
const ROLLBACK: &str = "amqp:transaction:rollback";

/// Those that are under way on a connection.
#[derive(Default)]
pub(crate) struct Transactions {
    open: HashMap<Bytes, Staged>,
    declared: u64,
}

/// What a transaction has staged so far.
struct Staged {
    transaction: Transaction,
    /// The link that declared it.
    coordinator: LinkId,
    /// A part could not be staged: it can only be rolled back.
    failed: Option<AmqpError>,
    settled: Settled,
    /// What its client must be allowed to do when it is committed.
    needs: Vec<(Action, Entity)>,
}

/// Leases of messages that the client settled in a transaction, in that order.
#[derive(Default, Clone)]
struct Settled(Vec<(QueueName, LeaseToken)>);

impl Settled {
    /// Gives the messages back. The answer to the client waits for it: what it receives next comes in order.
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
                // A lock that has run out has brought its message back already.
                let _ = engine.settle(Some(&queue), leases.to_vec(), abandon, None).await;
            }
        }
    }
}

impl Transactions {
    /// Begins one. Those whose time is over make room; what they hold is returned.
    fn declare(
        &mut self,
        engine: &Engine,
        coordinator: LinkId,
    ) -> (Result<Bytes, AmqpError>, Settled) {
        let over = self.remove(|staged| staged.transaction.is_over());
        if self.open.len() >= limits::TRANSACTIONS_MAX {
            let text = "too many transactions are under way on this connection";
            return (Err(AmqpError::new(condition::RESOURCE_LIMIT_EXCEEDED, text)), over);
        }
        self.declared += 1;
        let id = Bytes::copy_from_slice(&self.declared.to_be_bytes());
        let (transaction, settled) = (engine.transaction(), Settled::default());
        let staged = Staged { transaction, coordinator, failed: None, settled, needs: Vec::new() };
        self.open.insert(id.clone(), staged);
        (Ok(id), over)
    }

    /// Forgets those that fit, and tells what they hold.
    fn remove(&mut self, gone: impl Fn(&Staged) -> bool) -> Settled {
        let ids: Vec<Bytes> =
            self.open.iter().filter(|(_, staged)| gone(staged)).map(|(id, _)| id.clone()).collect();
        let staged = ids.iter().filter_map(|id| self.open.remove(id));
        Settled(staged.flat_map(|staged| staged.settled.0).collect())
    }

    fn staged(&mut self, id: &Bytes) -> Result<&mut Staged, AmqpError> {
        let staged = self.open.get_mut(id).ok_or_else(unknown)?;
        match &staged.failed {
            Some(error) => Err(error.clone()),
            None => Ok(staged),
        }
    }

    /// Stages messages.
    pub fn send(
        &mut self,
        id: &Bytes,
        to: &Address,
        all: impl IntoIterator<Item = Message>,
    ) -> Result<(), AmqpError> {
        let staged = self.staged(id)?;
        staged.needs(Action::Send, to.into());
        let sent = all.into_iter().try_for_each(|one| staged.transaction.send(to.clone(), one));
        sent.map_err(|error| staged.fail(error))
    }

    /// Stages the end of a lease, which the client has forgotten or not. Tells what is echoed.
    pub fn settle(
        &mut self,
        state: &TransactionalState,
        queue: &QueueName,
        lease: LeaseToken,
        forgotten: bool,
    ) -> Result<DeliveryState, AmqpError> {
        let staged = self.staged(&state.txn_id)?;
        if forgotten {
            staged.settled.0.push((queue.clone(), lease));
        }
        let Some((settlement, echo)) = settlement_of(state.outcome.as_deref()) else {
            let text = "what becomes of the message is not an outcome";
            let error = AmqpError::new(condition::INVALID_FIELD, text);
            staged.failed = Some(error.clone());
            return Err(error);
        };
        let settled = staged.transaction.settle(Some(queue.clone()), lease, settlement);
        settled.map_err(|error| staged.fail(error))?;
        staged.needs(Action::Receive, Entity::Queue(queue.clone()));
        Ok(within(state.txn_id.clone(), echo))
    }
}

impl Staged {
    fn needs(&mut self, action: Action, entity: Entity) {
        // Few: one for each link that takes part.
        if !self.needs.iter().any(|need| need.0 == action && need.1 == entity) {
            self.needs.push((action, entity));
        }
    }

    fn fail(&mut self, error: EngineError) -> AmqpError {
        let error = error_of(error, Lock::Message);
        self.failed = Some(error.clone());
        error
    }

    /// Commits, or gives back what the client settled. `denied`: what it may not do any more.
    async fn discharge(
        self,
        engine: Engine,
        fail: bool,
        denied: Option<AmqpError>,
    ) -> DeliveryState {
        let Staged { transaction, failed, settled, .. } = self;
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

fn unknown() -> AmqpError {
    AmqpError::new(UNKNOWN_ID, "there is no such transaction, or no more")
}

/// An outcome as a part of a transaction.
pub(crate) fn within(txn_id: Bytes, outcome: DeliveryState) -> DeliveryState {
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
    pub(crate) fn coordinate(&mut self, incoming: Incoming) -> Result<(), UseError> {
        let Incoming { link, delivery, settled, payload, .. } = incoming;
        let now = match read(&payload) {
            Ok(Wanted::Declare) => {
                let (declared, over) = self.transactions.declare(&self.front.engine, link);
                self.return_settled(over);
                declared.map(|txn_id| DeliveryState::Declared(Declared { txn_id }))
            }
            Ok(Wanted::Discharge(Discharge { txn_id, fail })) => {
                match self.transactions.open.remove(&txn_id) {
                    Some(staged) => {
                        // What was allowed when it was staged may not be any more.
                        let checked = staged.needs.iter().try_for_each(|(action, entity)| {
                            self.claims.check(&self.front, *action, entity)
                        });
                        let engine = self.front.engine.clone();
                        self.start(async move {
                            let fail = fail == Some(true);
                            let outcome = staged.discharge(engine, fail, checked.err()).await;
                            Done::Coordinated { link, delivery, settled, outcome }
                        });
                        return Ok(());
                    }
                    None => Err(unknown()),
                }
            }
            Err(error) => Err(error),
        };
        let outcome = now.unwrap_or_else(DeliveryState::rejected);
        self.coordinated(link, delivery, settled, outcome);
        Ok(())
    }

    /// Transactions that the link declared and did not discharge are rolled back; all of them, without a link.
    pub(crate) fn roll_back(&mut self, coordinator: Option<LinkId>) {
        let gone = |staged: &Staged| coordinator.is_none_or(|link| staged.coordinator == link);
        let settled = self.transactions.remove(gone);
        self.return_settled(settled);
    }

    fn return_settled(&mut self, settled: Settled) {
        if settled.0.is_empty() {
            return;
        }
        let engine = self.front.engine.clone();
        self.start(async move {
            settled.return_all(&engine).await;
            Done::Nothing
        });
    }

    pub(crate) fn coordinated(
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
