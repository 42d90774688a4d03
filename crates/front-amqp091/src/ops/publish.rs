//! `basic.publish`, confirms and returns.
//!
//! Publications that are read at once become one request to the engine, in which each is stored on its own. Its answer
//! comes when the disk has them, and becomes as few confirms as possible.

use malote_engine::{EncodedBatch, Engine, EngineError, IdFormat, Receipts};
use malote_model::{Action, Address, QueueName, Refusal, Resource, TopicName};

use super::reply_to::{REPLY_TO, is_reply_name};
use crate::conn::channel::{Mode, Target};
use crate::conn::dispatch::not_implemented;
use crate::conn::{Completion, Conn, allow_key};
use crate::limits;
use crate::message::{self, Incoming};
use crate::names::{DEFAULT_EXCHANGE, VirtualHost};
use crate::refusal::{failed, precondition, refused};
use crate::wire::content::{OutgoingReturn, Publication, put_content};
use crate::wire::error::{Exception, ReplyCode};
use crate::wire::method::{DecodeMethod as _, basic};
use crate::wire::text::ShortString;

/// A publication on its way to the engine.
pub(crate) struct Outgoing {
    pub origin: PublishOrigin,
    /// One batch for each target: a publication to the default exchange with several keys has several.
    pub batches: Vec<EncodedBatch>,
}

/// What a publication in a transaction needs, because permissions are checked again at the commit.
pub(crate) enum SendPermission {
    /// Publishing to a queue through the default exchange.
    Queue(QueueName),
    Exchange {
        topic: TopicName,
        exchange: ShortString,
        key: ShortString,
    },
}

/// Where a publication came from.
pub(crate) struct PublishOrigin {
    pub channel: u16,
    pub serial: u64,
    /// Its number, on a channel with confirms.
    pub confirm: Option<u64>,
    /// The publication itself, if it must be returned when no queue gets it.
    pub mandatory: Option<Box<Publication>>,
}

/// What happened to a publication.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    Stored,
    /// No queue gets it.
    Unroutable,
    /// A queue refused it: `basic.nack`.
    Refused,
    /// The broker cannot store anything now.
    Blocked(Exception),
    /// The publication is wrong.
    Failed(Exception),
}

/// Publications for the next request to the engine.
#[derive(Default)]
pub(crate) struct SendQueue {
    waiting: Vec<Outgoing>,
    bytes: usize,
}

