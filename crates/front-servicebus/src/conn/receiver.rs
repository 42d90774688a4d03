//! Credit and deliveries of a receiving link.
//!
//! The engine is told of as much of the client's credit as its messages may be in memory at once: the window. What it
//! has been told and has not used yet is `given`. Lowering credit, and draining, ask the engine what it has left: the
//! difference is on its way here. One such question is under way at a time.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use malote_engine::{AcceptedSession, ConsumerId, Delivery};
use malote_model::{LeaseToken, QueueName};
use malote_wire_amqp::connection::{Disposed, LinkFlow, LinkId, Outgoing, SendError};
use malote_wire_amqp::performative::{AmqpError, DeliveryState, condition};
use malote_wire_amqp::types::Str;

use super::link::Link;
use super::number::ByNumber;
use super::{Conn, Done};
use crate::limits;
use crate::ops::settle::{Item, Settled};
use crate::refusal::Lock;
use crate::wire::message::{Telling, put};
use crate::wire::tag_of;

/// A link on which a client receives.
pub(super) struct Receiver {
    /// The client's name for it, which requests may say.
    pub name: Str,
    pub consumer: ConsumerId,
    pub queue: QueueName,
    /// How long the queue keeps messages, as of the attach.
    ttl_ms: Option<u64>,
    /// Messages are gone when they are sent.
    pub take: bool,
    /// The session that it holds.
    pub session: Option<AcceptedSession>,
    /// Locks end with the link.
    pub bound: bool,
    /// Messages that wait for credit or for room.
    pub waiting: VecDeque<Delivery>,
    /// What is out, by key.
    pub out: ByNumber<u64, LeaseToken>,
    credit: Credit,
}

/// What the engine knows of a link's credit.
#[derive(Debug)]
pub(super) struct Credit {
    /// Told, and not yet used by what has come.
    given: u32,
    /// How much the engine may know of at once.
    window: u32,
    /// A question is under way.
    asking: bool,
    /// The client wants its credit used up.
    drain: bool,
    /// While draining: the engine has none left, so what was given is on its way.
    withdrawn: bool,
    /// While draining: the engine had some left, so there was nothing more to send.
    dry: bool,
}

/// What is to be done next about a link's credit.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    Nothing,
    /// Tell the engine of so much more.
    Give(u32),
    /// Take back what it has left.
    Withdraw,
    /// Tell the client that its credit is used up.
    Drained,
}

impl Credit {
    pub fn new() -> Credit {
        let window = limits::WINDOW_FIRST;
        Credit { given: 0, window, asking: false, drain: false, withdrawn: false, dry: false }
    }

    /// `wanted` is what the client still takes, `waiting` what waits to be sent to it.
    pub fn step(&mut self, wanted: u32, waiting: u32) -> Step {
        if self.asking {
            return Step::Nothing;
        }
        let wanted = wanted.saturating_sub(waiting);
        let most = wanted.min(self.window.saturating_sub(waiting));
        if !self.drain {
            if self.given > wanted {
                self.asking = true;
                return Step::Withdraw;
            }
            // In steps of at least half a window, lest every message asks anew.
            if most > self.given && (most - self.given >= self.window / 2 || most == wanted) {
                return self.give(most - self.given);
            }
            return Step::Nothing;
        }
        if self.given > 0 {
            if self.withdrawn {
                return Step::Nothing;
            }
            self.asking = true;
            return Step::Withdraw;
        }
        if waiting > 0 {
            return Step::Nothing;
        }
        if self.dry || wanted == 0 {
            self.drain(false);
            return Step::Drained;
        }
        self.withdrawn = false;
        self.give(most)
    }

    fn give(&mut self, more: u32) -> Step {
        self.asking = true;
        self.given += more;
        Step::Give(more)
    }

    /// The answer to a question: what the engine had left, if it was taken back.
    pub fn answered(&mut self, left: Option<u32>) {
        self.asking = false;
        if let Some(left) = left {
            self.given = self.given.saturating_sub(left);
            self.withdrawn = self.drain;
            self.dry = self.drain && left > 0;
        }
    }

    /// So many have come, of so many bytes.
    pub fn arrived(&mut self, count: u32, bytes: usize) {
        self.given = self.given.saturating_sub(count);
        let each = (bytes / count.max(1) as usize).max(1);
        let fit = limits::OUTGOING_BYTES_MAX / each;
        self.window = fit.clamp(1, limits::WINDOW_MAX as usize) as u32;
    }

    /// So many will not come, and used what the engine knew of: it is not there any more to be taken back.
    pub fn lost(&mut self, count: u32) {
        self.given = self.given.saturating_sub(count);
    }

    pub fn drain(&mut self, drain: bool) {
        (self.drain, self.withdrawn, self.dry) = (drain, false, false);
    }
}

