//! Frames of the native connection.
//!
//! A frame is a map with one entry: `{"send": {"id": 1, "messages": […]}}`. A WebSocket message contains one frame or an
//! array of frames, as JSON (`malote.v1.json`) or MessagePack (`malote.v1.msgpack`).

use serde::{Deserialize, Serialize};

use crate::body::BodyContent;
use crate::message::{NewMessage, SentMessage};
use crate::problem::ProblemBody;
use crate::queue::QueueDepth;
use crate::receive::{ReceiveMode, is_one};
use crate::received::ReceivedMessage;
use crate::session::{HeldSession, SessionInfo};
use crate::settings::QueueSettings;
use crate::settle::{LeaseResult, SessionStateChange, SettleRequest};

/// Maximum number of frames in one WebSocket message.
pub const FRAMES_MAX: usize = 4096;
/// Maximum nesting of a frame. Properties have their own, smaller bound.
pub const FRAME_DEPTH_MAX: usize = 64;

/// The encoding of the frames of a connection. HTTP always uses JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Encoding {
    /// JSON in text messages
    #[default]
    Json,
    /// MessagePack in binary messages
    MessagePack,
}

/// A request. The client chooses `id`; the reply repeats it.
#[derive(Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ClientFrame {
    /// Sends messages to queues and topics, all or none
    Send(SendFrame),
    /// Declares a queue
    Declare(DeclareFrame),
    /// Begins a transaction
    Begin(BeginFrame),
    /// Commits a transaction
    Commit(CommitFrame),
    /// Rolls a transaction back
    Rollback(RollbackFrame),
    /// Starts a consumer
    Attach(AttachFrame),
    /// Adds credit to a consumer, or replaces its credit
    Credit(CreditFrame),
    /// Stops a consumer
    Detach(DetachFrame),
    /// Receives deferred messages
    ReceiveDeferred(DeferredFrame),
    /// Completes, abandons, defers or dead-letters leased messages
    Settle(SettleFrame),
    /// Renews leases or holds
    Renew(RenewFrame),
    /// Accepts a session
    Accept(AcceptFrame),
    /// Releases a session
    Release(ReleaseFrame),
    /// Reads the state of a session
    GetState(GetStateFrame),
    /// Sets or clears the state of a held session
    SetState(SetStateFrame),
    /// Lists sessions of a queue
    ListSessions(ListSessionsFrame),
    /// Reads the load of a queue, for scaling workers
    Depth(DepthFrame),
    /// Resumes a lost connection; only as the first frame
    Resume(ResumeFrame),
    /// Asks for a reply
    Ping(PingFrame),
}

