//! Credit and deliveries of a receiving link.
//!
//! The engine is told of as much of the client's credit as its messages may be in memory at once: the window. What it
//! has been told and has not used yet is `given`. Lowering credit, and draining, ask the engine what it has left: the
//! difference is on its way here. One such question is under way at a time.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use malote_engine::{ConsumerId, Delivery, Held};
use malote_model::{LeaseToken, QueueName};
use malote_wire_amqp::connection::{LinkFlow, LinkId, Outgoing, SendError};
use malote_wire_amqp::performative::{AmqpError, condition};
use malote_wire_amqp::types::Str;

use super::credit::{Credit, Step};
use crate::conn::id_map::ByNumber;
use crate::conn::link::Link;
use crate::conn::{Conn, Done};
use crate::refusal::Lock;
use crate::wire::message::{Telling, put};
use crate::wire::tag_of;

/// A link on which a client receives.
pub(crate) struct Receiver {
    /// The client's name for it, which requests may say.
    pub name: Str,
    pub consumer: ConsumerId,
    pub queue: QueueName,
    /// How long the queue keeps messages, as of the attach.
    ttl_ms: Option<u64>,
    /// Messages are gone when they are sent.
    pub take: bool,
    /// The session that it holds.
    pub session: Option<Held>,
    /// Locks end with the link.
    pub bound: bool,
    /// Messages that wait for credit or for room.
    pub waiting: VecDeque<Delivery>,
    /// What is out, by key.
    pub out: ByNumber<u64, LeaseToken>,
    credit: Credit,
}

impl Receiver {
    pub fn new(
        name: Str,
        consumer: ConsumerId,
        queue: QueueName,
        ttl_ms: Option<u64>,
        take: bool,
        session: Option<Held>,
    ) -> Receiver {
        Receiver {
            name,
            consumer,
            queue,
            ttl_ms,
            take,
            session,
            bound: false,
            waiting: VecDeque::new(),
            out: ByNumber::default(),
            credit: Credit::new(),
        }
    }

    /// Whose loss a lost lease is.
    pub fn lock(&self) -> Lock {
        if self.session.is_some() { Lock::Session } else { Lock::Message }
    }

    fn encode(&self, delivery: &Delivery, out: &mut BytesMut) {
        let telling = Telling {
            until: delivery.lease.map(|_| delivery.until),
            lock: delivery.lease,
            ttl_ms_max: self.ttl_ms,
            ..Telling::of(&self.queue, &delivery.stored, delivery.seq, delivery.failed)
        };
        put(out, &delivery.stored, &telling);
    }
}

impl Conn {
    /// The client has told its credit.
    pub(crate) fn flow(&mut self, flow: &LinkFlow) {
        match self.links.get_mut(&flow.link) {
            Some(Link::Receiver(receiver)) => {
                // A drain that goes on is not begun anew.
                if receiver.credit.drain != flow.drain {
                    receiver.credit.drain(flow.drain);
                }
                self.transmit(flow.link);
            }
            Some(Link::Browser(browser)) => {
                browser.flow(flow.drain);
                self.browse(flow.link);
            }
            Some(Link::Nothing) if flow.drain => {
                let _ = self.amqp.drained(flow.link);
            }
            _ => {}
        }
    }

    /// Messages have come from the engine.
    pub(crate) fn deliver(&mut self, link: LinkId, deliveries: Vec<Delivery>) {
        let Some(Link::Receiver(receiver)) = self.links.get_mut(&link) else { return };
        let bytes = deliveries.iter().map(|d| d.stored.message.body.bytes.len() + 512).sum();
        receiver.credit.arrived(deliveries.len() as u32, bytes);
        match receiver.waiting.is_empty() {
            // As they are: each is half a kilobyte without its body.
            true => receiver.waiting = deliveries.into(),
            false => receiver.waiting.extend(deliveries),
        }
        self.transmit(link);
    }

    /// Messages were granted that the disk does not give back. The client's credit is untouched by them.
    pub(crate) fn unreadable(&mut self, consumer: ConsumerId, count: u32) {
        let Some(link) = self.consumers.get(&consumer).copied() else { return };
        let Some(Link::Receiver(receiver)) = self.links.get_mut(&link) else { return };
        receiver.credit.lost(count);
        self.transmit(link);
    }

    /// The engine has answered about credit.
    pub(crate) fn credited(&mut self, consumer: ConsumerId, left: Option<u32>) {
        let Some(link) = self.consumers.get(&consumer).copied() else { return };
        let Some(Link::Receiver(receiver)) = self.links.get_mut(&link) else { return };
        receiver.credit.answered(left);
        self.transmit(link);
    }

    /// Sends what can be sent, then sees to the credit.
    pub(crate) fn transmit(&mut self, link: LinkId) {
        let now = self.front.engine.now();
        let Some(Link::Receiver(receiver)) = self.links.get_mut(&link) else { return };
        let mut failure = None;
        while let Some(delivery) = receiver.waiting.front() {
            if delivery.lease.is_some() && receiver.session.is_none() && delivery.until <= now {
                // It waited for longer than its lock: somebody else gets it.
                receiver.waiting.pop_front();
                continue;
            }
            if self.amqp.credit(link) == 0 || self.amqp.room_bytes() == 0 {
                break;
            }
            let key = self.next_key;
            // What is settled as it leaves has no lock that a tag could name: the service writes an empty one.
            let tag = delivery.lease.map(tag_of);
            let tag = tag.map_or_else(Bytes::new, |tag| Bytes::copy_from_slice(&tag));
            let outgoing = Outgoing { key, tag, settled: receiver.take, ..Outgoing::default() };
            let write = |out: &mut BytesMut| receiver.encode(delivery, out);
            match self.amqp.send_written(link, outgoing, write) {
                Ok(()) => {}
                Err(SendError::Full | SendError::NoCredit) => break,
                Err(error @ (SendError::NotAttached | SendError::Tag)) => {
                    tracing::debug!(%error, "a delivery was not sent");
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
        self.see_to_credit(link);
    }

    fn see_to_credit(&mut self, link: LinkId) {
        let wanted = self.amqp.credit(link);
        let Some(Link::Receiver(receiver)) = self.links.get_mut(&link) else { return };
        // Credit that was lowered: what is too much and can go back does, the last first.
        let mut back = Vec::new();
        while receiver.waiting.len() > wanted as usize
            && let Some(lease) = receiver.waiting.back().and_then(|delivery| delivery.lease)
        {
            receiver.waiting.pop_back();
            back.push(lease);
        }
        let waiting = receiver.waiting.len() as u32;
        if waiting > 0 {
            self.held_up.insert(link);
        }
        let consumer = receiver.consumer;
        let step = receiver.credit.step(wanted, waiting);
        self.give_back(back);
        let (credit, replace) = match step {
            Step::Nothing => return,
            Step::Drained => {
                let _ = self.amqp.drained(link);
                return;
            }
            Step::Give(more) => (more, false),
            Step::Withdraw => (0, true),
        };
        let engine = self.engine.clone();
        self.start(async move {
            // Refused only when the engine is going: then nothing comes any more.
            let had = engine.credit(consumer, credit, replace).await.unwrap_or(0);
            Done::Credited { consumer, left: replace.then_some(had) }
        });
    }
}
