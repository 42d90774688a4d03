//! Requests of clients.

use std::rc::Rc;

use bytes::Bytes;
use malote_engine::command::{Accept, Attach, MoveWhy};
use malote_engine::{ConsumerId, MoveItem};
use malote_model::{Address, LeaseToken, QueueName, QueueSpec, Seq, SessionId, Settlement};

use super::{SetState, Settle, TopicAsk};
use crate::model::SentMessage;

/// A request of a client, from which the engine's command is made.
#[derive(Clone, Debug)]
pub enum Ask {
    Declare {
        name: QueueName,
        spec: QueueSpec,
        connection: Option<u64>,
    },
    Update {
        name: QueueName,
        spec: QueueSpec,
    },
    Delete {
        name: QueueName,
    },
    Purge {
        queue: QueueName,
        leased: bool,
    },
    PurgeThese {
        queue: QueueName,
        items: Vec<(Seq, Option<SessionId>)>,
    },
    CompleteLate {
        queue: QueueName,
        seqs: Vec<Seq>,
    },
    Pause {
        queue: QueueName,
        paused: bool,
    },
    Send {
        items: Vec<(Address, Rc<SentMessage>)>,
    },
    Commit {
        sends: Vec<(Address, Rc<SentMessage>)>,
        settles: Vec<Settle>,
        states: Vec<SetState>,
    },
    Cancel {
        queue: QueueName,
        seqs: Vec<Seq>,
    },
    Attach(Attach),
    Credit {
        consumer: ConsumerId,
        credit: u32,
        replace: bool,
    },
    Detach {
        consumer: ConsumerId,
    },
    Disconnect {
        connection: u64,
        clean: bool,
    },
    ReceiveDeferred {
        queue: QueueName,
        seqs: Vec<Seq>,
        hold: Option<LeaseToken>,
        lock_ms: Option<u64>,
        take: bool,
        connection: Option<u64>,
    },
    Settle {
        leases: Vec<LeaseToken>,
        settlement: Settlement,
        state: Option<(LeaseToken, Option<Bytes>)>,
    },
    Renew {
        leases: Vec<LeaseToken>,
        lock_ms: Option<u64>,
    },
    Accept(Accept),
    ReleaseSession {
        hold: LeaseToken,
    },
    SetState {
        hold: LeaseToken,
        state: Option<Bytes>,
    },
    GetState {
        queue: QueueName,
        session: SessionId,
        hold: Option<LeaseToken>,
    },
    BreakSession {
        queue: QueueName,
        session: SessionId,
    },
    Move {
        from: QueueName,
        items: Vec<MoveItem>,
    },
    Replace {
        from: QueueName,
        seq: Seq,
        to: QueueName,
        message: Rc<SentMessage>,
    },
    Topic(TopicAsk),
}

/// The reason for moves by an operator.
pub const REDRIVE: MoveWhy = MoveWhy::Redrive;

impl Ask {
    /// The name under which the request is counted.
    pub fn word(&self) -> &'static str {
        match self {
            Ask::Declare { .. } => "asked declare",
            Ask::Update { .. } => "asked update",
            Ask::Delete { .. } => "asked delete",
            Ask::Purge { .. } => "asked purge",
            Ask::PurgeThese { .. } => "asked purge these",
            Ask::CompleteLate { .. } => "asked complete late",
            Ask::Pause { .. } => "asked pause",
            Ask::Send { .. } => "asked send",
            Ask::Commit { .. } => "asked commit",
            Ask::Cancel { .. } => "asked cancel",
            Ask::Attach(_) => "asked attach",
            Ask::Credit { .. } => "asked credit",
            Ask::Detach { .. } => "asked detach",
            Ask::Disconnect { .. } => "asked disconnect",
            Ask::ReceiveDeferred { .. } => "asked receive deferred",
            Ask::Settle { .. } => "asked settle",
            Ask::Renew { .. } => "asked renew",
            Ask::Accept(_) => "asked accept",
            Ask::ReleaseSession { .. } => "asked release session",
            Ask::SetState { .. } => "asked set state",
            Ask::GetState { .. } => "asked get state",
            Ask::BreakSession { .. } => "asked break session",
            Ask::Move { .. } => "asked move",
            Ask::Replace { .. } => "asked replace",
            Ask::Topic(TopicAsk::Declare { .. }) => "asked declare topic",
            Ask::Topic(TopicAsk::Delete { .. }) => "asked delete topic",
            Ask::Topic(TopicAsk::Subscribe { .. }) => "asked subscribe",
            Ask::Topic(TopicAsk::Update { .. }) => "asked update topic",
            Ask::Topic(TopicAsk::Bind { .. }) => "asked bind",
            Ask::Topic(TopicAsk::Rebind { .. }) => "asked rebind",
            Ask::Topic(TopicAsk::Unbind { .. }) => "asked unbind",
            Ask::Topic(TopicAsk::Cancel { .. }) => "asked cancel at topic",
        }
    }
}
