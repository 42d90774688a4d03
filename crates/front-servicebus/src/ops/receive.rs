//! Receive: deliveries of a receiving link. See `credit.rs` for its credit.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use malote_engine::{AcceptedSession, ConsumerId, Delivery};
use malote_model::{LeaseToken, QueueName};
use malote_wire_amqp::connection::{LinkFlow, LinkId, Outgoing, SendError};
use malote_wire_amqp::performative::{AmqpError, condition};
use malote_wire_amqp::types::Str;

use super::credit::{CreditStep, LinkCredit};
use crate::conn::id_map::IdMap;
use crate::conn::link::LinkState;
use crate::conn::{Completion, Conn};
use crate::refusal::LockKind;
use crate::wire::message::{DeliveryInfo, put};
use crate::wire::tag_of;

pub(crate) struct ReceiverLink {
    /// The client's name for the link; requests may name it.
    pub name: Str,
    pub consumer: ConsumerId,
    pub queue: QueueName,
    /// Time-to-live of the queue, as of the attach.
    ttl_ms: Option<u64>,
    /// Messages are removed when they are sent (receive-and-delete).
    pub receive_and_delete: bool,
    /// The session that the link holds.
    pub session: Option<AcceptedSession>,
    /// Locks are released when the link is detached.
    pub release_on_detach: bool,
    /// Messages waiting for credit or for space in the output buffer.
    pub waiting: VecDeque<Delivery>,
    /// Leases of unsettled deliveries, by delivery key.
    pub out: IdMap<u64, LeaseToken>,
    credit: LinkCredit,
}

impl ReceiverLink {
    pub fn new(
        name: Str,
        consumer: ConsumerId,
        queue: QueueName,
        ttl_ms: Option<u64>,
        receive_and_delete: bool,
        session: Option<AcceptedSession>,
    ) -> ReceiverLink {
        ReceiverLink {
            name,
            consumer,
            queue,
            ttl_ms,
            receive_and_delete,
            session,
            release_on_detach: false,
            waiting: VecDeque::new(),
            out: IdMap::default(),
            credit: LinkCredit::new(),
        }
    }

    /// Which lock is lost when a lease is lost.
    pub fn lock(&self) -> LockKind {
        if self.session.is_some() { LockKind::Session } else { LockKind::Message }
    }

    fn encode(&self, delivery: &Delivery, out: &mut BytesMut) {
        let info = DeliveryInfo {
            until: delivery.lease.map(|_| delivery.until),
            lock: delivery.lease,
            ttl_ms_max: self.ttl_ms,
            ..DeliveryInfo::of(&self.queue, &delivery.stored, delivery.seq, delivery.failed)
        };
        put(out, &delivery.stored, &info);
    }
}

impl Conn {
    /// Handles a flow of the client.
    pub(crate) fn flow(&mut self, flow: &LinkFlow) {
        match self.links.get_mut(&flow.link) {
            Some(LinkState::Receiver(receiver)) => {
                // A repeated drain continues the current one.
                if receiver.credit.drain != flow.drain {
                    receiver.credit.drain(flow.drain);
                }
                self.transmit(flow.link);
            }
            Some(LinkState::Browser(browser)) => {
                browser.flow(flow.drain);
                self.browse(flow.link);
            }
            Some(LinkState::Empty) if flow.drain => {
                let _ = self.amqp.drained(flow.link);
            }
            _ => {}
        }
    }

    /// Handles deliveries from the engine.
    pub(crate) fn deliver(&mut self, link: LinkId, deliveries: Vec<Delivery>) {
        let Some(LinkState::Receiver(receiver)) = self.links.get_mut(&link) else { return };
        let bytes = deliveries.iter().map(|d| d.stored.message.body.bytes.len() + 512).sum();
        receiver.credit.arrived(deliveries.len() as u32, bytes);
        match receiver.waiting.is_empty() {
            // Moves the whole buffer: each delivery is half a kilobyte without its body.
            true => receiver.waiting = deliveries.into(),
            false => receiver.waiting.extend(deliveries),
        }
        self.transmit(link);
    }

