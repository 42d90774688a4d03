//! What has become of what was under way.

use bytes::Bytes;
use malote_engine::ConsumerId;
use malote_model::Principal;
use malote_wire_amqp::connection::{DeliveryId, LinkId};
use malote_wire_amqp::performative::{AmqpError, Attach, DeliveryState, SaslCode, condition};

use super::Conn;
use super::browser::{Browser, Page};
use super::link::{Answers, Desk, Link, Requests, Sender};
use super::receiver::Receiver;
use super::sends::Whose;
use super::transaction::within;
use crate::limits;
use crate::ops::answer::granted;
use crate::ops::attach::{Found, Wish};
use crate::ops::settle::Settled;

/// Something is over.
pub(crate) enum Done {
    /// Nobody waits for it.
    Nothing,
    /// Who the client is, by its password.
    Sasl(Option<Principal>),
    /// What a link wants was found, or not. None: nobody waits for it any more.
    Attached { link: LinkId, wanted: Box<Attach>, found: Option<Result<Found, AmqpError>> },
    /// Messages and batches were sent, or not, each by itself.
    SentTogether(Vec<(Whose, Result<(), AmqpError>)>),
    /// One was staged or refused, without the engine.
    Sent {
        link: LinkId,
        delivery: DeliveryId,
        settled: bool,
        bytes: usize,
        /// The transaction that it is a part of.
        txn_id: Option<Bytes>,
        sent: Result<(), AmqpError>,
    },
    /// Leases were ended, each on its own outcome.
    Settled(Settled),
    /// The engine knows of a consumer's credit; what it had left, if that was taken back.
    Credited { consumer: ConsumerId, left: Option<u32> },
    /// A page of a queue was read for a link that browses.
    Browsed { link: LinkId, page: Result<Page, AmqpError> },
    /// A transaction was committed, or not.
    Coordinated { link: LinkId, delivery: DeliveryId, settled: bool, outcome: DeliveryState },
    /// A request has its answer.
    Answer {
        link: LinkId,
        delivery: DeliveryId,
        settled: bool,
        to: Option<LinkId>,
        /// It was a peek: one less is under way.
        peek: bool,
        answer: Bytes,
    },
}

impl Conn {
    pub fn done(&mut self, done: Done) {
        match done {
            Done::Nothing => {}
            Done::Sasl(who) => {
                let code = if who.is_some() { SaslCode::Ok } else { SaslCode::Auth };
                self.claims.signed_in(who);
                self.identify();
                let _ = self.amqp.sasl_outcome(code);
            }
            Done::Attached { link, wanted, found } => self.attached(link, &wanted, found),
            Done::Sent { link, delivery, settled, bytes, txn_id, sent } => {
                self.sending_bytes = self.sending_bytes.saturating_sub(bytes);
                self.sent(link, delivery, settled, txn_id, sent);
            }
            Done::SentTogether(all) => self.sent_together(all),
            Done::Settled(settled) => self.settled(settled),
            Done::Credited { consumer, left } => self.credited(consumer, left),
            Done::Browsed { link, page } => self.browsed(link, page),
            Done::Coordinated { link, delivery, settled, outcome } => {
                self.coordinated(link, delivery, settled, outcome);
            }
            Done::Answer { link, delivery, settled, to, peek, answer } => {
                self.peeks -= u32::from(peek);
                self.answered(link, delivery, settled, to, answer);
            }
        }
    }

