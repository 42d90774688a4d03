//! Requests to `$cbs` and `$management`, and their replies.

use bytes::Bytes;
use malote_model::{LeaseToken, QueueName, SessionId};
use malote_wire_amqp::connection::{DeliveryId, Incoming, LinkFlow, LinkId, Outgoing, UseError};
use malote_wire_amqp::message::{Message, Properties};
use malote_wire_amqp::performative::{AmqpError, DeliveryState, condition};
use malote_wire_amqp::types::Value;

use crate::conn::link::{LinkState, RequestNode};
use crate::conn::{Completion, Conn};
use crate::limits;
use crate::ops::cbs;
use crate::ops::management::{self, ManagementRequest, SessionRef};
use crate::refusal::servicebus;

impl Conn {
    pub(crate) fn handle_request(&mut self, incoming: Incoming) -> Result<(), UseError> {
        let Incoming { link, delivery, settled, payload, .. } = incoming;
        let Some(LinkState::Requests(requests)) = self.links.get(&link) else { return Ok(()) };
        let node = requests.node.clone();
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
        let to = self.reply_link_for(link, &node, &properties);
        match node {
            RequestNode::Cbs => {
                let host = self.host.clone();
                let put = cbs::put_token(&self.front, &mut self.claims, &message);
                self.update_authentication();
                let (front, claims) = (self.front.clone(), self.claims.clone());
                self.start(async move {
                    let answer = cbs::answer(&front, &claims, &host, put).await;
                    Completion::Reply { link, delivery, settled, to, peek: false, answer }
                });
            }
            RequestNode::Management(entity) => {
                let request = match ManagementRequest::read(&message, properties, entity) {
                    Ok(request) => request,
                    Err(error) => {
                        let state = DeliveryState::rejected(error.into());
                        self.amqp.dispose(link, delivery, true, Some(state))?;
                        return Ok(());
                    }
                };
                let peek = request.is_peek();
                if peek && self.peeks >= limits::PEEKS_MAX {
                    let text = "too many concurrent peeks on this connection; retry later";
                    let error = AmqpError::new(servicebus::SERVER_BUSY, text);
                    let answer = management::refuse(request, error);
                    self.finish_request(link, delivery, settled, to, answer);
                    return Ok(());
                }
                self.peeks += u32::from(peek);
                let lock = request
                    .session_ref()
                    .and_then(|(queue, session_ref)| self.session_lock(queue, &session_ref));
                let (front, engine) = (self.front.clone(), self.engine.clone());
                let claims = self.claims.clone();
                self.start(async move {
                    let answer = management::answer(&front, &engine, &claims, lock, request).await;
                    Completion::Reply { link, delivery, settled, to, peek, answer }
                });
            }
        }
        Ok(())
    }

    /// The session lock that a request refers to, if a link of this connection holds it.
    fn session_lock(
        &self,
        queue: &QueueName,
        session_ref: &SessionRef<'_>,
    ) -> Option<(SessionId, LeaseToken)> {
        self.links.values().find_map(|link| match link {
            LinkState::Receiver(receiver) if receiver.queue == *queue => {
                let lock = receiver.session.as_ref().filter(|lock| match session_ref {
                    SessionRef::Session(id) => lock.session == *id,
                    SessionRef::Link(name) => receiver.name.as_str() == *name,
                });
                lock.map(|lock| (lock.session.clone(), lock.hold))
            }
            _ => None,
        })
    }

    /// The link for replies: a reply link to the same node, preferably of the same session. Its address is only a hint:
    /// some clients give none, and name the link in the request.
    fn reply_link_for(
        &self,
        link: LinkId,
        node: &RequestNode,
        properties: &Properties,
    ) -> Option<LinkId> {
        let named = |address: &Option<Value>| {
            let reply_to = properties.reply_to.as_deref();
            reply_to.is_some() && address.as_ref().and_then(Value::as_str) == reply_to
        };
        let fits = |(id, other): (&LinkId, &LinkState)| match other {
            LinkState::Replies(replies) if replies.node == *node => {
                Some((id.session() == link.session(), named(&replies.address), *id))
            }
            _ => None,
        };
        let found =
            self.links.iter().filter_map(fits).max_by_key(|(same, named, _)| (*same, *named));
        found.map(|(_, _, id)| id)
    }

    pub(crate) fn finish_request(
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
        if let Some(LinkState::Requests(requests)) = self.links.get_mut(&link) {
            requests.in_progress = requests.in_progress.saturating_sub(1);
            let in_progress = requests.in_progress;
            self.grant_again(link, in_progress, limits::REQUEST_CREDIT);
        }
        let Some((to, LinkState::Replies(replies))) =
            to.and_then(|to| Some((to, self.links.get_mut(&to)?)))
        else {
            return;
        };
        let bytes = self.reply_bytes + answer.len();
        if replies.waiting.len() >= limits::REPLIES_MAX
            || (bytes > limits::REPLIES_BYTES_MAX && self.reply_bytes > 0)
        {
            let text = "too many replies are waiting for link credit";
            self.drop_link(to);
            let error = AmqpError::new(condition::RESOURCE_LIMIT_EXCEEDED, text);
            let _ = self.amqp.detach(to, true, Some(error));
            return;
        }
        replies.waiting.push_back(answer);
        self.reply_bytes = bytes;
        self.send_replies(to);
    }

    /// Handles a flow of the client on a reply link.
    pub(crate) fn reply_flow(&mut self, flow: &LinkFlow) {
        if !matches!(self.links.get(&flow.link), Some(LinkState::Replies(_))) {
            return;
        }
        self.send_replies(flow.link);
        if flow.drain {
            let _ = self.amqp.drained(flow.link);
        }
    }

    fn send_replies(&mut self, link: LinkId) {
        let Some(LinkState::Replies(replies)) = self.links.get_mut(&link) else { return };
        while self.amqp.credit(link) > 0
            && let Some(payload) = replies.waiting.pop_front()
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
                tracing::debug!(%error, "reply delayed");
                replies.waiting.push_front(payload);
                return;
            }
            self.reply_bytes -= payload.len();
        }
    }
}
