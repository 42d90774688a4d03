//! Attach: from the request of a client to a link.
//!
//! | file | step |
//! |---|---|
//! | `request.rs` | parses the attach |
//! | `link.rs` | finds the entity, checks the permission, starts the consumer |
//! | `temporary.rs` | creates temporary queues and subscriptions |
//! | `reply.rs` | builds the attach that is sent back |

mod link;
mod reply;
mod request;
mod temporary;

use malote_wire_amqp::connection::LinkId;
use malote_wire_amqp::performative::{AmqpError, AnyTarget, Attach, condition};
use tokio_util::sync::CancellationToken;

use crate::conn::link::{Answers, Desk, Link, Requests, Sender};
use crate::conn::{Conn, Done};
use crate::limits;
use crate::ops::browse::Browser;
use crate::ops::receive::Receiver;

pub(crate) use link::Found;
use link::attach;
use reply::granted;
pub(crate) use reply::offered;
use request::Wish;

impl Conn {
    pub(crate) fn attach(&mut self, link: LinkId, wanted: Box<Attach>) {
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

    pub(crate) fn attached(
        &mut self,
        link: LinkId,
        wanted: &Attach,
        found: Option<Result<Found, AmqpError>>,
    ) {
        let waits = matches!(self.links.get(&link), Some(Link::Attaching(_)));
        let found = match found {
            Some(Ok(found)) => found,
            Some(Err(error)) => {
                self.links.remove(&link);
                let _ = self.amqp.refuse(link, error);
                return;
            }
            // Given up: the peer has detached, or the process is stopping.
            None => {
                self.links.remove(&link);
                return;
            }
        };
        // One pair of links to `$cbs` on a connection, as in the service: who finds it taken, by a link that was not
        // closed, connects anew.
        if self.is_taken(&found) {
            self.links.remove(&link);
            let text = "Only one link to $cbs of each kind is allowed on a connection.";
            let _ = self.amqp.refuse(link, AmqpError::new(condition::NOT_ALLOWED, text));
            return;
        }
        let claim = Wish::of(wanted).ok().and_then(|wish| wish.claim(&found));
        let answer = granted(wanted, &found);
        let found = match found {
            Found::Temporary { queue, found } => {
                self.temporary.insert(link, queue);
                *found
            }
            found => found,
        };
        let state = match found {
            Found::Sender { to, message_bytes_max } => {
                Link::Sender(Sender { to, message_bytes_max, under_way: 0 })
            }
            Found::Receiver { consumer, queue, ttl_ms, take, session, bound, .. } => {
                self.consumers.insert(consumer, link);
                let name = wanted.name.clone();
                let mut receiver = Receiver::new(name, consumer, queue, ttl_ms, take, session);
                receiver.bound = bound;
                Link::Receiver(Box::new(receiver))
            }
            Found::Browser { queue, ttl_ms, session, filter } => {
                Link::Browser(Box::new(Browser::new(queue, ttl_ms, session, filter)))
            }
            Found::Temporary { .. } => unreachable!("a temporary queue holds no other"),
            Found::Nothing(_) => Link::Nothing,
            Found::Coordinator => Link::Coordinator { under_way: 0 },
            Found::ClaimsRequests => Link::Requests(Requests { desk: Desk::Claims, under_way: 0 }),
            Found::Requests(entity) => {
                Link::Requests(Requests { desk: Desk::Management(entity), under_way: 0 })
            }
            Found::ClaimsAnswers => Link::Answers(answers(Desk::Claims, wanted)),
            Found::Answers(entity) => Link::Answers(answers(Desk::Management(entity), wanted)),
        };
        let credit = match &state {
            Link::Sender(_) => Some(limits::SEND_CREDIT),
            Link::Requests(_) | Link::Coordinator { .. } => Some(limits::REQUEST_CREDIT),
            Link::Attaching(_)
            | Link::Receiver(_)
            | Link::Browser(_)
            | Link::Nothing
            | Link::Answers(_) => None,
        };
        self.links.insert(link, state);
        // A wait for a session may have outlived the permission for it.
        let denied = claim.as_ref().and_then(|(actions, entity)| {
            self.claims.check_any(&self.front, actions, entity).err()
        });
        if let Some(error) = denied {
            self.drop_link(link);
            let _ = self.amqp.refuse(link, error);
            return;
        }
        self.claimed.extend(claim.map(|claim| (link, claim)));
        if !waits || self.amqp.accept(link, answer).is_err() {
            // It was detached meanwhile: what was found for it goes back.
            self.drop_link(link);
            return;
        }
        if let Some(credit) = credit {
            let _ = self.amqp.grant(link, credit);
        }
        self.transmit(link);
        self.browse(link);
    }

    fn is_taken(&self, found: &Found) -> bool {
        self.links.values().any(|link| match (found, link) {
            (Found::ClaimsRequests, Link::Requests(requests)) => requests.desk == Desk::Claims,
            (Found::ClaimsAnswers, Link::Answers(answers)) => answers.desk == Desk::Claims,
            _ => false,
        })
    }
}

fn answers(desk: Desk, wanted: &Attach) -> Answers {
    let address = match &wanted.target {
        Some(AnyTarget::Target(target)) => target.address.clone(),
        _ => None,
    };
    Answers { desk, address, waiting: Default::default() }
}
