//! `basic.get`.

use malote_engine::{Delivery, Receive};
use malote_model::{Action, QueueName};
use tokio::time::Instant;

use crate::arguments::counts_deliveries;
use crate::conn::Conn;
use crate::conn::channel::Unacked;
use crate::conn::completion::Done;
use crate::limits;
use crate::message::{self, Outgoing};
use crate::refusal::{failed, precondition};
use crate::wire::content::{OutgoingGetOk, put_content};
use crate::wire::error::Exception;
use crate::wire::method::{DecodeMethod as _, basic};

impl Conn {
    pub(crate) fn get(&mut self, number: u16, get: basic::Get) -> Result<(), Exception> {
        let (shown, queue) = self.queue_name(number, &get.queue)?;
        self.allow(Action::Receive, &queue, "queue", &shown)?;
        if !get.no_ack && self.unacked >= limits::UNACKED_MAX {
            let most = limits::UNACKED_MAX;
            return Err(precondition(format!(
                "the connection has {most} unacknowledged messages: acknowledge some first"
            )));
        }
        let (front, engine, session) =
            (self.front.clone(), self.engine.clone(), self.session.clone());
        self.start_request(number, basic::Get::ID, async move {
            let failed = |error| failed(&session.host, &error);
            let receive = Receive {
                queue: queue.clone(),
                max: 1,
                wait_ms: 0,
                lock_ms: Some(limits::LOCK_MS),
                take: get.no_ack,
                hold: None,
                per_session: 1,
            };
            let received = engine.receive(receive).await;
            let received = received.map_err(|error| match &error {
                malote_engine::EngineError::Refused(malote_model::Refusal::HoldRequired {
                    ..
                }) => precondition(format!(
                    "queue '{shown}' in vhost '{}' has sessions: get with acknowledgements",
                    session.host.name()
                )),
                _ => failed(error),
            })?;
            let Some(delivery) = received.into_iter().next() else {
                return Ok(Done::Got { message: None, queue, counts_deliveries: false });
            };
            // The queue may have been deleted since.
            let facts = front.engine.describe(queue.clone()).await.ok();
            let left = facts.as_ref().map_or(0, |facts| facts.ready);
            let left = u32::try_from(left).unwrap_or(u32::MAX);
            let counts_deliveries = facts.is_some_and(|facts| counts_deliveries(&facts.spec));
            Ok(Done::Got { message: Some(Box::new((delivery, left))), queue, counts_deliveries })
        });
        Ok(())
    }

    pub(crate) fn finish_get(
        &mut self,
        number: u16,
        got: Option<Box<(Delivery, u32)>>,
        queue: &QueueName,
        counts_deliveries: bool,
    ) {
        let Some(got) = got else { return self.put(number, &basic::GetEmpty::default()) };
        let (delivery, message_count) = *got;
        let (session, frame_max) = (self.session.clone(), self.session.frame_max);
        let out = message::outgoing(&session.host, queue, &delivery, counts_deliveries);
        let channel = self.channel(number);
        let delivery_tag = channel.next_tag();
        if let Some(lease) = delivery.lease {
            let unacked =
                Unacked { tag: delivery_tag, lease, consumer: None, since: Instant::now() };
            channel.unacked.insert(delivery_tag, unacked);
            self.unacked += 1;
        }
        let Outgoing { exchange, routing_key, properties } = &out;
        let redelivered = delivery.receives > 1;
        let get_ok =
            OutgoingGetOk { delivery_tag, redelivered, exchange, routing_key, message_count };
        let body = &delivery.stored.message.body.bytes;
        put_content(&mut self.out, number, frame_max, &get_ok, properties, body);
    }
}
