//! What handles ask of the connection's task.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use malote_wire_amqp::connection::{DeliveryId, Incoming, LinkId, SessionId};
use malote_wire_amqp::message::Message as Wire;
use malote_wire_amqp::performative::{Attach, DeliveryState};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

use super::super::error::{Error, Result};

/// Why a link or a connection is over; empty while it is not.
pub(in super::super) type Why = Arc<OnceLock<Error>>;

/// Where an answer goes. Whoever asked may be gone.
pub(in super::super) type Reply<T> = oneshot::Sender<T>;

/// What a link is for.
pub(in super::super) enum Wanted {
    /// Messages go out.
    Sender,
    /// Messages come in, to here. Never more credit is given than there is room.
    Receiver(mpsc::Sender<Incoming>),
    /// Answers come in.
    Answers,
}

/// A link that is attached.
pub(in super::super) struct Opened {
    pub link: LinkId,
    /// As the server has it.
    pub attach: Box<Attach>,
    pub why: Why,
}

/// A message that goes out.
pub(in super::super) struct Sending {
    pub link: LinkId,
    pub message_format: u32,
    pub payload: Bytes,
    pub reply: Reply<Result<()>>,
    /// Room for its bytes, given back with the outcome.
    pub permit: Option<OwnedSemaphorePermit>,
}

/// Deliveries that are settled with the same outcome.
pub(in super::super) struct Settling {
    pub link: LinkId,
    pub deliveries: Vec<DeliveryId>,
    pub state: DeliveryState,
    /// Nothing is heard of it again: receivers of brokers that know no second step.
    pub forget: bool,
    pub reply: Reply<Vec<Result<()>>>,
}

/// A question to a desk.
pub(in super::super) struct Asking {
    pub requests: LinkId,
    pub answers: LinkId,
    /// Its message-id.
    pub id: u64,
    pub payload: Bytes,
    pub reply: Reply<Result<Wire>>,
}

/// What is asked.
pub(in super::super) enum Command {
    /// A link. Without a session it gets one of its own.
    Attach {
        session: Option<SessionId>,
        attach: Box<Attach>,
        wanted: Wanted,
        reply: Reply<Result<Opened>>,
    },
    Send(Sending),
    /// So many more messages may come.
    Credit {
        link: LinkId,
        more: u32,
    },
    /// Credit is used up; answered when it is.
    Drain {
        link: LinkId,
        reply: Reply<()>,
    },
    Settle(Settling),
    Ask(Asking),
    Detach {
        gone: Gone,
        reply: Reply<()>,
    },
    Close {
        reply: Reply<()>,
    },
}

/// A handle was dropped: so is its link. What came and was not looked at goes back.
pub(in super::super) struct Gone {
    pub link: LinkId,
    pub unseen: Vec<DeliveryId>,
}
