//! State of the links of a connection.

use std::collections::VecDeque;

use bytes::Bytes;
use malote_model::Address;
use malote_wire_amqp::connection::LinkId;
use malote_wire_amqp::types::Value;
use tokio_util::sync::CancellationToken;

use super::{Completion, Conn};
use crate::ops::browse::BrowserLink;
use crate::ops::receive::ReceiverLink;
use crate::ops::resolve::Entity;

pub(crate) enum LinkState {
    /// The attach is being resolved; it may wait for a session. The token cancels it.
    Attaching(CancellationToken),
    Sender(SenderLink),
    Receiver(Box<ReceiverLink>),
    /// The client browses messages without removing them.
    Browser(Box<BrowserLink>),
    /// The client receives from a node that is always empty.
    Empty,
    /// The client declares and discharges transactions.
    Coordinator {
        /// Requests without a reply.
        in_progress: u32,
    },
    /// The client sends requests to `$cbs` or `$management`.
    Requests(RequestLink),
    /// The client receives replies from `$cbs` or `$management`.
    Replies(ReplyLink),
}

pub(crate) struct SenderLink {
    pub to: Address,
    pub message_bytes_max: u64,
    /// Deliveries without an outcome.
    pub in_progress: u32,
}

/// The node that handles requests.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum RequestNode {
    Cbs,
    Management(Entity),
}

pub(crate) struct RequestLink {
    pub node: RequestNode,
    pub in_progress: u32,
}

pub(crate) struct ReplyLink {
    pub node: RequestNode,
    /// The client's address for the link; requests may name it as `reply-to`.
    pub address: Option<Value>,
    /// Replies waiting for credit. A client may send requests before it grants credit.
    pub waiting: VecDeque<Bytes>,
}

impl Conn {
    /// Removes a link and releases what it holds.
    pub(crate) fn drop_link(&mut self, id: LinkId) {
        self.blocked_links.remove(&id);
        self.required_permissions.remove(&id);
        match self.links.remove(&id) {
            Some(LinkState::Attaching(give_up)) => give_up.cancel(),
            Some(LinkState::Receiver(receiver)) => {
                let ReceiverLink {
                    consumer, queue, session, release_on_detach, waiting, out, ..
                } = *receiver;
                self.consumers.remove(&consumer);
                // Deliveries that were never written were not seen by the client. With `release_on_detach`, written
                // ones are released too.
                let back = out
                    .into_iter()
                    .filter(|(key, _)| release_on_detach || self.amqp.was_never_sent(*key));
                let back: Vec<_> = back.map(|(_, lease)| lease).collect();
                self.release_leases(back);
                let (front, engine) = (self.front.clone(), self.engine.clone());
                self.start(async move {
                    let _ = engine.detach(consumer).await;
                    Completion::Ignored
                });
                self.release_leases(waiting.iter().filter_map(|delivery| delivery.lease).collect());
                // Started now, without waiting for the detach: a client that sees the link closed can accept the
                // session again.
                if let Some(session) = session {
                    self.start(async move {
                        // Unsettled messages return with the session. The call fails harmlessly if the session lock has
                        // expired.
                        let _ = front.engine.release_session(Some(&queue), session.hold).await;
                        Completion::Ignored
                    });
                }
            }
            Some(LinkState::Coordinator { .. }) => self.roll_back(Some(id)),
            Some(LinkState::Replies(replies)) => {
                self.reply_bytes -= replies.waiting.iter().map(Bytes::len).sum::<usize>();
            }
            Some(
                LinkState::Sender(_)
                | LinkState::Browser(_)
                | LinkState::Empty
                | LinkState::Requests(_),
            )
            | None => {}
        }
        if let Some(queue) = self.temporary_queues.remove(&id) {
            let engine = self.front.engine.clone();
            self.start(async move {
                // Fails harmlessly if the queue was already deleted.
                let _ = engine.delete(queue).await;
                Completion::Ignored
            });
        }
    }

    /// Removes all links for which `gone` is true.
    pub(crate) fn drop_links(&mut self, gone: impl Fn(LinkId) -> bool) {
        let links: Vec<LinkId> = self.links.keys().copied().filter(|link| gone(*link)).collect();
        links.into_iter().for_each(|link| self.drop_link(link));
    }

    /// The connection was lost; `unwritten_bytes` of the last output were not written. Deliveries that the client has
    /// not seen are released. The others stay locked, or fail with the connection.
    pub fn release_after_loss(&mut self, unwritten_bytes: usize) {
        self.amqp.disconnected(unwritten_bytes);
        let mut unseen = Vec::new();
        for link in self.links.values_mut() {
            match link {
                LinkState::Attaching(give_up) => give_up.cancel(),
                LinkState::Receiver(receiver) => {
                    unseen.extend(receiver.waiting.drain(..).filter_map(|delivery| delivery.lease));
                    let out = receiver.out.drain();
                    unseen.extend(
                        out.filter(|(key, _)| self.amqp.was_never_sent(*key))
                            .map(|(_, lease)| lease),
                    );
                }
                LinkState::Sender(_)
                | LinkState::Browser(_)
                | LinkState::Empty
                | LinkState::Coordinator { .. }
                | LinkState::Requests(_)
                | LinkState::Replies(_) => {}
            }
        }
        self.release_leases(unseen);
        self.roll_back(None);
    }

    pub fn drop_all(&mut self) {
        self.drop_links(|_| true);
    }
}
