//! Windows and credit.

use crate::performative::{Flow, Role};

use super::{Connection, Event, LinkFlow, LinkId, ProtocolViolation, SessionId, UseError};

impl Connection {
    /// Sets the credit of the sender, and ends a drain.
    pub fn grant(&mut self, link: LinkId, credit: u32) -> Result<(), UseError> {
        let state = self.receiver(link)?;
        state.set_credit(credit);
        state.drain = false;
        self.write_link_flow(link);
        Ok(())
    }

    /// Asks the sender to use up the credit; an [`Event::Flow`] with credit 0 follows.
    pub fn drain(&mut self, link: LinkId) -> Result<(), UseError> {
        self.receiver(link)?.drain = true;
        self.write_link_flow(link);
        Ok(())
    }

    /// Nothing more is available: uses up the credit, after transfers that wait for a window.
    pub fn drained(&mut self, link: LinkId) -> Result<(), UseError> {
        let state = self.link_by_id(link)?;
        if state.role != Role::Sender || !state.is_attached() {
            return Err(UseError::OutOfTurn);
        }
        state.drained_after_queue = true;
        self.finish_drain(link);
        Ok(())
    }

    /// Sets how many more messages a sender has; sent with its next flow.
    pub fn set_available(&mut self, link: LinkId, available: u32) -> Result<(), UseError> {
        self.link_by_id(link)?.available = available;
        Ok(())
    }

    /// Deliveries that may be sent now, or may still arrive.
    pub fn credit(&self, link: LinkId) -> u32 {
        self.link(link).map_or(0, |link| match link.role {
            Role::Sender if link.is_attached() => link.free_credit(),
            Role::Sender => 0,
            Role::Receiver => link.credit,
        })
    }

    /// Whether the receiver drains the credit.
    pub fn is_draining(&self, link: LinkId) -> bool {
        self.link(link).is_some_and(|link| link.drain)
    }

    fn receiver(&mut self, link: LinkId) -> Result<&mut super::Link, UseError> {
        let state = self.link_by_id(link)?;
        let usable = state.attach_sent && !state.detach_sent && !state.detach_received;
        if state.role != Role::Receiver || !usable {
            return Err(UseError::OutOfTurn);
        }
        Ok(state)
    }

    pub(super) fn finish_drain(&mut self, link: LinkId) {
        let Ok(state) = self.link_by_id(link) else { return };
        if !state.drained_after_queue || (state.queued > 0 && state.credit > 0) {
            return;
        }
        state.drained_after_queue = false;
        state.delivery_count = state.delivery_count.wrapping_add(state.credit);
        state.credit = 0;
        state.drain = true;
        self.write_link_flow(link);
        if let Ok(state) = self.link_by_id(link) {
            state.drain = false;
        }
    }

    fn write_link_flow(&mut self, link: LinkId) {
        let Some(session) = self.session(link.session.channel) else { return };
        let Some(state) = self.link(link) else { return };
        let known = state.role == Role::Sender || state.attach_received;
        let flow = Flow {
            handle: Some(link.handle),
            // A receiver does not know it before the sender has attached.
            delivery_count: known.then_some(state.delivery_count),
            link_credit: Some(state.credit),
            available: (state.role == Role::Sender).then_some(state.available),
            drain: state.drain,
            ..session.flow(&self.config)
        };
        self.wire.frame(link.session.channel, &flow);
    }

    pub(super) fn write_session_flow(&mut self, channel: u16) {
        let Some(session) = self.session(channel) else { return };
        let flow = session.flow(&self.config);
        self.wire.frame(channel, &flow);
    }

    pub(super) fn take_flow(&mut self, channel: u16, flow: Flow) -> Result<(), ProtocolViolation> {
        let Some(session) = self.session_mut(channel) else { return Ok(()) };
        session.take_flow(&flow);
        match flow.handle {
            // The link may be gone here while the peer's flow is still on its way.
            Some(remote) => {
                if let Some(handle) = session.local_handle(remote) {
                    self.take_link_flow(channel, handle, flow);
                }
            }
            None if flow.echo => self.write_session_flow(channel),
            None => {}
        }
        self.flush_outbox(channel);
        Ok(())
    }

    fn take_link_flow(&mut self, channel: u16, handle: u32, flow: Flow) {
        let Some(session) = self.session_mut(channel) else { return };
        let session_id = SessionId { channel, serial: session.serial };
        let Some(state) = session.link_mut(handle).filter(|link| !link.detach_sent) else { return };
        let link = LinkId { session: session_id, handle, serial: state.serial };
        state.take_flow(&flow);
        let (credit, drain) = match state.role {
            Role::Sender => (state.free_credit(), state.drain),
            Role::Receiver => {
                let ended = state.drain && state.credit == 0;
                state.drain &= !ended;
                (state.credit, ended)
            }
        };
        let available = state.available;
        let (role, attached) = (state.role, state.attach_sent);
        let properties = flow.properties;
        self.events.push_back(Event::Flow(LinkFlow { link, credit, drain, available, properties }));
        if role == Role::Sender {
            // With credit lowered to zero, there is nothing to drain.
            self.finish_drain(link);
        }
        // The owner replies to a drain.
        if flow.echo && attached && !(role == Role::Sender && drain) {
            self.write_link_flow(link);
        }
    }
}
