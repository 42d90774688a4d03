//! Messages in hand that no slot has begun: fetched ahead, so that slots need not wait for the broker.
//!
//! How many there may be follows from how long handlers take: a handler of a few milliseconds is done with dozens
//! while a fetch is under way, of one that takes seconds nobody should hold a message back from another worker. What
//! is here is leased, and renewed as everything in hand.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use malote_connectors::Delivery;
use malote_model::limits::RECEIVE_BATCH_MAX;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::alone::InHand;
use super::locks::Watch;

/// Messages ahead for each slot, at most.
const AHEAD_MAX: u32 = 32;
/// Nothing is fetched ahead of handlers that take longer.
const SLOW: Duration = Duration::from_millis(50);
/// What handlers are taken for where workers vanish: after two dozen quick ones they are known to be quick.
const CAREFUL: Duration = Duration::from_secs(1);
/// What a handler took counts for one part in so many of what it is known to take.
const WEIGHT: u32 = 8;

/// Messages that slots may have, however many of them a batch takes.
const IN_HAND_MAX: usize = 100_000;

/// A message in hand.
pub(super) struct Ahead {
    pub delivery: Delivery,
    pub watch: Watch,
    pub in_hand: InHand,
}

/// What a slot takes at once.
#[allow(clippy::large_enum_variant)] // the large one is the usual one, and an allocation would cost more than a move
pub(super) enum Unit {
    One(Ahead),
    /// For the batch handler of this number.
    Batch(usize, Vec<Ahead>),
}

/// What gathers before it is handled together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gathers {
    /// At most so many,
    pub max: usize,
    /// and not for longer than this once one is there.
    pub wait: Duration,
}

pub(super) struct Shelf {
    /// So many there may be; more than these end when they are done.
    slots: AtomicUsize,
    /// They were more once: only then there can be too many.
    fewer: AtomicBool,
    /// What is on the shelf for longer goes back: somebody else may have time for it.
    stale: Duration,
    /// Whether anything may be fetched ahead of free slots.
    ahead: bool,
    gathers: Vec<Gathers>,
    here: Mutex<Here>,
    /// There is something for a slot.
    arrived: Notify,
    /// There may be room.
    room: Notify,
    /// More for the slot that gathers, by lane.
    grown: Vec<Notify>,
}

#[derive(Default)]
struct Here {
    /// Those that are handled one by one, then one lane for each batch handler.
    lanes: Vec<Lane>,
    count: usize,
    next: u64,
    /// Messages that slots have.
    running: usize,
    /// Slots that wait for something to do, and slots that there are.
    waiting: usize,
    slots: usize,
    /// How long a handler takes for a message.
    took: Option<Duration>,
}

#[derive(Default)]
struct Lane {
    items: VecDeque<(u64, Instant, Ahead)>,
    /// A slot waits for more of these.
    gathering: bool,
}

#[allow(clippy::large_enum_variant)] // as of a unit
enum Taken {
    Unit(Unit),
    /// Not enough yet: wait for more until then.
    Gather(usize, Instant),
    Nothing,
}

impl Shelf {
    pub(super) fn new(slots: usize, lock: Duration, ahead: bool, gathers: Vec<Gathers>) -> Self {
        let lanes = (0..=gathers.len()).map(|_| Lane::default()).collect();
        let grown = gathers.iter().map(|_| Notify::new()).collect();
        Self {
            slots: AtomicUsize::new(slots),
            fewer: AtomicBool::new(false),
            stale: lock / 2,
            ahead,
            gathers,
            here: Mutex::new(Here { lanes, ..Here::default() }),
            arrived: Notify::new(),
            room: Notify::new(),
            grown,
        }
    }

    fn slots(&self) -> usize {
        self.slots.load(Ordering::Relaxed)
    }

    /// How many slots there may be from now on. How many are to be begun, for what is here already.
    pub(super) fn set_slots(&self, slots: usize) -> usize {
        let before = self.slots.swap(slots, Ordering::Relaxed);
        if slots > before {
            self.room.notify_one();
        } else if slots < before {
            self.fewer.store(true, Ordering::Relaxed);
            // Those that wait look whether they may stay.
            self.arrived.notify_waiters();
        }
        self.here.lock().begin(slots)
    }

    /// Whether a slot is one too many, and ends.
    fn is_too_many(&self) -> bool {
        if !self.fewer.load(Ordering::Relaxed) {
            return false;
        }
        let mut here = self.here.lock();
        if here.slots <= self.slots() {
            return false;
        }
        here.slots -= 1;
        if here.count > 0 {
            // It may have been woken for something: another one takes that.
            self.arrived.notify_one();
        }
        true
    }

    /// Puts messages there, in order, each with the batch handler that it is for. How many slots are to be begun.
    pub(super) fn put(&self, items: Vec<(Option<usize>, Ahead)>) -> usize {
        let now = Instant::now();
        let mut here = self.here.lock();
        let mut batches = Vec::new();
        let mut added = 0;
        for (batch, item) in items {
            let lane = batch.map_or(0, |batch| batch + 1);
            let nth = here.next;
            here.next += 1;
            here.lanes[lane].items.push_back((nth, now, item));
            added += 1;
            batches.extend(batch.filter(|batch| batches.last() != Some(batch)));
        }
        here.count += added;
        let wake = added.min(here.waiting);
        let more = here.begin(self.slots());
        drop(here);
        batches.into_iter().for_each(|batch| self.grown[batch].notify_one());
        (0..wake).for_each(|_| self.arrived.notify_one());
        more
    }

