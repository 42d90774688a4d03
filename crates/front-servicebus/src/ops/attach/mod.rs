//! Attach: from a client's request to a link.
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

use crate::conn::link::{LinkState, ReplyLink, RequestLink, RequestNode, SenderLink};
use crate::conn::{Completion, Conn};
use crate::limits;
use crate::ops::browse::BrowserLink;
use crate::ops::receive::ReceiverLink;

pub(crate) use link::ResolvedLink;
use link::attach;
use reply::granted;
pub(crate) use reply::offered;
use request::AttachRequest;

impl Conn {
    pub(crate) fn attach(&mut self, link: LinkId, wanted: Box<Attach>) {
        let give_up = CancellationToken::new();
        self.links.insert(link, LinkState::Attaching(give_up.clone()));
        let (front, engine) = (self.front.clone(), self.engine.clone());
        let (claims, host) = (self.claims.clone(), self.host.clone());
        let request = match AttachRequest::of(&wanted) {
            Ok(request)
                if request.is_temporary()
                    && self.temporary_queues.len() >= limits::TEMPORARY_MAX =>
            {
                self.links.remove(&link);
                let text = "too many temporary queues on this connection";
                let error = AmqpError::new(condition::RESOURCE_LIMIT_EXCEEDED, text);
                let _ = self.amqp.refuse(link, error);
                return;
            }
            Ok(request) => request,
            Err(error) => {
                self.links.remove(&link);
                let _ = self.amqp.refuse(link, error);
                return;
            }
        };
        self.start(async move {
            let resolved = attach(&front, &engine, &claims, &host, request, give_up).await;
            Completion::Attached { link, wanted, resolved }
        });
    }

    pub(crate) fn finish_attach(
        &mut self,
        link: LinkId,
        wanted: &Attach,
        resolved: Option<Result<ResolvedLink, AmqpError>>,
    ) {
        let waits = matches!(self.links.get(&link), Some(LinkState::Attaching(_)));
        let resolved = match resolved {
            Some(Ok(resolved)) => resolved,
            Some(Err(error)) => {
                self.links.remove(&link);
                let _ = self.amqp.refuse(link, error);
                return;
            }
            // Cancelled: the peer has detached, or the process is stopping.
            None => {
                self.links.remove(&link);
                return;
            }
        };
        // Like the service, a connection has one pair of links to `$cbs`. A client that finds a stale one reconnects.
        if self.is_taken(&resolved) {
            self.links.remove(&link);
            let text = "Only one link to $cbs of each kind is allowed on a connection.";
            let _ = self.amqp.refuse(link, AmqpError::new(condition::NOT_ALLOWED, text));
            return;
        }
        let claim = AttachRequest::of(wanted).ok().and_then(|request| request.claim(&resolved));
        let answer = granted(wanted, &resolved);
        let resolved = match resolved {
            ResolvedLink::Temporary { queue, resolved } => {
                self.temporary_queues.insert(link, queue);
                *resolved
            }
            resolved => resolved,
        };
        let state = match resolved {
            ResolvedLink::Sender { to, message_bytes_max } => {
                LinkState::Sender(SenderLink { to, message_bytes_max, in_progress: 0 })
            }
            ResolvedLink::Receiver {
                consumer,
                queue,
                ttl_ms,
                receive_and_delete,
                session,
                release_on_detach,
                ..
            } => {
                self.consumers.insert(consumer, link);
                let name = wanted.name.clone();
                let mut receiver =
                    ReceiverLink::new(name, consumer, queue, ttl_ms, receive_and_delete, session);
                receiver.release_on_detach = release_on_detach;
                LinkState::Receiver(Box::new(receiver))
            }
            ResolvedLink::Browser { queue, ttl_ms, session, filter } => {
                LinkState::Browser(Box::new(BrowserLink::new(queue, ttl_ms, session, filter)))
            }
            ResolvedLink::Temporary { .. } => unreachable!("temporary links are not nested"),
            ResolvedLink::Empty(_) => LinkState::Empty,
            ResolvedLink::Coordinator => LinkState::Coordinator { in_progress: 0 },
            ResolvedLink::CbsRequests => {
                LinkState::Requests(RequestLink { node: RequestNode::Cbs, in_progress: 0 })
            }
            ResolvedLink::ManagementRequests(entity) => LinkState::Requests(RequestLink {
                node: RequestNode::Management(entity),
                in_progress: 0,
            }),
            ResolvedLink::CbsReplies => LinkState::Replies(reply_link(RequestNode::Cbs, wanted)),
            ResolvedLink::ManagementReplies(entity) => {
                LinkState::Replies(reply_link(RequestNode::Management(entity), wanted))
            }
        };
        let credit = match &state {
            LinkState::Sender(_) => Some(limits::SEND_CREDIT),
            LinkState::Requests(_) | LinkState::Coordinator { .. } => Some(limits::REQUEST_CREDIT),
            LinkState::Attaching(_)
            | LinkState::Receiver(_)
            | LinkState::Browser(_)
            | LinkState::Empty
            | LinkState::Replies(_) => None,
        };
        self.links.insert(link, state);
        // The permission may have been revoked while the attach waited for a session.
        let denied = claim.as_ref().and_then(|(actions, entity)| {
            self.claims.check_any(&self.front, actions, entity).err()
        });
        if let Some(error) = denied {
            self.drop_link(link);
            let _ = self.amqp.refuse(link, error);
            return;
        }
        self.required_permissions.extend(claim.map(|claim| (link, claim)));
        if !waits || self.amqp.accept(link, answer).is_err() {
            // The client has detached in the meantime.
            self.drop_link(link);
            return;
        }
        if let Some(credit) = credit {
            let _ = self.amqp.grant(link, credit);
        }
        self.transmit(link);
        self.browse(link);
    }

    fn is_taken(&self, resolved: &ResolvedLink) -> bool {
        self.links.values().any(|link| match (resolved, link) {
            (ResolvedLink::CbsRequests, LinkState::Requests(requests)) => {
                requests.node == RequestNode::Cbs
            }
            (ResolvedLink::CbsReplies, LinkState::Replies(replies)) => {
                replies.node == RequestNode::Cbs
            }
            _ => false,
        })
    }
}

fn reply_link(node: RequestNode, wanted: &Attach) -> ReplyLink {
    let address = match &wanted.target {
        Some(AnyTarget::Target(target)) => target.address.clone(),
        _ => None,
    };
    ReplyLink { node, address, waiting: Default::default() }
}
