//! Handles protocol events.

use malote_wire_amqp::connection::{Disposed, Event, Incoming, LinkFlow, LinkId};
use malote_wire_amqp::message::Message as Wire;
use malote_wire_amqp::performative::{AmqpError, Attach, DeliveryState, Role};
use malote_wire_amqp::types::Value;
use tokio::sync::mpsc::error::TrySendError;

use super::super::error::{Error, Result};
use super::super::limits;
use super::AmqpDriver;
use super::command::{AttachedLink, LinkPurpose};
use super::link::{DriverLinkState, InboundLink, LinkEntry, OutboundLink, confirmed, sent};

impl AmqpDriver {
    /// Handles one event. Returns an error if the connection has ended.
    pub(super) fn event(&mut self, event: Event) -> Option<Error> {
        match event {
            Event::Attached { link, attach } => self.link_attached(link, attach),
            Event::Flow(flow) => self.flow(&flow),
            Event::Delivery(incoming) => self.deliver(incoming),
            Event::Disposition(handle_disposition) => self.handle_disposition(&handle_disposition),
            Event::Detach { link, error, closed } => {
                let why = Error::detached(error.as_ref());
                let _ = self.amqp.detach(link, closed, None);
                self.forget(link, why);
            }
            Event::Detached { link, error } => {
                let why = error.as_ref().map_or(Error::Closed, Error::refused);
                self.forget(link, why);
            }
            Event::LinkFailed { link, error } => self.link_failed(link, &error),
            Event::End { session, error } => {
                let why = Error::detached(error.as_ref());
                let _ = self.amqp.end(session, None);
                self.forget_session(|link| link.session() == session, why);
            }
            Event::SessionFailed { session, error } => {
                self.forget_session(|link| link.session() == session, Error::refused(&error));
            }
            // The driver tries to send in every turn.
            Event::Unblocked { .. } => {}
            Event::Close { error } => {
                let _ = self.amqp.close(None);
                let text =
                    error.map_or("the server closed the connection".to_owned(), |e| e.to_string());
                return Some(Error::Lost(text));
            }
            Event::Closed { .. } => return Some(Error::Closed),
            Event::Failed(error) => return Some(Error::Lost(error.to_string())),
            // Clients have no nodes that a server could attach to.
            Event::Attach { link, .. } => {
                let text = "this client has no nodes";
                let error = AmqpError::new("amqp:not-allowed", text);
                let _ = self.amqp.refuse(link, error);
            }
            Event::Begun { .. }
            | Event::Ended { .. }
            | Event::Open(_)
            | Event::SaslMechanisms(_)
            | Event::SaslInit(_)
            | Event::SaslChallenge(_)
            | Event::SaslResponse(_)
            | Event::SaslOutcome(_) => {}
        }
        None
    }

    fn link_attached(&mut self, link: LinkId, attach: Box<Attach>) {
        let refused = match attach.role {
            Role::Sender => attach.source.is_none(),
            Role::Receiver => attach.target.is_none(),
        };
        // The server refuses the link: a detach with the reason follows.
        if refused {
            return;
        }
        let Some(found) = self.links.get_mut(&link) else { return };
        let DriverLinkState::Attaching { .. } = &found.state else { return };
        let DriverLinkState::Attaching { purpose, reply } =
            std::mem::replace(&mut found.state, DriverLinkState::Ending)
        else {
            return;
        };
        let responses = matches!(purpose, LinkPurpose::Responses);
        found.state = match purpose {
            LinkPurpose::Sender => DriverLinkState::Sender(OutboundLink::default()),
            LinkPurpose::Receiver(deliveries) => {
                DriverLinkState::Receiver(InboundLink::new(deliveries))
            }
            LinkPurpose::Responses => DriverLinkState::Responses(Default::default()),
        };
        let opened = AttachedLink { link, attach, end_reason: found.end_reason.clone() };
        if reply.send(Ok(opened)).is_err() {
            // The caller gave up: release a session at once.
            self.detach(link, None);
        } else if responses {
            let _ = self.amqp.grant(link, limits::RESPONSES_CREDIT);
        }
    }