    /// The next to handle, oldest first. None once nothing new is to be begun.
    pub(super) async fn next(&self, quiet: &CancellationToken) -> Option<Unit> {
        loop {
            if quiet.is_cancelled() || self.is_too_many() {
                return None;
            }
            let taken = match self.take() {
                Taken::Nothing => self.wait(quiet).await?,
                taken => taken,
            };
            match taken {
                Taken::Unit(unit) => return Some(unit),
                Taken::Gather(batch, until) => {
                    if let Some(unit) = self.gather(batch, until, quiet).await {
                        return Some(unit);
                    }
                }
                Taken::Nothing => {}
            }
        }
    }

    /// Waits for something to take. Whoever comes between looking and waiting is seen.
    async fn wait(&self, quiet: &CancellationToken) -> Option<Taken> {
        let arrived = self.arrived.notified();
        tokio::pin!(arrived);
        arrived.as_mut().enable();
        let _waiting = Waiting::new(&self.here);
        match self.take() {
            Taken::Nothing => quiet.run_until_cancelled(arrived).await.map(|()| Taken::Nothing),
            taken => Some(taken),
        }
    }

    fn take(&self) -> Taken {
        let mut here = self.here.lock();
        let ready = |(nth, lane): &(usize, &Lane)| match *nth {
            0 => !lane.items.is_empty(),
            nth => {
                let full = lane.items.len() >= self.gathers[nth - 1].max;
                full || (!lane.items.is_empty() && !lane.gathering)
            }
        };
        let lanes = here.lanes.iter().enumerate().filter(ready);
        let oldest = lanes.min_by_key(|(_, lane)| lane.items.front().map(|(nth, ..)| *nth));
        let Some((lane, _)) = oldest else { return Taken::Nothing };
        if lane == 0 {
            let Some((_, _, item)) = here.lanes[0].items.pop_front() else { return Taken::Nothing };
            here.count -= 1;
            here.running += 1;
            return Taken::Unit(Unit::One(item));
        }
        let Gathers { max, wait } = self.gathers[lane - 1];
        let of = &mut here.lanes[lane];
        if of.items.len() < max && !wait.is_zero() {
            of.gathering = true;
            let since = of.items.front().map_or_else(Instant::now, |(_, at, _)| *at);
            return Taken::Gather(lane - 1, since + wait);
        }
        here.batch(lane - 1, max).map_or(Taken::Nothing, Taken::Unit)
    }

    /// Waits until there is a whole batch or the time is over.
    async fn gather(
        &self,
        batch: usize,
        until: Instant,
        quiet: &CancellationToken,
    ) -> Option<Unit> {
        let max = self.gathers[batch].max;
        loop {
            let grown = self.grown[batch].notified();
            tokio::pin!(grown);
            grown.as_mut().enable();
            if self.here.lock().lanes[batch + 1].items.len() >= max {
                break;
            }
            let more = tokio::time::timeout_at(until, grown);
            if !matches!(quiet.run_until_cancelled(more).await, Some(Ok(()))) {
                break;
            }
        }
        let mut here = self.here.lock();
        here.lanes[batch + 1].gathering = false;
        if quiet.is_cancelled() {
            return None;
        }
        let taken = here.batch(batch, max);
        if !here.lanes[batch + 1].items.is_empty() {
            // Whoever looked meanwhile left them to this slot.
            self.arrived.notify_one();
        }
        taken
    }

    /// Another task handles one more.
    pub(super) fn begun(&self) {
        self.here.lock().running += 1;
    }

    /// Workers vanish: what is in hand then is counted for it, so little should be.
    pub(super) fn be_careful(&self) {
        self.here.lock().took = Some(CAREFUL);
    }

    /// A slot is done with so many, which took it so long.
    pub(super) fn done(&self, messages: usize, took: Duration) {
        let mut here = self.here.lock();
        here.running -= messages;
        let each = took / u32::try_from(messages).unwrap_or(u32::MAX).max(1);
        here.took = Some(match here.took {
            Some(known) => (known * (WEIGHT - 1) + each) / WEIGHT,
            None => each,
        });
        if self.wanted_of(&here) > 0 {
            drop(here);
            self.room.notify_one();
        }
    }

    /// How many to fetch now; waits until it makes sense. None if what is here has been here for too long.
    pub(super) async fn wanted(&self) -> Option<u32> {
        loop {
            let wanted = self.wanted_of(&self.here.lock());
            if wanted > 0 {
                return Some(wanted);
            }
            if tokio::time::timeout(self.stale, self.room.notified()).await.is_err() {
                let mut here = self.here.lock();
                let oldest = here.lanes.iter().filter_map(|lane| lane.items.front());
                let age = oldest.map(|(_, at, _)| at.elapsed()).max();
                if age.is_some_and(|age| age >= self.stale) {
                    // Whatever they took before, handlers are slow now.
                    here.took = Some(SLOW);
                    return None;
                }
            }
        }
    }

