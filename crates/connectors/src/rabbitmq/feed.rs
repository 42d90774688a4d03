//! What the server pushes to one channel of a queue without sessions.
//!
//! It pushes as many messages as may be open at once. How many that is follows what is asked for: a worker with few slots
//! and slow handlers does not sit on what others could do. Whoever asks for more gets one more consumer, beside the ones
//! there are: what a cancelled consumer has out, a quorum queue keeps from everybody while the node is away that it was on.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::StreamExt as _;
use lapin::options::{BasicCancelOptions, BasicConsumeOptions, BasicQosOptions};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::Tools;
use super::convert::{Arrived, Came, incoming};
use super::link::answered;
use super::way::Way;
use crate::broker::BrokerError;

/// Messages open at once on one channel, at least and at most.
pub(super) const PREFETCH_MIN: u16 = 8;
const PREFETCH_MAX: u16 = 8192;

/// Where consumers bring what was pushed to them: None is the end of one.
#[derive(Clone)]
struct Pumped {
    tools: Arc<Tools>,
    queue: ShortString,
    way: Arc<Way>,
    to: mpsc::UnboundedSender<Option<(u64, Arrived)>>,
    end: CancellationToken,
}

impl Pumped {
    async fn pump(self, mut consumer: lapin::Consumer) {
        let Self { tools, way, to, .. } = self;
        while let Some(came) = consumer.next().await {
            let Ok(delivery) = came else {
                way.lost.cancel();
                break;
            };
            let tag = delivery.delivery_tag;
            way.arrived(tag);
            match incoming(delivery, false, &tools.chance) {
                Came::Message(arrived) => {
                    let _ = to.send(Some((tag, arrived))); // nobody is there: its channel is being closed
                }
                Came::Probe(_) => {
                    let _ = way.ack(&[tag]).await; // a way that is lost takes it with it
                }
            }
        }
        let _ = to.send(None);
    }
}

/// The consumers of a channel, and how many messages all of them may have open.
#[derive(Default)]
struct Room {
    tags: Vec<ShortString>,
    prefetch: u16,
}

impl Room {
    /// Makes room for so many, with one more consumer.
    async fn grow(&mut self, prefetch: u16, to: &Pumped) -> Result<(), BrokerError> {
        let (way, nth) = (&to.way, self.tags.len());
        let (more, mut arguments) = (prefetch - self.prefetch, FieldTable::default());
        if nth > 0 {
            // The first is full before the second gets anything, and of what the server gives at once it sends that of the
            // smallest tag first: messages of one source keep their order.
            let priority = -i32::try_from(nth).unwrap_or(i32::MAX);
            arguments.insert("x-priority".into(), AMQPValue::LongInt(priority));
        }
        let consume = async {
            // It holds for the consumers that begin after it, each for itself.
            answered(way.channel.basic_qos(more, BasicQosOptions::default())).await?;
            let (tag, options) = (format!("{nth:02}").into(), BasicConsumeOptions::default());
            answered(way.channel.basic_consume(to.queue.clone(), tag, options, arguments)).await
        };
        match consume.await {
            Ok(consumer) => {
                self.tags.push(consumer.tag());
                self.prefetch = prefetch;
                let pumping = to.clone().pump(consumer);
                tokio::spawn(to.end.clone().run_until_cancelled_owned(pumping));
                Ok(())
            }
            Err(error) => {
                // What was asked for may be given late: nobody would take what comes then.
                let way = way.clone();
                tokio::spawn(async move { way.close().await });
                Err(error)
            }
        }
    }
}

/// Consumers of one channel, and what was pushed to them and not fetched.
pub(super) struct Feed {
    pub way: Arc<Way>,
    /// Locked while it grows, which goes on when nobody waits for it any more.
    room: Arc<tokio::sync::Mutex<Room>>,
    to: Pumped,
    pub arrivals: mpsc::UnboundedReceiver<Option<(u64, Arrived)>>,
    /// By their tags: each consumer brings its own in order.
    pub here: BTreeMap<u64, Arrived>,
    pub since: Instant,
    /// A feed that nobody has any more ends its consumers.
    _end: DropGuard,
}

impl Feed {
    /// Consumes, on a new channel.
    pub(super) async fn begin(
        tools: Arc<Tools>,
        queue: ShortString,
        prefetch: u16,
    ) -> Result<Self, BrokerError> {
        let way = Arc::new(Way::new(tools.inn.channel().await?, tools.number()));
        let (pumped, arrivals) = mpsc::unbounded_channel();
        let end = CancellationToken::new();
        let to = Pumped { tools, queue, way: way.clone(), to: pumped, end: end.clone() };
        let mut room = Room::default();
        room.grow(prefetch, &to).await?;
        let (room, since) = (Arc::new(tokio::sync::Mutex::new(room)), Instant::now());
        let (here, _end) = (BTreeMap::new(), end.drop_guard());
        Ok(Self { way, room, to, arrivals, here, since, _end })
    }

    /// Room for so many at once and, if they are more than before, for as many again: that makes few consumers.
    pub(super) async fn make_room(&self, wanted: u32) -> Result<(), BrokerError> {
        let wanted = u16::try_from(wanted).unwrap_or(PREFETCH_MAX).min(PREFETCH_MAX);
        let mut room = self.room.clone().lock_owned().await;
        if room.prefetch >= wanted {
            return Ok(());
        }
        let (prefetch, to) = (wanted.saturating_mul(2).min(PREFETCH_MAX), self.to.clone());
        self.to.tools.io.run(async move { room.grow(prefetch, &to).await }).await
    }

    /// How many may be open at once.
    pub(super) async fn prefetch(&self) -> u16 {
        self.room.lock().await.prefetch
    }

    /// Ends the consumers; what they brought until then is here.
    async fn stop(&mut self) -> Result<(), BrokerError> {
        let room = self.room.lock().await;
        for tag in &room.tags {
            let cancel = self.way.channel.basic_cancel(tag.clone(), BasicCancelOptions::default());
            answered(cancel).await?;
        }
        let mut left = room.tags.len();
        while left > 0
            && let Some(came) = self.arrivals.recv().await
        {
            match came {
                Some((tag, arrived)) => drop(self.here.insert(tag, arrived)),
                None => left -= 1,
            }
        }
        Ok(())
    }

    /// Takes in what came.
    pub(super) fn took(&mut self, came: Option<(u64, Arrived)>) {
        match came {
            Some((tag, arrived)) => drop(self.here.insert(tag, arrived)),
            // Nobody here ended it.
            None => self.way.lost.cancel(),
        }
    }

    /// Lets go of all that was not handed out. What was can still be settled.
    pub(super) async fn close(mut self) -> Result<(), BrokerError> {
        if self.way.is_lost() {
            return Ok(());
        }
        if self.way.open() == 0 {
            return self.way.close().await;
        }
        self.stop().await?;
        let tags: Vec<u64> = self.here.keys().copied().collect();
        match self.way.requeue(&tags).await {
            Ok(()) | Err(BrokerError::LockLost) => Ok(()),
            Err(error) => Err(error),
        }
    }
}
