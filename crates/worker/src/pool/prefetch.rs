//! Messages that are fetched and that no slot has started: the prefetch of a queue without sessions.
//!
//! The faster the handlers are, the more messages are prefetched. A handler of a few milliseconds finishes dozens of
//! messages during one fetch. A handler of several seconds should leave waiting messages to other workers. Prefetched
//! messages are locked, and their locks are renewed.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use malote_connectors::Delivery;
use malote_model::limits::RECEIVE_BATCH_MAX;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::isolation::FetchPermit;
use super::lock_renewal::LockGuard;

/// Maximum number of prefetched messages for each slot.
const PER_SLOT_MAX: u32 = 32;
/// Nothing is prefetched for handlers that take longer.
const SLOW: Duration = Duration::from_millis(50);
/// The assumed handler time after a worker was lost. It takes about two dozen fast messages to correct it.
const ASSUMED_SLOW: Duration = Duration::from_secs(1);
/// The latest handler time has the weight 1/8 in the moving average.
const WEIGHT: u32 = 8;
/// Maximum number of messages that slots handle at a time, for any size of batches.
const RUNNING_MAX: usize = 100_000;

pub(super) struct PrefetchedMessage {
    pub delivery: Delivery,
    pub lock: LockGuard,
    pub permit: FetchPermit,
}

/// What a slot handles in one call of a handler.
#[allow(clippy::large_enum_variant)] // the large variant is the usual one; an allocation costs more than a move
pub(super) enum WorkItem {
    Single(PrefetchedMessage),
    /// For the batch handler with this index.
    Batch(usize, Vec<PrefetchedMessage>),
}

/// The size of a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchLimits {
    /// Maximum number of messages.
    pub max: usize,
    /// Maximum time to wait for more messages after the first.
    pub wait: Duration,
}

pub(super) struct Prefetch {
    /// The number of slots wanted. Excess slots end when they have finished their work.
    slots: AtomicUsize,
    /// Whether the number of slots was ever reduced. Only then can there be excess slots.
    was_reduced: AtomicBool,
    /// Messages that wait longer are returned to the queue, because another worker may be free.
    wait_max: Duration,
    /// Whether to fetch more messages than there are free slots.
    ahead: bool,
    limits: Vec<BatchLimits>,
    state: Mutex<PrefetchState>,
    /// Wakes a slot: a message arrived.
    arrived: Notify,
    /// Wakes the fetching task: there may be room.
    room: Notify,
    /// Wakes the slot that gathers a batch, by the index of the batch handler.
    batch_grew: Vec<Notify>,
}

#[derive(Default)]
struct PrefetchState {
    /// First the messages for single handlers, then those for each batch handler.
    lanes: Vec<Lane>,
    /// Messages in all lanes.
    count: usize,
    next_number: u64,
    /// Messages that slots are handling.
    running: usize,
    waiting_slots: usize,
    slots: usize,
    /// Moving average of the handler time per message.
    mean_time: Option<Duration>,
}

/// Messages for one kind of handler, in order. Each has a number, which gives the order over all lanes.
#[derive(Default)]
struct Lane {
    items: VecDeque<(u64, Instant, PrefetchedMessage)>,
    /// Whether a slot is waiting to fill a batch.
    gathering: bool,
}

#[allow(clippy::large_enum_variant)] // as for `WorkItem`
enum TakeResult {
    Item(WorkItem),
    /// The batch with this index is not full: wait for more messages until then.
    Gather(usize, Instant),
    Empty,
}

impl Prefetch {
    pub(super) fn new(slots: usize, lock: Duration, ahead: bool, limits: Vec<BatchLimits>) -> Self {
        let lanes = (0..=limits.len()).map(|_| Lane::default()).collect();
        let batch_grew = limits.iter().map(|_| Notify::new()).collect();
        Self {
            slots: AtomicUsize::new(slots),
            was_reduced: AtomicBool::new(false),
            wait_max: lock / 2,
            ahead,
            limits,
            state: Mutex::new(PrefetchState { lanes, ..PrefetchState::default() }),
            arrived: Notify::new(),
            room: Notify::new(),
            batch_grew,
        }
    }