    /// Granted messages could not be read from disk. The client's credit is not used.
    pub(crate) fn unreadable(&mut self, consumer: ConsumerId, count: u32) {
        let Some(link) = self.consumers.get(&consumer).copied() else { return };
        let Some(LinkState::Receiver(receiver)) = self.links.get_mut(&link) else { return };
        receiver.credit.lost(count);
        self.transmit(link);
    }

    pub(crate) fn finish_credit_change(&mut self, consumer: ConsumerId, left: Option<u32>) {
        let Some(link) = self.consumers.get(&consumer).copied() else { return };
        let Some(LinkState::Receiver(receiver)) = self.links.get_mut(&link) else { return };
        receiver.credit.answered(left);
        self.transmit(link);
    }

    /// Sends what can be sent, then updates the credit.
    pub(crate) fn transmit(&mut self, link: LinkId) {
        let now = self.front.engine.now();
        let Some(LinkState::Receiver(receiver)) = self.links.get_mut(&link) else { return };
        let mut failure = None;
        while let Some(delivery) = receiver.waiting.front() {
            if delivery.lease.is_some() && receiver.session.is_none() && delivery.until <= now {
                // Its lock expired while it waited, so the engine delivers it again.
                receiver.waiting.pop_front();
                continue;
            }
            if self.amqp.credit(link) == 0 || self.amqp.free_output_bytes() == 0 {
                break;
            }
            let key = self.next_key;
            // A pre-settled delivery has no lock that a tag could name. The service sends an empty tag.
            let tag = delivery.lease.map(tag_of);
            let tag = tag.map_or_else(Bytes::new, |tag| Bytes::copy_from_slice(&tag));
            let outgoing =
                Outgoing { key, tag, settled: receiver.receive_and_delete, ..Outgoing::default() };
            let write = |out: &mut BytesMut| receiver.encode(delivery, out);
            match self.amqp.send_with(link, outgoing, write) {
                Ok(()) => {}
                Err(SendError::Full | SendError::NoCredit) => break,
                Err(error @ (SendError::NotAttached | SendError::Tag)) => {
                    tracing::debug!(%error, "delivery not sent");
                    break;
                }
                Err(error @ SendError::TooLarge { .. }) => {
                    failure =
                        Some(AmqpError::new(condition::MESSAGE_SIZE_EXCEEDED, error.to_string()));
                    break;
                }
            }
            self.next_key += 1;
            let sent = receiver.waiting.pop_front();
            if let Some(lease) = sent.and_then(|delivery| delivery.lease) {
                receiver.out.insert(key, lease);
            }
        }
        if let Some(error) = failure {
            self.drop_link(link);
            let _ = self.amqp.detach(link, true, Some(error));
            return;
        }
        self.update_credit(link);
    }

    fn update_credit(&mut self, link: LinkId) {
        let wanted = self.amqp.credit(link);
        let Some(LinkState::Receiver(receiver)) = self.links.get_mut(&link) else { return };
        // After the client lowered its credit: return the excess, last first.
        let mut back = Vec::new();
        while receiver.waiting.len() > wanted as usize
            && let Some(lease) = receiver.waiting.back().and_then(|delivery| delivery.lease)
        {
            receiver.waiting.pop_back();
            back.push(lease);
        }
        let waiting = receiver.waiting.len() as u32;
        if waiting > 0 {
            self.blocked_links.insert(link);
        }
        let consumer = receiver.consumer;
        let step = receiver.credit.step(wanted, waiting);
        self.release_leases(back);
        let (credit, replace) = match step {
            CreditStep::Nothing => return,
            CreditStep::Drained => {
                let _ = self.amqp.drained(link);
                return;
            }
            CreditStep::Give(more) => (more, false),
            CreditStep::Withdraw => (0, true),
        };
        let engine = self.engine.clone();
        self.start(async move {
            // Refused only while the engine is stopping; nothing more is delivered then.
            let had = engine.credit(consumer, credit, replace).await.unwrap_or(0);
            Completion::CreditChanged { consumer, left: replace.then_some(had) }
        });
    }
}
