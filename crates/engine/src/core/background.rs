//! Long work, done in slices. A single command may cause any amount of work: a queue with millions of messages is
//! deleted or gets a limit, or a connection with millions of leases ends. The core's thread does a bounded slice of it
//! in each turn, and serves other commands in between.
//!
//! The progress is not durable. Each slice is complete in itself: a replay, or a restart in the middle, finds only the
//! events of finished slices.

use std::collections::BTreeSet;

use malote_model::{QueueName, Refusal};

use super::leases::NONE;
use super::queue::Queue;
use super::topic::Topic;
use super::tracked::{CarriedAttributes, MessageStatus, TrackedMessage};
use super::{Core, FRAME_ROOM, Stalled, Timer, Turn, WaitFor};
use crate::command::{Command, ConnectionId, Reply};
use crate::event::{Event, MessageRef, QueueId, Removal};
use crate::journal::Pos;

/// Messages, sessions or leases that one slice processes. Smaller in tests.
pub(super) const SLICE_MAX: usize = if cfg!(test) { 256 } else { 4096 };

/// Long work of which a part is left.
#[derive(Debug)]
pub(super) enum BackgroundWork {
    /// Write session slots into a queue's index and count bytes, as its new settings require.
    Prepare(QueueId),
    /// Drop messages of a queue that exceeds its limits.
    MakeRoom(QueueId),
    /// End what is bound to a closed connection; true for a clean close.
    Disconnect(ConnectionId, bool),
    /// Serve the holders of a queue's sessions, from this slot on.
    WakeHolders(QueueId, u32),
    /// Purge a queue.
    Purge(Box<PurgeProgress>),
    /// Free the memory of a deleted queue.
    DeletedQueue(Box<DeletedQueue>),
    /// Free the memory of a deleted topic.
    DeletedTopic(Box<Topic>),
    /// Run a command whose queue must be prepared first.
    Command(QueueId, u64, Box<Command>),
}

/// The progress of purging all messages before `below`.
#[derive(Debug)]
pub(super) struct PurgeProgress {
    /// The request to answer.
    pub request: u64,
    pub name: QueueName,
    pub queue: QueueId,
    pub below: u64,
    pub leased: bool,
    pub durable: bool,
    pub count: u64,
    /// Sessions before this slot are done, and of this one all messages before `from`.
    pub slot: u32,
    pub from: u64,
    /// After all sessions: messages before this are done.
    pub rest_from: u64,
}

/// The memory of a deleted queue.
#[derive(Debug)]
pub(super) struct DeletedQueue {
    id: QueueId,
    tracked: hashbrown::hash_map::IntoIter<u64, TrackedMessage>,
    newest: hashbrown::hash_map::IntoIter<u64, Pos>,
    carried: hashbrown::hash_map::IntoIter<u64, CarriedAttributes>,
    sets: Vec<BTreeSet<u64>>,
    expiring: BTreeSet<(u64, u64)>,
    q: Box<Queue>,
}

impl DeletedQueue {
    pub(super) fn new(id: QueueId, mut q: Box<Queue>) -> Self {
        use std::mem::{replace, take};
        let mut sets = take(&mut q.lanes);
        sets.push(take(&mut q.returned));
        Self {
            id,
            tracked: replace(&mut q.tracked, super::fixed()).into_iter(),
            newest: replace(&mut q.newest, super::fixed()).into_iter(),
            carried: replace(&mut q.carried, super::fixed()).into_iter(),
            sets,
            expiring: take(&mut q.expiring),
            q,
        }
    }
}

impl Core {
    /// Counts processed items, for tests of the bound.
    pub(super) fn count_processed(&mut self, _items: usize) {
        #[cfg(test)]
        {
            self.processed_items += _items;
        }
    }

    /// Whether there is work for the next turn, which then begins at once.
    pub(super) fn is_busy(&self) -> bool {
        self.live.as_ref().is_some_and(|live| {
            !live.work.is_empty()
                || !live.due.is_empty() && live.due_held.is_none()
                || !live.dirty.is_empty()
                || !live.dirty_sessions.is_empty()
        })
    }

    pub(super) fn add_background_work(&mut self, work: BackgroundWork) {
        if let Some(live) = self.live.as_mut() {
            live.work.push_back(work);
        }
    }

    /// Prepares the index of a queue for its settings: at once in a replay or for a few messages, otherwise in slices.
    pub(super) fn prepare(&mut self, id: QueueId) {
        let live = self.live.is_some();
        let Some(q) = self.queues.get_mut(&id) else { return };
        if q.is_prepared() {
            return;
        }
        let few = q.index.len() as usize + q.tracked.len() <= SLICE_MAX;
        if !live || few {
            q.prepare(&mut usize::MAX.clone());
        } else {
            self.add_background_work(BackgroundWork::Prepare(id));
        }
    }