    fn slots(&self) -> usize {
        self.slots.load(Ordering::Relaxed)
    }

    /// Changes the number of slots. Returns how many slots the caller must start for prefetched messages.
    pub(super) fn set_slots(&self, slots: usize) -> usize {
        let before = self.slots.swap(slots, Ordering::Relaxed);
        if slots > before {
            self.room.notify_one();
        } else if slots < before {
            self.was_reduced.store(true, Ordering::Relaxed);
            // Waiting slots check whether they must end.
            self.arrived.notify_waiters();
        }
        self.state.lock().start_slots(slots)
    }

    /// Removes one slot if there are more than wanted. The caller must end if this returns true.
    fn remove_excess_slot(&self) -> bool {
        if !self.was_reduced.load(Ordering::Relaxed) {
            return false;
        }
        let mut state = self.state.lock();
        if state.slots <= self.slots() {
            return false;
        }
        state.slots -= 1;
        if state.count > 0 {
            // This slot may have been woken for a message: wake another one for it.
            self.arrived.notify_one();
        }
        true
    }

    /// Adds messages in order, each with the index of its batch handler. Returns how many slots the caller must start.
    pub(super) fn add(&self, messages: Vec<(Option<usize>, PrefetchedMessage)>) -> usize {
        let now = Instant::now();
        let mut state = self.state.lock();
        let mut batches = Vec::new();
        let mut added = 0;
        for (batch, message) in messages {
            let lane = batch.map_or(0, |batch| batch + 1);
            let number = state.next_number;
            state.next_number += 1;
            state.lanes[lane].items.push_back((number, now, message));
            added += 1;
            batches.extend(batch.filter(|batch| batches.last() != Some(batch)));
        }
        state.count += added;
        let wake = added.min(state.waiting_slots);
        let start = state.start_slots(self.slots());
        drop(state);
        batches.into_iter().for_each(|batch| self.batch_grew[batch].notify_one());
        (0..wake).for_each(|_| self.arrived.notify_one());
        start
    }

    /// The oldest work that is ready. None when the slot must end.
    pub(super) async fn next(&self, stop: &CancellationToken) -> Option<WorkItem> {
        loop {
            if stop.is_cancelled() || self.remove_excess_slot() {
                return None;
            }
            let taken = match self.take() {
                TakeResult::Empty => self.wait(stop).await?,
                taken => taken,
            };
            match taken {
                TakeResult::Item(item) => return Some(item),
                TakeResult::Gather(batch, until) => {
                    if let Some(item) = self.gather(batch, until, stop).await {
                        return Some(item);
                    }
                }
                TakeResult::Empty => {}
            }
        }
    }

    /// Waits for a message. It registers for the wake-up before it looks again, so that no message is missed.
    async fn wait(&self, stop: &CancellationToken) -> Option<TakeResult> {
        let arrived = self.arrived.notified();
        tokio::pin!(arrived);
        arrived.as_mut().enable();
        let _waiting = WaitingSlot::new(&self.state);
        match self.take() {
            TakeResult::Empty => {
                stop.run_until_cancelled(arrived).await.map(|()| TakeResult::Empty)
            }
            taken => Some(taken),
        }
    }

    fn take(&self) -> TakeResult {
        let mut state = self.state.lock();
        let is_ready = |(nth, lane): &(usize, &Lane)| match *nth {
            0 => !lane.items.is_empty(),
            nth => {
                let is_full = lane.items.len() >= self.limits[nth - 1].max;
                is_full || (!lane.items.is_empty() && !lane.gathering)
            }
        };
        let ready = state.lanes.iter().enumerate().filter(is_ready);
        let oldest = ready.min_by_key(|(_, lane)| lane.items.front().map(|(number, ..)| *number));
        let Some((nth, _)) = oldest else { return TakeResult::Empty };
        if nth == 0 {
            let first = state.lanes[0].items.pop_front();
            let Some((_, _, message)) = first else { return TakeResult::Empty };
            state.count -= 1;
            state.running += 1;
            return TakeResult::Item(WorkItem::Single(message));
        }
        let BatchLimits { max, wait } = self.limits[nth - 1];
        let lane = &mut state.lanes[nth];
        if lane.items.len() < max && !wait.is_zero() {
            lane.gathering = true;
            let since = lane.items.front().map_or_else(Instant::now, |(_, at, _)| *at);
            return TakeResult::Gather(nth - 1, since + wait);
        }
        state.take_batch(nth - 1, max).map_or(TakeResult::Empty, TakeResult::Item)
    }

