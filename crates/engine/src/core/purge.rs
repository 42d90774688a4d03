//! Deleting messages without receiving them, and completing messages whose leases have ended.

use std::collections::BTreeMap;

use malote_model::{QueueName, Refusal, Seq, SessionId, Timestamp, limits};

use super::background::{BackgroundWork, PurgeProgress, SLICE_MAX};
use super::tracked::MessageStatus;
use super::{Decided, FRAME_ROOM, SMALL_ROOM, Turn, WaitFor};
use crate::command::Reply;
use crate::event::{Event, Removal};

/// Space that a record needs for each sequence number.
const SEQ_ROOM: usize = 10;

impl Turn<'_> {
    /// Deletes all messages that are not leased; with `leased`, all.
    pub(super) fn purge(&mut self, request: u64, name: QueueName, leased: bool) -> Decided {
        let (queue, q) = self.core.queue(&name)?;
        let (before, below, durable) = (q.index.len(), q.next_seq, q.durable());
        if before as usize + q.sessions.as_ref().map_or(0, |s| s.len()) > SLICE_MAX {
            let (count, slot, from, rest_from) = (0, 0, 0, 0);
            self.core.add_background_work(BackgroundWork::Purge(Box::new(PurgeProgress {
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
        Ok(Some((Reply::Count(before.saturating_sub(after)), WaitFor::of(durable))))
    }

    /// Deletes those of these messages that are ready. The caller has read them and passes their sessions: finding them
    /// here could mean searching all sessions of the queue.
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
            if q.index.contains(seq) && q.status(seq) == MessageStatus::Ready {
                let session = session.filter(|_| q.sessions.is_some());
                of_sessions.entry(session).or_default().push(seq);
            }
        }
        if of_sessions.is_empty() {
            return Ok(Some((Reply::Count(0), WaitFor::Settled)));
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
        Ok(Some((Reply::Count(count), WaitFor::of(durable))))
    }

    /// Completes messages whose leases have ended and that no other receiver has yet.
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
            let no_tenant = |place: MessageStatus| {
                matches!(place, MessageStatus::Ready | MessageStatus::Delayed)
            };
            // A deleted queue of the same name had other sequence numbers.
            since >= q.created_at
                && q.tracked.get(&seq).is_some_and(|t| t.receives > 0 && no_tenant(t.status))
        };
        let mut seqs: Vec<u64> = items.iter().filter(is_late).map(|(seq, _)| seq.0).collect();
        seqs.sort_unstable();
        seqs.dedup();
        if seqs.is_empty() {
            return Ok(Some((Reply::Count(0), WaitFor::Settled)));
        }
        let (count, durable) = (seqs.len() as u64, q.durable());
        self.begin(FRAME_ROOM + SEQ_ROOM * seqs.len())?;
        let removed = Event::Removed { queue, why: Removal::Completed, session: None, seqs };
        self.commit(removed, !durable);
        Ok(Some((Reply::Count(count), WaitFor::of(durable))))
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
