//! What the peer says.

use malote_wire_amqp::connection::{Event, Incoming, UseError};
use malote_wire_amqp::performative::{Open, SaslCode};

use super::Conn;
use super::link::Link;
use crate::ops::attach::offered;

impl Conn {
    pub(crate) fn event(&mut self, event: Event) {
        // What was settled comes before whatever follows it.
        if !matches!(event, Event::Disposition(_)) {
            self.flush_settles();
        }
        match self.answer(event) {
            // Gone: the peer was faster than our answer.
            Ok(()) | Err(UseError::Gone) => {}
            Err(error) => tracing::debug!(%error, "the peer could not be answered"),
        }
    }

    fn answer(&mut self, event: Event) -> Result<(), UseError> {
        match event {
            Event::SaslInit(init) => self.authenticate(&init),
            Event::SaslResponse(_) => self.amqp.sasl_outcome(SaslCode::Auth),
            Event::Open(open) => {
                self.opened = true;
                self.identify();
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
                self.answers_flow(&flow);
                Ok(())
            }
            Event::Delivery(incoming) => self.receive(incoming),
            Event::Disposition(disposed) => {
                self.disposed(disposed);
                Ok(())
            }
            Event::Detach { link, closed, .. } => {
                self.drop_link(link);
                self.amqp.detach(link, closed, None)
            }
            Event::LinkFailed { link, error } => {
                tracing::debug!(%error, "a link broke a rule");
                self.drop_link(link);
                Ok(())
            }
            Event::End { session, .. } => {
                self.drop_links(|link| link.session() == session);
                self.amqp.end(session, None)
            }
            Event::SessionFailed { session, error } => {
                tracing::debug!(%error, "a session broke a rule");
                self.drop_links(|link| link.session() == session);
                Ok(())
            }
            Event::Close { .. } => {
                self.clean = true;
                self.drop_all();
                self.amqp.close(None)
            }
            Event::Failed(error) => {
                tracing::debug!(%error, "the connection broke a rule");
                Ok(())
            }
            // Our own detach, end and close were answered, a window has opened, a session has begun; the rest is
            // said to clients only.
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
            Some(Link::Sender(sender)) => {
                sender.under_way += 1;
                let (to, size_max) = (sender.to.clone(), sender.message_bytes_max);
                self.send(to, size_max, incoming)
            }
            Some(Link::Coordinator { under_way }) => {
                *under_way += 1;
                self.coordinate(incoming)
            }
            Some(Link::Requests(requests)) => {
                requests.under_way += 1;
                self.request(incoming)
            }
            _ => Ok(()),
        }
    }
}
