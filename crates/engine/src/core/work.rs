//! Long work, a slice at a time. What one command may set off has no bound: a queue of millions is deleted or gets a
//! limit, a connection that had millions of messages ends. The thread that decides does a bounded part of it in a turn,
//! and in between whatever else is asked of it.
//!
//! None of this is durable. What a slice does is whole by itself: a replay, or a restart in the middle, finds events
//! and nothing to be continued, but for what is looked for at every start anyway.

use std::collections::BTreeSet;

use malote_model::{QueueName, Refusal};

use super::leases::NONE;
use super::queue::{Kept, Place, Queue, Touched};
use super::{Core, FRAME_ROOM, Needs, Stalled, Timer, Turn};
use crate::command::{Command, ConnectionId, Reply};
use crate::event::{Event, MessageRef, QueueId, Removal};
use crate::journal::Pos;

/// Messages, sessions or leases that one slice deals with. Tests of what takes many slices need not be large.
pub(super) const SLICE_MAX: usize = if cfg!(test) { 256 } else { 4096 };

/// Something that is not finished.
#[derive(Debug)]
pub(super) enum Work {
    /// Messages of a queue learn their sessions and are weighed, as its specification wants it from now on.
    Prepare(QueueId),
    /// A queue holds more than it should.
    MakeRoom(QueueId),
    /// A connection is gone, and what was bound to it ends; true if it was closed and not lost.
    End(ConnectionId, bool),
    /// Holders of a queue's sessions may have something to get, from this slot on.
    Wake(QueueId, u32),
    /// A queue is emptied.
    Purge(Box<Purging>),
    /// A queue was deleted: nobody finds it any more, and its memory is given back.
    Remains(Box<Remains>),
    /// A command that needs a queue to be prepared.
    Command(QueueId, u64, Box<Command>),
}

/// A queue that is being emptied of all that stands before `below`.
#[derive(Debug)]
pub(super) struct Purging {
    /// Who waits for it.
    pub request: u64,
    pub name: QueueName,
    pub queue: QueueId,
    pub below: u64,
    pub leased: bool,
    pub durable: bool,
    pub count: u64,
    /// Lines of sessions before this slot are empty, and of this one what stands before a sequence.
    pub slot: u32,
    pub from: u64,
    /// When no line is left: what stands before this is gone.
    pub rest_from: u64,
}

/// What is left of a deleted queue.
#[derive(Debug)]
pub(super) struct Remains {
    id: QueueId,
    touched: hashbrown::hash_map::IntoIter<u64, Touched>,
    newest: hashbrown::hash_map::IntoIter<u64, Pos>,
    kept: hashbrown::hash_map::IntoIter<u64, Kept>,
    sets: Vec<BTreeSet<u64>>,
    expiring: BTreeSet<(u64, u64)>,
    q: Box<Queue>,
}

impl Remains {
    pub(super) fn new(id: QueueId, mut q: Box<Queue>) -> Self {
        use std::mem::{replace, take};
        let mut sets = take(&mut q.lanes);
        sets.push(take(&mut q.returned));
        Self {
            id,
            touched: replace(&mut q.touched, super::fixed()).into_iter(),
            newest: replace(&mut q.newest, super::fixed()).into_iter(),
            kept: replace(&mut q.kept, super::fixed()).into_iter(),
            sets,
            expiring: take(&mut q.expiring),
            q,
        }
    }
}

impl Core {
    /// Counts what a turn touches, for tests that hold it to its bound.
    pub(super) fn touched(&mut self, _items: usize) {
        #[cfg(test)]
        {
            self.touched_items += _items;
        }
    }

    /// Something is left to be done in the next turn, which is at once.
    pub(super) fn is_busy(&self) -> bool {
        self.live.as_ref().is_some_and(|live| {
            !live.work.is_empty()
                || !live.due.is_empty() && live.due_held.is_none()
                || !live.dirty.is_empty()
                || !live.dirty_sessions.is_empty()
        })
    }

