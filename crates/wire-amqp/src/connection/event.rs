//! What the owner of a connection hears of.

use std::hash::{Hash, Hasher};

use bytes::Bytes;

use crate::performative::{
    AmqpError, Attach, Begin, DeliveryState, Open, SaslChallenge, SaslInit, SaslMechanisms,
    SaslOutcome, SaslResponse,
};
use crate::types::Map;

/// A session of a connection. Never used again for another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SessionId {
    pub(super) channel: u16,
    pub(super) serial: u32,
}

/// A link of a connection. Never used again for another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkId {
    pub(super) session: SessionId,
    pub(super) handle: u32,
    pub(super) serial: u32,
}

/// Its serial alone tells it from others; every message that goes over it asks for it.
impl Hash for LinkId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u32(self.serial);
    }
}

impl LinkId {
    /// The session it belongs to.
    pub fn session(self) -> SessionId {
        self.session
    }
}

/// A delivery's number in its session and direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeliveryId(pub u32);

/// What has happened. What the peer asks for (`SaslInit`, `Open`, `Attach`, `Detach`, `End`, `Close`) is answered by the
/// owner, with the method of that name; the rest is news.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// To a client: choose one with [`super::Connection::sasl_init`].
    SaslMechanisms(SaslMechanisms),
    /// To a server: answer with [`super::Connection::sasl_challenge`] or [`super::Connection::sasl_outcome`].
    SaslInit(SaslInit),
    /// To a client: answer with [`super::Connection::sasl_response`].
    SaslChallenge(SaslChallenge),
    /// To a server, as after [`Event::SaslInit`].
    SaslResponse(SaslResponse),
    /// To a client: how it ended. When well, [`super::Connection::open`] comes next.
    SaslOutcome(SaslOutcome),
    /// The peer has opened. Unless we have, nothing goes on before [`super::Connection::open`] or `close`.
    Open(Box<Open>),
    /// A session has begun: the peer's, or ours was answered. There is nothing to answer.
    Begun {
        /// The session.
        session: SessionId,
        /// As the peer began it.
        begin: Box<Begin>,
    },
    /// The peer attaches a link. Answer with `accept` or `refuse`, at any time; all else goes on meanwhile.
    Attach {
        /// The link to be.
        link: LinkId,
        /// As the peer wants it.
        attach: Box<Attach>,
    },
    /// Our attach was answered. A null source or target announces a refusal: the detach comes next.
    Attached {
        /// The link.
        link: LinkId,
        /// As the peer has it.
        attach: Box<Attach>,
    },
    /// The credit of a link was told by the peer.
    Flow(LinkFlow),
    /// Transfers had to wait for the peer's window; none do now.
    Unblocked {
        /// The session.
        session: SessionId,
    },
    /// A message, whole.
    Delivery(Incoming),
    /// The peer tells what has become of a delivery.
    Disposition(Disposed),
    /// The peer detaches. Answer with `detach`; deliveries of the link are void already.
    Detach {
        /// The link.
        link: LinkId,
        /// For good.
        closed: bool,
        /// Why, if not by wish.
        error: Option<AmqpError>,
    },
    /// The peer has answered our detach; the link is no more.
    Detached {
        /// The link.
        link: LinkId,
        /// What the peer has to say to it.
        error: Option<AmqpError>,
    },
    /// The peer broke a rule of the link, which we have detached for it. Nothing to answer.
    LinkFailed {
        /// The link.
        link: LinkId,
        /// What the peer was told.
        error: AmqpError,
    },
    /// The peer ends a session. Answer with `end`; its links are gone already.
    End {
        /// The session.
        session: SessionId,
        /// Why, if not by wish.
        error: Option<AmqpError>,
    },
    /// The peer has answered our end; the session is no more.
    Ended {
        /// The session.
        session: SessionId,
        /// What the peer has to say to it.
        error: Option<AmqpError>,
    },
    /// The peer broke a rule of the session, which we have ended for it. Its links are gone; nothing to answer.
    SessionFailed {
        /// The session.
        session: SessionId,
        /// What the peer was told.
        error: AmqpError,
    },
    /// The peer closes. Answer with `close`; everything is gone already.
    Close {
        /// Why, if not by wish.
        error: Option<AmqpError>,
    },
    /// The peer has answered our close.
    Closed {
        /// What the peer has to say to it.
        error: Option<AmqpError>,
    },
    /// The peer broke a rule of the connection, or fell silent. Write what there is to write, and hang up.
    Failed(AmqpError),
}

/// A link's credit, as the peer sees it now.
#[derive(Debug, Clone, PartialEq)]
pub struct LinkFlow {
    /// The link.
    pub link: LinkId,
    /// Deliveries that may be sent, or may still come.
    pub credit: u32,
    /// To a sender: send what there is and then call [`super::Connection::drained`], at once. To a receiver: a drain
    /// has ended, as credit 0 says.
    pub drain: bool,
    /// To a receiver: how many more the sender has.
    pub available: u32,
    /// Facts about the link.
    pub properties: Option<Map>,
}

/// A message that has come.
#[derive(Debug, Clone, PartialEq)]
pub struct Incoming {
    /// The link.
    pub link: LinkId,
    /// The number for [`super::Connection::dispose`].
    pub delivery: DeliveryId,
    /// The sender's name for it.
    pub tag: Bytes,
    /// What the payload is.
    pub message_format: u32,
    /// Whether the sender wants to hear nothing of it.
    pub settled: bool,
    /// A transaction, mostly.
    pub state: Option<DeliveryState>,
    /// The message. It shares the bytes that were read with its neighbours: what is kept for long is better copied.
    pub payload: Bytes,
}

/// What has become of one delivery.
#[derive(Debug, Clone, PartialEq)]
pub struct Disposed {
    /// The link.
    pub link: LinkId,
    /// The number for [`super::Connection::dispose`].
    pub delivery: DeliveryId,
    /// What the owner called it when it was sent; zero if it was not.
    pub key: u64,
    /// Whether the peer has forgotten it. If not, it waits for our `dispose`.
    pub settled: bool,
    /// What the peer says of it.
    pub state: Option<DeliveryState>,
}
