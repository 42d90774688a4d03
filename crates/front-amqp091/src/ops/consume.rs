//! `basic.consume`, `basic.cancel`, `basic.qos`, and the credit of consumers.

use data_encoding::BASE64URL_NOPAD;
use malote_engine::{Consume, ConsumerId, Wants};
use malote_model::Action;

use super::reply_to::REPLY_TO;
use crate::arguments::counts_deliveries;
use crate::conn::channel::Consumer;
use crate::conn::completion::Done;
use crate::conn::dispatch::not_implemented;
use crate::conn::{Completion, Conn};
use crate::limits;
use crate::refusal::{failed, in_exclusive_use, precondition};
use crate::wire::error::{Exception, ReplyCode};
use crate::wire::method::{DecodeMethod as _, basic};
use crate::wire::text::ShortString;

impl Conn {
    pub(crate) fn consume(
        &mut self,
        number: u16,
        mut consume: basic::Consume,
    ) -> Result<(), Exception> {
        if consume.consumer_tag.is_empty() {
            let id = BASE64URL_NOPAD.encode(self.front.engine.new_id().as_bytes());
            consume.consumer_tag = ShortString::truncated(&format!("amq.ctag-{id}"));
        }
        // A copy: the string shares the buffer that it was read into.
        let tag = ShortString::truncated(&consume.consumer_tag);
        if self.consumers.len() >= limits::CONSUMERS_MAX {
            let detail = format!("reached maximum ({}) of consumers", limits::CONSUMERS_MAX);
            return Err(Exception::new(ReplyCode::NotAllowed, detail));
        }
        let channel = self.channel(number);
        let replies = channel.reply_to.as_ref().is_some_and(|replies| replies.tag == tag);
        if replies || channel.consumers.contains_key(&tag) {
            let detail = format!("attempt to reuse consumer tag '{tag}'");
            return Err(Exception::new(ReplyCode::NotAllowed, detail));
        }
        if consume.queue == REPLY_TO {
            return self.consume_replies(number, consume);
        }
        let priority = match consume.arguments.get("x-priority") {
            None => 0,
            Some(value) => {
                value.as_integer().and_then(|n| i32::try_from(n).ok()).ok_or_else(|| {
                    precondition("invalid arg 'x-priority' for basic.consume: expected an integer")
                })?
            }
        };
        let (shown, queue) = self.queue_name(number, &consume.queue)?;
        self.allow(Action::Receive, &queue, "queue", &shown)?;
        let limit = u32::from(self.channel(number).prefetch);
        let (front, engine, session) =
            (self.front.clone(), self.engine.clone(), self.session.clone());
        let owner = self.number;
        let basic::Consume { no_wait, exclusive, no_ack, .. } = consume;
        // A copy: the table shares the buffer that it was read into.
        let arguments = consume.arguments.as_table().to_owned();
        self.start_request(number, basic::Consume::ID, async move {
            let failed = |error| failed(&session.host, &error);
            let facts = front.engine.describe(queue.clone()).await.map_err(failed)?;
            // The consumer itself is not attached yet.
            let used = exclusive && (facts.consumers > 0 || facts.spec.single_active);
            if used || front.exclusive.lock().contains_key(&queue) {
                return Err(in_exclusive_use(&session.host, &shown));
            }
            if no_ack && facts.spec.sessions.required() {
                return Err(precondition(format!(
                    "queue '{shown}' in vhost '{}' has sessions: consume it with acknowledgements",
                    session.host.name()
                )));
            }
            let request = Consume {
                queue: queue.clone(),
                wants: Wants::Any { per_session: 1 },
                // `consume-ok` comes first, then the messages.
                credit: 0,
                take: no_ack,
                lock_ms: Some(limits::LOCK_MS),
                free_standing: false,
                priority,
            };
            let id = engine.attach(request).await.map_err(failed)?;
            if exclusive {
                front.exclusive.lock().insert(queue.clone(), owner);
            }
            let reply = (!no_wait).then(|| basic::ConsumeOk { consumer_tag: tag.clone() }.into());
            let counts_deliveries = counts_deliveries(&facts.spec);
            let (outstanding, given) = (0, 0);
            let consumer = Consumer {
                id,
                queue,
                no_ack,
                exclusive,
                arguments,
                always_active: !facts.spec.single_active,
                counts_deliveries,
                limit: if no_ack { 0 } else { limit },
                outstanding,
                given,
            };
            Ok(Done::Consuming { tag, consumer: Box::new(consumer), reply })
        });
        Ok(())
    }

    /// The client knows of the consumer: messages may follow.
    pub(crate) fn start_consumer(&mut self, number: u16, tag: ShortString, consumer: Consumer) {
        self.consumers.insert(consumer.id, (number, tag.clone()));
        self.channel(number).consumers.insert(tag, consumer);
        self.feed(number);
    }