    pub(super) fn put_off(&mut self, work: Work) {
        if let Some(live) = self.live.as_mut() {
            live.work.push_back(work);
        }
    }

    /// Lets messages of a queue learn what its specification wants to know of them: all at once in a replay, or if they
    /// are few.
    pub(super) fn prepare(&mut self, id: QueueId) {
        let live = self.live.is_some();
        let Some(q) = self.queues.get_mut(&id) else { return };
        if q.is_prepared() {
            return;
        }
        let few = q.index.len() as usize + q.touched.len() <= SLICE_MAX;
        if !live || few {
            q.prepare(&mut usize::MAX.clone());
        } else {
            self.put_off(Work::Prepare(id));
        }
    }

    /// A queue is gone. In a replay, and if it had little, nothing is left of it.
    pub(super) fn clear_away_at_once_or_later(&mut self, id: QueueId, q: Box<Queue>) {
        let few = q.index.len() as usize + q.touched.len() <= SLICE_MAX
            && q.sessions.as_ref().is_none_or(|s| s.slots() as usize <= SLICE_MAX);
        let mut remains = Box::new(Remains::new(id, q));
        if few || self.live.is_none() {
            self.clear_away(&mut remains, &mut usize::MAX.clone());
        } else {
            self.put_off(Work::Remains(remains));
        }
    }

