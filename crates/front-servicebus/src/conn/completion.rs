//! Results of pending operations.

use bytes::Bytes;
use malote_engine::ConsumerId;
use malote_model::Principal;
use malote_wire_amqp::connection::{DeliveryId, LinkId};
use malote_wire_amqp::performative::{AmqpError, Attach, DeliveryState, SaslCode};

use super::Conn;
use crate::ops::attach::ResolvedLink;
use crate::ops::browse::BrowsePage;
use crate::ops::send::TransferOrigin;
use crate::ops::settle::SettleResults;

/// The result of a [`PendingOperation`](super::PendingOperation).
pub(crate) enum Completion {
    /// No result is needed.
    Ignored,
    /// The principal, if the password was correct.
    Sasl(Option<Principal>),
    /// An attach was resolved or refused. None: it was cancelled.
    Attached {
        link: LinkId,
        wanted: Box<Attach>,
        resolved: Option<Result<ResolvedLink, AmqpError>>,
    },
    /// Messages and batches were sent; each has its own result.
    SentBatch(Vec<(TransferOrigin, Result<(), AmqpError>)>),
    /// A transfer was staged or refused without calling the engine.
    Sent {
        link: LinkId,
        delivery: DeliveryId,
        settled: bool,
        bytes: usize,
        txn_id: Option<Bytes>,
        sent: Result<(), AmqpError>,
    },
    /// Leases were settled; each has its own outcome.
    Settled(SettleResults),
    /// The engine applied a credit change. `left`: unused credit, if it was withdrawn.
    CreditChanged { consumer: ConsumerId, left: Option<u32> },
    /// A page of messages was read for a browsing link.
    PageRead { link: LinkId, page: Result<BrowsePage, AmqpError> },
    /// A transaction was committed or rolled back.
    Discharged { link: LinkId, delivery: DeliveryId, settled: bool, outcome: DeliveryState },
    /// A request was handled.
    Reply {
        link: LinkId,
        delivery: DeliveryId,
        settled: bool,
        to: Option<LinkId>,
        /// The request was a peek and counts against the limit of peeks.
        peek: bool,
        answer: Bytes,
    },
}

impl Conn {
    pub fn complete(&mut self, completion: Completion) {
        match completion {
            Completion::Ignored => {}
            Completion::Sasl(who) => {
                let code = if who.is_some() { SaslCode::Ok } else { SaslCode::Auth };
                self.claims.signed_in(who);
                self.update_authentication();
                let _ = self.amqp.sasl_outcome(code);
            }
            Completion::Attached { link, wanted, resolved } => {
                self.finish_attach(link, &wanted, resolved)
            }
            Completion::Sent { link, delivery, settled, bytes, txn_id, sent } => {
                self.sending_bytes = self.sending_bytes.saturating_sub(bytes);
                self.finish_send(link, delivery, settled, txn_id, sent);
            }
            Completion::SentBatch(all) => self.finish_send_batch(all),
            Completion::Settled(settled) => self.finish_settle(settled),
            Completion::CreditChanged { consumer, left } => {
                self.finish_credit_change(consumer, left)
            }
            Completion::PageRead { link, page } => self.finish_page_read(link, page),
            Completion::Discharged { link, delivery, settled, outcome } => {
                self.finish_coordinator(link, delivery, settled, outcome);
            }
            Completion::Reply { link, delivery, settled, to, peek, answer } => {
                self.peeks -= u32::from(peek);
                self.finish_request(link, delivery, settled, to, answer);
            }
        }
    }

    /// Grants credit again, so that credit and deliveries in progress never exceed `most` together.
    pub(crate) fn grant_again(&mut self, link: LinkId, in_progress: u32, most: u32) {
        let free = most.saturating_sub(in_progress);
        if self.amqp.credit(link) < free.min(most / 2) {
            let _ = self.amqp.grant(link, free);
        }
    }
}
