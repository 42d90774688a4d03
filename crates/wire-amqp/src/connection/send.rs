//! Transfers out: messages become frames, as the peer's window allows.

use std::collections::{HashSet, VecDeque};

use bytes::{Bytes, BytesMut};

use crate::performative::{DeliveryState, Role, SenderSettleMode, Transfer};

use super::link::Link;
use super::receive::TAG_BYTES_MAX;
use super::session::{Entry, Queued, Unsettled};
use super::{Connection, Event, LinkId, SessionId, UseError};

/// A message to be sent.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Outgoing {
    /// Comes back with what the peer makes of it.
    pub key: u64,
    /// Its name on the link, at most 32 bytes.
    pub tag: Bytes,
    /// What the payload is.
    pub message_format: u32,
    /// Whether nothing needs to be heard of it again. So it is on links whose mode says so, whatever stands here.
    pub settled: bool,
    /// A transaction, mostly.
    pub state: Option<DeliveryState>,
    /// Whether its disposition may wait for others.
    pub batchable: bool,
    /// The message.
    pub payload: Bytes,
}

/// Why a message was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The link is not, or no longer, attached as a sender.
    #[error("the link is not attached as a sender")]
    NotAttached,
    /// The receiver has given no credit.
    #[error("the link has no credit")]
    NoCredit,
    /// Too much waits to be written or settled: write the output, or wait for [`Event::Unblocked`] or dispositions.
    #[error("too much waits to be written or settled")]
    Full,
    /// A tag of more than 32 bytes.
    #[error("a delivery tag has at most 32 bytes")]
    Tag,
    /// The receiver does not take messages as large as this.
    #[error("the receiver takes messages of at most {size_bytes_max} bytes")]
    TooLarge {
        /// What it takes.
        size_bytes_max: u64,
    },
}

impl From<UseError> for SendError {
    fn from(_: UseError) -> SendError {
        SendError::NotAttached
    }
}

impl Connection {
    /// The connection is over, and so many bytes of the last output were not written: deliveries among them have not
    /// left. See [`Connection::never_left`].
    pub fn hang_up(&mut self, unwritten_bytes: usize) {
        self.leaving.hang_up(unwritten_bytes);
    }

    /// Whether an unsettled delivery waits for the peer's window or, after [`Connection::hang_up`], was not written: the
    /// peer has not seen it. Asked once, when its link is gone: then it is forgotten. Only with
    /// [`Config::tells_what_left`](super::Config).
    pub fn never_left(&mut self, key: u64) -> bool {
        self.leaving.never_left(key)
    }

    /// Bytes that can be sent before [`SendError::Full`]. The last message may go over it.
    pub fn room_bytes(&self) -> usize {
        self.config.outgoing_bytes_max.saturating_sub(self.wire.len() + self.queued_bytes)
    }

    /// Sends a message, or lets it wait for the peer's window.
    pub fn send(&mut self, link: LinkId, outgoing: Outgoing) -> Result<(), SendError> {
        let settled = self.admit(link, &outgoing)?;
        let size_bytes_max = self.owned_link(link)?.remote_max_message_size;
        let limited = size_bytes_max != 0 && !self.config.overrule_max_message_size;
        if limited && outgoing.payload.len() as u64 > size_bytes_max {
            return Err(SendError::TooLarge { size_bytes_max });
        }
        self.owned_link(link)?.queued += 1;
        self.queue(link, outgoing, settled, None)
    }

    /// Sends a message that `write` writes: right into the output, if nothing stands in its way. Only for messages whose
    /// size nobody limits.
    pub fn send_written(
        &mut self,
        link: LinkId,
        mut outgoing: Outgoing,
        write: impl FnOnce(&mut BytesMut),
    ) -> Result<(), SendError> {
        let session = self.owned(link.session)?;
        let free = session.outbox.is_empty() && session.remote_incoming_window > 0;
        if !free || !self.config.overrule_max_message_size {
            let mut payload = BytesMut::new();
            write(&mut payload);
            return self.send(link, Outgoing { payload: payload.freeze(), ..outgoing });
        }
        let settled = self.admit(link, &outgoing)?;
        let channel = link.session.channel;
        let session = self.owned(link.session)?;
        let state = session.links.get_mut(link.handle as usize).and_then(Option::as_mut);
        let state = state.ok_or(SendError::NotAttached)?;
        let entry = Entry { link, key: outgoing.key };
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
        let session = self.owned(link.session)?;
        session.next_outgoing_id = session.next_outgoing_id.wrapping_add(1);
        session.remote_incoming_window -= 1;
        if !settled && self.config.tells_what_left {
            self.leaving.wrote(outgoing.key, self.wire.len());
        }
        Ok(())
    }

