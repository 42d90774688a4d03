//! Outgoing transfers: splits messages into frames, as the peer's window allows.

use std::collections::{HashSet, VecDeque};

use bytes::{Bytes, BytesMut};

use crate::performative::{DeliveryState, Role, SenderSettleMode, Transfer};

use super::link::Link;
use super::receive::TAG_BYTES_MAX;
use super::session::{QueuedTransfer, UnsettledDeliveries, UnsettledDelivery};
use super::{Connection, Event, LinkId, SessionId, UseError};

/// A message to send.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Outgoing {
    /// Returned with the disposition of the peer.
    pub key: u64,
    /// The delivery tag, at most 32 bytes.
    pub tag: Bytes,
    /// The format of the payload.
    pub message_format: u32,
    /// Whether no disposition is expected. Always true on links whose settle mode says so.
    pub settled: bool,
    /// Usually a transaction.
    pub state: Option<DeliveryState>,
    /// Whether its disposition may be batched with others.
    pub batchable: bool,
    pub payload: Bytes,
}

/// Why a message was not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    #[error("the link is not attached as a sender")]
    NotAttached,
    #[error("the link has no credit")]
    NoCredit,
    /// Too many bytes or deliveries are pending: write the output, or wait for [`Event::Unblocked`] or dispositions.
    #[error("too many bytes or deliveries are pending")]
    Full,
    #[error("the delivery tag has more than 32 bytes")]
    Tag,
    /// The message exceeds the receiver's max-message-size.
    #[error("the message exceeds the receiver's limit of {size_bytes_max} bytes")]
    TooLarge { size_bytes_max: u64 },
}

impl From<UseError> for SendError {
    fn from(_: UseError) -> SendError {
        SendError::NotAttached
    }
}

impl Connection {
    /// The transport is closed, and `unwritten_bytes` of the last output were not written. See
    /// [`Connection::was_never_sent`].
    pub fn disconnected(&mut self, unwritten_bytes: usize) {
        self.unsent.disconnected(unwritten_bytes);
    }

    /// Whether the peer has never seen an unsettled delivery: it waits for the peer's window or, after
    /// [`Connection::disconnected`], was not written. Answers once per delivery, when its link is gone. Needs
    /// [`Config::track_unsent`](super::Config).
    pub fn was_never_sent(&mut self, key: u64) -> bool {
        self.unsent.was_never_sent(key)
    }

    /// Bytes that can be sent before [`SendError::Full`]. The last message may exceed it.
    pub fn free_output_bytes(&self) -> usize {
        self.config.outgoing_bytes_max.saturating_sub(self.wire.len() + self.queued_bytes)
    }

    /// Sends a message, or queues it for the peer's window.
    pub fn send(&mut self, link: LinkId, outgoing: Outgoing) -> Result<(), SendError> {
        let settled = self.admit(link, &outgoing)?;
        let size_bytes_max = self.link_by_id(link)?.remote_max_message_size;
        let limited = size_bytes_max != 0 && !self.config.ignore_remote_max_message_size;
        if limited && outgoing.payload.len() as u64 > size_bytes_max {
            return Err(SendError::TooLarge { size_bytes_max });
        }
        self.link_by_id(link)?.queued += 1;
        self.queue(link, outgoing, settled, None)
    }

    /// Sends a message written by `write`, directly into the output if possible. Only for messages without a size
    /// limit.
    pub fn send_with(
        &mut self,
        link: LinkId,
        mut outgoing: Outgoing,
        write: impl FnOnce(&mut BytesMut),
    ) -> Result<(), SendError> {
        let session = self.session_by_id(link.session)?;
        let free = session.outbox.is_empty() && session.remote_incoming_window > 0;
        if !free || !self.config.ignore_remote_max_message_size {
            let mut payload = BytesMut::new();
            write(&mut payload);
            return self.send(link, Outgoing { payload: payload.freeze(), ..outgoing });
        }
        let settled = self.admit(link, &outgoing)?;
        let channel = link.session.channel;
        let session = self.session_by_id(link.session)?;
        let state = session.links.get_mut(link.handle as usize).and_then(Option::as_mut);
        let state = state.ok_or(SendError::NotAttached)?;
        let entry = UnsettledDelivery { link, key: outgoing.key };
        let unsettled = (!settled).then_some(&mut session.outgoing);
        let delivery = begin(&mut session.next_delivery_id, state, entry, unsettled);
        let transfer = Transfer {
            handle: link.handle,
            delivery_id: Some(delivery),
            delivery_tag: Some(std::mem::take(&mut outgoing.tag)),
            message_format: Some(outgoing.message_format),
            settled: Some(settled),
            state: outgoing.state.clone(),
            batchable: outgoing.batchable,
            ..Transfer::default()
        };
        if let Some(payload) = self.wire.transfer_whole(channel, &transfer, write) {
            // It needs several frames.
            let tag = transfer.delivery_tag.unwrap_or_default();
            let outgoing = Outgoing { tag, payload, ..outgoing };
            return self.queue(link, outgoing, settled, Some(delivery));
        }
        let session = self.session_by_id(link.session)?;
        session.next_outgoing_id = session.next_outgoing_id.wrapping_add(1);
        session.remote_incoming_window -= 1;
        if !settled && self.config.track_unsent {
            self.unsent.wrote(outgoing.key, self.wire.len());
        }
        Ok(())
    }