    pub(crate) fn cancel(&mut self, number: u16, cancel: basic::Cancel) {
        let basic::Cancel { consumer_tag: tag, no_wait } = cancel;
        let reply = (!no_wait).then(|| basic::CancelOk { consumer_tag: tag.clone() }.into());
        let channel = self.channel(number);
        if channel.reply_to.as_ref().is_some_and(|replies| replies.tag == tag) {
            self.drop_reply_consumer(number);
            return self.reply(number, reply);
        }
        // Messages that arrive from now on are returned: the client must not see any after `cancel-ok`.
        let Some((id, _)) = self.forget_consumer(number, &tag) else {
            return self.reply(number, reply);
        };
        let engine = self.engine.clone();
        self.start_request(number, basic::Cancel::ID, async move {
            let _ = engine.detach(id).await;
            Ok(Done::Reply(reply))
        });
    }

    /// Removes a consumer. Its unacknowledged messages stay with the channel. Returns its id, and its credit at the engine.
    fn forget_consumer(&mut self, number: u16, tag: &str) -> Option<(ConsumerId, u32)> {
        let channel = self.channels.get_mut(&number)?;
        let consumer = channel.consumers.remove(tag)?;
        let held = std::mem::take(&mut channel.held);
        let (ours, others) = held.into_iter().partition(|(id, _)| *id == consumer.id);
        channel.held = others;
        let ours: std::collections::VecDeque<_> = ours;
        for (_, delivery) in ours {
            let lease = self.no_longer_held(delivery).lease;
            self.release(lease);
        }
        self.consumers.remove(&consumer.id);
        if consumer.exclusive {
            self.front.exclusive.lock().remove(&consumer.queue);
        }
        Some((consumer.id, consumer.given))
    }

    /// Ends a consumer together with its channel.
    pub(crate) fn detach_consumer(&mut self, number: u16, tag: &str) {
        if let Some((id, given)) = self.forget_consumer(number, tag) {
            self.begin_leaving(id, given);
        }
    }

    pub(crate) fn detach(&mut self, id: ConsumerId) {
        let engine = self.engine.clone();
        self.start(async move {
            let _ = engine.detach(id).await;
            Completion::Nothing
        });
    }

    /// The engine ended a consumer, because its queue was deleted.
    pub(crate) fn consumer_ended(&mut self, id: ConsumerId) {
        self.leaving.remove(&id);
        let Some((number, tag)) = self.consumers.get(&id).cloned() else { return };
        self.forget_consumer(number, &tag);
        if !self.session.capabilities.consumer_cancel_notify {
            return;
        }
        match self.channels.get_mut(&number).filter(|channel| channel.busy) {
            Some(channel) => channel.ended.push(tag),
            None => self.put(number, &basic::Cancel { consumer_tag: tag, no_wait: true }),
        }
    }

    /// Announces the consumers that ended during a request of their channel.
    pub(crate) fn announce_ended(&mut self, number: u16) {
        let Some(channel) = self.channels.get_mut(&number).filter(|channel| !channel.closing)
        else {
            return;
        };
        for consumer_tag in std::mem::take(&mut channel.ended) {
            self.put(number, &basic::Cancel { consumer_tag, no_wait: true });
        }
    }

    pub(crate) fn qos(&mut self, number: u16, qos: &basic::Qos) -> Result<(), Exception> {
        if qos.prefetch_size != 0 {
            return Err(not_implemented(format!("prefetch_size!=0 ({})", qos.prefetch_size)));
        }
        let channel = self.channel(number);
        match qos.global {
            true => channel.prefetch_all = qos.prefetch_count,
            false => channel.prefetch = qos.prefetch_count,
        }
        self.feed(number);
        self.put(number, &basic::QosOk {});
        Ok(())
    }

    /// Bytes were written: consumers may get more messages.
    pub(crate) fn written(&mut self) {
        if self.out.len() < limits::OUTPUT_BYTES_HIGH && self.unacked < limits::UNACKED_MAX {
            self.hungry.append(&mut self.starved);
        }
    }

    /// Gives consumers credit, and sends messages that a shared prefetch limit held back. Returns whether something
    /// happened.
    pub(crate) fn flush_credit(&mut self) -> bool {
        let Some(number) = self.hungry.pop() else { return false };
        self.send_held(number);
        if self.out.len() >= limits::OUTPUT_BYTES_HIGH || self.unacked >= limits::UNACKED_MAX {
            if !self.starved.contains(&number) {
                self.starved.push(number);
            }
            return true;
        }
        let Some(channel) = self.channels.get_mut(&number).filter(|c| !c.closing) else {
            return true;
        };
        let all = match channel.prefetch_all {
            0 => u32::MAX,
            all => u32::from(all).saturating_sub(channel.unacked.len() as u32),
        };
        let mut credits = Vec::new();
        for consumer in channel.consumers.values_mut() {
            let most = if consumer.no_ack { u32::MAX } else { all.saturating_sub(consumer.given) };
            let credit = consumer.missing_credit().min(most);
            if credit > 0 {
                consumer.given += credit;
                credits.push((consumer.id, credit));
            }
        }
        for (id, credit) in credits {
            let engine = self.engine.clone();
            self.start(async move {
                let _ = engine.credit(id, credit, false).await;
                Completion::Nothing
            });
        }
        true
    }
}
