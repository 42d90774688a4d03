//! Messages are sent to queues and topics.

use std::rc::Rc;

use malote_engine::command::Receipt;
use malote_engine::journal::Pos;
use malote_model::{Address, QueueName, Seq, When};

use super::{Model, Need};
use crate::model::{Availability, Ev, ForwardingPath, Known, Msg, SentMessage, Via};

impl Model {
    /// Messages are stored, or detected as duplicates.
    pub(super) fn send(
        &mut self,
        items: &[(Address, Rc<SentMessage>)],
        receipts: &[Receipt],
    ) -> Need {
        assert_eq!(receipts.len(), items.len(), "one receipt for each message");
        let mut need = Need::default();
        for ((to, sent_message), receipt) in items.iter().zip(receipts) {
            let done = match to {
                Address::Queue(queue) => self.send_to_queue(queue, sent_message, receipt),
                Address::Topic(topic) => self.publish(topic, sent_message, receipt),
            };
            need = need.and(done);
        }
        need
    }

    fn send_to_queue(
        &mut self,
        queue: &QueueName,
        sent_message: &Rc<SentMessage>,
        receipt: &Receipt,
    ) -> Need {
        let q = self.state.queue(queue);
        match q.known(sent_message, self.now) {
            Some(Known { seq, rests, .. }) => {
                let said = (receipt.seq.0, receipt.duplicate);
                assert_eq!(
                    said,
                    (seq, true),
                    "a duplicate gets the sequence number of the original"
                );
                self.met.count("duplicates", 1);
                let durable = if q.durable() { rests } else { Pos::ZERO };
                Need { durable, written: Pos::ZERO }
            }
            None => {
                assert!(!receipt.duplicate, "{queue} has not seen {sent_message:?}");
                self.put(queue, sent_message, receipt.seq);
                self.done(queue)
            }
        }
    }

    pub(super) fn put(&mut self, queue: &QueueName, sent_message: &Rc<SentMessage>, seq: Seq) {
        assert_eq!(seq.0, self.state.queue(queue).next_seq, "sequence numbers have no gaps");
        let msg = self.arriving(queue, sent_message);
        self.note(Ev::Put { queue: queue.clone(), msg: Box::new(msg), via: None });
    }

    /// A copy made by a topic.
    pub(super) fn put_copy(
        &mut self,
        queue: &QueueName,
        sent_message: &Rc<SentMessage>,
        via: Via,
    ) -> Need {
        let msg = self.arriving(queue, sent_message);
        self.note(Ev::Put { queue: queue.clone(), msg: Box::new(msg), via: Some(via) });
        self.done(queue)
    }

    /// A message as it enters a queue now.
    pub(super) fn arriving(&self, queue: &QueueName, sent_message: &Rc<SentMessage>) -> Msg {
        let q = self.state.queue(queue);
        let message = &sent_message.message;
        let availability = match message.when {
            When::Now if q.spec.delay_ms > 0 => {
                Availability::InOrder { due: self.now + q.spec.delay_ms }
            }
            When::Delay(ms) if ms > 0 => Availability::InOrder { due: self.now + ms },
            When::At(at) if at.0 > self.now => Availability::Scheduled { due: at.0 },
            When::Now | When::Delay(_) | When::At(_) => Availability::InOrder { due: 0 },
        };
        let session = q.session_for(message);
        let lives = !matches!(availability, Availability::Scheduled { .. });
        let goes_on = queue.is_inbox() || q.spec.forward_to.is_some();
        Msg {
            sent: sent_message.clone(),
            properties: message.properties.clone(),
            session: session.clone().filter(|_| q.sessioned() || goes_on),
            read_session: session.clone(),
            tenant: session.filter(|_| lives),
            availability,
            receives: 0,
            failed: 0,
            released: 0,
            first: None,
            at: self.now,
            // The time to live is kept only if the message will be moved; otherwise the expiry time is enough.
            ttl_ms: message.ttl_ms.filter(|_| !lives || goes_on),
            own_expiry: message.ttl_ms.filter(|_| lives).map(|ttl_ms| self.now + ttl_ms),
            timed: false,
            dead: None,
            path: ForwardingPath::default(),
            key: None,
            message_id: None,
            entered: Pos::ZERO,
            rests: Pos::ZERO,
        }
    }
}