    fn wanted_of(&self, here: &Here) -> u32 {
        let together = self.gathers.iter().map(|gathers| gathers.max).max().unwrap_or(1);
        let begun = self.slots().saturating_mul(together).min(IN_HAND_MAX.max(together));
        let each = match here.took {
            Some(took) if self.ahead && took < SLOW => {
                let in_time = self.stale.as_nanos() / took.as_nanos().max(1);
                u32::try_from(in_time).unwrap_or(u32::MAX).min(AHEAD_MAX)
            }
            _ => 0,
        };
        let ahead = self.slots().saturating_mul(each as usize).min(RECEIVE_BATCH_MAX);
        let in_hand = here.count + here.running;
        // Half of what is ahead is fetched at once, so that a fetch is worth its way.
        if in_hand + ahead.div_ceil(2) > begun + ahead - usize::from(ahead == 0) {
            return 0;
        }
        u32::try_from((begun + ahead - in_hand).min(RECEIVE_BATCH_MAX)).unwrap_or(u32::MAX)
    }

    /// Takes all that was not begun, in order.
    pub(super) fn clear(&self) -> Vec<Ahead> {
        let mut here = self.here.lock();
        let mut all: Vec<_> = here.lanes.iter_mut().flat_map(|lane| lane.items.drain(..)).collect();
        here.count = 0;
        drop(here);
        all.sort_unstable_by_key(|(nth, ..)| *nth);
        all.into_iter().map(|(_, _, item)| item).collect()
    }
}

impl Here {
    /// How many slots are to be begun, if there may be so many.
    fn begin(&mut self, slots: usize) -> usize {
        let free = slots.saturating_sub(self.slots);
        let more = self.count.saturating_sub(self.waiting).min(free);
        self.slots += more;
        more
    }

    fn batch(&mut self, batch: usize, max: usize) -> Option<Unit> {
        let items = &mut self.lanes[batch + 1].items;
        let count = items.len().min(max);
        let taken: Vec<Ahead> = items.drain(..count).map(|(_, _, item)| item).collect();
        self.count -= count;
        self.running += count;
        (count > 0).then_some(Unit::Batch(batch, taken))
    }
}

/// A slot that waits, until this is dropped.
struct Waiting<'a>(&'a Mutex<Here>);

impl<'a> Waiting<'a> {
    fn new(here: &'a Mutex<Here>) -> Self {
        here.lock().waiting += 1;
        Self(here)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.lock().waiting -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCK: Duration = Duration::from_secs(30);

    fn wanted(shelf: &Shelf) -> u32 {
        shelf.wanted_of(&shelf.here.lock())
    }

    /// So many messages that took so long each, handled one by one.
    fn handled(shelf: &Shelf, messages: usize, took: Duration) {
        for _ in 0..messages {
            shelf.begun();
            shelf.done(1, took);
        }
    }

    #[test]
    fn as_much_is_fetched_as_handlers_are_quick() {
        let shelf = Shelf::new(10, LOCK, true, Vec::new());
        assert_eq!(wanted(&shelf), 10, "nothing is known yet");
        handled(&shelf, 1, Duration::from_millis(1));
        assert_eq!(wanted(&shelf), 10 + 320);
        handled(&shelf, 100, Duration::from_secs(1));
        assert_eq!(wanted(&shelf), 10, "one for each slot and no more");
        handled(&shelf, 100, Duration::from_micros(1));
        assert_eq!(wanted(&shelf), 10 + 320);
        // Workers vanish: what is in hand is counted for it.
        shelf.be_careful();
        assert_eq!(wanted(&shelf), 10);
        // Never more than half a lock of work.
        let short = Shelf::new(10, Duration::from_millis(400), true, Vec::new());
        handled(&short, 1, Duration::from_millis(40));
        assert_eq!(wanted(&short), 10 + 50);
    }

    #[test]
    fn a_fetch_is_for_half_of_what_may_be_ahead_or_more() {
        let shelf = Shelf::new(1, LOCK, true, Vec::new());
        handled(&shelf, 1, Duration::from_micros(1));
        let most = wanted(&shelf);
        assert_eq!(most, 1 + 32);
        for in_hand in 0..most {
            let expected = if in_hand <= 1 + 16 { most - in_hand } else { 0 };
            assert_eq!(wanted(&shelf), expected, "{in_hand} in hand");
            shelf.begun();
        }
    }

    #[test]
    fn with_a_rate_or_a_breaker_nothing_is_ahead_and_batches_are_whole() {
        let shelf = Shelf::new(10, LOCK, false, Vec::new());
        handled(&shelf, 1, Duration::from_micros(1));
        assert_eq!(wanted(&shelf), 10);
        let gathers = Gathers { max: 16, wait: Duration::ZERO };
        let shelf = Shelf::new(3, LOCK, false, vec![gathers]);
        assert_eq!(wanted(&shelf), 3 * 16);
    }
}