impl Conn {
    pub(crate) fn publish(
        &mut self,
        number: u16,
        publication: Publication,
    ) -> Result<(), Exception> {
        if publication.publish.immediate {
            return Err(not_implemented("immediate=true"));
        }
        let session = self.session.clone();
        let engine = &self.front.engine;
        let channel = self.channels.get(&number).expect("requests come on open channels");
        let replies = channel.reply_to.as_ref().map(|replies| replies.name.as_str());
        let who = (session.user.as_str(), self.impersonates);
        let Incoming { message, publication, asks_reply } =
            message::incoming(publication, who, replies, || engine.now())?;
        if asks_reply && self.channel(number).reply_to.is_none() {
            return Err(precondition("fast reply consumer does not exist"));
        }
        let channel = self.channel(number);
        let confirm = match &mut channel.mode {
            Mode::Confirm(confirms) => Some(confirms.publish()),
            Mode::Plain | Mode::Transaction(_) => None,
        };
        let serial = channel.serial;
        let to_default = publication.publish.exchange.is_empty();
        if to_default && is_reply_name(&publication.publish.routing_key) {
            let outcome = self.publish_reply(&publication);
            let mandatory = publication.publish.mandatory.then(|| Box::new(publication.detached()));
            let origin = PublishOrigin { channel: number, serial, confirm, mandatory };
            self.finish_publication(origin, outcome);
            return Ok(());
        }
        let target = self.target(number, &publication.publish)?;
        let bytes = publication.body.len() + publication.properties.as_bytes().len() + 256;
        // The default exchange delivers to each key's queue, and each queue gets one copy.
        let mut more_queues: Vec<String> = Vec::new();
        if to_default && !(message.more_keys.is_empty() && message.blind_keys.is_empty()) {
            let keys = message.more_keys.iter().chain(&message.blind_keys);
            more_queues
                .extend(keys.filter(|key| *publication.publish.routing_key != **key).cloned());
            more_queues.sort_unstable();
            more_queues.dedup();
        }
        let copies = 1 + more_queues.len();
        let bytes = bytes.saturating_mul(copies);
        if copies > 1 && bytes > limits::COPIES_BYTES_MAX {
            let most = limits::COPIES_BYTES_MAX;
            return Err(precondition(format!(
                "a message for {copies} queues of the default exchange must not exceed {most} bytes in total"
            )));
        }
        let encode = |to: &Address, message| {
            let engine = &self.front.engine;
            engine.encode_batch(to, std::iter::once(message), IdFormat::Hyphenated)
        };
        let mut batches = Vec::with_capacity(copies);
        let mut queues = Vec::with_capacity(more_queues.len());
        for key in &more_queues {
            let Ok(queue) = session.host.queue(key) else { continue };
            self.allow_default(&queue)?;
            let batch = encode(&queue.clone().into(), message.clone());
            batches.push(batch.map_err(|error| failed(&session.host, &error))?);
            queues.push(queue);
        }
        if let Some(target) = &target {
            batches.push(encode(target, message).map_err(|error| failed(&session.host, &error))?);
        }
        let in_transaction = matches!(self.channel(number).mode, Mode::Transaction(_));
        let needs = match in_transaction {
            true => needed_permissions(&publication.publish, target.as_ref(), &queues),
            false => Vec::new(),
        };
        let mandatory = publication.publish.mandatory.then(|| Box::new(publication.detached()));
        let origin = PublishOrigin { channel: number, serial, confirm, mandatory };
        let outgoing = Outgoing { origin, batches };
        if let Mode::Transaction(staged) = &mut self.channel(number).mode {
            staged.permissions.extend(needs);
            staged.bytes += bytes;
            staged.publications.push(outgoing);
            self.staged_bytes += bytes;
            if self.staged_bytes > limits::STAGED_BYTES_MAX {
                let most = limits::STAGED_BYTES_MAX;
                return Err(precondition(format!(
                    "uncommitted transactions must not exceed {most} bytes"
                )));
            }
            return Ok(());
        }
        self.sending_bytes += bytes;
        self.send_queue.bytes += bytes;
        self.send_queue.waiting.push(outgoing);
        if self.send_queue.bytes >= limits::SEND_BATCH_BYTES_MAX
            || self.send_queue.waiting.len() >= limits::SEND_BATCH_MAX
        {
            self.flush_sends();
        }
        Ok(())
    }

    /// The queue or topic of a publication, if the caller may send there. `None` for the default exchange with a key that
    /// no queue can have as its name: the publication is unroutable.
    fn target(
        &mut self,
        number: u16,
        publish: &basic::Publish,
    ) -> Result<Option<Address>, Exception> {
        let (exchange, key) = (&publish.exchange, &publish.routing_key);
        // Before the check: permissions that change meanwhile are checked again with the next publication.
        let permissions = self.front.access.version();
        let last = self.channel(number).last_target.as_ref();
        let last =
            last.filter(|last| last.exchange == *exchange && last.permissions == permissions);
        if let Some(last) = last.filter(|last| last.key == *key) {
            return Ok(Some(last.address.clone()));
        }
        let address = match last.filter(|_| !exchange.is_empty()) {
            // The key decides only what the topic does with the message.
            Some(last) => last.address.clone(),
            None => match self.allowed_address(exchange, key)? {
                Some(address) => address,
                None => return Ok(None),
            },
        };
        if !exchange.is_empty() {
            allow_key(&self.front, &self.session, Action::Send, exchange, key)?;
        }
        let (exchange, key) = (exchange.detached(), key.detached());
        let target = Target { exchange, key, address: address.clone(), permissions };
        self.channel(number).last_target = Some(target);
        Ok(Some(address))
    }

