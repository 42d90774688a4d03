//! The consumers of one channel for a queue without sessions, and the messages pushed to them.
//!
//! The prefetch follows demand: a worker with few slots and slow handlers does not hold back messages that other
//! workers could process. A higher prefetch adds another consumer. The existing one is not replaced: if its node is
//! down, a quorum queue keeps back the unsettled messages of a cancelled consumer.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use lapin::options::{BasicCancelOptions, BasicConsumeOptions, BasicQosOptions};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::RabbitContext;
use super::connection::await_answer;
use super::convert::{DecodedDelivery, InboundMessage, decode_delivery};
use super::tracked_channel::TrackedChannel;
use crate::broker::BrokerError;

/// Bounds of the unsettled messages of one channel.
pub(super) const PREFETCH_MIN: u16 = 8;
const PREFETCH_MAX: u16 = 8192;
/// How long closing waits until handed-out messages are settled. Then the prefetched messages are returned together
/// with the channel. For handlers that take longer, the consumer is cancelled and the channel stays open.
const DRAIN_MAX: Duration = Duration::from_secs(2);
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Moves deliveries of consumers to the receiver of [`PrefetchConsumer`]. It sends None when a consumer ends.
#[derive(Clone)]
struct DeliveryPump {
    context: Arc<RabbitContext>,
    queue: ShortString,
    tracked: Arc<TrackedChannel>,
    order: Arc<Mutex<TagOrder<InboundMessage>>>,
    sender: mpsc::UnboundedSender<Option<(u64, InboundMessage)>>,
    end: CancellationToken,
}

/// Puts messages of several consumers into the order of their delivery tags. A channel numbers its deliveries from one.
struct TagOrder<T> {
    last: u64,
    /// Deliveries that wait for an earlier tag. None: a delivery that is not a message.
    early: BTreeMap<u64, Option<T>>,
}

impl<T> TagOrder<T> {
    fn new() -> Self {
        Self { last: 0, early: BTreeMap::new() }
    }

    /// Adds a delivery and returns all messages that are now in order.
    fn add(&mut self, tag: u64, what: Option<T>) -> Vec<(u64, T)> {
        self.early.insert(tag, what);
        let mut all = Vec::new();
        while let Some(next) = self.early.remove(&(self.last + 1)) {
            self.last += 1;
            all.extend(next.map(|what| (self.last, what)));
        }
        all
    }
}

impl DeliveryPump {
    async fn pump(self, mut consumer: lapin::Consumer) {
        let Self { tracked, order, sender, .. } = self;
        while let Some(received) = consumer.next().await {
            let Ok(delivery) = received else {
                tracked.lost.cancel();
                break;
            };
            let tag = delivery.delivery_tag;
            tracked.track(tag);
            let (inbound, is_probe) = match decode_delivery(delivery, false) {
                DecodedDelivery::Message(inbound) => (Some(inbound), false),
                DecodedDelivery::Probe(_) => (None, true),
            };
            {
                let mut order = order.lock();
                for one in order.add(tag, inbound) {
                    let _ = sender.send(Some(one)); // the receiver is gone: the channel is being closed
                }
            }
            if is_probe {
                let _ = tracked.ack(&[tag]).await; // a probe of a lost channel expires
            }
        }
        let _ = sender.send(None);
    }
}

/// The consumers of a channel, and the sum of their prefetch counts.
#[derive(Default)]
struct ConsumerSet {
    tags: Vec<ShortString>,
    prefetch: u16,
}

impl ConsumerSet {
    /// Raises the prefetch by adding a consumer.
    async fn grow(&mut self, prefetch: u16, pump: &DeliveryPump) -> Result<(), BrokerError> {
        let (tracked, index) = (&pump.tracked, self.tags.len());
        let (more, mut arguments) = (prefetch - self.prefetch, FieldTable::default());
        if index > 0 {
            // With a lower priority, the new consumer gets messages only when the others are full. When several get
            // messages at once, the server serves the smallest consumer tag first. So messages of one source keep
            // their order.
            let priority = -i32::try_from(index).unwrap_or(i32::MAX);
            arguments.insert("x-priority".into(), AMQPValue::LongInt(priority));
        }
        let consume = async {
            // The prefetch count applies to each consumer that is started after this call.
            await_answer(tracked.channel.basic_qos(more, BasicQosOptions::default())).await?;
            let (tag, options) = (format!("{index:02}").into(), BasicConsumeOptions::default());
            await_answer(tracked.channel.basic_consume(pump.queue.clone(), tag, options, arguments))
                .await
        };
        match consume.await {
            Ok(consumer) => {
                self.tags.push(consumer.tag());
                self.prefetch = prefetch;
                let pumping = pump.clone().pump(consumer);
                tokio::spawn(pump.end.clone().run_until_cancelled_owned(pumping));
                Ok(())
            }
            Err(error) => {
                // The server may still start the consumer, whose messages would not be received.
                let tracked = tracked.clone();
                tokio::spawn(async move { tracked.close().await });
                Err(error)
            }
        }
    }
}

