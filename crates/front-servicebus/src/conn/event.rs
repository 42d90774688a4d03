//! What the peer says.

use malote_engine::IdFormat;
use malote_model::Address;
use malote_wire_amqp::connection::{Event, Incoming, LinkId, UseError};
use malote_wire_amqp::performative::{
    AmqpError, Attach, DeliveryState, Open, SaslCode, SaslInit, condition,
};
use tokio_util::sync::CancellationToken;

use super::link::Link;
use super::sends::{Transfer, Whose};
use super::{Conn, Done};
use crate::limits;
use crate::ops::answer::offered;
use crate::ops::attach::{Wish, attach};
use crate::ops::claims::{Mechanism, plain, record_sasl};
use crate::ops::send;
use crate::refusal::{Lock, error_of, servicebus};

impl Conn {
    pub(super) fn event(&mut self, event: Event) {
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

    fn authenticate(&mut self, init: &SaslInit) -> Result<(), UseError> {
        match Mechanism::of(init) {
            // Whoever shows nothing here puts a token at `$cbs`.
            Some(Mechanism::Anonymous) => self.amqp.sasl_outcome(SaslCode::Ok),
            Some(Mechanism::Plain { user, password }) => {
                let (front, peer) = (self.front.clone(), self.peer.address);
                self.start(async move {
                    let who = plain(&front, &user, &password, peer).await;
                    record_sasl(&front, peer, Some(&user), who.as_ref());
                    Done::Sasl(who)
                });
                Ok(())
            }
            None => {
                record_sasl(&self.front, self.peer.address, None, None);
                self.amqp.sasl_outcome(SaslCode::Auth)
            }
        }
    }

    fn attach(&mut self, link: LinkId, wanted: Box<Attach>) {
        let give_up = CancellationToken::new();
        self.links.insert(link, Link::Attaching(give_up.clone()));
        let (front, engine) = (self.front.clone(), self.engine.clone());
        let (claims, host) = (self.claims.clone(), self.host.clone());
        let wish = match Wish::of(&wanted) {
            Ok(wish) if wish.is_temporary() && self.temporary.len() >= limits::TEMPORARY_MAX => {
                self.links.remove(&link);
                let text = "too many temporary queues on this connection";
                let error = AmqpError::new(condition::RESOURCE_LIMIT_EXCEEDED, text);
                let _ = self.amqp.refuse(link, error);
                return;
            }
            Ok(wish) => wish,
            Err(error) => {
                self.links.remove(&link);
                let _ = self.amqp.refuse(link, error);
                return;
            }
        };
        self.start(async move {
            let found = attach(&front, &engine, &claims, &host, wish, give_up).await;
            Done::Attached { link, wanted, found }
        });
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

    fn send(&mut self, to: Address, size_max: u64, incoming: Incoming) -> Result<(), UseError> {
        let bytes = incoming.payload.len();
        let Incoming { link, delivery, settled, .. } = incoming;
        let txn_id = match &incoming.state {
            Some(DeliveryState::Transactional(state)) => Some(state.txn_id.clone()),
            _ => None,
        };
        let read = if bytes as u64 > size_max {
            let text = format!("The received message has {bytes} bytes; the limit is {size_max}.");
            Err(AmqpError::new(condition::MESSAGE_SIZE_EXCEEDED, text))
        } else if self.sending_bytes > limits::SENDING_BYTES_MAX {
            let text = "too much is being sent on this connection";
            Err(AmqpError::new(servicebus::SERVER_BUSY, text))
        } else {
            send::read(&incoming, || self.front.engine.now())
        };
        self.sending_bytes += bytes;
        let batch = match (read, &txn_id) {
            (Ok(messages), None) => {
                let batch =
                    self.front.engine.encode_batch(&to, messages.into_iter(), IdFormat::Simple);
                batch.map_err(|error| Err(error_of(error, Lock::Message)))
            }
            (Ok(messages), Some(id)) => Err(self.transactions.send(id, &to, messages)),
            (Err(error), _) => Err(Err(error)),
        };
        let batch = match batch {
            Ok(batch) => batch,
            // Staged, or refused: either way there is nothing to wait for.
            Err(sent) => {
                self.ready.push_back(Done::Sent { link, delivery, settled, bytes, txn_id, sent });
                return Ok(());
            }
        };
        self.sends.add(Transfer { whose: Whose { link, delivery, settled, bytes }, batch });
        Ok(())
    }
}