    fn allow_exchange(
        &self,
        topic: &TopicName,
        exchange: &str,
        key: &str,
    ) -> Result<(), Exception> {
        self.allow(Action::Send, topic, "exchange", exchange)?;
        allow_key(&self.front, &self.session, Action::Send, exchange, key)
    }

    /// Checks what a transaction has staged, once more.
    pub(super) fn allow_staged(&self, permissions: &[SendPermission]) -> Result<(), Exception> {
        permissions.iter().try_for_each(|permission| match permission {
            SendPermission::Queue(queue) => self.allow_default(queue),
            SendPermission::Exchange { topic, exchange, key } => {
                self.allow_exchange(topic, exchange, key)
            }
        })
    }

    /// The queue of the default exchange, or the topic of another exchange, if the caller may send there.
    fn allowed_address(&self, exchange: &str, key: &str) -> Result<Option<Address>, Exception> {
        if exchange.is_empty() {
            let Ok(queue) = self.session.host.queue(key) else { return Ok(None) };
            self.allow_default(&queue)?;
            return Ok(Some(queue.into()));
        }
        let topic = self.session.host.topic(exchange)?;
        self.allow(Action::Send, &topic, "exchange", exchange)?;
        Ok(Some(topic.into()))
    }

    /// Publishing to the default exchange needs a grant for the queue, or a permission for the exchange.
    fn allow_default(&self, queue: &QueueName) -> Result<(), Exception> {
        let exchange = self.session.host.topic(DEFAULT_EXCHANGE)?;
        let on = Resource::from(queue).through(&exchange);
        self.allow(Action::Send, on, "exchange", DEFAULT_EXCHANGE)
    }

    /// Sends the waiting publications to the engine. Returns whether there were any.
    pub(crate) fn flush_sends(&mut self) -> bool {
        let SendQueue { waiting, bytes } = std::mem::take(&mut self.send_queue);
        if waiting.is_empty() {
            return false;
        }
        let (engine, session) = (self.front.engine.clone(), self.session.clone());
        self.start(async move {
            let outcomes = send(&engine, &session.host, waiting).await;
            Completion::Sent { bytes, outcomes }
        });
        true
    }

    pub(crate) fn finish_sends(&mut self, bytes: usize, outcomes: Vec<(PublishOrigin, Outcome)>) {
        self.sending_bytes = self.sending_bytes.saturating_sub(bytes);
        for (origin, outcome) in outcomes {
            self.finish_publication(origin, outcome);
        }
    }

    fn finish_publication(&mut self, origin: PublishOrigin, outcome: Outcome) {
        let PublishOrigin { channel: number, serial, confirm, mandatory } = origin;
        if let Outcome::Blocked(_) = outcome {
            self.block();
        }
        if self.channel_of(number, serial).is_none() {
            return;
        }
        let stored = match (outcome, confirm) {
            (Outcome::Failed(exception), _) => {
                return self.fail(number, exception.caused_by(basic::Publish::ID));
            }
            // Without confirms, closing is the only way to say that a message is lost.
            (Outcome::Blocked(exception), None) => {
                return self.fail(number, exception.caused_by(basic::Publish::ID));
            }
            (Outcome::Unroutable, _) => {
                if let Some(publication) = mandatory {
                    self.return_publication(number, &publication);
                }
                true
            }
            (Outcome::Stored, _) => true,
            (Outcome::Refused | Outcome::Blocked(_), _) => false,
        };
        if let (Some(tag), Some(channel)) = (confirm, self.channels.get_mut(&number))
            && let Mode::Confirm(confirms) = &mut channel.mode
        {
            confirms.settle(tag, stored);
            if self.confirming.last() != Some(&number) {
                self.confirming.push(number);
            }
        }
    }

    fn return_publication(&mut self, number: u16, publication: &Publication) {
        let Publication { publish, properties, body } = publication;
        let (exchange, routing_key) = (publish.exchange.as_str(), publish.routing_key.as_str());
        let returned = OutgoingReturn { code: ReplyCode::NoRoute, exchange, routing_key };
        let frame_max = self.session.frame_max;
        put_content(&mut self.out, number, frame_max, &returned, properties, body);
    }

