//! A channel that messages come over, and what of them is not settled yet.
//!
//! Settlements of one call are told in as few frames as possible: one for all up to a tag, where nothing before it is
//! still in hand, and one for each of the others.

use std::collections::BTreeSet;

use lapin::Channel;
use lapin::options::{BasicAckOptions, BasicNackOptions};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::link::{answered, error};
use crate::broker::BrokerError;

pub(super) struct Way {
    pub channel: Channel,
    /// No two have the same.
    pub number: u32,
    /// Fires when nothing that came over it can be settled any more.
    pub lost: CancellationToken,
    window: Mutex<Window>,
    /// Whoever tells the server: frames must leave in the order in which they were decided.
    telling: tokio::sync::Mutex<()>,
}

impl Way {
    pub(super) fn new(channel: Channel, number: u32) -> Self {
        Self {
            channel,
            number,
            lost: CancellationToken::new(),
            window: Mutex::default(),
            telling: tokio::sync::Mutex::new(()),
        }
    }

    pub(super) fn arrived(&self, tag: u64) {
        self.window.lock().open.insert(tag);
    }

    /// Messages that came and are not settled.
    pub(super) fn open(&self) -> usize {
        self.window.lock().open.len()
    }

    pub(super) fn is_lost(&self) -> bool {
        self.lost.is_cancelled()
    }

    /// These are done. An error is the way's: it is lost with all that is open.
    pub(super) async fn ack(&self, tags: &[u64]) -> Result<(), BrokerError> {
        if tags.is_empty() {
            return Ok(());
        }
        let _telling = self.telling.lock().await;
        if self.is_lost() {
            return Err(BrokerError::LockLost);
        }
        let told = self.window.lock().over(tags);
        let all = told.up_to.map(|tag| (tag, true)).into_iter();
        let all = all.chain(told.alone.into_iter().map(|tag| (tag, false)));
        let frames =
            all.map(|(tag, multiple)| self.channel.basic_ack(tag, BasicAckOptions { multiple }));
        self.told(futures_util::future::join_all(frames).await)
    }

    /// These go back to the queue.
    pub(super) async fn requeue(&self, tags: &[u64]) -> Result<(), BrokerError> {
        if tags.is_empty() {
            return Ok(());
        }
        let _telling = self.telling.lock().await;
        if self.is_lost() {
            return Err(BrokerError::LockLost);
        }
        let options = BasicNackOptions { multiple: false, requeue: true };
        let frames = tags.iter().map(|&tag| self.channel.basic_nack(tag, options));
        let told = futures_util::future::join_all(frames).await;
        // Only now: until it is told, nothing may be told for all up to a later one.
        self.window.lock().over(tags);
        self.told(told)
    }

    fn told(&self, each: Vec<lapin::Result<()>>) -> Result<(), BrokerError> {
        match each.into_iter().find_map(Result::err) {
            None => Ok(()),
            Some(cause) => {
                tracing::debug!(error = %error(cause), "a channel of RabbitMQ is lost");
                self.lost.cancel();
                Err(BrokerError::LockLost)
            }
        }
    }

    /// All that is open goes back, in order, and nothing comes any more.
    pub(super) async fn close(&self) -> Result<(), BrokerError> {
        // What is being told is told first.
        let _telling = self.telling.lock().await;
        self.lost.cancel();
        answered(self.channel.close(200, "done".into())).await
    }
}

/// What is open: no more than the server may push.
#[derive(Default)]
struct Window {
    open: BTreeSet<u64>,
}

struct Told {
    up_to: Option<u64>,
    alone: Vec<u64>,
}

impl Window {
    /// Notes what is over, and says how to tell it.
    fn over(&mut self, tags: &[u64]) -> Told {
        let news = tags.iter().copied().filter(|tag| self.open.remove(tag)).collect::<Vec<_>>();
        let first = self.open.first().copied().unwrap_or(u64::MAX);
        let (before, alone): (Vec<u64>, Vec<u64>) = news.into_iter().partition(|&tag| tag < first);
        Told { up_to: before.into_iter().max(), alone }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_done_in_order_is_told_at_once() {
        let mut window = Window { open: (1..=6).collect() };
        let mut over = |tags: &[u64]| {
            let told = window.over(tags);
            (told.up_to, told.alone, window.open.len())
        };
        assert_eq!(over(&[1, 2, 3]), (Some(3), vec![], 3));
        // The fourth is still in hand.
        assert_eq!(over(&[5]), (None, vec![5], 2));
        // What was told already is not told again, nor what never came.
        assert_eq!(over(&[5, 2, 99]), (None, vec![], 2));
        assert_eq!(over(&[6, 4]), (Some(6), vec![], 0));
    }
}
