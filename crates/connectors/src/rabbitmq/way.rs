//! A channel that messages come over, and what of them is not settled yet.
//!
//! Settlements of one call are told in as few frames as possible: one for all up to a tag, where nothing before it is
//! still in hand, and one for each of the others.

use std::collections::VecDeque;

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
            window: Mutex::new(Window { first: 1, over: VecDeque::new(), open: 0 }),
            telling: tokio::sync::Mutex::new(()),
        }
    }

    pub(super) fn arrived(&self, tag: u64) {
        self.window.lock().arrived(tag);
    }

    /// Messages that came and are not settled.
    pub(super) fn open(&self) -> usize {
        self.window.lock().open
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

/// Tags are consecutive: a bit for each from the oldest that is open.
struct Window {
    first: u64,
    over: VecDeque<bool>,
    open: usize,
}

struct Told {
    up_to: Option<u64>,
    alone: Vec<u64>,
}

impl Window {
    fn arrived(&mut self, tag: u64) {
        // Of two consumers of one channel, the later may be heard first.
        while self.first + (self.over.len() as u64) <= tag {
            self.over.push_back(false);
            self.open += 1;
        }
    }

    /// Notes what is over, and says how to tell it.
    fn over(&mut self, tags: &[u64]) -> Told {
        let mut news: Vec<u64> = Vec::with_capacity(tags.len());
        for &tag in tags {
            let at = tag.checked_sub(self.first).and_then(|at| usize::try_from(at).ok());
            if let Some(over) = at.and_then(|at| self.over.get_mut(at)).filter(|over| !**over) {
                *over = true;
                self.open -= 1;
                news.push(tag);
            }
        }
        while self.over.front() == Some(&true) {
            self.over.pop_front();
            self.first += 1;
        }
        let (before, alone): (Vec<u64>, Vec<u64>) =
            news.into_iter().partition(|&tag| tag < self.first);
        Told { up_to: before.into_iter().max(), alone }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_done_in_order_is_told_at_once() {
        let mut window = Window { first: 1, over: VecDeque::new(), open: 0 };
        (1..=6).for_each(|tag| window.arrived(tag));
        let mut over = |tags: &[u64]| {
            let told = window.over(tags);
            (told.up_to, told.alone, window.open)
        };
        assert_eq!(over(&[1, 2, 3]), (Some(3), vec![], 3));
        // The fourth is still in hand.
        assert_eq!(over(&[5]), (None, vec![5], 2));
        // What was told already is not told again, nor what never came.
        assert_eq!(over(&[5, 2, 99]), (None, vec![], 2));
        assert_eq!(over(&[6, 4]), (Some(6), vec![], 0));
    }
}
