//! Commands of handles to the driver.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use malote_wire_amqp::connection::{DeliveryId, Incoming, LinkId, SessionId};
use malote_wire_amqp::message::Message as Wire;
use malote_wire_amqp::performative::{Attach, DeliveryState};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

use super::super::error::{Error, Result};

/// Why a link or a connection ended; empty while it is open.
pub(in super::super) type EndReason = Arc<OnceLock<Error>>;

/// The sender of a reply. The receiver may be gone.
pub(in super::super) type Reply<T> = oneshot::Sender<T>;

/// The use of a link.
pub(in super::super) enum LinkPurpose {
    Sender,
    /// Receives messages into this channel. Credit never exceeds the room in it.
    Receiver(mpsc::Sender<Incoming>),
    /// Receives the responses of a node.
    Responses,
}

/// An attached link.
pub(in super::super) struct AttachedLink {
    pub link: LinkId,
    /// The server's attach frame.
    pub attach: Box<Attach>,
    pub end_reason: EndReason,
}

/// A message to send.
pub(in super::super) struct SendMessage {
    pub link: LinkId,
    pub message_format: u32,
    pub payload: Bytes,
    pub reply: Reply<Result<()>>,
    /// Permits for its bytes, released with the outcome.
    pub permit: Option<OwnedSemaphorePermit>,
}

/// Deliveries to settle with the same outcome.
pub(in super::super) struct SettleDeliveries {
    pub link: LinkId,
    pub deliveries: Vec<DeliveryId>,
    pub state: DeliveryState,
    /// Expect no confirmation: for brokers that do not confirm.
    pub forget: bool,
    pub reply: Reply<Vec<Result<()>>>,
}

/// A request to a node.
pub(in super::super) struct SendRequest {
    pub requests: LinkId,
    pub responses: LinkId,
    /// The message id.
    pub id: u64,
    pub payload: Bytes,
    pub reply: Reply<Result<Wire>>,
}

pub(in super::super) enum DriverCommand {
    /// Attaches a link. Without a session, a new one is begun for it.
    Attach {
        session: Option<SessionId>,
        attach: Box<Attach>,
        purpose: LinkPurpose,
        reply: Reply<Result<AttachedLink>>,
    },
    Send(SendMessage),
    /// Grants credit for more messages.
    Credit {
        link: LinkId,
        more: u32,
    },
    /// Withdraws credit; replies when done.
    Drain {
        link: LinkId,
        reply: Reply<()>,
    },
    Settle(SettleDeliveries),
    Request(SendRequest),
    Detach {
        dropped: DroppedLink,
        reply: Reply<()>,
    },
    Close {
        reply: Reply<()>,
    },
}

/// A link whose handle was dropped. Unread messages are released.
pub(in super::super) struct DroppedLink {
    pub link: LinkId,
    pub unread: Vec<DeliveryId>,
}
