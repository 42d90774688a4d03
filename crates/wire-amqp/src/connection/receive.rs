//! Incoming transfers: assembles messages from frames.

use bytes::{Bytes, BytesMut};

use crate::performative::{AmqpError, DeliveryState, Role, Transfer, condition};

use super::link::PartialDelivery;
use super::session::UnsettledDelivery;
use super::{Connection, DeliveryId, Event, Incoming, LinkId, ProtocolViolation, SessionId};

/// Longest delivery tag (section 2.8.7).
pub(super) const TAG_BYTES_MAX: usize = 32;

impl Connection {
    pub(super) fn take_transfer(
        &mut self,
        channel: u16,
        transfer: Transfer,
        payload: Bytes,
    ) -> Result<(), ProtocolViolation> {
        let config = &self.config;
        let Some(session) = self.sessions.get_mut(usize::from(channel)).and_then(Option::as_mut)
        else {
            return Ok(());
        };
        let session_error =
            |condition, text| ProtocolViolation::Session(channel, AmqpError::new(condition, text));
        let Some(window) = session.incoming_window.checked_sub(1) else {
            let text = "transfer outside of the session window";
            return Err(session_error(condition::WINDOW_VIOLATION, text));
        };
        session.incoming_window = window;
        session.next_incoming_id = session.next_incoming_id.wrapping_add(1);
        // Messages are passed on as soon as they are complete, so the window can be opened again.
        if window <= config.incoming_window / 2 {
            session.incoming_window = config.incoming_window;
            self.wire.frame(channel, &session.flow(config));
        }

        let Some(handle) = session.local_handle(transfer.handle) else {
            let text = "transfer on a handle without a link";
            return Err(session_error(condition::UNATTACHED_HANDLE, text));
        };
        let session_id = SessionId { channel, serial: session.serial };
        // Borrows the link directly, because the unsettled deliveries of the session are needed as well.
        let Some(state) = session.links.get_mut(handle as usize).and_then(Option::as_mut) else {
            return Ok(());
        };
        let link = LinkId { session: session_id, handle, serial: state.serial };
        let link_error =
            |condition, text| ProtocolViolation::Link(link, AmqpError::new(condition, text));
        if state.detach_sent {
            return Ok(());
        }
        if state.role != Role::Receiver {
            let text = "transfer to a sending link";
            return Err(link_error(condition::NOT_ALLOWED, text));
        }

        let mut partial = match state.partial.take() {
            Some(partial) => {
                self.partial_bytes -= partial.payload.len();
                if transfer.delivery_id.is_some_and(|id| id != partial.delivery) {
                    let text = "a delivery began before the previous one was complete";
                    return Err(session_error(condition::INVALID_FIELD, text));
                }
                partial
            }
            None => {
                let (Some(delivery), Some(tag)) = (transfer.delivery_id, transfer.delivery_tag)
                else {
                    let text =
                        "the first transfer of a delivery has no delivery-id or delivery-tag";
                    return Err(session_error(condition::INVALID_FIELD, text));
                };
                if tag.len() > TAG_BYTES_MAX {
                    let text = "the delivery-tag has more than 32 bytes";
                    return Err(session_error(condition::INVALID_FIELD, text));
                }
                if !state.take_delivery() {
                    let text = "delivery without link credit";
                    return Err(link_error(condition::TRANSFER_LIMIT_EXCEEDED, text));
                }
                let partial = PartialDelivery {
                    delivery,
                    tag,
                    message_format: transfer.message_format.unwrap_or(0),
                    settled: false,
                    state: None,
                    payload: BytesMut::new(),
                };
                if !transfer.more && !transfer.aborted {
                    // The usual case: one frame, whose bytes are the message.
                    let settled = transfer.settled.unwrap_or(false);
                    let incoming = partial.complete(link, settled, transfer.state, payload);
                    return self.deliver(link, incoming);
                }
                // Copied, so that a partial message holds no more memory than is counted.
                let tag = Bytes::copy_from_slice(&partial.tag);
                Box::new(PartialDelivery { tag, ..partial })
            }
        };

        partial.settled |= transfer.settled.unwrap_or(false);
        if transfer.state.is_some() {
            partial.state = transfer.state;
        }
        if transfer.aborted {
            return Ok(());
        }
        let size = partial.payload.len() + payload.len();
        if is_too_large(size, state.max_message_size) {
            return Err(link_error(condition::MESSAGE_SIZE_EXCEEDED, "the message is too large"));
        }
        if self.partial_bytes + size > config.incoming_bytes_max {
            let text = "too many bytes of incomplete messages";
            return Err(link_error(condition::RESOURCE_LIMIT_EXCEEDED, text));
        }
        partial.payload.extend_from_slice(&payload);
        if transfer.more {
            self.partial_bytes += size;
            state.partial = Some(partial);
            return Ok(());
        }
        let (settled, last_state) = (partial.settled, partial.state.take());
        let payload = std::mem::take(&mut partial.payload).freeze();
        let incoming = partial.complete(link, settled, last_state, payload);
        self.deliver(link, incoming)
    }

    fn deliver(&mut self, link: LinkId, incoming: Incoming) -> Result<(), ProtocolViolation> {
        let channel = link.session.channel;
        let unsettled_max = self.config.unsettled_max;
        let Some(session) = self.session_mut(channel) else { return Ok(()) };
        let Some(state) = session.link_mut(link.handle) else { return Ok(()) };
        if is_too_large(incoming.payload.len(), state.max_message_size) {
            let text = "the message is too large";
            let error = AmqpError::new(condition::MESSAGE_SIZE_EXCEEDED, text);
            return Err(ProtocolViolation::Link(link, error));
        }
        if !incoming.settled {
            if session.incoming.len() >= unsettled_max {
                let text = "too many unsettled deliveries";
                let error = AmqpError::new(condition::RESOURCE_LIMIT_EXCEEDED, text);
                return Err(ProtocolViolation::Session(channel, error));
            }
            // The Python client, when used by several threads, gives two deliveries of a link the same id. Service Bus
            // accepts them; settling one settles both.
            let before =
                session.incoming.insert(incoming.delivery.0, UnsettledDelivery { link, key: 0 });
            if before.is_some_and(|before| before.link != link) {
                let text = "the delivery-id is still unsettled on another link";
                let error = AmqpError::new(condition::INVALID_FIELD, text);
                return Err(ProtocolViolation::Session(channel, error));
            }
        }
        self.events.push_back(Event::Delivery(incoming));
        Ok(())
    }
}

/// Zero means unlimited.
fn is_too_large(size: usize, size_max: u64) -> bool {
    size_max != 0 && size as u64 > size_max
}

impl PartialDelivery {
    fn complete(
        self,
        link: LinkId,
        settled: bool,
        state: Option<DeliveryState>,
        payload: Bytes,
    ) -> Incoming {
        Incoming {
            link,
            delivery: DeliveryId(self.delivery),
            tag: self.tag,
            message_format: self.message_format,
            settled,
            state,
            payload,
        }
    }
}
