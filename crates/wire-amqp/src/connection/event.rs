//! Events for the owner of a connection.

use std::hash::{Hash, Hasher};

use bytes::Bytes;

use crate::performative::{
    AmqpError, Attach, Begin, DeliveryState, Open, SaslChallenge, SaslInit, SaslMechanisms,
    SaslOutcome, SaslResponse,
};
use crate::types::Map;

/// Identifies a session; never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SessionId {
    pub(super) channel: u16,
    pub(super) serial: u32,
}

/// Identifies a link; never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkId {
    pub(super) session: SessionId,
    pub(super) handle: u32,
    pub(super) serial: u32,
}

/// The serial is sufficient. Every message on the link needs the hash.
impl Hash for LinkId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u32(self.serial);
    }
}

impl LinkId {
    pub fn session(self) -> SessionId {
        self.session
    }
}

/// The number of a delivery in its session and direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeliveryId(pub u32);

/// An event. The owner replies to `SaslInit`, `Open`, `Attach`, `Detach`, `End` and `Close` with the method of that
/// name. The others need no reply.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// For a client: choose a mechanism with [`super::Connection::sasl_init`].
    SaslMechanisms(SaslMechanisms),
    /// For a server: reply with [`super::Connection::sasl_challenge`] or [`super::Connection::sasl_outcome`].
    SaslInit(SaslInit),
    /// For a client: reply with [`super::Connection::sasl_response`].
    SaslChallenge(SaslChallenge),
    /// For a server, as after [`Event::SaslInit`].
    SaslResponse(SaslResponse),
    /// For a client: the result. On success, call [`super::Connection::open`] next.
    SaslOutcome(SaslOutcome),
    /// The peer has opened. Unless we have, nothing proceeds before [`super::Connection::open`] or `close`.
    Open(Box<Open>),
    /// A session has begun: the peer's, or ours was confirmed. Needs no reply.
    Begun { session: SessionId, begin: Box<Begin> },
    /// The peer attaches a link. Reply with `accept` or `refuse` at any time; everything else proceeds meanwhile.
    Attach { link: LinkId, attach: Box<Attach> },
    /// Our attach was answered. A null source or target announces a refusal; the detach follows.
    Attached { link: LinkId, attach: Box<Attach> },
    /// The peer updated the credit of a link.
    Flow(LinkFlow),
    /// Transfers were waiting for the peer's window; none are any more.
    Unblocked { session: SessionId },
    /// A complete message.
    Delivery(Incoming),
    /// The peer reports the state of a delivery.
    Disposition(Disposed),
    /// The peer detaches. Reply with `detach`; deliveries of the link are already void.
    Detach {
        link: LinkId,
        /// Closed for good.
        closed: bool,
        error: Option<AmqpError>,
    },
    /// The peer confirmed our detach; the link is gone.
    Detached { link: LinkId, error: Option<AmqpError> },
    /// The peer violated the protocol on a link, which was detached. Needs no reply.
    LinkFailed {
        link: LinkId,
        /// The error sent to the peer.
        error: AmqpError,
    },
    /// The peer ends a session. Reply with `end`; its links are already gone.
    End { session: SessionId, error: Option<AmqpError> },
    /// The peer confirmed our end; the session is gone.
    Ended { session: SessionId, error: Option<AmqpError> },
    /// The peer violated the protocol in a session, which was ended with its links. Needs no reply.
    SessionFailed {
        session: SessionId,
        /// The error sent to the peer.
        error: AmqpError,
    },
    /// The peer closes. Reply with `close`; everything is already gone.
    Close { error: Option<AmqpError> },
    /// The peer confirmed our close.
    Closed { error: Option<AmqpError> },
    /// The peer violated the protocol, or timed out. Write the remaining output, then close the transport.
    Failed(AmqpError),
}

/// The credit of a link after a flow.
#[derive(Debug, Clone, PartialEq)]
pub struct LinkFlow {
    pub link: LinkId,
    /// Deliveries that may be sent, or may still arrive.
    pub credit: u32,
    /// For a sender: send what is available, then call [`super::Connection::drained`] immediately. For a receiver: with
    /// credit 0, a drain has ended.
    pub drain: bool,
    /// For a receiver: how many more messages the sender has.
    pub available: u32,
    pub properties: Option<Map>,
}

/// A received message.
#[derive(Debug, Clone, PartialEq)]
pub struct Incoming {
    pub link: LinkId,
    /// The number for [`super::Connection::dispose`].
    pub delivery: DeliveryId,
    /// The sender's tag.
    pub tag: Bytes,
    /// The format of the payload.
    pub message_format: u32,
    /// Whether the sender expects no outcome.
    pub settled: bool,
    /// Usually a transaction.
    pub state: Option<DeliveryState>,
    /// The message. It shares memory with other received bytes; copy it if it is kept for long.
    pub payload: Bytes,
}

/// The reported state of one delivery.
#[derive(Debug, Clone, PartialEq)]
pub struct Disposed {
    pub link: LinkId,
    /// The number for [`super::Connection::dispose`].
    pub delivery: DeliveryId,
    /// The owner's key of an outgoing delivery; zero for incoming ones.
    pub key: u64,
    /// Whether the peer has settled it. If not, it waits for our `dispose`.
    pub settled: bool,
    pub state: Option<DeliveryState>,
}
