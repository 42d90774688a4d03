//! Dispatches the protocol events of the peer.

use malote_wire_amqp::connection::{Event, Incoming, UseError};
use malote_wire_amqp::performative::{Open, SaslCode};

use super::Conn;
use super::link::LinkState;
use crate::ops::attach::offered;

impl Conn {
    pub(crate) fn handle_event(&mut self, event: Event) {
        // Dispositions reach the engine before any later event is handled.
        if !matches!(event, Event::Disposition(_)) {
            self.flush_settles();
        }
        match self.dispatch_event(event) {
            // `Gone`: the peer has already detached or ended.
            Ok(()) | Err(UseError::Gone) => {}
            Err(error) => tracing::debug!(%error, "cannot reply to the peer"),
        }
    }

    fn dispatch_event(&mut self, event: Event) -> Result<(), UseError> {
        match event {
            Event::SaslInit(init) => self.authenticate(&init),
            Event::SaslResponse(_) => self.amqp.sasl_outcome(SaslCode::Auth),
            Event::Open(open) => {
                self.opened = true;
                self.update_authentication();
                if let Some(host) = open.hostname {
                    self.host = host.as_str().to_owned();
                }
                let offered_capabilities = offered(&open.desired_capabilities);
                self.amqp.open(Open { offered_capabilities, ..Open::default() })
            }
            Event::Attach { link, attach } => {
                self.attach(link, attach);
                Ok(())
            }
            Event::Flow(flow) => {
                self.flow(&flow);
                self.reply_flow(&flow);
                Ok(())
            }
            Event::Delivery(incoming) => self.receive(incoming),
            Event::Disposition(disposed) => {
                self.settle_delivery(disposed);
                Ok(())
            }
            Event::Detach { link, closed, .. } => {
                self.drop_link(link);
                self.amqp.detach(link, closed, None)
            }
            Event::LinkFailed { link, error } => {
                tracing::debug!(%error, "link failed: protocol error");
                self.drop_link(link);
                Ok(())
            }
            Event::End { session, .. } => {
                self.drop_links(|link| link.session() == session);
                self.amqp.end(session, None)
            }
            Event::SessionFailed { session, error } => {
                tracing::debug!(%error, "session failed: protocol error");
                self.drop_links(|link| link.session() == session);
                Ok(())
            }
            Event::Close { .. } => {
                self.closed_cleanly = true;
                self.drop_all();
                self.amqp.close(None)
            }
            Event::Failed(error) => {
                tracing::debug!(%error, "connection failed: protocol error");
                Ok(())
            }
            // Replies to our own detach, end and close need no action. The other events occur only at clients.
            Event::Detached { .. }
            | Event::Ended { .. }
            | Event::Closed { .. }
            | Event::Begun { .. }
            | Event::Unblocked { .. }
            | Event::Attached { .. }
            | Event::SaslMechanisms(_)
            | Event::SaslChallenge(_)
            | Event::SaslOutcome(_) => Ok(()),
        }
    }

    fn receive(&mut self, incoming: Incoming) -> Result<(), UseError> {
        match self.links.get_mut(&incoming.link) {
            Some(LinkState::Sender(sender)) => {
                sender.in_progress += 1;
                let (to, size_max) = (sender.to.clone(), sender.message_bytes_max);
                self.send(to, size_max, incoming)
            }
            Some(LinkState::Coordinator { in_progress }) => {
                *in_progress += 1;
                self.handle_coordinator(incoming)
            }
            Some(LinkState::Requests(requests)) => {
                requests.in_progress += 1;
                self.handle_request(incoming)
            }
            _ => Ok(()),
        }
    }
}
