//! What a link is.

use std::collections::VecDeque;

use bytes::Bytes;
use malote_model::Address;
use malote_wire_amqp::connection::LinkId;
use malote_wire_amqp::types::Value;
use tokio_util::sync::CancellationToken;

use super::{Conn, Done};
use crate::ops::browse::Browser;
use crate::ops::receive::Receiver;
use crate::ops::resolve::Entity;

/// A link of a client.
pub(crate) enum Link {
    /// What it wants is being looked for; it may wait for a session.
    Attaching(CancellationToken),
    /// The client sends messages.
    Sender(Sender),
    /// The client receives messages.
    Receiver(Box<Receiver>),
    /// The client looks at messages.
    Browser(Box<Browser>),
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
pub(crate) struct Sender {
    pub to: Address,
    pub message_bytes_max: u64,
    /// Deliveries that are not answered yet.
    pub under_way: u32,
}

/// Whom requests are for.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Desk {
    Claims,
    Management(Entity),
}

/// A link on which a client asks.
pub(crate) struct Requests {
    pub desk: Desk,
    pub under_way: u32,
}

/// A link on which a client is answered.
pub(crate) struct Answers {
    pub desk: Desk,
    /// The client's name for it, which requests may say.
    pub address: Option<Value>,
    /// They wait for credit: a client may ask first and grant it later.
    pub waiting: VecDeque<Bytes>,
}

impl Conn {
    /// A link is gone, by whoever's wish: so is what it held.
    pub(crate) fn drop_link(&mut self, id: LinkId) {
        self.held_up.remove(&id);
        self.claimed.remove(&id);
        match self.links.remove(&id) {
            Some(Link::Attaching(give_up)) => give_up.cancel(),
            Some(Link::Receiver(receiver)) => {
                let Receiver { consumer, queue, session, bound, waiting, out, .. } = *receiver;
                self.consumers.remove(&consumer);
                // What never left was seen by nobody, as little as what waits. What is bound to the link ends with it.
                let back = out.into_iter().filter(|(key, _)| bound || self.amqp.never_left(*key));
                let back: Vec<_> = back.map(|(_, lease)| lease).collect();
                self.give_back(back);
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
            Some(Link::Coordinator { .. }) => self.roll_back(Some(id)),
            Some(Link::Answers(answers)) => {
                self.answer_bytes -= answers.waiting.iter().map(Bytes::len).sum::<usize>();
            }
            Some(Link::Sender(_) | Link::Browser(_) | Link::Nothing | Link::Requests(_)) | None => {
            }
        }
        if let Some(queue) = self.temporary.remove(&id) {
            let engine = self.front.engine.clone();
            self.start(async move {
                // Gone already if somebody has deleted it.
                let _ = engine.delete(queue).await;
                Done::Nothing
            });
        }
    }

    /// All links that fit are gone.
    pub(crate) fn drop_links(&mut self, gone: impl Fn(LinkId) -> bool) {
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
                | Link::Browser(_)
                | Link::Nothing
                | Link::Coordinator { .. }
                | Link::Requests(_)
                | Link::Answers(_) => {}
            }
        }
        self.give_back(unseen);
        self.roll_back(None);
    }

    /// All links are gone.
    pub fn drop_all(&mut self) {
        self.drop_links(|_| true);
    }
}