    fn flow(&mut self, flow: &LinkFlow) {
        match self.links.get_mut(&flow.link) {
            Some(LinkEntry { state: DriverLinkState::Sender(outbound), .. })
                if !outbound.waiting.is_empty() =>
            {
                self.sending.insert(flow.link);
            }
            Some(LinkEntry { state: DriverLinkState::Receiver(inbound), .. }) if flow.drain => {
                for reply in inbound.drains.drain(..) {
                    let _ = reply.send(());
                }
            }
            _ => {}
        }
    }

    fn deliver(&mut self, incoming: Incoming) {
        let (link, delivery) = (incoming.link, incoming.delivery);
        match self.links.get_mut(&link) {
            Some(LinkEntry { state: DriverLinkState::Receiver(inbound), .. }) => {
                // It cannot be full, because credit never exceeds the room. It is closed if the handle was dropped.
                let (TrySendError::Full(unread) | TrySendError::Closed(unread)) =
                    match inbound.deliveries.try_send(incoming) {
                        Ok(()) => return,
                        Err(error) => error,
                    };
                if !unread.settled {
                    let released = Some(DeliveryState::Released);
                    let _ = self.amqp.dispose(link, delivery, true, released);
                }
            }
            Some(LinkEntry { state: DriverLinkState::Responses(_), .. }) => {
                self.handle_response(incoming)
            }
            _ => {}
        }
    }

    fn handle_response(&mut self, incoming: Incoming) {
        let link = incoming.link;
        if !incoming.settled {
            let accepted = Some(DeliveryState::Accepted);
            let _ = self.amqp.dispose(link, incoming.delivery, true, accepted);
        }
        if self.amqp.credit(link) < limits::RESPONSES_CREDIT / 2 {
            let _ = self.amqp.grant(link, limits::RESPONSES_CREDIT);
        }
        let read = read_response(incoming);
        let Some(LinkEntry { state: DriverLinkState::Responses(waiting), .. }) =
            self.links.get_mut(&link)
        else {
            return;
        };
        match read {
            Ok((id, message)) => {
                if let Some(reply) = waiting.remove(&id) {
                    let _ = reply.send(Ok(message));
                }
            }
            Err(error) => tracing::debug!(%error, "a response to an unknown request is ignored"),
        }
    }

    fn handle_disposition(&mut self, handle_disposition: &Disposed) {
        let (link, delivery) = (handle_disposition.link, handle_disposition.delivery);
        let Some(found) = self.links.get_mut(&link) else { return };
        match &mut found.state {
            DriverLinkState::Sender(outbound) => {
                if !handle_disposition.settled {
                    // Completes the exchange with a receiver that settles second.
                    let _ =
                        self.amqp.dispose(link, delivery, true, handle_disposition.state.clone());
                }
                if let Some((reply, _permit)) = outbound.in_flight.remove(&handle_disposition.key) {
                    let _ = reply.send(sent(handle_disposition.state.as_ref()));
                }
                if !outbound.waiting.is_empty() {
                    self.sending.insert(link);
                }
            }
            DriverLinkState::Receiver(inbound) if handle_disposition.settled => {
                inbound.confirm(delivery, confirmed(handle_disposition.state.as_ref()));
            }
            DriverLinkState::Receiver(_)
            | DriverLinkState::Attaching { .. }
            | DriverLinkState::Responses(_)
            | DriverLinkState::Ending => {}
        }
    }

    fn link_failed(&mut self, link: LinkId, error: &AmqpError) {
        let Some(found) = self.links.get_mut(&link) else { return };
        let ended = LinkEntry {
            end_reason: found.end_reason.clone(),
            state: std::mem::replace(&mut found.state, DriverLinkState::Ending),
            ending: std::mem::take(&mut found.ending),
        };
        ended.end(Error::refused(error));
    }

    fn forget_session(&mut self, fits: impl Fn(LinkId) -> bool, why: Error) {
        let links: Vec<LinkId> = self.links.keys().copied().filter(|link| fits(*link)).collect();
        for link in links {
            self.sessions.remove(&link.session());
            self.forget(link, why.clone());
        }
    }
}

fn read_response(incoming: Incoming) -> Result<(u64, Wire)> {
    let message = Wire::parse(incoming.payload)?;
    let id = message.properties()?.correlation_id;
    let id = id.as_ref().and_then(Value::as_str).and_then(|id| id.parse().ok());
    let id = id.ok_or_else(|| Error::Unreadable("a response has no correlation-id".into()))?;
    Ok((id, message))
}