    /// Frees a deleted queue: at once in a replay or if it is small, otherwise in slices.
    pub(super) fn free_queue(&mut self, id: QueueId, q: Box<Queue>) {
        let few = q.index.len() as usize + q.tracked.len() <= SLICE_MAX
            && q.sessions.as_ref().is_none_or(|s| s.slots() as usize <= SLICE_MAX);
        let mut deleted = Box::new(DeletedQueue::new(id, q));
        if few || self.live.is_none() {
            self.free_slice(&mut deleted, &mut usize::MAX.clone());
        } else {
            self.add_background_work(BackgroundWork::DeletedQueue(deleted));
        }
    }

    /// Frees the rules of a deleted topic: at once in a replay or if there are few, otherwise in slices.
    pub(super) fn free_topic(&mut self, topic: Box<Topic>) {
        if self.live.is_some() && topic.router.len() > SLICE_MAX {
            self.add_background_work(BackgroundWork::DeletedTopic(topic));
        }
    }

    /// Frees a part of a deleted queue. Returns true when it is done.
    fn free_slice(&mut self, deleted: &mut DeletedQueue, left: &mut usize) -> bool {
        while *left > 0 {
            *left -= 1;
            self.count_processed(1);
            if let Some((seq, tracked)) = deleted.tracked.next() {
                // The timer may have fired meanwhile.
                if let (Some(timer), Some(live)) = (tracked.timer, self.live.as_mut()) {
                    live.timers
                        .cancel_if_set(timer, Timer::Due(MessageRef { queue: deleted.id, seq }));
                }
                if let MessageStatus::Locked(slot) = tracked.status {
                    self.revoke_of(deleted.id, slot);
                }
            } else if let Some((_, newest)) = deleted.newest.next() {
                self.forget_records(newest);
            } else if let Some(chunk) = deleted.q.sessions.as_mut().and_then(|s| s.pop_chunk()) {
                *left = left.saturating_sub(chunk.len());
                for session in chunk.into_iter().flatten() {
                    self.revoke_of(deleted.id, session.extras().hold);
                }
            } else if deleted.carried.next().is_none()
                && deleted.expiring.pop_first().is_none()
                && !deleted.sets.iter_mut().any(|set| set.pop_first().is_some())
                && !deleted.q.index.pop_block()
            {
                return true;
            }
        }
        false
    }

    fn revoke_of(&mut self, queue: QueueId, slot: u32) {
        if slot != NONE && self.leases.at(slot).is_some_and(|lease| lease.queue == queue) {
            self.revoke(slot);
        }
    }
}

