//! Deliveries: from the engine to the client.

use bytes::BytesMut;
use malote_engine::{ConsumerId, Delivery};
use tokio::time::Instant;

use crate::conn::Conn;
use crate::conn::channel::{Channel, Unacked};
use crate::conn::handshake::Session;
use crate::limits;
use crate::message::{self, Outgoing};
use crate::wire::content::{OutgoingDeliver, put_content};
use crate::wire::text::ShortString;

impl Conn {
    /// Messages for a consumer.
    pub(crate) fn deliver(&mut self, id: ConsumerId, deliveries: Vec<Delivery>) {
        let count = deliveries.len() as u32;
        let found = self.consumers.get(&id).and_then(|(number, tag)| {
            let channel = self.channels.get_mut(number)?;
            let given = &mut channel.consumers.get_mut(tag)?.given;
            *given = given.saturating_sub(count);
            Some((*number, tag, channel))
        });
        let Some((number, tag, channel)) = found else {
            // The client has cancelled it, and has not seen these.
            for delivery in deliveries {
                self.release(delivery.lease);
            }
            return self.leaving_received(id, count);
        };
        let mut writer = DeliveryWriter::new(&mut self.out, &self.session, number);
        for delivery in deliveries {
            if delivery.lease.is_some() && (!channel.allows_delivery() || !channel.held.is_empty())
            {
                self.held_back_bytes += held_bytes(&delivery);
                channel.held.push_back((id, delivery));
            } else {
                writer.put(channel, tag, &delivery);
            }
        }
        self.unacked += writer.unacked;
        self.feed(number);
    }

    /// Sends messages that the shared prefetch limit of a channel allows now.
    pub(crate) fn send_held(&mut self, number: u16) {
        let Some(channel) = self.channels.get_mut(&number) else { return };
        let mut writer = DeliveryWriter::new(&mut self.out, &self.session, number);
        while channel.allows_delivery()
            && let Some((id, delivery)) = channel.held.pop_front()
        {
            self.held_back_bytes = self.held_back_bytes.saturating_sub(held_bytes(&delivery));
            // What was held back for a consumer left the list together with it.
            if let Some((_, tag)) = self.consumers.get(&id) {
                writer.put(channel, tag, &delivery);
            }
        }
        self.unacked += writer.unacked;
    }

    /// Whether messages that shared prefetch limits hold back leave room for more.
    pub(crate) fn takes_messages(&self) -> bool {
        self.held_back_bytes < limits::HELD_BACK_BYTES_MAX
    }

    /// A message leaves the list of those that are held back.
    pub(crate) fn no_longer_held(&mut self, delivery: Delivery) -> Delivery {
        self.held_back_bytes = self.held_back_bytes.saturating_sub(held_bytes(&delivery));
        delivery
    }

    /// Messages could not be read: their credit is given back.
    pub(crate) fn damaged(&mut self, id: ConsumerId, count: u32) {
        let Some((number, tag)) = self.consumers.get(&id).cloned() else {
            return self.leaving_received(id, count);
        };
        let channel = self.channels.get_mut(&number);
        if let Some(consumer) = channel.and_then(|channel| channel.consumers.get_mut(&tag)) {
            consumer.given = consumer.given.saturating_sub(count);
            self.feed(number);
        }
    }
}

/// Writes deliveries to the consumers of one channel.
struct DeliveryWriter<'a> {
    out: &'a mut BytesMut,
    session: &'a Session,
    number: u16,
    since: Instant,
    /// Deliveries that must be acknowledged.
    unacked: usize,
}

impl<'a> DeliveryWriter<'a> {
    fn new(out: &'a mut BytesMut, session: &'a Session, number: u16) -> Self {
        Self { out, session, number, since: Instant::now(), unacked: 0 }
    }

    fn put(&mut self, channel: &mut Channel, tag: &ShortString, delivery: &Delivery) {
        let delivery_tag = channel.next_tag();
        let consumer = channel.consumers.get_mut(tag).expect("a channel knows its consumers");
        let (host, counts) = (&self.session.host, consumer.counts_deliveries);
        let out = message::outgoing(host, &consumer.queue, delivery, counts);
        if let Some(lease) = delivery.lease {
            consumer.outstanding += 1;
            let (consumer, since) = (Some(tag.clone()), self.since);
            let unacked = Unacked { tag: delivery_tag, lease, consumer, since };
            channel.unacked.insert(delivery_tag, unacked);
            self.unacked += 1;
        }
        let Outgoing { exchange, routing_key, properties } = &out;
        let deliver = OutgoingDeliver {
            consumer_tag: tag,
            delivery_tag,
            redelivered: delivery.receives > 1,
            exchange,
            routing_key,
        };
        let body = &delivery.stored.message.body.bytes;
        put_content(self.out, self.number, self.session.frame_max, &deliver, properties, body);
    }
}

/// The memory of a message that is held back.
fn held_bytes(delivery: &Delivery) -> usize {
    let message = &delivery.stored.message;
    512 + message.body.bytes.len() + message.native.as_ref().map_or(0, |native| native.bytes.len())
}