/// The consumers of one channel, and messages that were pushed and not fetched yet.
pub(super) struct PrefetchConsumer {
    pub tracked: Arc<TrackedChannel>,
    /// Locked while a consumer is added, which continues if the caller gives up.
    consumers: Arc<tokio::sync::Mutex<ConsumerSet>>,
    pump: DeliveryPump,
    pub deliveries: mpsc::UnboundedReceiver<Option<(u64, InboundMessage)>>,
    pub buffered: VecDeque<(u64, InboundMessage)>,
    pub since: Instant,
    /// Stops the consumers on drop.
    _end: DropGuard,
}

impl PrefetchConsumer {
    /// Starts consuming on a new channel.
    pub(super) async fn begin(
        context: Arc<RabbitContext>,
        queue: ShortString,
        prefetch: u16,
    ) -> Result<Self, BrokerError> {
        let tracked = Arc::new(TrackedChannel::new(
            context.consume_connection.channel().await?,
            context.next_channel_number(),
        ));
        let (sender, deliveries) = mpsc::unbounded_channel();
        let end = CancellationToken::new();
        let order = Arc::new(Mutex::new(TagOrder::new()));
        let pump = DeliveryPump {
            context,
            queue,
            tracked: tracked.clone(),
            order,
            sender,
            end: end.clone(),
        };
        let mut consumers = ConsumerSet::default();
        consumers.grow(prefetch, &pump).await?;
        let (consumers, since) = (Arc::new(tokio::sync::Mutex::new(consumers)), Instant::now());
        let (buffered, _end) = (VecDeque::new(), end.drop_guard());
        Ok(Self { tracked, consumers, pump, deliveries, buffered, since, _end })
    }

    /// Raises the prefetch to twice `wanted` if it is too low. Doubling keeps the number of consumers small.
    pub(super) async fn raise_prefetch(&self, wanted: u32) -> Result<(), BrokerError> {
        let wanted = u16::try_from(wanted).unwrap_or(PREFETCH_MAX).min(PREFETCH_MAX);
        let mut consumers = self.consumers.clone().lock_owned().await;
        if consumers.prefetch >= wanted {
            return Ok(());
        }
        let (prefetch, pump) = (wanted.saturating_mul(2).min(PREFETCH_MAX), self.pump.clone());
        self.pump.context.io.run(async move { consumers.grow(prefetch, &pump).await }).await
    }

    /// The most messages that may be unsettled.
    pub(super) async fn prefetch(&self) -> u16 {
        self.consumers.lock().await.prefetch
    }

    /// Cancels the consumers and buffers the messages that they have received.
    async fn stop(&mut self) -> Result<(), BrokerError> {
        let consumers = self.consumers.lock().await;
        for tag in &consumers.tags {
            let cancel =
                self.tracked.channel.basic_cancel(tag.clone(), BasicCancelOptions::default());
            await_answer(cancel).await?;
        }
        let mut left = consumers.tags.len();
        while left > 0
            && let Some(received) = self.deliveries.recv().await
        {
            match received {
                Some(one) => self.buffered.push_back(one),
                None => left -= 1,
            }
        }
        Ok(())
    }

    /// Buffers a delivery.
    pub(super) fn buffer(&mut self, received: Option<(u64, InboundMessage)>) {
        match received {
            Some(one) => self.buffered.push_back(one),
            // A consumer ended without being cancelled.
            None => self.tracked.lost.cancel(),
        }
    }

    /// Returns all messages that were not handed out. The others can still be settled, as long as `has_settlers`.
    pub(super) async fn close(
        mut self,
        has_settlers: impl Fn() -> bool,
    ) -> Result<(), BrokerError> {
        let until = Instant::now() + DRAIN_MAX;
        loop {
            if self.tracked.is_lost() {
                return Ok(());
            }
            while let Ok(received) = self.deliveries.try_recv() {
                self.buffer(received);
            }
            if self.tracked.unsettled_count() == self.buffered.len() || !has_settlers() {
                return self.tracked.close().await;
            }
            if Instant::now() >= until {
                break;
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        self.stop().await?;
        let tags: Vec<u64> = self.buffered.iter().map(|(tag, _)| *tag).collect();
        match self.tracked.requeue(&tags).await {
            Ok(()) | Err(BrokerError::LockLost) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_several_consumers_are_put_in_order_of_tags() {
        let mut order = TagOrder::new();
        assert_eq!(order.add(1, Some("a")), [(1, "a")]);
        assert_eq!(order.add(4, Some("d")), []);
        // A probe takes a tag as well.
        assert_eq!(order.add(3, None), []);
        assert_eq!(order.add(2, Some("b")), [(2, "b"), (4, "d")]);
        assert_eq!(order.add(5, Some("e")), [(5, "e")]);
    }
}