    /// Gives back a part of what a deleted queue had; true when nothing is left.
    fn clear_away(&mut self, remains: &mut Remains, left: &mut usize) -> bool {
        while *left > 0 {
            *left -= 1;
            self.touched(1);
            if let Some((seq, touched)) = remains.touched.next() {
                // It may have fired meanwhile, and found no queue.
                if let (Some(timer), Some(live)) = (touched.timer, self.live.as_mut()) {
                    live.timers
                        .cancel_if_set(timer, Timer::Due(MessageRef { queue: remains.id, seq }));
                }
                if let Place::Locked(slot) = touched.place {
                    self.revoke_of(remains.id, slot);
                }
            } else if let Some((_, newest)) = remains.newest.next() {
                self.forget_records(newest);
            } else if let Some(chunk) = remains.q.sessions.as_mut().and_then(|s| s.pop_chunk()) {
                *left = left.saturating_sub(chunk.len());
                for session in chunk.into_iter().flatten() {
                    self.revoke_of(remains.id, session.rare().hold);
                }
            } else if remains.kept.next().is_none()
                && remains.expiring.pop_first().is_none()
                && !remains.sets.iter_mut().any(|set| set.pop_first().is_some())
                && !remains.q.index.pop_block()
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
    /// Goes on with what is not finished.
    pub(super) fn work(&mut self) {
        // Each once, so that nobody waits for another's end.
        for _ in 0..self.core.live().work.len() {
            let Some(work) = self.core.live().work.pop_front().filter(|_| self.left > 0) else {
                return;
            };
            let rest = self.go_on_with(work);
            self.end();
            match rest {
                Ok(None) => {}
                Ok(Some(rest)) => self.core.put_off(rest),
                Err(rest) => {
                    self.core.live().blocked.push(rest);
                    self.stall(Stalled::Work);
                }
            }
        }
    }

    /// One slice, and what is left. An error if there was no room in the journal.
    fn go_on_with(&mut self, work: Work) -> Result<Option<Work>, Work> {
        Ok(match work {
            Work::Prepare(id) => {
                let Some(q) = self.core.queues.get_mut(&id) else { return Ok(None) };
                let before = self.left;
                let done = q.prepare(&mut self.left);
                self.core.touched(before - self.left);
                if !done {
                    return Ok(Some(Work::Prepare(id)));
                }
                self.core.arm_expiry(id);
                self.core.may_overflow(id);
                self.core.touch(id);
                None
            }
            Work::MakeRoom(id) => {
                self.core.live().overfull.push(id);
                self.make_room();
                None
            }
            Work::End(connection, clean) => {
                self.end_bound(connection, clean);
                None
            }
            Work::Wake(id, from) => self.wake_holders(id, from),
            Work::Remains(mut remains) => {
                let done = self.core.clear_away(&mut remains, &mut self.left);
                (!done).then_some(Work::Remains(remains))
            }
            Work::Purge(mut purging) => match self.purge_some(&mut purging) {
                Ok(false) => Some(Work::Purge(purging)),
                Ok(true) => {
                    self.end();
                    let Purging { request, count, durable, .. } = *purging;
                    self.answer(request, Ok(Reply::Count(count)), Needs::of(durable));
                    None
                }
                Err(Refusal::DiskFull) => return Err(Work::Purge(purging)),
                Err(refusal) => {
                    self.answer(purging.request, Err(refusal), Needs::Settled);
                    None
                }
            },
            Work::Command(queue, request, command) => {
                if self.core.queues.get(&queue).is_some_and(|q| !q.is_prepared()) {
                    return Ok(Some(Work::Command(queue, request, command)));
                }
                self.command(request, *command);
                None
            }
        })
    }

    /// Holders of sessions are looked at again.
    pub(super) fn wake_holders(&mut self, id: QueueId, from: u32) -> Option<Work> {
        let sessions = self.core.queues.get(&id)?.sessions.as_ref()?;
        let end = from.saturating_add(self.left as u32).min(sessions.slots());
        let held = |slot: &u32| sessions.at(*slot).is_some_and(|s| !s.rare().consumers.is_empty());
        let held: Vec<u32> = (from..end).filter(held).collect();
        let more = end < sessions.slots();
        self.left = self.left.saturating_sub((end - from) as usize);
        self.core.touched((end - from) as usize);
        self.core.live().dirty_sessions.extend(held.into_iter().map(|slot| (id, slot)));
        more.then_some(Work::Wake(id, end))
    }

    /// Drops a part of a queue; true when all of it is gone.
    fn purge_some(&mut self, purging: &mut Purging) -> Result<bool, Refusal> {
        let id = purging.queue;
        let missing = || Refusal::QueueNotFound { queue: purging.name.clone() };
        let missing = self.core.queues.get(&id).is_none().then(missing);
        if let Some(missing) = missing {
            return Err(missing);
        }
        while self.left > 0 {
            let most = self.away_max().min(self.left);
            let Some(q) = self.core.queues.get(&id) else { return Ok(true) };
            let (session, seqs, looked) = purging.next(q, most);
            self.left -= looked.min(self.left);
            if seqs.is_empty() && looked > 0 {
                continue;
            }
            if seqs.is_empty() && !purging.leased {
                return Ok(true);
            }
            let lazy = !purging.durable;
            let room = FRAME_ROOM + FRAME_ROOM * seqs.len().min(most);
            self.begin(room)?;
            if seqs.is_empty() {
                // As if nothing had ever been sent: keys are forgotten, too.
                let (queue, below) = (id, purging.below);
                self.commit(Event::Purged { queue, below, leased: true }, lazy);
                return Ok(true);
            }
            purging.count += seqs.len() as u64;
            let why = Removal::Purged;
            self.commit(Event::Removed { queue: id, why, session, seqs }, lazy);
            self.end();
        }
        Ok(false)
    }
}

impl Purging {
    /// The next messages to go, of one session or of none, and at how many it looked. Nothing when all are gone.
    fn next(
        &mut self,
        q: &Queue,
        most: usize,
    ) -> (Option<malote_model::SessionId>, Vec<u64>, usize) {
        let goes = |seq: u64| {
            q.index.contains(seq) && (self.leased || !matches!(q.place(seq), Place::Locked(_)))
        };
        if let Some(sessions) = q.sessions.as_ref().filter(|s| self.slot < s.slots()) {
            let line = sessions.at(self.slot).map(|s| (s, s.line.place(self.from)));
            let all = line.iter().flat_map(|(s, at)| (*at..s.line.len()).map(|i| s.line.get(i)));
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