    /// Waits until the batch is full or the time is over.
    async fn gather(
        &self,
        batch: usize,
        until: Instant,
        stop: &CancellationToken,
    ) -> Option<WorkItem> {
        let max = self.limits[batch].max;
        loop {
            let grew = self.batch_grew[batch].notified();
            tokio::pin!(grew);
            grew.as_mut().enable();
            if self.state.lock().lanes[batch + 1].items.len() >= max {
                break;
            }
            let more = tokio::time::timeout_at(until, grew);
            if !matches!(stop.run_until_cancelled(more).await, Some(Ok(()))) {
                break;
            }
        }
        let mut state = self.state.lock();
        state.lanes[batch + 1].gathering = false;
        if stop.is_cancelled() {
            return None;
        }
        let taken = state.take_batch(batch, max);
        if !state.lanes[batch + 1].items.is_empty() {
            // Other slots skipped this lane while it was gathering.
            self.arrived.notify_one();
        }
        taken
    }

    /// Counts a message as running that is handled outside of the slots.
    pub(super) fn count_running(&self) {
        self.state.lock().running += 1;
    }

    /// Reduces the prefetch after a worker was lost: a crash counts against every fetched message.
    pub(super) fn assume_slow_handlers(&self) {
        self.state.lock().mean_time = Some(ASSUMED_SLOW);
    }

    /// Records that `messages` were handled together in the time `took`.
    pub(super) fn finished(&self, messages: usize, took: Duration) {
        let mut state = self.state.lock();
        state.running -= messages;
        let each = took / u32::try_from(messages).unwrap_or(u32::MAX).max(1);
        state.mean_time = Some(match state.mean_time {
            Some(mean) => (mean * (WEIGHT - 1) + each) / WEIGHT,
            None => each,
        });
        if self.wanted_now(&state) > 0 {
            drop(state);
            self.room.notify_one();
        }
    }

    /// Waits until a fetch makes sense, and returns its size. None if prefetched messages have waited for too long.
    pub(super) async fn wanted(&self) -> Option<u32> {
        loop {
            let wanted = self.wanted_now(&self.state.lock());
            if wanted > 0 {
                return Some(wanted);
            }
            if tokio::time::timeout(self.wait_max, self.room.notified()).await.is_err() {
                let mut state = self.state.lock();
                let oldest = state.lanes.iter().filter_map(|lane| lane.items.front());
                let age = oldest.map(|(_, at, _)| at.elapsed()).max();
                if age.is_some_and(|age| age >= self.wait_max) {
                    // The handlers have become slow.
                    state.mean_time = Some(SLOW);
                    return None;
                }
            }
        }
    }

    fn wanted_now(&self, state: &PrefetchState) -> u32 {
        let batch_max = self.limits.iter().map(|limits| limits.max).max().unwrap_or(1);
        let running_max = self.slots().saturating_mul(batch_max).min(RUNNING_MAX.max(batch_max));
        let per_slot = match state.mean_time {
            Some(mean) if self.ahead && mean < SLOW => {
                let in_time = self.wait_max.as_nanos() / mean.as_nanos().max(1);
                u32::try_from(in_time).unwrap_or(u32::MAX).min(PER_SLOT_MAX)
            }
            _ => 0,
        };
        let ahead = self.slots().saturating_mul(per_slot as usize).min(RECEIVE_BATCH_MAX);
        let fetched = state.count + state.running;
        // Fetch at least half of the prefetch at once, to save round trips.
        if fetched + ahead.div_ceil(2) > running_max + ahead - usize::from(ahead == 0) {
            return 0;
        }
        u32::try_from((running_max + ahead - fetched).min(RECEIVE_BATCH_MAX)).unwrap_or(u32::MAX)
    }