macro_rules! frames {
    ($($(#[$doc:meta])* $name:ident { $($(#[$field_attr:meta])* $field:ident: $kind:ty,)* })+) => {
        $(
            #[derive(Debug, Deserialize, Serialize)]
            #[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(inline))]
            $(#[$doc])*
            #[serde(deny_unknown_fields)]
            #[allow(missing_docs)]
            pub struct $name {
                pub id: u64,
                $($(#[$field_attr])* pub $field: $kind,)*
            }
        )+
    };
}

fn one() -> u32 {
    1
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde wants a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

frames! {
    /// Each message names its queue or topic. In a transaction, the messages are only staged.
    SendFrame {
        messages: Vec<NewMessage>,
        #[serde(skip_serializing_if = "Option::is_none")] transaction: Option<u64>,
    }
    /// Without a name, the server chooses one, and the queue is exclusive unless its settings say otherwise.
    DeclareFrame {
        #[serde(skip_serializing_if = "Option::is_none")] queue: Option<String>,
        #[serde(default)] spec: QueueSettings,
    }
    /// The client chooses the number of the transaction.
    BeginFrame { transaction: u64, }
    /// The reply is that of a send.
    CommitFrame { transaction: u64, }
    /// Staged operations are dropped.
    RollbackFrame { transaction: u64, }
    /// The client chooses the number of the consumer.
    AttachFrame {
        consumer: u64,
        queue: String,
        credit: u32,
        #[serde(default, skip_serializing_if = "ReceiveMode::is_lock")] mode: ReceiveMode,
        #[serde(skip_serializing_if = "Option::is_none")] lock_ms: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")] session_token: Option<String>,
        #[serde(default = "one", skip_serializing_if = "is_one")] per_session: u32,
    }
    /// `replace` with 0 stops deliveries.
    CreditFrame {
        consumer: u64,
        credit: u32,
        #[serde(default, skip_serializing_if = "std::ops::Not::not")] replace: bool,
    }
    /// Leased messages stay leased.
    DetachFrame { consumer: u64, }
    /// The leases belong to this connection.
    DeferredFrame {
        queue: String,
        seqs: Vec<u64>,
        #[serde(skip_serializing_if = "Option::is_none")] session_token: Option<String>,
        #[serde(default, skip_serializing_if = "ReceiveMode::is_lock")] mode: ReceiveMode,
    }
    /// Every item has its own result.
    SettleFrame {
        queue: String,
        items: Vec<SettleRequest>,
        #[serde(skip_serializing_if = "Option::is_none")] transaction: Option<u64>,
    }
    /// Tokens of leases or of held sessions.
    RenewFrame {
        queue: String,
        leases: Vec<String>,
        #[serde(skip_serializing_if = "Option::is_none")] lock_ms: Option<u64>,
    }
    /// A session by id, or the next one with messages.
    AcceptFrame {
        queue: String,
        #[serde(skip_serializing_if = "Option::is_none")] session: Option<String>,
        #[serde(default, skip_serializing_if = "is_zero")] wait_ms: u64,
        #[serde(skip_serializing_if = "Option::is_none")] lock_ms: Option<u64>,
    }
    /// Leased messages of the session return to the queue; no failure is counted.
    ReleaseFrame { queue: String, token: String, }
    /// Without a token, the caller needs the permission to manage the queue.
    GetStateFrame {
        queue: String,
        session: String,
        #[serde(skip_serializing_if = "Option::is_none")] token: Option<String>,
    }
    /// Without `state` and `state_base64`, the state is cleared.
    SetStateFrame {
        queue: String,
        change: SessionStateChange,
        #[serde(skip_serializing_if = "Option::is_none")] transaction: Option<u64>,
    }
    /// `after` is the `next` of the previous page.
    ListSessionsFrame {
        queue: String,
        #[serde(skip_serializing_if = "Option::is_none")] after: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")] max: Option<u64>,
    }
    /// The reply has `depth`.
    DepthFrame { queue: String, }
    /// `leases` lists the leases that the client still has. Other leases of the connection are released.
    ResumeFrame {
        connection: u64,
        secret: String,
        #[serde(skip_serializing_if = "Option::is_none")] leases: Option<Vec<String>>,
    }
    /// The reply is empty.
    PingFrame {}
}

/// A frame of the server. `T` is the content of a reply: the server writes one of the answers below, and a client
/// reads an [`AnyReply`].
#[derive(Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "ServerFrame"))]
#[serde(rename_all = "snake_case")]
pub enum ServerFrame<T> {
    /// The first frame on every socket
    Welcome(Welcome),
    /// The reply to one frame
    Reply(Reply<T>),
    /// Messages for a consumer, within its credit
    Deliver(Deliver),
    /// A consumer ended: its queue was deleted, its hold was lost, or its permission was revoked
    Ended(Ended),
}

/// How to resume the connection, and its limits.
#[derive(Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(inline))]
#[allow(missing_docs)]
pub struct Welcome {
    pub connection: u64,
    pub secret: String,
    #[serde(default)]
    pub reconnect_grace_ms: u64,
    pub limits: WelcomeLimits,
}

/// The limits of a connection.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(inline))]
#[serde(default)]
#[allow(missing_docs)]
pub struct WelcomeLimits {
    pub frame_bytes_max: u64,
    pub frames_max: u64,
    pub requests_max: u64,
    pub sends_max: u64,
    pub send_bytes_max: u64,
    pub consumers_max: u64,
    pub transactions_max: u64,
    pub staged_bytes_max: u64,
    pub ping_every_ms: u64,
    pub silence_max_ms: u64,
}

/// `ok` or `problem`. `id` is null if the server could not read the id of the request.
#[derive(Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(inline))]
#[allow(missing_docs)]
pub struct Reply<T> {
    pub id: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ok: Option<T>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<Box<ProblemBody>>,
}

/// Messages for a consumer.
#[derive(Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(inline))]
#[allow(missing_docs)]
pub struct Deliver {
    pub consumer: u64,
    pub messages: Vec<ReceivedMessage>,
}

/// The end of a consumer.
#[derive(Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(inline))]
#[allow(missing_docs)]
pub struct Ended {
    pub consumer: u64,
    pub problem: Box<ProblemBody>,
}

/// An empty reply.
#[derive(Debug, Deserialize, Serialize)]
pub struct EmptyReply {}

/// The reply to a declaration.
#[derive(Debug, Deserialize, Serialize)]
pub struct DeclaredQueue {
    /// The name of the queue
    pub queue: String,
    /// Whether it is new
    pub created: bool,
}

/// The reply to an accept.
#[derive(Debug, Deserialize, Serialize)]
pub struct AcceptedSession {
    /// None if no session became available in time
    pub held: Option<HeldSession>,
}

/// The reply with the state of a session: no field if it has none.
#[derive(Debug, Default, Deserialize, Serialize)]
pub struct SessionStateReply {
    /// The state, in MessagePack
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<BodyContent>,
    /// The state, in JSON
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_base64: Option<String>,
}

/// The reply with the load of a queue.
#[derive(Debug, Deserialize, Serialize)]
pub struct DepthReply {
    /// Counts of the queue's messages and sessions
    pub depth: QueueDepth,
}

/// The fields of all replies, for a client that reads a reply before it looks up the request. Each reply has only
/// its own fields.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct AnyReply {
    /// In the reply to a send or commit
    pub messages: Option<Vec<SentMessage>>,
    /// In the reply to a settle or renew
    pub results: Option<Vec<LeaseResult>>,
    /// In the reply to an accept
    pub held: Option<HeldSession>,
    /// In the reply with a session state
    pub state: Option<BodyContent>,
    /// In the reply with the load of a queue
    pub depth: Option<Box<QueueDepth>>,
    /// In a list of sessions
    pub sessions: Option<Vec<SessionInfo>>,
    /// `after` of the next page of this list
    pub next: Option<String>,
}