    /// Checks whether a message may be sent. Returns whether it is sent as settled.
    fn admit(&mut self, link: LinkId, outgoing: &Outgoing) -> Result<bool, SendError> {
        let room = self.free_output_bytes();
        let unsettled_max = self.config.unsettled_max;
        if outgoing.tag.len() > TAG_BYTES_MAX {
            return Err(SendError::Tag);
        }
        let state = self.link_by_id(link)?;
        if state.role != Role::Sender || !state.is_attached() {
            return Err(SendError::NotAttached);
        }
        if state.free_credit() == 0 {
            return Err(SendError::NoCredit);
        }
        // On a link with pre-settled deliveries, an unsettled one would never be settled (section 2.8.2).
        let settled = outgoing.settled || state.snd_settle_mode == SenderSettleMode::Settled;
        let session = self.session_by_id(link.session)?;
        if room == 0 || session.outgoing.len() + session.outbox.len() >= unsettled_max {
            return Err(SendError::Full);
        }
        Ok(settled)
    }

    /// Queues a message, and writes what can be written.
    fn queue(
        &mut self,
        link: LinkId,
        outgoing: Outgoing,
        settled: bool,
        delivery: Option<u32>,
    ) -> Result<(), SendError> {
        let Outgoing { key, tag, message_format, state, batchable, payload, .. } = outgoing;
        self.queued_bytes += payload.len();
        self.session_by_id(link.session)?.outbox.push_back(QueuedTransfer {
            link,
            key,
            tag,
            message_format,
            settled,
            state,
            batchable,
            delivery,
            payload,
        });
        self.flush_outbox(link.session.channel);
        let waits = |last: &QueuedTransfer| last.key == key && !last.settled;
        if self.config.track_unsent
            && self.session_by_id(link.session)?.outbox.back().is_some_and(waits)
        {
            self.unsent.queued(key);
        }
        Ok(())
    }

    /// Writes what the peer's window allows.
    pub(super) fn flush_outbox(&mut self, channel: u16) {
        let Some(session) = self.sessions.get_mut(usize::from(channel)).and_then(Option::as_mut)
        else {
            return;
        };
        if session.outbox.is_empty() {
            return;
        }
        let mut drained = None;
        // Deliveries of a link without credit stay in the queue; those of other links overtake them.
        let mut at = 0;
        while session.remote_incoming_window > 0 {
            let Some(queued) = session.outbox.get_mut(at) else { break };
            let link = session.links.get_mut(queued.link.handle as usize).and_then(Option::as_mut);
            let Some(link) = link else { break };
            let delivery = match queued.delivery {
                Some(delivery) => delivery,
                None if link.credit == 0 => {
                    at += 1;
                    continue;
                }
                None => {
                    link.queued -= 1;
                    let entry = UnsettledDelivery { link: queued.link, key: queued.key };
                    let unsettled = (!queued.settled).then_some(&mut session.outgoing);
                    let delivery = begin(&mut session.next_delivery_id, link, entry, unsettled);
                    queued.delivery = Some(delivery);
                    delivery
                }
            };
            // Id and tag are repeated in every frame, because some clients use those of the last one.
            let mut transfer = Transfer {
                handle: queued.link.handle,
                delivery_id: Some(delivery),
                delivery_tag: Some(std::mem::take(&mut queued.tag)),
                message_format: Some(queued.message_format),
                settled: Some(queued.settled),
                state: queued.state.clone(),
                batchable: queued.batchable,
                ..Transfer::default()
            };
            let before = queued.payload.len();
            self.wire.transfer(channel, &mut transfer, &mut queued.payload);
            self.queued_bytes -= before - queued.payload.len();
            session.next_outgoing_id = session.next_outgoing_id.wrapping_add(1);
            session.remote_incoming_window -= 1;
            if transfer.more {
                queued.tag = transfer.delivery_tag.take().unwrap_or_default();
            } else {
                if link.drained_after_queue && (link.queued == 0 || link.credit == 0) {
                    drained = Some(queued.link);
                }
                if !queued.settled && self.config.track_unsent {
                    self.unsent.wrote(queued.key, self.wire.len());
                }
                session.outbox.remove(at);
            }
            if drained.is_some() {
                break;
            }
        }
        let waited = std::mem::replace(&mut session.waits, !session.outbox.is_empty());
        let unblocked = waited && !session.waits;
        let session = SessionId { channel, serial: session.serial };
        if unblocked {
            self.events.push_back(Event::Unblocked { session });
        }
        if let Some(link) = drained {
            self.finish_drain(link);
            self.flush_outbox(channel);
        }
    }
}