    /// Removes all messages that no slot has started, in order.
    pub(super) fn clear(&self) -> Vec<PrefetchedMessage> {
        let mut state = self.state.lock();
        let lanes = state.lanes.iter_mut();
        let mut all: Vec<_> = lanes.flat_map(|lane| lane.items.drain(..)).collect();
        state.count = 0;
        drop(state);
        all.sort_unstable_by_key(|(number, ..)| *number);
        all.into_iter().map(|(_, _, message)| message).collect()
    }
}

impl PrefetchState {
    /// Counts the slots to start for waiting messages, at most up to `slots_max` in all.
    fn start_slots(&mut self, slots_max: usize) -> usize {
        let free = slots_max.saturating_sub(self.slots);
        let start = self.count.saturating_sub(self.waiting_slots).min(free);
        self.slots += start;
        start
    }

    fn take_batch(&mut self, batch: usize, max: usize) -> Option<WorkItem> {
        let items = &mut self.lanes[batch + 1].items;
        let count = items.len().min(max);
        let taken: Vec<_> = items.drain(..count).map(|(_, _, message)| message).collect();
        self.count -= count;
        self.running += count;
        (count > 0).then_some(WorkItem::Batch(batch, taken))
    }
}

/// Counts a slot as waiting until it is dropped.
struct WaitingSlot<'a>(&'a Mutex<PrefetchState>);

impl<'a> WaitingSlot<'a> {
    fn new(state: &'a Mutex<PrefetchState>) -> Self {
        state.lock().waiting_slots += 1;
        Self(state)
    }
}

impl Drop for WaitingSlot<'_> {
    fn drop(&mut self) {
        self.0.lock().waiting_slots -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCK: Duration = Duration::from_secs(30);

    fn wanted(prefetch: &Prefetch) -> u32 {
        prefetch.wanted_now(&prefetch.state.lock())
    }

    /// Handles messages one by one, each in the time `took`.
    fn handled(prefetch: &Prefetch, messages: usize, took: Duration) {
        for _ in 0..messages {
            prefetch.count_running();
            prefetch.finished(1, took);
        }
    }

    #[test]
    fn fast_handlers_get_a_larger_prefetch() {
        let prefetch = Prefetch::new(10, LOCK, true, Vec::new());
        assert_eq!(wanted(&prefetch), 10, "no handler time is known yet");
        handled(&prefetch, 1, Duration::from_millis(1));
        assert_eq!(wanted(&prefetch), 10 + 320);
        handled(&prefetch, 100, Duration::from_secs(1));
        assert_eq!(wanted(&prefetch), 10, "one message for each slot");
        handled(&prefetch, 100, Duration::from_micros(1));
        assert_eq!(wanted(&prefetch), 10 + 320);
        // A worker was lost.
        prefetch.assume_slow_handlers();
        assert_eq!(wanted(&prefetch), 10);
        // The prefetch is never more than half of the lock time can handle.
        let short = Prefetch::new(10, Duration::from_millis(400), true, Vec::new());
        handled(&short, 1, Duration::from_millis(40));
        assert_eq!(wanted(&short), 10 + 50);
    }

    #[test]
    fn a_fetch_is_at_least_half_of_the_prefetch() {
        let prefetch = Prefetch::new(1, LOCK, true, Vec::new());
        handled(&prefetch, 1, Duration::from_micros(1));
        let all = wanted(&prefetch);
        assert_eq!(all, 1 + 32);
        for fetched in 0..all {
            let expected = if fetched <= 1 + 16 { all - fetched } else { 0 };
            assert_eq!(wanted(&prefetch), expected, "{fetched} fetched");
            prefetch.count_running();
        }
    }

    #[test]
    fn workers_with_a_limit_do_not_prefetch_and_fill_batches() {
        let prefetch = Prefetch::new(10, LOCK, false, Vec::new());
        handled(&prefetch, 1, Duration::from_micros(1));
        assert_eq!(wanted(&prefetch), 10);
        let limits = BatchLimits { max: 16, wait: Duration::ZERO };
        let prefetch = Prefetch::new(3, LOCK, false, vec![limits]);
        assert_eq!(wanted(&prefetch), 3 * 16);
    }
}
