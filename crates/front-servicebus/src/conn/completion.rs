//! What has become of what was under way.

use bytes::Bytes;
use malote_engine::ConsumerId;
use malote_model::Principal;
use malote_wire_amqp::connection::{DeliveryId, LinkId};
use malote_wire_amqp::performative::{AmqpError, Attach, DeliveryState, SaslCode};

use super::Conn;
use crate::ops::attach::Found;
use crate::ops::browse::Page;
use crate::ops::send::Whose;
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

    /// Credit and what is under way are together never more than `most`.
    pub(crate) fn grant_again(&mut self, link: LinkId, under_way: u32, most: u32) {
        let free = most.saturating_sub(under_way);
        if self.amqp.credit(link) < free.min(most / 2) {
            let _ = self.amqp.grant(link, free);
        }
    }
}