/// Begins a delivery, and returns its id.
fn begin(
    next: &mut u32,
    link: &mut Link,
    entry: UnsettledDelivery,
    unsettled: Option<&mut UnsettledDeliveries>,
) -> u32 {
    let delivery = *next;
    *next = delivery.wrapping_add(1);
    link.credit -= 1;
    link.delivery_count = link.delivery_count.wrapping_add(1);
    if let Some(unsettled) = unsettled {
        unsettled.insert(delivery, entry);
    }
    delivery
}

/// Unsettled deliveries that were not written yet, by key.
#[derive(Debug, Default)]
pub(super) struct UnsentDeliveries {
    /// Usually waiting for a window; rare.
    waiting: HashSet<u64>,
    /// In the output or in the part last taken, with the position of their end.
    on_wire: VecDeque<(u64, u64)>,
    /// Bytes of output taken so far.
    taken: u64,
}

impl UnsentDeliveries {
    fn queued(&mut self, key: u64) {
        self.waiting.insert(key);
    }

    fn wrote(&mut self, key: u64, output_bytes: usize) {
        if !self.waiting.is_empty() {
            self.waiting.remove(&key);
        }
        self.on_wire.push_back((self.taken + output_bytes as u64, key));
    }

    /// Output is taken only after the previous part was written.
    pub(super) fn took(&mut self, bytes: usize) {
        self.forget_until(self.taken);
        self.taken += bytes as u64;
    }

    fn forget_until(&mut self, written: u64) {
        while self.on_wire.front().is_some_and(|(end, _)| *end <= written) {
            self.on_wire.pop_front();
        }
    }

    fn disconnected(&mut self, unwritten_bytes: usize) {
        self.forget_until(self.taken.saturating_sub(unwritten_bytes as u64));
        self.waiting.extend(self.on_wire.drain(..).map(|(_, key)| key));
    }

    fn was_never_sent(&mut self, key: u64) -> bool {
        self.waiting.remove(&key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unwritten_deliveries_were_never_sent() {
        let mut leaving = UnsentDeliveries::default();
        (1..=5).for_each(|key| leaving.queued(key));
        leaving.wrote(1, 100);
        leaving.took(100);
        leaving.wrote(2, 50);
        leaving.wrote(3, 80);
        leaving.took(90);
        leaving.wrote(4, 10);
        // The first message of the second output was written, and a part of the second.
        leaving.disconnected(30);
        let left = [1, 2, 3, 4, 5].map(|key| !leaving.was_never_sent(key));
        assert_eq!(left, [true, true, false, false, false]);
        assert!(!leaving.was_never_sent(5), "asked once");
    }

    #[test]
    fn written_deliveries_are_no_longer_tracked() {
        let mut leaving = UnsentDeliveries::default();
        for key in 0..1_000 {
            leaving.queued(key);
            leaving.wrote(key, 10);
            leaving.took(10);
        }
        assert!(leaving.waiting.is_empty() && leaving.on_wire.len() == 1);
    }
}
