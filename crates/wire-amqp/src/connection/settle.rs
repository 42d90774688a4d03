//! Dispositions. A range from the peer is told delivery by delivery, as events are asked for.

use crate::performative::{AmqpError, DeliveryState, Disposition, Role, condition};

use super::{Connection, DeliveryId, Disposed, Failure, LinkId, UseError};

/// What is left of a disposition.
#[derive(Debug)]
pub(super) struct Range {
    channel: u16,
    serial: u32,
    /// Deliveries of ours, or of the peer's.
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
    ) -> Result<(), Failure> {
        let Some(session) = self.session(channel) else { return Ok(()) };
        let Disposition { role, first, last, settled, state, .. } = disposition;
        let span = last.unwrap_or(first).wrapping_sub(first);
        if span > u32::MAX / 2 {
            let error = AmqpError::new(condition::INVALID_FIELD, "last comes before first");
            return Err(Failure::Session(channel, error));
        }
        let outgoing = role == Role::Receiver;
        let unsettled = if outgoing { &session.outgoing } else { &session.incoming };
        let next = unsettled.long(first);
        let last = next.saturating_add(span.into());
        let serial = session.serial;
        self.range = Some(Range { channel, serial, outgoing, next, last, settled, state });
        Ok(())
    }

    /// The next delivery of the range. Those that are settled already are passed over.
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

    /// Tells the peer what has become of a delivery. False when it is not unsettled any more: the peer was first.
    pub fn dispose(
        &mut self,
        link: LinkId,
        delivery: DeliveryId,
        settled: bool,
        state: Option<DeliveryState>,
    ) -> Result<bool, UseError> {
        let role = self.owned_link(link)?.role;
        let session = self.owned(link.session)?;
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
