//! Settling messages: on the link that delivered them, or by their lock tokens.

use std::sync::Arc;

use malote_wire_amqp::connection::DeliveryId;
use malote_wire_amqp::performative::{AmqpError, DeliveryState, Modified};
use malote_wire_amqp::types::{Map, Symbol};
use tokio::sync::oneshot;

use super::connection::LinkHandle;
use super::driver::{DriverCommand, SettleDeliveries};
use super::error::{Error, ErrorKind, Result};
use super::management::Management;
use super::message::{LockToken, Received, SettleVia};

const DEAD_LETTER: &str = "com.microsoft:dead-letter";
pub(super) const REASON: &str = "DeadLetterReason";
pub(super) const DESCRIPTION: &str = "DeadLetterErrorDescription";

/// The outcome of a locked message. Properties are added to the application properties.
#[derive(Debug, Clone, PartialEq)]
pub enum Settlement {
    /// The message is done and is removed.
    Complete,
    /// The attempt failed: the message is delivered again, and its delivery count grows.
    Abandon {
        /// Properties to change.
        properties: Map,
    },
    /// The message is set aside. It can only be received by its sequence number.
    Defer {
        /// Properties to change.
        properties: Map,
    },
    /// The message goes to the dead letters.
    DeadLetter {
        /// A short reason, for programs.
        reason: String,
        /// A description, for people.
        description: String,
        /// Properties to change.
        properties: Map,
    },
    /// The message was not tried: it is delivered again, and its delivery count does not change.
    Release,
}

impl Settlement {
    /// The delivery state for the link.
    fn state(&self) -> DeliveryState {
        let modified = |here: bool, properties: &Map| {
            DeliveryState::Modified(Modified {
                delivery_failed: Some(true),
                undeliverable_here: Some(here),
                message_annotations: (!properties.is_empty()).then(|| properties.clone()),
            })
        };
        match self {
            Settlement::Complete => DeliveryState::Accepted,
            Settlement::Abandon { properties } => modified(false, properties),
            Settlement::Defer { properties } => modified(true, properties),
            Settlement::DeadLetter { reason, description, properties } => {
                let mut info = Map::default()
                    .with_string(REASON, reason.as_str())
                    .with_string(DESCRIPTION, description.as_str());
                info.0.extend(properties.0.iter().cloned());
                DeliveryState::rejected(AmqpError {
                    condition: Symbol::from_static(DEAD_LETTER),
                    description: None,
                    info: Some(info),
                })
            }
            Settlement::Release => DeliveryState::Released,
        }
    }
}

/// Settles messages of one receiver. Clones share it.
#[derive(Clone)]
pub struct Settler {
    link: Arc<LinkHandle>,
    management: Management,
    unconfirmed: bool,
}

/// Settlements in flight.
#[must_use = "only the outcome shows whether the lock was still valid"]
pub struct PendingSettlement {
    link: Arc<LinkHandle>,
    count: usize,
    outcomes: Outcomes,
}

enum Outcomes {
    Known(Vec<Result<()>>),
    Pending(oneshot::Receiver<Vec<Result<()>>>),
}

impl Settler {
    pub(super) fn new(link: Arc<LinkHandle>, management: Management, unconfirmed: bool) -> Settler {
        Settler { link, management, unconfirmed }
    }

    pub(super) fn set_session(&mut self, id: &str) {
        self.management.set_session(id);
    }

    pub(super) fn link(&self) -> &LinkHandle {
        &self.link
    }

    pub(super) fn management(&self) -> &Management {
        &self.management
    }

    pub(super) fn release(&self, unread: Vec<DeliveryId>) {
        self.link.release(unread);
    }

    pub(super) async fn close(&self, unread: Vec<DeliveryId>) {
        self.link.close(unread).await;
    }

    /// Completes a message.
    pub async fn complete(&self, message: &Received) -> Result<()> {
        self.settle_one(message, &Settlement::Complete).await
    }

    /// Abandons a message, with changed properties.
    pub async fn abandon(&self, message: &Received, properties: Map) -> Result<()> {
        self.settle_one(message, &Settlement::Abandon { properties }).await
    }

    /// Defers a message, with changed properties.
    pub async fn defer(&self, message: &Received, properties: Map) -> Result<()> {
        self.settle_one(message, &Settlement::Defer { properties }).await
    }

