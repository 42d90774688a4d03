//! Deliveries: from the engine to the client.

use malote_engine::{ConsumerId, Delivery};
use tokio::time::Instant;

use crate::conn::Conn;
use crate::conn::channel::Unacked;
use crate::limits;
use crate::message::{self, Outgoing};
use crate::wire::content::{OutgoingDeliver, put_content};

impl Conn {
    /// Messages for a consumer.
    pub(crate) fn deliver(&mut self, id: ConsumerId, deliveries: Vec<Delivery>) {
        let found = self.consumers.get(&id).cloned();
        let found = found.and_then(|(number, tag)| {
            Some((number, self.channels.get_mut(&number)?.consumers.get_mut(&tag)?))
        });
        let Some((number, consumer)) = found else {
            // The client has cancelled it, and has not seen these.
            let count = deliveries.len() as u32;
            for delivery in deliveries {
                self.release(delivery.lease);
            }
            return self.leaving_received(id, count);
        };
        consumer.given = consumer.given.saturating_sub(deliveries.len() as u32);
        for delivery in deliveries {
            let bytes = held_bytes(&delivery);
            let channel = self.channel(number);
            let waits = delivery.lease.is_some()
                && (!channel.allows_delivery() || !channel.held.is_empty());
            match waits {
                true => {
                    channel.held.push_back((id, delivery));
                    self.held_back_bytes += bytes;
                }
                false => self.send_delivery(number, id, delivery),
            }
        }
        self.feed(number);
    }

    /// Sends messages that the shared prefetch limit of a channel allows now.
    pub(crate) fn send_held(&mut self, number: u16) {
        while let Some(channel) = self.channels.get_mut(&number)
            && channel.allows_delivery()
            && let Some((id, delivery)) = channel.held.pop_front()
        {
            let delivery = self.no_longer_held(delivery);
            self.send_delivery(number, id, delivery);
        }
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

    fn send_delivery(&mut self, number: u16, id: ConsumerId, delivery: Delivery) {
        let (session, frame_max) = (self.session.clone(), self.session.frame_max);
        let Some((_, consumer_tag)) = self.consumers.get(&id).cloned() else {
            return self.release(delivery.lease);
        };
        let Some(channel) = self.channels.get_mut(&number) else { return };
        let delivery_tag = channel.next_tag();
        let Some(consumer) = channel.consumers.get_mut(&consumer_tag) else {
            return self.release(delivery.lease);
        };
        let counts = consumer.counts_deliveries;
        let out = message::outgoing(&session.host, &consumer.queue, &delivery, counts);
        if let Some(lease) = delivery.lease {
            consumer.outstanding += 1;
            let unacked = Unacked {
                tag: delivery_tag,
                lease,
                consumer: Some(consumer_tag.clone()),
                since: Instant::now(),
            };
            channel.unacked.insert(delivery_tag, unacked);
            self.unacked += 1;
        }
        let Outgoing { exchange, routing_key, properties } = &out;
        let deliver = OutgoingDeliver {
            consumer_tag: &consumer_tag,
            delivery_tag,
            redelivered: delivery.receives > 1,
            exchange,
            routing_key,
        };
        let body = &delivery.stored.message.body.bytes;
        put_content(&mut self.out, number, frame_max, &deliver, properties, body);
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

/// The memory of a message that is held back.
fn held_bytes(delivery: &Delivery) -> usize {
    let message = &delivery.stored.message;
    512 + message.body.bytes.len() + message.native.as_ref().map_or(0, |native| native.bytes.len())
}
