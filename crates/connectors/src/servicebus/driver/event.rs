//! What the server says.

use malote_wire_amqp::connection::{Disposed, Event, Incoming, LinkFlow, LinkId};
use malote_wire_amqp::message::Message as Wire;
use malote_wire_amqp::performative::{AmqpError, Attach, DeliveryState, Role};
use malote_wire_amqp::types::Value;
use tokio::sync::mpsc::error::TrySendError;

use super::super::error::{Error, Result};
use super::super::limits;
use super::Driver;
use super::command::{Opened, Wanted};
use super::link::{Inbound, Link, Outbound, State, confirmed, sent};

impl Driver {
    /// Takes one event. What it tells is the connection's end.
    pub(super) fn event(&mut self, event: Event) -> Option<Error> {
        match event {
            Event::Attached { link, attach } => self.attached(link, attach),
            Event::Flow(flow) => self.flow(&flow),
            Event::Delivery(incoming) => self.deliver(incoming),
            Event::Disposition(disposed) => self.disposed(&disposed),
            Event::Detach { link, error, closed } => {
                let why = Error::detached(error.as_ref());
                let _ = self.amqp.detach(link, closed, None);
                self.forget(link, why);
            }
            Event::Detached { link, error } => {
                let why = error.as_ref().map_or(Error::Closed, Error::refused);
                self.forget(link, why);
            }
            Event::LinkFailed { link, error } => self.failed(link, &error),
            Event::End { session, error } => {
                let why = Error::detached(error.as_ref());
                let _ = self.amqp.end(session, None);
                self.forget_session(|link| link.session() == session, why);
            }
            Event::SessionFailed { session, error } => {
                self.forget_session(|link| link.session() == session, Error::refused(&error));
            }
            // The server may send again.
            Event::Unblocked { .. } => {}
            Event::Close { error } => {
                let _ = self.amqp.close(None);
                let text = error.map_or("the server closed".to_owned(), |e| e.to_string());
                return Some(Error::Lost(text));
            }
            Event::Closed { .. } => return Some(Error::Closed),
            Event::Failed(error) => return Some(Error::Lost(error.to_string())),
            // The server attaches nothing to clients.
            Event::Attach { link, .. } => {
                let text = "a client has no nodes";
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

    fn attached(&mut self, link: LinkId, attach: Box<Attach>) {
        let refused = match attach.role {
            Role::Sender => attach.source.is_none(),
            Role::Receiver => attach.target.is_none(),
        };
        // A refusal: the detach with its reason comes next.
        if refused {
            return;
        }
        let Some(found) = self.links.get_mut(&link) else { return };
        let State::Attaching { .. } = &found.state else { return };
        let State::Attaching { wanted, reply } = std::mem::replace(&mut found.state, State::Ending)
        else {
            return;
        };
        let answers = matches!(wanted, Wanted::Answers);
        found.state = match wanted {
            Wanted::Sender => State::Sender(Outbound::default()),
            Wanted::Receiver(deliveries) => State::Receiver(Inbound::new(deliveries)),
            Wanted::Answers => State::Answers(Default::default()),
        };
        let opened = Opened { link, attach, why: found.why.clone() };
        if reply.send(Ok(opened)).is_err() {
            // Whoever wanted it has given up: a session goes back at once.
            self.detach(link, None);
        } else if answers {
            let _ = self.amqp.grant(link, limits::ANSWERS_CREDIT);
        }
    }

    fn flow(&mut self, flow: &LinkFlow) {
        match self.links.get_mut(&flow.link) {
            Some(Link { state: State::Sender(outbound), .. }) if !outbound.waiting.is_empty() => {
                self.sending.insert(flow.link);
            }
            Some(Link { state: State::Receiver(inbound), .. }) if flow.drain => {
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
            Some(Link { state: State::Receiver(inbound), .. }) => {
                // Full cannot be: credit is never more than there is room. Closed: the handle is gone.
                let (TrySendError::Full(unseen) | TrySendError::Closed(unseen)) =
                    match inbound.deliveries.try_send(incoming) {
                        Ok(()) => return,
                        Err(error) => error,
                    };
                if !unseen.settled {
                    let released = Some(DeliveryState::Released);
                    let _ = self.amqp.dispose(link, delivery, true, released);
                }
            }
            Some(Link { state: State::Answers(_), .. }) => self.answered(incoming),
            _ => {}
        }
    }

    fn answered(&mut self, incoming: Incoming) {
        let link = incoming.link;
        if !incoming.settled {
            let accepted = Some(DeliveryState::Accepted);
            let _ = self.amqp.dispose(link, incoming.delivery, true, accepted);
        }
        if self.amqp.credit(link) < limits::ANSWERS_CREDIT / 2 {
            let _ = self.amqp.grant(link, limits::ANSWERS_CREDIT);
        }
        let read = read_answer(incoming);
        let Some(Link { state: State::Answers(waiting), .. }) = self.links.get_mut(&link) else {
            return;
        };
        match read {
            Ok((id, message)) => {
                if let Some(reply) = waiting.remove(&id) {
                    let _ = reply.send(Ok(message));
                }
            }
            Err(error) => tracing::debug!(%error, "an answer to nothing that was asked"),
        }
    }

    fn disposed(&mut self, disposed: &Disposed) {
        let (link, delivery) = (disposed.link, disposed.delivery);
        let Some(found) = self.links.get_mut(&link) else { return };
        match &mut found.state {
            State::Sender(outbound) => {
                if !disposed.settled {
                    // The second step of a receiver that waits for ours.
                    let _ = self.amqp.dispose(link, delivery, true, disposed.state.clone());
                }
                if let Some((reply, _permit)) = outbound.in_flight.remove(&disposed.key) {
                    let _ = reply.send(sent(disposed.state.as_ref()));
                }
                if !outbound.waiting.is_empty() {
                    self.sending.insert(link);
                }
            }
            State::Receiver(inbound) if disposed.settled => {
                inbound.settled(delivery, confirmed(disposed.state.as_ref()));
            }
            State::Receiver(_) | State::Attaching { .. } | State::Answers(_) | State::Ending => {}
        }
    }

    fn failed(&mut self, link: LinkId, error: &AmqpError) {
        let Some(found) = self.links.get_mut(&link) else { return };
        let ended = Link {
            why: found.why.clone(),
            state: std::mem::replace(&mut found.state, State::Ending),
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

fn read_answer(incoming: Incoming) -> Result<(u64, Wire)> {
    let message = Wire::parse(incoming.payload)?;
    let id = message.properties()?.correlation_id;
    let id = id.as_ref().and_then(Value::as_str).and_then(|id| id.parse().ok());
    let id = id.ok_or_else(|| Error::Unreadable("an answer without a correlation-id".into()))?;
    Ok((id, message))
}
