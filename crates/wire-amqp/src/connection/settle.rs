//! Dispositions. A range from the peer is reported delivery by delivery, as events are requested.

use crate::performative::{AmqpError, DeliveryState, Disposition, Role, condition};

use super::{Connection, DeliveryId, Disposed, LinkId, ProtocolViolation, UseError};

/// The rest of a disposition.
#[derive(Debug)]
pub(super) struct DispositionRange {
    channel: u16,
    serial: u32,
    /// Whether the deliveries are ours.
    outgoing: bool,
    next: u64,
    last: u64,
    settled: bool,
    state: Option<DeliveryState>,
}

impl Connection {
    pub(super) fn take_disposition(
        &mut self,
        channel: u16,
        disposition: Disposition,
    ) -> Result<(), ProtocolViolation> {
        let Some(session) = self.session(channel) else { return Ok(()) };
        let Disposition { role, first, last, settled, state, .. } = disposition;
        let span = last.unwrap_or(first).wrapping_sub(first);
        if span > u32::MAX / 2 {
            let error = AmqpError::new(condition::INVALID_FIELD, "`last` precedes `first`");
            return Err(ProtocolViolation::Session(channel, error));
        }
        let outgoing = role == Role::Receiver;
        let unsettled = if outgoing { &session.outgoing } else { &session.incoming };
        let next = unsettled.long(first);
        let last = next.saturating_add(span.into());
        let serial = session.serial;
        self.range =
            Some(DispositionRange { channel, serial, outgoing, next, last, settled, state });
        Ok(())
    }

    /// The next delivery of the range. Settled ones are skipped.
    pub(super) fn next_disposed(&mut self) -> Option<Disposed> {
        let mut range = self.range.take()?;
        let session = self.session_mut(range.channel).filter(|s| s.serial == range.serial)?;
        let unsettled = if range.outgoing { &mut session.outgoing } else { &mut session.incoming };
        let (long, entry) = unsettled.first_in(range.next, range.last)?;
        let delivery = DeliveryId(long as u32);
        if range.settled {
            unsettled.remove(delivery.0);
        }
        let settled = range.settled;
        let state = range.state.clone();
        if long < range.last {
            range.next = long + 1;
            self.range = Some(range);
        }
        Some(Disposed { link: entry.link, delivery, key: entry.key, settled, state })
    }

    /// Reports the state of a delivery to the peer. False if it is already settled.
    pub fn dispose(
        &mut self,
        link: LinkId,
        delivery: DeliveryId,
        settled: bool,
        state: Option<DeliveryState>,
    ) -> Result<bool, UseError> {
        let role = self.link_by_id(link)?.role;
        let session = self.session_by_id(link.session)?;
        let unsettled = match role {
            Role::Sender => &mut session.outgoing,
            Role::Receiver => &mut session.incoming,
        };
        let is_there = match settled {
            true => unsettled.remove_of(delivery.0, link),
            false => unsettled.get(delivery.0).is_some_and(|entry| entry.link == link),
        };
        if !is_there {
            return Ok(false);
        }
        self.wire.disposition(link.session.channel, role, delivery.0, settled, state);
        Ok(true)
    }
}
