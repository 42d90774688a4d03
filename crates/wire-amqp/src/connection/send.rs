//! Transfers out: messages become frames, as the peer's window allows.

use bytes::Bytes;

use crate::performative::{DeliveryState, Role, SenderSettleMode, Transfer};

use super::receive::TAG_BYTES_MAX;
use super::session::{Entry, Queued};
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
    /// Bytes that can be sent before [`SendError::Full`]. The last message may go over it.
    pub fn room_bytes(&self) -> usize {
        self.config.outgoing_bytes_max.saturating_sub(self.wire.len() + self.queued_bytes)
    }

    /// Sends a message, or lets it wait for the peer's window.
    pub fn send(&mut self, link: LinkId, outgoing: Outgoing) -> Result<(), SendError> {
        let room = self.room_bytes();
        let unsettled_max = self.config.unsettled_max;
        let overrule = self.config.overrule_max_message_size;
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
        let size_bytes_max = state.remote_max_message_size;
        if !overrule && size_bytes_max != 0 && outgoing.payload.len() as u64 > size_bytes_max {
            return Err(SendError::TooLarge { size_bytes_max });
        }
        // On a link of settled deliveries nobody would ever settle an unsettled one (section 2.8.2).
        let settled = outgoing.settled || state.snd_settle_mode == SenderSettleMode::Settled;
        let session = self.owned(link.session)?;
        if room == 0 || session.outgoing.len() + session.outbox.len() >= unsettled_max {
            return Err(SendError::Full);
        }
        let Outgoing { key, tag, message_format, state, batchable, payload, .. } = outgoing;
        let size = payload.len();
        let delivery = None;
        session.outbox.push_back(Queued {
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
        self.queued_bytes += size;
        self.owned_link(link)?.queued += 1;
        self.flush_outbox(link.session.channel);
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
                    let delivery = session.next_delivery_id;
                    session.next_delivery_id = delivery.wrapping_add(1);
                    link.queued -= 1;
                    link.credit -= 1;
                    link.delivery_count = link.delivery_count.wrapping_add(1);
                    if !queued.settled {
                        let entry = Entry { link: queued.link, key: queued.key };
                        session.outgoing.insert(delivery, entry);
                    }
                    queued.delivery = Some(delivery);
                    delivery
                }
            };
            // Id and tag are repeated on every frame, as clients expect who look at the last one.
            let mut transfer = Transfer {
                handle: queued.link.handle,
                delivery_id: Some(delivery),
                delivery_tag: Some(queued.tag.clone()),
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
            if !transfer.more {
                if link.drained_after_queue && (link.queued == 0 || link.credit == 0) {
                    drained = Some(queued.link);
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
