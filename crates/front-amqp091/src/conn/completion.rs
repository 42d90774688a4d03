//! Results of operations that took time.

use malote_engine::{ConsumerId, Delivery};
use malote_model::{Action, QueueName};

use super::Conn;
use super::channel::Consumer;
use crate::ops::publish::{Outcome, PublishOrigin};
use crate::wire::error::Exception;
use crate::wire::method::{DecodeMethod as _, Method, MethodId, basic};
use crate::wire::text::ShortString;

pub(crate) enum Completion {
    /// A request of a channel.
    Request { channel: u16, serial: u64, method: MethodId, result: Result<Done, Exception> },
    /// Publications reached the engine, or were refused.
    Sent { bytes: usize, outcomes: Vec<(PublishOrigin, Outcome)> },
    /// A consumer gets no more messages; this much of its credit was not used.
    Stopped { consumer: ConsumerId, unused: u32 },
    /// The engine accepts publications again.
    Unblocked,
    /// The operation is complete.
    Nothing,
}

/// A finished request.
pub(crate) enum Done {
    /// The reply; `None` if the client wants none.
    Reply(Option<Method>),
    /// A queue was declared: its name as the client sees it, the queue itself if it belongs to the connection, and the
    /// reply.
    Declared { shown: String, own: Option<QueueName>, reply: Option<Method> },
    /// A queue was deleted.
    Deleted { queue: QueueName, reply: Option<Method> },
    /// A consumer was attached.
    Consuming { tag: ShortString, consumer: Box<Consumer>, reply: Option<Method> },
    /// The answer to `basic.get`: a message, and the number of messages left.
    Got { message: Option<Box<(Delivery, u32)>>, queue: QueueName, counts_deliveries: bool },
    /// A transaction was committed.
    Committed { bytes: usize, outcomes: Vec<(PublishOrigin, Outcome)> },
}

impl Conn {
    pub(crate) fn complete(&mut self, completion: Completion) {
        match completion {
            Completion::Request { channel, serial, method, result } => {
                self.finish_request(channel, serial, method, result);
            }
            Completion::Sent { bytes, outcomes } => self.finish_sends(bytes, outcomes),
            Completion::Stopped { consumer, unused } => self.consumer_stopped(consumer, unused),
            Completion::Unblocked => self.unblock(),
            Completion::Nothing => {}
        }
    }

    fn finish_request(
        &mut self,
        number: u16,
        serial: u64,
        method: MethodId,
        result: Result<Done, Exception>,
    ) {
        if self.channel_of(number, serial).is_none() {
            return self.clean_up(result);
        }
        match result {
            Err(exception) => self.fail(number, exception.caused_by(method)),
            Ok(done) => self.finish_done(number, done),
        }
        self.announce_ended(number);
        self.resume(number, serial);
    }

    fn finish_done(&mut self, number: u16, done: Done) {
        match done {
            Done::Reply(reply) => self.reply(number, reply),
            Done::Declared { shown, own, reply } => {
                self.own_queues.extend(own);
                if let Some(channel) = self.channels.get_mut(&number) {
                    channel.last_queue = Some(shown);
                }
                self.reply(number, reply);
            }
            Done::Deleted { queue, reply } => {
                self.own_queues.remove(&queue);
                self.reply(number, reply);
            }
            Done::Consuming { tag, consumer, reply } => {
                // The permission may have been revoked meanwhile. From now on, every change is noticed.
                let shown = self.session.host.shown(consumer.queue.as_str());
                match self.allow(Action::Receive, &consumer.queue, "queue", &shown) {
                    Ok(()) => {
                        self.reply(number, reply);
                        self.start_consumer(number, tag, *consumer);
                    }
                    Err(exception) => {
                        self.detach(consumer.id);
                        self.fail(number, exception.caused_by(basic::Consume::ID));
                    }
                }
            }
            Done::Got { message, queue, counts_deliveries } => {
                self.finish_get(number, message, &queue, counts_deliveries);
            }
            Done::Committed { bytes, outcomes } => {
                let serial = self.channels.get(&number).map(|channel| channel.serial);
                self.finish_sends(bytes, outcomes);
                // A publication of the transaction may have closed the channel.
                if serial.is_some_and(|serial| self.channel_of(number, serial).is_some()) {
                    self.reply(number, Some(crate::wire::method::tx::CommitOk {}.into()));
                }
            }
        }
    }

    /// The channel has closed meanwhile.
    fn clean_up(&mut self, result: Result<Done, Exception>) {
        match result {
            Ok(Done::Declared { own, .. }) => self.own_queues.extend(own),
            Ok(Done::Consuming { consumer, .. }) => self.detach(consumer.id),
            Ok(Done::Got { message: Some(got), .. }) => self.release(got.0.lease),
            Ok(Done::Committed { bytes, outcomes }) => self.finish_sends(bytes, outcomes),
            _ => {}
        }
    }
}
