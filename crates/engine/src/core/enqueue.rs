//! Storing messages: every new message is journaled as `Event::Sent` here, and every message that moves between queues
//! as `Event::Moved`.
//!
//! The checks come first, in `send.rs` (queues) and `route.rs` (topics). The journal group must be open.

use malote_model::{Seq, SessionId, Sessions, Timestamp, When};
use smallvec::{SmallVec, smallvec};

use super::Turn;
use super::queue::Queue;
use super::tracked::CarriedAttributes;
use crate::codec::EncodedMessage;
use crate::event::{
    Event, MessageRef, MoveReason, MovedEvent, Placement, QueueId, RouteHistory, SentEvent,
};
use crate::journal::Pos;

/// What is journaled with a new message besides its content.
#[derive(Debug, Default)]
pub(super) struct SendOptions {
    /// The de-duplication key.
    pub dedup: Option<u128>,
    /// The topic that routed the message.
    pub topic: Option<QueueId>,
    /// The record that holds the body, if another copy of the message has already stored it.
    pub body_at: Option<Pos>,
    /// Set only if the message was stored in a topic's inbox before.
    pub history: RouteHistory,
}

/// A message that moves from one queue to others.
pub(super) struct MessageMove {
    pub source: MessageRef,
    /// The newest record of the message in `source`.
    pub record: Pos,
    pub places: SmallVec<[Placement; 1]>,
    pub size: u32,
    pub carried: CarriedAttributes,
    pub why: MoveReason,
    /// A new message id, if it changes.
    pub message_id: Option<String>,
}

/// Whether a queue accepts messages with this session id.
pub(super) fn accepts_session(q: &Queue, session: Option<&SessionId>) -> bool {
    match (&q.spec.sessions, session) {
        (Sessions::None, _) | (Sessions::Dynamic, Some(_)) => true,
        (Sessions::Fixed(ids), Some(session)) => ids.contains(session),
        (_, None) => false,
    }
}

impl Turn<'_> {
    /// Appends one message to one queue.
    pub(super) fn enqueue(
        &mut self,
        id: QueueId,
        message: EncodedMessage,
        dedup: Option<u128>,
    ) -> Seq {
        let place = self.next_placement(id, &message);
        self.commit_sent(
            smallvec![place],
            message,
            SendOptions { dedup, ..SendOptions::default() },
        );
        Seq(place.seq)
    }

    /// Whether the message is scheduled for later.
    pub(super) fn is_scheduled(&self, message: &EncodedMessage) -> bool {
        matches!(message.when, When::At(at) if at > self.now)
    }

    /// The next position in a queue, and when a message that is sent now becomes due there.
    pub(super) fn next_placement(&self, queue: QueueId, message: &EncodedMessage) -> Placement {
        let Some(q) = self.core.queues.get(&queue) else {
            return Placement { queue, seq: 0, due: Timestamp(0) };
        };
        let due = match message.when {
            When::Now if q.spec.delay_ms > 0 => self.now.plus_ms(q.spec.delay_ms),
            When::Delay(ms) if ms > 0 => self.now.plus_ms(ms),
            When::At(at) if at > self.now => at,
            _ => Timestamp(0),
        };
        Placement { queue, seq: q.next_seq, due }
    }

    pub(super) fn last_seq(&self, queue: QueueId) -> u64 {
        self.core.queues.get(&queue).map_or(0, |q| q.next_seq - 1)
    }

    /// Journals a new message with all its positions.
    pub(super) fn commit_sent(
        &mut self,
        places: SmallVec<[Placement; 1]>,
        message: EncodedMessage,
        options: SendOptions,
    ) -> Pos {
        let SendOptions { dedup, topic, body_at, history } = options;
        let scheduled = self.is_scheduled(&message);
        let size = message.size() as u32;
        let known_as = dedup.and_then(|_| message.known_as());
        let EncodedMessage { session, head, body, priority, ttl_ms, .. } = message;
        // A queue without sessions needs the session id if it has tenants, or if it forwards to a queue with sessions. A
        // scheduled message does not count for its tenant until it is due.
        let needs_session = |place: &Placement| {
            let q = self.core.queues.get(&place.queue);
            q.is_some_and(|q| q.orders() || q.has_tenants() && !scheduled)
        };
        let session = session.filter(|_| places.iter().any(needs_session));
        let queue_remembers = |place: &Placement| {
            self.core.queues.get(&place.queue).is_some_and(|q| q.spec.dedup.is_some())
        };
        let topic_remembers = topic
            .and_then(|topic| self.core.topics.get(&topic))
            .is_some_and(|topic| topic.spec.dedup.is_some());
        let dedup = dedup.filter(|_| topic_remembers || places.iter().any(queue_remembers));
        let at = self.now;
        let sent = SentEvent {
            places,
            at,
            scheduled,
            session,
            priority,
            ttl_ms,
            dedup,
            known_as: known_as.filter(|_| dedup.is_some()),
            topic,
            body_at,
            history,
            head,
            body,
            size,
        };
        self.commit(Event::Sent(sent), false)
    }

    /// Journals a move. A lazy move is synced with the next commit.
    pub(super) fn commit_moved(&mut self, moving: MessageMove, lazy: bool) {
        let MessageMove { source, record, places, size, carried, why, message_id } = moving;
        let CarriedAttributes { session, priority, ttl_ms, history } = carried;
        let moved = MovedEvent {
            from_queue: source.queue,
            from_seq: source.seq,
            from: record,
            places,
            at: self.now,
            session,
            size,
            priority,
            ttl_ms,
            history,
            key: None,
            message_id,
            why,
            properties: Default::default(),
        };
        self.commit(Event::Moved(Box::new(moved)), lazy);
    }
}