    /// Sends the confirms of all channels that have some.
    pub(crate) fn flush_confirms(&mut self) {
        for number in std::mem::take(&mut self.confirming) {
            while let Some(channel) = self.channels.get_mut(&number).filter(|c| !c.closing)
                && let Mode::Confirm(confirms) = &mut channel.mode
                && let Some(confirm) = confirms.next()
            {
                let (delivery_tag, multiple) = (confirm.tag, confirm.multiple);
                match confirm.stored {
                    true => self.put(number, &basic::Ack { delivery_tag, multiple }),
                    false => {
                        self.put(number, &basic::Nack { delivery_tag, multiple, requeue: false });
                    }
                }
            }
        }
    }
}

fn needed_permissions(
    publish: &basic::Publish,
    target: Option<&Address>,
    more_queues: &[QueueName],
) -> Vec<SendPermission> {
    let target = target.map(|target| match target {
        Address::Queue(queue) => SendPermission::Queue(queue.clone()),
        Address::Topic(topic) => {
            let (exchange, key) = (publish.exchange.detached(), publish.routing_key.detached());
            SendPermission::Exchange { topic: topic.clone(), exchange, key }
        }
    });
    target.into_iter().chain(more_queues.iter().cloned().map(SendPermission::Queue)).collect()
}

/// Sends publications in order, each on its own.
pub(crate) async fn send(
    engine: &Engine,
    host: &VirtualHost,
    publications: Vec<Outgoing>,
) -> Vec<(PublishOrigin, Outcome)> {
    let mut origins = Vec::with_capacity(publications.len());
    let mut batches = Vec::with_capacity(publications.len());
    for Outgoing { origin, batches: some, .. } in publications {
        origins.push((origin, some.len()));
        batches.extend(some);
    }
    if batches.is_empty() {
        return origins.into_iter().map(|(origin, _)| (origin, Outcome::Unroutable)).collect();
    }
    let mut results = match engine.send_each(batches).await {
        Ok(results) => results.into_iter(),
        Err(error) => {
            let outcome = |error: &EngineError| match error {
                EngineError::Refused(refusal) => outcome(host, Err(refusal.clone())),
                error => Outcome::Failed(failed(host, error)),
            };
            return origins.into_iter().map(|(origin, _)| (origin, outcome(&error))).collect();
        }
    };
    let each = origins.into_iter().map(|(origin, count)| {
        let outcomes = results.by_ref().take(count).map(|result| outcome(host, result));
        (origin, outcomes.reduce(worse).unwrap_or(Outcome::Unroutable))
    });
    each.collect()
}

fn outcome(host: &VirtualHost, result: Result<Receipts, Refusal>) -> Outcome {
    match result {
        Ok(receipts) if receipts.iter().any(|receipt| receipt.overflowed) => Outcome::Refused,
        Ok(receipts) if receipts.iter().all(|one| one.copies == 0 && !one.duplicate) => {
            Outcome::Unroutable
        }
        Ok(_) => Outcome::Stored,
        // The default exchange has no queue of this name.
        Err(Refusal::QueueNotFound { .. }) => Outcome::Unroutable,
        Err(Refusal::QueueFull { .. }) => Outcome::Refused,
        Err(
            refusal @ (Refusal::Busy
            | Refusal::DiskFull
            | Refusal::NoSegment { .. }
            | Refusal::BoundReached { .. }),
        ) => Outcome::Blocked(refused(host, &refusal)),
        Err(refusal) => Outcome::Failed(refused(host, &refusal)),
    }
}

/// The outcome of a publication with several targets.
fn worse(a: Outcome, b: Outcome) -> Outcome {
    let rank = |outcome: &Outcome| match outcome {
        Outcome::Unroutable => 0,
        Outcome::Stored => 1,
        Outcome::Refused => 2,
        Outcome::Blocked(_) => 3,
        Outcome::Failed(_) => 4,
    };
    if rank(&b) > rank(&a) { b } else { a }
}

/// A publication with this `reply_to` asks for a direct reply.
pub(crate) fn asks_reply(reply_to: Option<&[u8]>) -> bool {
    reply_to == Some(REPLY_TO.as_bytes())
}
