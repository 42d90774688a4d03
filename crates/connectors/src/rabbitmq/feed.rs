//! What the server pushes to one channel of a queue without sessions.
//!
//! It pushes as many messages as may be open at once. How many that is follows what is asked for: a worker with few slots
//! and slow handlers does not sit on what others could do. Whoever asks for more gets one more consumer, beside the ones
//! there are: what a cancelled consumer has out, a quorum queue keeps from everybody while the node is away that it was on.

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

use super::Tools;
use super::convert::{Arrived, Came, incoming};
use super::link::answered;
use super::way::Way;
use crate::broker::BrokerError;

/// Messages open at once on one channel, at least and at most.
pub(super) const PREFETCH_MIN: u16 = 8;
const PREFETCH_MAX: u16 = 8192;
/// How long what was fetched ahead waits for what was handed out: then both are let go with the channel. What takes longer
/// to handle is left with a consumer that is cancelled.
const FINISH_MAX: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(10);

/// Where consumers bring what was pushed to them: None is the end of one.
#[derive(Clone)]
struct Pumped {
    tools: Arc<Tools>,
    queue: ShortString,
    way: Arc<Way>,
    line: Arc<Mutex<Line<Arrived>>>,
    to: mpsc::UnboundedSender<Option<(u64, Arrived)>>,
    end: CancellationToken,
}

/// What came, in the order of its tags: each consumer brings its own, and none knows how far the others are. A channel counts
/// all that comes over it, from one on.
struct Line<T> {
    last: u64,
    /// What came before its turn. None is nothing to hand out.
    early: BTreeMap<u64, Option<T>>,
}

impl<T> Line<T> {
    fn new() -> Self {
        Self { last: 0, early: BTreeMap::new() }
    }

    /// All whose turn it is now.
    fn came(&mut self, tag: u64, what: Option<T>) -> Vec<(u64, T)> {
        self.early.insert(tag, what);
        let mut all = Vec::new();
        while let Some(next) = self.early.remove(&(self.last + 1)) {
            self.last += 1;
            all.extend(next.map(|what| (self.last, what)));
        }
        all
    }
}

impl Pumped {
    async fn pump(self, mut consumer: lapin::Consumer) {
        let Self { tools, way, line, to, .. } = self;
        while let Some(came) = consumer.next().await {
            let Ok(delivery) = came else {
                way.lost.cancel();
                break;
            };
            let tag = delivery.delivery_tag;
            way.arrived(tag);
            let (arrived, is_probe) = match incoming(delivery, false, &tools.chance) {
                Came::Message(arrived) => (Some(arrived), false),
                Came::Probe(_) => (None, true),
            };
            {
                let mut line = line.lock();
                for one in line.came(tag, arrived) {
                    let _ = to.send(Some(one)); // nobody is there: its channel is being closed
                }
            }
            if is_probe {
                let _ = way.ack(&[tag]).await; // a way that is lost takes it with it
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
    pub here: VecDeque<(u64, Arrived)>,
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
        let line = Arc::new(Mutex::new(Line::new()));
        let to = Pumped { tools, queue, way: way.clone(), line, to: pumped, end: end.clone() };
        let mut room = Room::default();
        room.grow(prefetch, &to).await?;
        let (room, since) = (Arc::new(tokio::sync::Mutex::new(room)), Instant::now());
        let (here, _end) = (VecDeque::new(), end.drop_guard());
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
                Some(one) => self.here.push_back(one),
                None => left -= 1,
            }
        }
        Ok(())
    }

    /// Takes in what came.
    pub(super) fn took(&mut self, came: Option<(u64, Arrived)>) {
        match came {
            Some(one) => self.here.push_back(one),
            // Nobody here ended it.
            None => self.way.lost.cancel(),
        }
    }

    /// Lets go of all that was not handed out. What was can still be settled, as long as there is anybody who could.
    pub(super) async fn close(mut self, anybody: impl Fn() -> bool) -> Result<(), BrokerError> {
        let until = Instant::now() + FINISH_MAX;
        loop {
            if self.way.is_lost() {
                return Ok(());
            }
            while let Ok(came) = self.arrivals.try_recv() {
                self.took(came);
            }
            if self.way.open() == self.here.len() || !anybody() {
                return self.way.close().await;
            }
            if Instant::now() >= until {
                break;
            }
            tokio::time::sleep(LOOK).await;
        }
        self.stop().await?;
        let tags: Vec<u64> = self.here.iter().map(|(tag, _)| *tag).collect();
        match self.way.requeue(&tags).await {
            Ok(()) | Err(BrokerError::LockLost) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_consumer_brings_waits_for_what_another_has_to_bring() {
        let mut line = Line::new();
        assert_eq!(line.came(1, Some("a")), [(1, "a")]);
        assert_eq!(line.came(4, Some("d")), []);
        // What is for nobody has its turn as well.
        assert_eq!(line.came(3, None), []);
        assert_eq!(line.came(2, Some("b")), [(2, "b"), (4, "d")]);
        assert_eq!(line.came(5, Some("e")), [(5, "e")]);
    }
}
