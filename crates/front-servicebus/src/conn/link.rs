//! What a link is.

use std::collections::VecDeque;

use bytes::Bytes;
use malote_model::Address;
use malote_wire_amqp::connection::LinkId;
use malote_wire_amqp::types::Value;
use tokio_util::sync::CancellationToken;

use super::receiver::Receiver;
use super::{Conn, Done};
use crate::ops::attach::Entity;

/// A link of a client.
pub(super) enum Link {
    /// What it wants is being looked for; it may wait for a session.
    Attaching(CancellationToken),
    /// The client sends messages.
    Sender(Sender),
    /// The client receives messages.
    Receiver(Box<Receiver>),
    /// The client receives from where nothing ever is.
    Nothing,
    /// The client declares and discharges transactions.
    Coordinator {
        /// Requests that are not answered yet.
        under_way: u32,
    },
    /// The client asks.
    Requests(Requests),
    /// The client is answered.
    Answers(Answers),
}

/// A link on which a client sends.
pub(super) struct Sender {
    pub to: Address,
    pub message_bytes_max: u64,
    /// Deliveries that are not answered yet.
    pub under_way: u32,
}

/// Whom requests are for.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Desk {
    Claims,
    Management(Entity),
}

/// A link on which a client asks.
pub(super) struct Requests {
    pub desk: Desk,
    pub under_way: u32,
}

/// A link on which a client is answered.
pub(super) struct Answers {
    pub desk: Desk,
    /// The client's name for it, which requests may say.
    pub address: Option<Value>,
    /// They wait for credit: a client may ask first and grant it later.
    pub waiting: VecDeque<Bytes>,
}

impl Conn {
    /// A link is gone, by whoever's wish: so is what it held.
    pub(super) fn drop_link(&mut self, id: LinkId) {
        self.held_up.remove(&id);
        self.claimed.remove(&id);
        match self.links.remove(&id) {
            Some(Link::Attaching(give_up)) => give_up.cancel(),
            Some(Link::Receiver(receiver)) => {
                let Receiver { consumer, queue, session, waiting, out, .. } = *receiver;
                self.consumers.remove(&consumer);
                // What never left was seen by nobody, as little as what waits.
                let unseen = out.into_iter().filter(|(key, _)| self.amqp.never_left(*key));
                let unseen: Vec<_> = unseen.map(|(_, lease)| lease).collect();
                self.give_back(unseen);
                let (front, engine) = (self.front.clone(), self.engine.clone());
                self.start(async move {
                    let _ = engine.detach(consumer).await;
                    Done::Nothing
                });
                self.give_back(waiting.iter().filter_map(|delivery| delivery.lease).collect());
                // Asked for now and not after the other's answer: who hears that the link is closed finds it free.
                if let Some(session) = session {
                    self.start(async move {
                        // With it come back the messages that are out. If it ran out, it is gone already.
                        let _ = front.engine.release_session(Some(&queue), session.hold).await;
                        Done::Nothing
                    });
                }
            }
            Some(
                Link::Sender(_)
                | Link::Nothing
                | Link::Coordinator { .. }
                | Link::Requests(_)
                | Link::Answers(_),
            )
            | None => {}
        }
    }

    /// All links that fit are gone.
    pub(super) fn drop_links(&mut self, gone: impl Fn(LinkId) -> bool) {
        let links: Vec<LinkId> = self.links.keys().copied().filter(|link| gone(*link)).collect();
        links.into_iter().for_each(|link| self.drop_link(link));
    }

    /// The peer is gone, and so many bytes of the last output with it that were not written. What it has seen stays with
    /// it, or is lost with the connection; what it has not comes back.
    pub fn ended(&mut self, unwritten_bytes: usize) {
        self.amqp.hang_up(unwritten_bytes);
        let mut unseen = Vec::new();
        for link in self.links.values_mut() {
            match link {
                Link::Attaching(give_up) => give_up.cancel(),
                Link::Receiver(receiver) => {
                    unseen.extend(receiver.waiting.drain(..).filter_map(|delivery| delivery.lease));
                    let out = receiver.out.drain();
                    unseen.extend(
                        out.filter(|(key, _)| self.amqp.never_left(*key)).map(|(_, lease)| lease),
                    );
                }
                Link::Sender(_)
                | Link::Nothing
                | Link::Coordinator { .. }
                | Link::Requests(_)
                | Link::Answers(_) => {}
            }
        }
        self.give_back(unseen);
    }

    /// All links are gone.
    pub fn drop_all(&mut self) {
        self.drop_links(|_| true);
    }
}