impl Turn<'_> {
    /// Continues unfinished work.
    pub(super) fn run_background_work(&mut self) {
        // Each item once, so that none waits for another to finish.
        for _ in 0..self.core.live().work.len() {
            if self.left == 0 {
                return;
            }
            let Some(work) = self.core.live().work.pop_front() else { return };
            let rest = self.run_slice(work);
            self.end();
            match rest {
                Ok(None) => {}
                Ok(Some(rest)) => self.core.add_background_work(rest),
                Err(rest) => {
                    self.core.live().blocked.push(rest);
                    self.stall(Stalled::Work);
                }
            }
        }
    }

    /// Does one slice, and returns the rest. An error means that the journal had no room.
    fn run_slice(
        &mut self,
        work: BackgroundWork,
    ) -> Result<Option<BackgroundWork>, BackgroundWork> {
        Ok(match work {
            BackgroundWork::Prepare(id) => {
                let Some(q) = self.core.queues.get_mut(&id) else { return Ok(None) };
                let before = self.left;
                let done = q.prepare(&mut self.left);
                self.core.count_processed(before - self.left);
                if !done {
                    return Ok(Some(BackgroundWork::Prepare(id)));
                }
                self.core.arm_expiry(id);
                self.core.may_overflow(id);
                self.core.mark_dirty(id);
                None
            }
            BackgroundWork::MakeRoom(id) => {
                self.core.live().over_limit.push(id);
                self.enforce_limits();
                None
            }
            BackgroundWork::Disconnect(connection, clean) => {
                self.end_connection(connection, clean);
                None
            }
            BackgroundWork::WakeHolders(id, from) => self.wake_holders(id, from),
            BackgroundWork::DeletedQueue(mut deleted) => {
                let done = self.core.free_slice(&mut deleted, &mut self.left);
                (!done).then_some(BackgroundWork::DeletedQueue(deleted))
            }
            BackgroundWork::DeletedTopic(mut topic) => {
                let mut more = true;
                while more && self.left > 0 {
                    self.left -= 1;
                    self.core.count_processed(1);
                    more = topic.router.pop();
                }
                more.then_some(BackgroundWork::DeletedTopic(topic))
            }
            BackgroundWork::Purge(mut progress) => match self.purge_some(&mut progress) {
                Ok(false) => Some(BackgroundWork::Purge(progress)),
                Ok(true) => {
                    self.end();
                    let PurgeProgress { request, count, durable, .. } = *progress;
                    self.answer(request, Ok(Reply::Count(count)), WaitFor::of(durable));
                    None
                }
                Err(Refusal::DiskFull) => return Err(BackgroundWork::Purge(progress)),
                Err(refusal) => {
                    self.answer(progress.request, Err(refusal), WaitFor::Settled);
                    None
                }
            },
            BackgroundWork::Command(queue, request, command) => {
                if self.core.queues.get(&queue).is_some_and(|q| !q.is_prepared()) {
                    return Ok(Some(BackgroundWork::Command(queue, request, command)));
                }
                self.command(request, *command);
                None
            }
        })
    }

    /// Marks sessions with a holder, so that they are served.
    pub(super) fn wake_holders(&mut self, id: QueueId, from: u32) -> Option<BackgroundWork> {
        let sessions = self.core.queues.get(&id)?.sessions.as_ref()?;
        let end = from.saturating_add(self.left as u32).min(sessions.slots());
        let held =
            |slot: &u32| sessions.at(*slot).is_some_and(|s| !s.extras().consumers.is_empty());
        let held: Vec<u32> = (from..end).filter(held).collect();
        let more = end < sessions.slots();
        self.left = self.left.saturating_sub((end - from) as usize);
        self.core.count_processed((end - from) as usize);
        self.core.live().dirty_sessions.extend(held.into_iter().map(|slot| (id, slot)));
        more.then_some(BackgroundWork::WakeHolders(id, end))
    }

    /// Purges a part of a queue. Returns true when it is done.
    fn purge_some(&mut self, progress: &mut PurgeProgress) -> Result<bool, Refusal> {
        let id = progress.queue;
        let missing = || Refusal::QueueNotFound { queue: progress.name.clone() };
        let missing = self.core.queues.get(&id).is_none().then(missing);
        if let Some(missing) = missing {
            return Err(missing);
        }
        while self.left > 0 {
            let most = self.removals_max().min(self.left);
            let Some(q) = self.core.queues.get(&id) else { return Ok(true) };
            let (session, seqs, looked) = progress.next(q, most);
            self.left -= looked.min(self.left);
            if seqs.is_empty() && looked > 0 {
                continue;
            }
            if seqs.is_empty() && !progress.leased {
                return Ok(true);
            }
            let lazy = !progress.durable;
            let room = FRAME_ROOM + FRAME_ROOM * seqs.len().min(most);
            self.begin(room)?;
            if seqs.is_empty() {
                // Also forget the de-duplication keys, as if nothing had ever been sent.
                let (queue, below) = (id, progress.below);
                self.commit(Event::Purged { queue, below, leased: true }, lazy);
                return Ok(true);
            }
            progress.count += seqs.len() as u64;
            let why = Removal::Purged;
            self.commit(Event::Removed { queue: id, why, session, seqs }, lazy);
            self.end();
        }
        Ok(false)
    }
}

impl PurgeProgress {
    /// The next messages to remove, of one session or without one, and how many were examined. Empty when it is done.
    fn next(
        &mut self,
        q: &Queue,
        most: usize,
    ) -> (Option<malote_model::SessionId>, Vec<u64>, usize) {
        let goes = |seq: u64| {
            q.index.contains(seq)
                && (self.leased || !matches!(q.status(seq), MessageStatus::Locked(_)))
        };
        if let Some(sessions) = q.sessions.as_ref().filter(|s| self.slot < s.slots()) {
            let line = sessions.at(self.slot).map(|s| (s, s.pending.lower_bound(self.from)));
            let all =
                line.iter().flat_map(|(s, at)| (*at..s.pending.len()).map(|i| s.pending.get(i)));
            let some: Vec<u64> =
                all.flatten().take_while(|&seq| seq < self.below).take(most).collect();
            let looked = some.len() + 1;
            let id = line.map(|(s, _)| s.id.clone());
            match some.last() {
                Some(&last) if some.len() == most => self.from = last + 1,
                _ => (self.slot, self.from) = (self.slot + 1, 0),
            }
            let seqs = some.into_iter().filter(|&seq| goes(seq)).collect();
            return (id, seqs, looked);
        }
        let (mut seqs, mut looked) = (Vec::new(), 0);
        while looked < most
            && let Some(seq) = q.index.next(self.rest_from).filter(|&seq| seq < self.below)
        {
            (self.rest_from, looked) = (seq + 1, looked + 1);
            seqs.extend(Some(seq).filter(|&seq| goes(seq)));
        }
        (None, seqs, looked)
    }
}