impl Receiver {
    pub fn new(
        name: Str,
        consumer: ConsumerId,
        queue: QueueName,
        ttl_ms: Option<u64>,
        take: bool,
        session: Option<AcceptedSession>,
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
    pub(super) fn flow(&mut self, flow: &LinkFlow) {
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
    pub(super) fn deliver(&mut self, link: LinkId, deliveries: Vec<Delivery>) {
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
    pub(super) fn unreadable(&mut self, consumer: ConsumerId, count: u32) {
        let Some(link) = self.consumers.get(&consumer).copied() else { return };
        let Some(Link::Receiver(receiver)) = self.links.get_mut(&link) else { return };
        receiver.credit.lost(count);
        self.transmit(link);
    }

    /// The engine has answered about credit.
    pub(super) fn credited(&mut self, consumer: ConsumerId, left: Option<u32>) {
        let Some(link) = self.consumers.get(&consumer).copied() else { return };
        let Some(Link::Receiver(receiver)) = self.links.get_mut(&link) else { return };
        receiver.credit.answered(left);
        self.transmit(link);
    }

    /// Sends what can be sent, then sees to the credit.
    pub(super) fn transmit(&mut self, link: LinkId) {
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

    /// The client tells what it makes of a message.
    pub(super) fn disposed(&mut self, disposed: Disposed) {
        let Some(Link::Receiver(receiver)) = self.links.get(&disposed.link) else { return };
        let Some(lease) = receiver.out.get(&disposed.key).copied() else { return };
        let (queue, lock) = (receiver.queue.clone(), receiver.lock());
        if let Some(DeliveryState::Transactional(state)) = &disposed.state {
            let staged = self.transactions.settle(state, &queue, lease, disposed.settled);
            let state = staged.unwrap_or_else(DeliveryState::rejected);
            let item = Item::of(&disposed, lease);
            return self.settled(Settled { items: vec![(item, state)] });
        }
        let item = Item::of(&disposed, lease);
        if let Some(batch) = self.settles.add(&queue, lock, disposed.state.as_ref(), item) {
            self.start(batch.run(self.front.engine.clone()));
        }
    }

    /// Hands dispositions over; false if there are none.
    pub(super) fn flush_settles(&mut self) -> bool {
        let Some(batch) = self.settles.take() else { return false };
        self.start(batch.run(self.front.engine.clone()));
        true
    }

    /// The engine tells what has become of dispositions.
    pub(super) fn settled(&mut self, settled: Settled) {
        for (item, state) in settled.items {
            if let Some(Link::Receiver(receiver)) = self.links.get_mut(&item.link) {
                receiver.out.remove(&item.key);
            }
            if !item.forgotten {
                // Gone: the client has detached meanwhile.
                let _ = self.amqp.dispose(item.link, item.delivery, true, Some(state));
            }
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// An engine with so many messages, and a client that gives credit once and drains.
    fn drained_after(messages: u32, credit: u32) -> (u32, u32) {
        let mut it = Credit::new();
        let (mut left, mut at_engine, mut sent) = (messages, 0, 0);
        it.drain(true);
        for _ in 0..10_000 {
            match it.step(credit - sent, 0) {
                Step::Drained => return (sent, it.given),
                Step::Nothing => panic!("stuck: {it:?}"),
                Step::Give(more) => {
                    at_engine += more;
                    it.answered(None);
                }
                Step::Withdraw => it.answered(Some(std::mem::take(&mut at_engine))),
            }
            let now = at_engine.min(left);
            if now > 0 {
                (left, at_engine, sent) = (left - now, at_engine - now, sent + now);
                it.arrived(now, now as usize * 1000);
            }
        }
        panic!("no end");
    }

    #[test]
    fn a_drain_sends_what_there_is_and_ends() {
        for (messages, credit) in
            [(0, 0), (0, 1), (1, 1), (5, 1), (5, 100), (5_000, 4_000), (3, 5_000)]
        {
            assert_eq!(
                drained_after(messages, credit),
                (messages.min(credit), 0),
                "{messages} {credit}"
            );
        }
    }

    #[test]
    fn lowered_credit_is_taken_back_and_given_anew() {
        let mut it = Credit::new();
        assert_eq!(it.step(10, 0), Step::Give(10));
        assert_eq!(it.step(3, 0), Step::Nothing, "a question is under way");
        it.answered(None);
        assert_eq!(it.step(3, 0), Step::Withdraw);
        it.answered(Some(8));
        // Two are on their way, and the client takes three.
        assert_eq!(it.step(3, 0), Step::Give(1));
        it.answered(None);
        assert_eq!(it.step(3, 0), Step::Nothing);
    }

    #[test]
    fn a_drain_called_off_goes_on_as_before() {
        let mut it = Credit::new();
        it.drain(true);
        assert_eq!(it.step(5, 0), Step::Give(5));
        it.drain(false);
        it.answered(None);
        assert_eq!(it.step(5, 0), Step::Nothing);
        assert_eq!(it.step(9, 0), Step::Give(4));
    }

    #[test]
    fn a_drain_ends_though_a_message_cannot_be_read() {
        let mut it = Credit::new();
        it.drain(true);
        assert_eq!(it.step(5, 0), Step::Give(5));
        it.answered(None);
        assert_eq!(it.step(5, 0), Step::Withdraw);
        // One was granted, so four were left; it is on its way, as far as anybody knows.
        it.answered(Some(4));
        assert_eq!(it.step(5, 0), Step::Nothing);
        it.lost(1);
        assert_eq!(it.step(5, 0), Step::Drained);
    }

    #[test]
    fn large_messages_make_the_window_small() {
        let mut it = Credit::new();
        assert_eq!(it.step(1_000, 0), Step::Give(16));
        it.answered(None);
        it.arrived(16, 16 << 20);
        assert_eq!(it.step(984, 2), Step::Nothing);
        assert_eq!(it.step(984, 0), Step::Give(2));
    }
}
