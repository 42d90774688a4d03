//! Messages that go without having been received, or after their leases are over.

use std::collections::BTreeMap;

use malote_model::{QueueName, Refusal, Seq, SessionId, Timestamp, limits};

use super::queue::Place;
use super::work::{Purging, SLICE_MAX, Work};
use super::{Decided, FRAME_ROOM, Needs, SMALL_ROOM, Turn};
use crate::command::Reply;
use crate::event::{Event, Removal};

/// What a record needs for one more sequence.
const SEQ_ROOM: usize = 10;

impl Turn<'_> {
    /// Drops all that nobody has; with `leased`, all.
    pub(super) fn purge(&mut self, request: u64, name: QueueName, leased: bool) -> Decided {
        let (queue, q) = self.core.queue(&name)?;
        let (before, below, durable) = (q.index.len(), q.next_seq, q.durable());
        if before as usize + q.sessions.as_ref().map_or(0, |s| s.len()) > SLICE_MAX {
            let (count, slot, from, rest_from) = (0, 0, 0, 0);
            self.core.put_off(Work::Purge(Box::new(Purging {
                request,
                name,
                queue,
                below,
                leased,
                durable,
                count,
                slot,
                from,
                rest_from,
            })));
            return Ok(None);
        }
        self.begin(FRAME_ROOM)?;
        self.commit(Event::Purged { queue, below, leased }, !durable);
        let after = self.core.queues.get(&queue).map_or(0, |q| q.index.len());
        Ok(Some((Reply::Count(before.saturating_sub(after)), Needs::of(durable))))
    }

    /// Drops those of these messages that are ready. Whoever asks has read them and tells their sessions: looking for
    /// them here might mean looking at all sessions of the queue.
    pub(super) fn purge_these(
        &mut self,
        name: &QueueName,
        items: Vec<(Seq, Option<SessionId>)>,
    ) -> Decided {
        check_count(items.len())?;
        let (queue, q) = self.core.queue(name)?;
        let durable = q.durable();
        let mut of_sessions: BTreeMap<Option<SessionId>, Vec<u64>> = BTreeMap::new();
        for (Seq(seq), session) in items {
            if q.index.contains(seq) && q.place(seq) == Place::Ready {
                let session = session.filter(|_| q.sessions.is_some());
                of_sessions.entry(session).or_default().push(seq);
            }
        }
        if of_sessions.is_empty() {
            return Ok(Some((Reply::Count(0), Needs::Settled)));
        }
        let of_one = |(session, seqs): (&Option<SessionId>, &Vec<u64>)| {
            let id = session.as_ref().map_or(0, |session| session.as_str().len());
            SMALL_ROOM + id + SEQ_ROOM * seqs.len()
        };
        self.begin(FRAME_ROOM + of_sessions.iter().map(of_one).sum::<usize>())?;
        let mut count = 0;
        for (session, mut seqs) in of_sessions {
            seqs.sort_unstable();
            seqs.dedup();
            count += seqs.len() as u64;
            let removed = Event::Removed { queue, why: Removal::Purged, session, seqs };
            self.commit(removed, !durable);
        }
        Ok(Some((Reply::Count(count), Needs::of(durable))))
    }

    /// Completes messages whose work was done too late: their leases are over, and nobody else has them yet.
    pub(super) fn complete_late(
        &mut self,
        name: &QueueName,
        items: &[(Seq, Timestamp)],
    ) -> Decided {
        check_count(items.len())?;
        let (queue, q) = self.core.queue(name)?;
        if q.sessions.is_some() {
            let why = "a message there is completed by its lease only";
            return Err(Refusal::HasSessions { queue: name.clone(), why });
        }
        let is_late = |&&(Seq(seq), since): &&(Seq, Timestamp)| {
            let nobodys = |place: Place| matches!(place, Place::Ready | Place::Delayed);
            // A queue of that name that is gone had sequences of its own.
            since >= q.created_at
                && q.touched.get(&seq).is_some_and(|t| t.receives > 0 && nobodys(t.place))
        };
        let mut seqs: Vec<u64> = items.iter().filter(is_late).map(|(seq, _)| seq.0).collect();
        seqs.sort_unstable();
        seqs.dedup();
        if seqs.is_empty() {
            return Ok(Some((Reply::Count(0), Needs::Settled)));
        }
        let (count, durable) = (seqs.len() as u64, q.durable());
        self.begin(FRAME_ROOM + SEQ_ROOM * seqs.len())?;
        let removed = Event::Removed { queue, why: Removal::Completed, session: None, seqs };
        self.commit(removed, !durable);
        Ok(Some((Reply::Count(count), Needs::of(durable))))
    }
}

fn check_count(count: usize) -> Result<(), Refusal> {
    match count > limits::SETTLE_BATCH_MAX {
        true => Err(Refusal::BatchTooLarge {
            what: "sequences in one command",
            limit: limits::SETTLE_BATCH_MAX as u64,
        }),
        false => Ok(()),
    }
}
