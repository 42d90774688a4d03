//! Direct reply-to: replies go to the requester's channel, without a queue.
//!
//! A client consumes from `amq.rabbitmq.reply-to`. Its requests with this `reply_to` get a name that only they know; a
//! message that is published to the default exchange with this name as routing key goes straight to the client.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use data_encoding::BASE64URL_NOPAD;
use tokio::sync::mpsc;

use super::publish::Outcome;
use crate::conn::Conn;
use crate::conn::channel::ReplyConsumer;
use crate::limits;
use crate::refusal::precondition;
use crate::wire::content::{OutgoingDeliver, Publication, put_content};
use crate::wire::error::Exception;
use crate::wire::method::basic;
use crate::wire::properties::Properties;

/// The name of the queue that does not exist.
pub(crate) const REPLY_TO: &str = "amq.rabbitmq.reply-to";

/// Where replies of one requester go.
pub struct ReplyInbox {
    channel: u16,
    serial: u64,
    sender: mpsc::Sender<DirectReply>,
    /// Bytes of replies that wait for the requester's connection.
    waiting_bytes: Arc<AtomicUsize>,
}

/// A reply on its way to the requester's connection.
pub(crate) struct DirectReply {
    channel: u16,
    serial: u64,
    routing_key: String,
    properties: Properties,
    body: Bytes,
}

impl DirectReply {
    /// The memory that it takes.
    fn bytes(&self) -> usize {
        512 + self.properties.as_bytes().len() + self.body.len()
    }
}

/// Whether this is the name of a requester.
pub(crate) fn is_reply_name(name: &str) -> bool {
    name.strip_prefix(REPLY_TO).is_some_and(|rest| rest.starts_with('.'))
}

impl Conn {
    pub(crate) fn consume_replies(
        &mut self,
        number: u16,
        consume: basic::Consume,
    ) -> Result<(), Exception> {
        if !consume.no_ack {
            return Err(precondition("reply consumer cannot acknowledge"));
        }
        let id = BASE64URL_NOPAD.encode(self.front.engine.new_id().as_bytes());
        let name = format!("{REPLY_TO}.{id}");
        let (sender, waiting_bytes) = (self.reply_sender.clone(), self.reply_bytes.clone());
        let channel = self.channel(number);
        if channel.reply_to.is_some() {
            return Err(precondition("reply consumer already set"));
        }
        let tag = consume.consumer_tag.clone();
        channel.reply_to = Some(ReplyConsumer { name: name.clone(), tag: tag.clone() });
        let inbox = ReplyInbox { channel: number, serial: channel.serial, sender, waiting_bytes };
        self.front.replies.lock().insert(name, inbox);
        if !consume.no_wait {
            self.put(number, &basic::ConsumeOk { consumer_tag: tag });
        }
        Ok(())
    }

    pub(crate) fn drop_reply_consumer(&mut self, number: u16) {
        let channel = self.channels.get_mut(&number);
        if let Some(replies) = channel.and_then(|channel| channel.reply_to.take()) {
            self.front.replies.lock().remove(&replies.name);
        }
    }

    /// Passes a reply to the requester's connection.
    pub(crate) fn publish_reply(&self, publication: &Publication) -> Outcome {
        let key = publication.publish.routing_key.as_str();
        let replies = self.front.replies.lock();
        let Some(ReplyInbox { channel, serial, sender, waiting_bytes }) = replies.get(key) else {
            return Outcome::Unroutable;
        };
        // Only this function adds, under the lock of `replies`.
        if waiting_bytes.load(Ordering::Relaxed) >= limits::REPLIES_BYTES_MAX {
            return Outcome::Unroutable;
        }
        let reply = DirectReply {
            channel: *channel,
            serial: *serial,
            routing_key: key.to_owned(),
            properties: publication.properties.clone(),
            body: publication.body.clone(),
        };
        let bytes = reply.bytes();
        waiting_bytes.fetch_add(bytes, Ordering::Relaxed);
        match sender.try_send(reply) {
            Ok(()) => Outcome::Stored,
            Err(_) => {
                waiting_bytes.fetch_sub(bytes, Ordering::Relaxed);
                Outcome::Unroutable
            }
        }
    }

    /// Sends a reply to the client.
    pub fn direct_reply(&mut self, reply: DirectReply) {
        self.reply_bytes.fetch_sub(reply.bytes(), Ordering::Relaxed);
        let DirectReply { channel: number, serial, routing_key, properties, body } = reply;
        let frame_max = self.session.frame_max;
        let Some(channel) = self.channel_of(number, serial) else { return };
        let Some(tag) = channel.reply_to.as_ref().map(|replies| replies.tag.clone()) else {
            return;
        };
        let deliver = OutgoingDeliver {
            consumer_tag: &tag,
            delivery_tag: channel.next_tag(),
            redelivered: false,
            exchange: "",
            routing_key: &routing_key,
        };
        put_content(&mut self.out, number, frame_max, &deliver, &properties, &body);
    }

    /// Whether a requester of this name exists.
    pub(crate) fn has_requester(&self, name: &str) -> bool {
        self.front.replies.lock().contains_key(name)
    }
}