    /// Whether a message may be sent now; and if so, whether as a settled one.
    fn admit(&mut self, link: LinkId, outgoing: &Outgoing) -> Result<bool, SendError> {
        let room = self.room_bytes();
        let unsettled_max = self.config.unsettled_max;
        if outgoing.tag.len() > TAG_BYTES_MAX {
            return Err(SendError::Tag);
        }
        let state = self.owned_link(link)?;
        if state.role != Role::Sender || !state.is_attached() {
            return Err(SendError::NotAttached);
        }
        if state.free_credit() == 0 {
            return Err(SendError::NoCredit);
        }
        // On a link of settled deliveries nobody would ever settle an unsettled one (section 2.8.2).
        let settled = outgoing.settled || state.snd_settle_mode == SenderSettleMode::Settled;
        let session = self.owned(link.session)?;
        if room == 0 || session.outgoing.len() + session.outbox.len() >= unsettled_max {
            return Err(SendError::Full);
        }
        Ok(settled)
    }

    /// Puts a message behind those that wait, and writes what can be written.
    fn queue(
        &mut self,
        link: LinkId,
        outgoing: Outgoing,
        settled: bool,
        delivery: Option<u32>,
    ) -> Result<(), SendError> {
        let Outgoing { key, tag, message_format, state, batchable, payload, .. } = outgoing;
        self.queued_bytes += payload.len();
        self.owned(link.session)?.outbox.push_back(Queued {
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
        let waits = |last: &Queued| last.key == key && !last.settled;
        if self.config.tells_what_left && self.owned(link.session)?.outbox.back().is_some_and(waits)
        {
            self.leaving.queued(key);
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
        // Deliveries of a link whose credit was lowered stay where they are; others pass them.
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
                    let entry = Entry { link: queued.link, key: queued.key };
                    let unsettled = (!queued.settled).then_some(&mut session.outgoing);
                    let delivery = begin(&mut session.next_delivery_id, link, entry, unsettled);
                    queued.delivery = Some(delivery);
                    delivery
                }
            };
            // Id and tag are repeated on every frame, as clients expect who look at the last one.
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
                if !queued.settled && self.config.tells_what_left {
                    self.leaving.wrote(queued.key, self.wire.len());
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

/// Begins a delivery: its id, which is remembered until it is settled.
fn begin(next: &mut u32, link: &mut Link, entry: Entry, unsettled: Option<&mut Unsettled>) -> u32 {
    let delivery = *next;
    *next = delivery.wrapping_add(1);
    link.credit -= 1;
    link.delivery_count = link.delivery_count.wrapping_add(1);
    if let Some(unsettled) = unsettled {
        unsettled.insert(delivery, entry);
    }
    delivery
}

/// Which unsettled deliveries have not left, by key. Those that were written are forgotten.
#[derive(Debug, Default)]
pub(super) struct Leaving {
    /// For a window, mostly: few find it closed.
    waiting: HashSet<u64>,
    /// In the output or in what was last taken of it, with the position at which each ends.
    on_wire: VecDeque<(u64, u64)>,
    /// Bytes of output that were taken so far.
    taken: u64,
}

impl Leaving {
    fn queued(&mut self, key: u64) {
        self.waiting.insert(key);
    }

    fn wrote(&mut self, key: u64, output_bytes: usize) {
        if !self.waiting.is_empty() {
            self.waiting.remove(&key);
        }
        self.on_wire.push_back((self.taken + output_bytes as u64, key));
    }

    /// More is taken only when what was taken before is written.
    pub(super) fn took(&mut self, bytes: usize) {
        self.forget_until(self.taken);
        self.taken += bytes as u64;
    }

    fn forget_until(&mut self, written: u64) {
        while self.on_wire.front().is_some_and(|(end, _)| *end <= written) {
            self.on_wire.pop_front();
        }
    }

    fn hang_up(&mut self, unwritten_bytes: usize) {
        self.forget_until(self.taken.saturating_sub(unwritten_bytes as u64));
        self.waiting.extend(self.on_wire.drain(..).map(|(_, key)| key));
    }

    fn never_left(&mut self, key: u64) -> bool {
        self.waiting.remove(&key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_written_has_not_left() {
        let mut leaving = Leaving::default();
        (1..=5).for_each(|key| leaving.queued(key));
        leaving.wrote(1, 100);
        leaving.took(100);
        leaving.wrote(2, 50);
        leaving.wrote(3, 80);
        leaving.took(90);
        leaving.wrote(4, 10);
        // Of the second output the first message was written, and a part of the second.
        leaving.hang_up(30);
        let left = [1, 2, 3, 4, 5].map(|key| !leaving.never_left(key));
        assert_eq!(left, [true, true, false, false, false]);
        assert!(!leaving.never_left(5), "asked once");
    }

    #[test]
    fn what_was_written_is_forgotten() {
        let mut leaving = Leaving::default();
        for key in 0..1_000 {
            leaving.queued(key);
            leaving.wrote(key, 10);
            leaving.took(10);
        }
        assert!(leaving.waiting.is_empty() && leaving.on_wire.len() == 1);
    }
}