    fn attached(&mut self, link: LinkId, wanted: &Attach, found: Option<Result<Found, AmqpError>>) {
        let waits = matches!(self.links.get(&link), Some(Link::Attaching(_)));
        let found = match found {
            Some(Ok(found)) => found,
            Some(Err(error)) => {
                self.links.remove(&link);
                let _ = self.amqp.refuse(link, error);
                return;
            }
            // Given up: the peer has detached, or the process is stopping.
            None => {
                self.links.remove(&link);
                return;
            }
        };
        // One pair of links to `$cbs` on a connection, as in the service: who finds it taken, by a link that was not
        // closed, connects anew.
        if self.is_taken(&found) {
            self.links.remove(&link);
            let text = "Only one link to $cbs of each kind is allowed on a connection.";
            let _ = self.amqp.refuse(link, AmqpError::new(condition::NOT_ALLOWED, text));
            return;
        }
        let claim = Wish::of(wanted).ok().and_then(|wish| wish.claim(&found));
        let answer = granted(wanted, &found);
        let found = match found {
            Found::Temporary { queue, found } => {
                self.temporary.insert(link, queue);
                *found
            }
            found => found,
        };
        let state = match found {
            Found::Sender { to, message_bytes_max } => {
                Link::Sender(Sender { to, message_bytes_max, under_way: 0 })
            }
            Found::Receiver { consumer, queue, ttl_ms, take, session, bound, .. } => {
                self.consumers.insert(consumer, link);
                let name = wanted.name.clone();
                let mut receiver = Receiver::new(name, consumer, queue, ttl_ms, take, session);
                receiver.bound = bound;
                Link::Receiver(Box::new(receiver))
            }
            Found::Browser { queue, ttl_ms, session, filter } => {
                Link::Browser(Box::new(Browser::new(queue, ttl_ms, session, filter)))
            }
            Found::Temporary { .. } => unreachable!("a temporary queue holds no other"),
            Found::Nothing(_) => Link::Nothing,
            Found::Coordinator => Link::Coordinator { under_way: 0 },
            Found::ClaimsRequests => Link::Requests(Requests { desk: Desk::Claims, under_way: 0 }),
            Found::Requests(entity) => {
                Link::Requests(Requests { desk: Desk::Management(entity), under_way: 0 })
            }
            Found::ClaimsAnswers => Link::Answers(answers(Desk::Claims, wanted)),
            Found::Answers(entity) => Link::Answers(answers(Desk::Management(entity), wanted)),
        };
        let credit = match &state {
            Link::Sender(_) => Some(limits::SEND_CREDIT),
            Link::Requests(_) | Link::Coordinator { .. } => Some(limits::REQUEST_CREDIT),
            Link::Attaching(_)
            | Link::Receiver(_)
            | Link::Browser(_)
            | Link::Nothing
            | Link::Answers(_) => None,
        };
        self.links.insert(link, state);
        // A wait for a session may have outlived the permission for it.
        let denied = claim.as_ref().and_then(|(actions, entity)| {
            self.claims.check_any(&self.front, actions, entity).err()
        });
        if let Some(error) = denied {
            self.drop_link(link);
            let _ = self.amqp.refuse(link, error);
            return;
        }
        self.claimed.extend(claim.map(|claim| (link, claim)));
        if !waits || self.amqp.accept(link, answer).is_err() {
            // It was detached meanwhile: what was found for it goes back.
            self.drop_link(link);
            return;
        }
        if let Some(credit) = credit {
            let _ = self.amqp.grant(link, credit);
        }
        self.transmit(link);
        self.browse(link);
    }

    fn is_taken(&self, found: &Found) -> bool {
        self.links.values().any(|link| match (found, link) {
            (Found::ClaimsRequests, Link::Requests(requests)) => requests.desk == Desk::Claims,
            (Found::ClaimsAnswers, Link::Answers(answers)) => answers.desk == Desk::Claims,
            _ => false,
        })
    }

    pub(super) fn sent(
        &mut self,
        link: LinkId,
        delivery: DeliveryId,
        settled: bool,
        txn_id: Option<Bytes>,
        sent: Result<(), AmqpError>,
    ) {
        if let Err(error) = &sent {
            tracing::debug!(%error, "a message was refused");
        }
        if !settled {
            let state = match (sent, txn_id) {
                (Ok(()), None) => DeliveryState::Accepted,
                (Ok(()), Some(txn_id)) => within(txn_id, DeliveryState::Accepted),
                (Err(error), _) => DeliveryState::rejected(error),
            };
            let _ = self.amqp.dispose(link, delivery, true, Some(state));
        }
        if let Some(Link::Sender(sender)) = self.links.get_mut(&link) {
            sender.under_way = sender.under_way.saturating_sub(1);
            let under_way = sender.under_way;
            self.grant_again(link, under_way, limits::SEND_CREDIT);
        }
    }

    /// Credit and what is under way are together never more than `most`.
    pub(super) fn grant_again(&mut self, link: LinkId, under_way: u32, most: u32) {
        let free = most.saturating_sub(under_way);
        if self.amqp.credit(link) < free.min(most / 2) {
            let _ = self.amqp.grant(link, free);
        }
    }
}

fn answers(desk: Desk, wanted: &Attach) -> Answers {
    use malote_wire_amqp::performative::AnyTarget;
    let address = match &wanted.target {
        Some(AnyTarget::Target(target)) => target.address.clone(),
        _ => None,
    };
    Answers { desk, address, waiting: Default::default() }
}
