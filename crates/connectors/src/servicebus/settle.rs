//! How locked messages end: on the link that they came over, or by their lock tokens.

use std::sync::Arc;

use malote_wire_amqp::connection::DeliveryId;
use malote_wire_amqp::performative::{AmqpError, DeliveryState, Modified};
use malote_wire_amqp::types::{Map, Symbol};
use tokio::sync::oneshot;

use super::connection::LinkHandle;
use super::driver::{Command, Settling};
use super::error::{Error, Kind, Result};
use super::management::Management;
use super::message::{LockToken, Place, Received};

const DEAD_LETTER: &str = "com.microsoft:dead-letter";
pub(super) const REASON: &str = "DeadLetterReason";
pub(super) const DESCRIPTION: &str = "DeadLetterErrorDescription";

/// What becomes of a locked message. Properties are laid over the application's own.
#[derive(Debug, Clone, PartialEq)]
pub enum Settlement {
    /// Done: it is removed.
    Complete,
    /// Failed: it comes again, and the attempt counts.
    Abandon {
        /// Properties to change.
        properties: Map,
    },
    /// Put aside: only its sequence number finds it again.
    Defer {
        /// Properties to change.
        properties: Map,
    },
    /// Given up: it goes to the dead letters.
    DeadLetter {
        /// Why, for programs.
        reason: String,
        /// Why, for people.
        description: String,
        /// Properties to change.
        properties: Map,
    },
    /// Not tried: it comes again, and nothing counts.
    Release,
}

impl Settlement {
    /// The outcome on a link.
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

/// Settles messages of one receiver. Clones settle for the same one.
#[derive(Clone)]
pub struct Settler {
    link: Arc<LinkHandle>,
    management: Management,
    unconfirmed: bool,
}

/// Settlements that were handed over, and what comes of each.
#[must_use = "only the outcome tells whether the lock still held"]
pub struct Settled {
    link: Arc<LinkHandle>,
    count: usize,
    outcomes: Outcomes,
}

enum Outcomes {
    Known(Vec<Result<()>>),
    Coming(oneshot::Receiver<Vec<Result<()>>>),
}

impl Settler {
    pub(super) fn new(link: Arc<LinkHandle>, management: Management, unconfirmed: bool) -> Settler {
        Settler { link, management, unconfirmed }
    }

    pub(super) fn of_session(&mut self, id: &str) {
        self.management.of_session(id);
    }

    pub(super) fn link(&self) -> &LinkHandle {
        &self.link
    }

    pub(super) fn management(&self) -> &Management {
        &self.management
    }

    pub(super) fn release(&self, unseen: Vec<DeliveryId>) {
        self.link.release(unseen);
    }

    pub(super) async fn close(&self, unseen: Vec<DeliveryId>) {
        self.link.close(unseen).await;
    }

    /// Removes a message.
    pub async fn complete(&self, message: &Received) -> Result<()> {
        self.settle_one(message, &Settlement::Complete).await
    }

    /// Lets a message come again, with some properties changed.
    pub async fn abandon(&self, message: &Received, properties: Map) -> Result<()> {
        self.settle_one(message, &Settlement::Abandon { properties }).await
    }

    /// Puts a message aside.
    pub async fn defer(&self, message: &Received, properties: Map) -> Result<()> {
        self.settle_one(message, &Settlement::Defer { properties }).await
    }

    /// Gives a message up.
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

    /// Settles messages in the same way. Each has its own outcome, in order.
    pub async fn settle<'a>(
        &self,
        messages: impl IntoIterator<Item = &'a Received>,
        settlement: &Settlement,
    ) -> Result<Vec<Result<()>>> {
        Ok(self.start(messages, settlement).await?.outcomes().await)
    }

    /// Hands settlements over: neighbours go in one frame. Those of deferred messages, and those whose link is gone,
    /// have their outcomes at once.
    pub async fn start<'a>(
        &self,
        messages: impl IntoIterator<Item = &'a Received>,
        settlement: &Settlement,
    ) -> Result<Settled> {
        let messages: Vec<&Received> = messages.into_iter().collect();
        let link = self.link.clone();
        let count = messages.len();
        let deliveries: Vec<DeliveryId> =
            messages.iter().filter_map(|message| self.on_link(message)).collect();
        if deliveries.len() == count && count > 0 {
            let coming = self.settle_on_link(deliveries, settlement).await?;
            return Ok(Settled { link, count, outcomes: Outcomes::Coming(coming) });
        }
        let mut known = Vec::with_capacity(count);
        for message in messages {
            known.push(self.settle_alone(message, settlement).await);
        }
        Ok(Settled { link, count, outcomes: Outcomes::Known(known) })
    }

    /// The delivery, if the message came over this link and that is still there.
    fn on_link(&self, message: &Received) -> Option<DeliveryId> {
        match message.place {
            Place::Link(number, delivery) if number == self.link.number => {
                (!self.link.is_over()).then_some(delivery)
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
        let settling = Settling { link: self.link.link, deliveries, state, forget, reply };
        self.link.connection.command(Command::Settle(settling)).await?;
        Ok(answer)
    }

    /// One that does not go with its neighbours.
    async fn settle_alone(&self, message: &Received, settlement: &Settlement) -> Result<()> {
        if let Some(delivery) = self.on_link(message) {
            let outcomes = self.settle_on_link(vec![delivery], settlement).await?.await;
            let outcomes = outcomes.map_err(|_| self.link.why())?;
            return outcomes.into_iter().next().unwrap_or(Ok(()));
        }
        match message.place {
            // A session's locks are gone with its link.
            Place::Link(..) if self.management.session().is_some() => Err(self.link.why()),
            Place::Link(..) | Place::Management => {
                let Some(token) = message.lock_token() else { return Err(self.link.why()) };
                self.management.settle(&[token], settlement).await
            }
            Place::Nowhere => {
                let text = "the message is not locked: it was peeked, or is gone already";
                Err(Error::of(Kind::BadArgument, "com.microsoft:argument-error", text))
            }
        }
    }

    /// Renews the locks of messages; tells until when each holds. In a session, its lock is renewed instead.
    pub async fn renew_locks<'a>(
        &self,
        messages: impl IntoIterator<Item = &'a Received>,
    ) -> Result<Vec<i64>> {
        let locked = messages.into_iter().filter(|message| message.is_locked());
        let tokens: Vec<LockToken> = locked.filter_map(Received::lock_token).collect();
        self.management.renew_locks(&tokens).await
    }
}

impl Settled {
    /// What came of each.
    pub async fn outcomes(self) -> Vec<Result<()>> {
        match self.outcomes {
            Outcomes::Known(known) => known,
            Outcomes::Coming(coming) => {
                coming.await.unwrap_or_else(|_| vec![Err(self.link.why()); self.count])
            }
        }
    }
}
