//! A channel with the tags of its unsettled messages.
//!
//! The settlements of one call take as few frames as possible: one for all tags up to a certain one, if nothing
//! before it is unsettled, and one for each other tag.

use std::collections::BTreeSet;

use lapin::Channel;
use lapin::options::{BasicAckOptions, BasicNackOptions};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::connection::{ANSWER_MAX, await_answer, error, no_answer};
use crate::broker::BrokerError;

pub(super) struct TrackedChannel {
    pub channel: Channel,
    /// Unique in this process.
    pub number: u32,
    /// Cancelled when messages of this channel can no longer be settled.
    pub lost: CancellationToken,
    unsettled: Mutex<UnsettledTags>,
    /// Held while frames are written: they must be sent in the order in which they were decided.
    write_order: tokio::sync::Mutex<()>,
}

impl TrackedChannel {
    pub(super) fn new(channel: Channel, number: u32) -> Self {
        Self {
            channel,
            number,
            lost: CancellationToken::new(),
            unsettled: Mutex::default(),
            write_order: tokio::sync::Mutex::new(()),
        }
    }

    pub(super) fn track(&self, tag: u64) {
        self.unsettled.lock().tags.insert(tag);
    }

    /// The number of unsettled messages.
    pub(super) fn unsettled_count(&self) -> usize {
        self.unsettled.lock().tags.len()
    }

    pub(super) fn is_lost(&self) -> bool {
        self.lost.is_cancelled()
    }

    /// Acknowledges messages. After an error the channel is lost, with all unsettled messages.
    pub(super) async fn ack(&self, tags: &[u64]) -> Result<(), BrokerError> {
        if tags.is_empty() {
            return Ok(());
        }
        let _writing = self.write_order.lock().await;
        if self.is_lost() {
            return Err(BrokerError::LockLost);
        }
        let frames = self.unsettled.lock().remove(tags);
        let all = frames.up_to.map(|tag| (tag, true)).into_iter();
        let all = all.chain(frames.individual.into_iter().map(|tag| (tag, false)));
        let frames =
            all.map(|(tag, multiple)| self.channel.basic_ack(tag, BasicAckOptions { multiple }));
        self.check_written(self.written(frames).await)
    }

    /// Requeues messages. After an error the channel is lost, and RabbitMQ requeues them as well.
    pub(super) async fn requeue(&self, tags: &[u64]) -> Result<(), BrokerError> {
        if tags.is_empty() {
            return Ok(());
        }
        let _writing = self.write_order.lock().await;
        if self.is_lost() {
            return Err(BrokerError::LockLost);
        }
        let options = BasicNackOptions { multiple: false, requeue: true };
        let frames = tags.iter().map(|&tag| self.channel.basic_nack(tag, options));
        let written = self.written(frames).await;
        // Not earlier: a requeued tag must block acknowledgements of all tags up to a later one.
        self.unsettled.lock().remove(tags);
        self.check_written(written)
    }

    /// Waits until all frames are written. The client may drop frames when the connection ends, so that is an outcome
    /// too.
    async fn written(
        &self,
        frames: impl Iterator<Item = impl Future<Output = lapin::Result<()>>>,
    ) -> Result<(), BrokerError> {
        tokio::select! {
            each = futures_util::future::join_all(frames) => {
                each.into_iter().collect::<lapin::Result<()>>().map_err(error)
            }
            () = self.lost.cancelled() => Err(BrokerError::LockLost),
            () = tokio::time::sleep(ANSWER_MAX) => Err(no_answer()),
        }
    }

    fn check_written(&self, written: Result<(), BrokerError>) -> Result<(), BrokerError> {
        written.map_err(|error| {
            tracing::debug!(%error, "a RabbitMQ channel is lost");
            self.lost.cancel();
            BrokerError::LockLost
        })
    }

    /// Closes the channel. RabbitMQ requeues all unsettled messages in order.
    pub(super) async fn close(&self) -> Result<(), BrokerError> {
        // Frames that are being written come first.
        let _writing = self.write_order.lock().await;
        self.lost.cancel();
        await_answer(self.channel.close(200, "done".into())).await
    }
}

/// Bounded by the prefetch of the channel.
#[derive(Default)]
struct UnsettledTags {
    tags: BTreeSet<u64>,
}

struct AckFrames {
    up_to: Option<u64>,
    individual: Vec<u64>,
}

impl UnsettledTags {
    /// Removes tags and returns the frames that acknowledge them.
    fn remove(&mut self, tags: &[u64]) -> AckFrames {
        let settled = tags.iter().copied().filter(|tag| self.tags.remove(tag)).collect::<Vec<_>>();
        let first = self.tags.first().copied().unwrap_or(u64::MAX);
        let (before, individual): (Vec<u64>, Vec<u64>) =
            settled.into_iter().partition(|&tag| tag < first);
        AckFrames { up_to: before.into_iter().max(), individual }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_without_gaps_are_acknowledged_together() {
        let mut unsettled = UnsettledTags { tags: (1..=6).collect() };
        let mut remove = |tags: &[u64]| {
            let frames = unsettled.remove(tags);
            (frames.up_to, frames.individual, unsettled.tags.len())
        };
        assert_eq!(remove(&[1, 2, 3]), (Some(3), vec![], 3));
        // Tag 4 is unsettled.
        assert_eq!(remove(&[5]), (None, vec![5], 2));
        // Tags that are unknown or already settled are ignored.
        assert_eq!(remove(&[5, 2, 99]), (None, vec![], 2));
        assert_eq!(remove(&[6, 4]), (Some(6), vec![], 0));
    }
}