    /// Dead-letters a message.
    pub async fn dead_letter(
        &self,
        message: &Received,
        reason: &str,
        description: &str,
    ) -> Result<()> {
        let settlement = Settlement::DeadLetter {
            reason: reason.to_owned(),
            description: description.to_owned(),
            properties: Map::default(),
        };
        self.settle_one(message, &settlement).await
    }

    async fn settle_one(&self, message: &Received, settlement: &Settlement) -> Result<()> {
        let outcomes = self.settle([message], settlement).await?;
        outcomes.into_iter().next().unwrap_or(Ok(()))
    }

    /// Settles messages with the same outcome, one result for each in order.
    pub async fn settle<'a>(
        &self,
        messages: impl IntoIterator<Item = &'a Received>,
        settlement: &Settlement,
    ) -> Result<Vec<Result<()>>> {
        Ok(self.start(messages, settlement).await?.outcomes().await)
    }

    /// Starts settling messages. Adjacent deliveries share a frame. Deferred messages, and messages of a closed link,
    /// are settled before it returns.
    pub async fn start<'a>(
        &self,
        messages: impl IntoIterator<Item = &'a Received>,
        settlement: &Settlement,
    ) -> Result<PendingSettlement> {
        let messages: Vec<&Received> = messages.into_iter().collect();
        let link = self.link.clone();
        let count = messages.len();
        let deliveries: Vec<DeliveryId> =
            messages.iter().filter_map(|message| self.delivery_on_link(message)).collect();
        if deliveries.len() == count && count > 0 {
            let pending = self.settle_on_link(deliveries, settlement).await?;
            return Ok(PendingSettlement { link, count, outcomes: Outcomes::Pending(pending) });
        }
        let mut known = Vec::with_capacity(count);
        for message in messages {
            known.push(self.settle_individually(message, settlement).await);
        }
        Ok(PendingSettlement { link, count, outcomes: Outcomes::Known(known) })
    }

    /// The delivery, if the message came over this link and the link is open.
    fn delivery_on_link(&self, message: &Received) -> Option<DeliveryId> {
        match message.settle_via {
            SettleVia::Link(number, delivery) if number == self.link.number => {
                (!self.link.is_closed()).then_some(delivery)
            }
            _ => None,
        }
    }

    async fn settle_on_link(
        &self,
        deliveries: Vec<DeliveryId>,
        settlement: &Settlement,
    ) -> Result<oneshot::Receiver<Vec<Result<()>>>> {
        let (reply, answer) = oneshot::channel();
        let (state, forget) = (settlement.state(), self.unconfirmed);
        let settling = SettleDeliveries { link: self.link.link, deliveries, state, forget, reply };
        self.link.connection.command(DriverCommand::Settle(settling)).await?;
        Ok(answer)
    }

    /// Settles one message on its own.
    async fn settle_individually(&self, message: &Received, settlement: &Settlement) -> Result<()> {
        if let Some(delivery) = self.delivery_on_link(message) {
            let outcomes = self.settle_on_link(vec![delivery], settlement).await?.await;
            let outcomes = outcomes.map_err(|_| self.link.end_error())?;
            return outcomes.into_iter().next().unwrap_or(Ok(()));
        }
        match message.settle_via {
            // Locks of a session end with its link.
            SettleVia::Link(..) if self.management.session().is_some() => {
                Err(self.link.end_error())
            }
            SettleVia::Link(..) | SettleVia::Management => {
                let Some(token) = message.lock_token() else { return Err(self.link.end_error()) };
                self.management.settle(&[token], settlement).await
            }
            SettleVia::NotLocked => {
                let text = "the message is not locked: it was peeked, or received and deleted";
                Err(Error::new(ErrorKind::BadArgument, "com.microsoft:argument-error", text))
            }
        }
    }

    /// Renews the locks of messages. Returns when each ends. In a session, renew the session's lock instead.
    pub async fn renew_locks<'a>(
        &self,
        messages: impl IntoIterator<Item = &'a Received>,
    ) -> Result<Vec<i64>> {
        let locked = messages.into_iter().filter(|message| message.is_locked());
        let tokens: Vec<LockToken> = locked.filter_map(Received::lock_token).collect();
        self.management.renew_locks(&tokens).await
    }
}

impl PendingSettlement {
    /// The result of each settlement.
    pub async fn outcomes(self) -> Vec<Result<()>> {
        match self.outcomes {
            Outcomes::Known(known) => known,
            Outcomes::Pending(pending) => {
                pending.await.unwrap_or_else(|_| vec![Err(self.link.end_error()); self.count])
            }
        }
    }
}
