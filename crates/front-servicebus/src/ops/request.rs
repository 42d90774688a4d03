//! Requests to `$cbs` and `$management`, and their answers.

use bytes::Bytes;
use malote_model::{LeaseToken, QueueName, SessionId};
use malote_wire_amqp::connection::{DeliveryId, Incoming, LinkFlow, LinkId, Outgoing, UseError};
use malote_wire_amqp::message::{Message, Properties};
use malote_wire_amqp::performative::{AmqpError, DeliveryState, condition};
use malote_wire_amqp::types::Value;

use crate::conn::link::{Desk, Link};
use crate::conn::{Conn, Done};
use crate::limits;
use crate::ops::cbs;
use crate::ops::management::{self, About, Request};
use crate::refusal::servicebus;

impl Conn {
    pub(crate) fn request(&mut self, incoming: Incoming) -> Result<(), UseError> {
        let Incoming { link, delivery, settled, payload, .. } = incoming;
        let Some(Link::Requests(requests)) = self.links.get(&link) else { return Ok(()) };
        let desk = requests.desk.clone();
        let read = Message::parse(payload).and_then(|message| {
            let properties = message.properties()?;
            Ok((message, properties))
        });
        let (message, properties) = match read {
            Ok(read) => read,
            Err(error) => {
                self.amqp.dispose(
                    link,
                    delivery,
                    true,
                    Some(DeliveryState::rejected(error.into())),
                )?;
                return Ok(());
            }
        };
        let to = self.answers_for(link, &desk, &properties);
        match desk {
            Desk::Claims => {
                let host = self.host.clone();
                let put = cbs::put_token(&self.front, &mut self.claims, &message);
                self.identify();
                let (front, claims) = (self.front.clone(), self.claims.clone());
                self.start(async move {
                    let answer = cbs::answer(&front, &claims, &host, put).await;
                    Done::Answer { link, delivery, settled, to, peek: false, answer }
                });
            }
            Desk::Management(entity) => {
                let request = match Request::read(&message, properties, entity) {
                    Ok(request) => request,
                    Err(error) => {
                        let state = DeliveryState::rejected(error.into());
                        self.amqp.dispose(link, delivery, true, Some(state))?;
                        return Ok(());
                    }
                };
                let peek = request.is_peek();
                if peek && self.peeks >= limits::PEEKS_MAX {
                    let text = "too many peeks are under way on this connection";
                    let error = AmqpError::new(servicebus::SERVER_BUSY, text);
                    let answer = management::refuse(request, error);
                    self.answered(link, delivery, settled, to, answer);
                    return Ok(());
                }
                self.peeks += u32::from(peek);
                let held = request.about().and_then(|(queue, about)| self.held(queue, &about));
                let (front, engine) = (self.front.clone(), self.engine.clone());
                let claims = self.claims.clone();
                self.start(async move {
                    let answer = management::answer(&front, &engine, &claims, held, request).await;
                    Done::Answer { link, delivery, settled, to, peek, answer }
                });
            }
        }
        Ok(())
    }

    /// The session and its hold, if a link of this connection has it.
    fn held(&self, queue: &QueueName, about: &About<'_>) -> Option<(SessionId, LeaseToken)> {
        self.links.values().find_map(|link| match link {
            Link::Receiver(receiver) if receiver.queue == *queue => {
                let held = receiver.session.as_ref().filter(|held| match about {
                    About::Session(id) => held.session == *id,
                    About::Link(name) => receiver.name.as_str() == *name,
                });
                held.map(|held| (held.session.clone(), held.hold))
            }
            _ => None,
        })
    }

    /// Where answers go: the other link to the same desk, of the same session if there is one. Its address is only a
    /// hint: some clients give none, and say the link's name in the request.
    fn answers_for(&self, link: LinkId, desk: &Desk, properties: &Properties) -> Option<LinkId> {
        let named = |address: &Option<Value>| {
            let reply_to = properties.reply_to.as_deref();
            reply_to.is_some() && address.as_ref().and_then(Value::as_str) == reply_to
        };
        let fits = |(id, other): (&LinkId, &Link)| match other {
            Link::Answers(answers) if answers.desk == *desk => {
                Some((id.session() == link.session(), named(&answers.address), *id))
            }
            _ => None,
        };
        let found =
            self.links.iter().filter_map(fits).max_by_key(|(same, named, _)| (*same, *named));
        found.map(|(_, _, id)| id)
    }

    pub(crate) fn answered(
        &mut self,
        link: LinkId,
        delivery: DeliveryId,
        settled: bool,
        to: Option<LinkId>,
        answer: Bytes,
    ) {
        if !settled {
            let _ = self.amqp.dispose(link, delivery, true, Some(DeliveryState::Accepted));
        }
        if let Some(Link::Requests(requests)) = self.links.get_mut(&link) {
            requests.under_way = requests.under_way.saturating_sub(1);
            let under_way = requests.under_way;
            self.grant_again(link, under_way, limits::REQUEST_CREDIT);
        }
        let Some((to, Link::Answers(answers))) =
            to.and_then(|to| Some((to, self.links.get_mut(&to)?)))
        else {
            return;
        };
        let bytes = self.answer_bytes + answer.len();
        if answers.waiting.len() >= limits::ANSWERS_MAX
            || (bytes > limits::ANSWERS_BYTES_MAX && self.answer_bytes > 0)
        {
            let text = "too many answers wait for credit";
            self.drop_link(to);
            let error = AmqpError::new(condition::RESOURCE_LIMIT_EXCEEDED, text);
            let _ = self.amqp.detach(to, true, Some(error));
            return;
        }
        answers.waiting.push_back(answer);
        self.answer_bytes = bytes;
        self.send_answers(to);
    }

    /// The client has told its credit on a link for answers.
    pub(crate) fn answers_flow(&mut self, flow: &LinkFlow) {
        if !matches!(self.links.get(&flow.link), Some(Link::Answers(_))) {
            return;
        }
        self.send_answers(flow.link);
        if flow.drain {
            let _ = self.amqp.drained(flow.link);
        }
    }

    fn send_answers(&mut self, link: LinkId) {
        let Some(Link::Answers(answers)) = self.links.get_mut(&link) else { return };
        while self.amqp.credit(link) > 0
            && let Some(payload) = answers.waiting.pop_front()
        {
            let key = self.next_key;
            self.next_key += 1;
            let tag = Bytes::copy_from_slice(&u128::from(key).to_be_bytes());
            let outgoing = Outgoing {
                key,
                tag,
                settled: true,
                payload: payload.clone(),
                ..Outgoing::default()
            };
            if let Err(error) = self.amqp.send(link, outgoing) {
                tracing::debug!(%error, "an answer waits");
                answers.waiting.push_front(payload);
                return;
            }
            self.answer_bytes -= payload.len();
        }
    }
}
