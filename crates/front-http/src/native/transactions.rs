//! Transactions of one connection: begun, filled frame by frame, then committed or given up.
//!
//! Frames of transactions have a lane of their own and are looked at in the order in which they came, so that a client
//! may send begin, all of the work and commit without waiting. What is staged is bounded in number, bytes and time, and
//! goes with the connection. A frame that fails spoils its transaction: a commit that follows is refused.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use malote_engine::Transaction;
use malote_model::{Action, Address};
use malote_wire_native::frame::{
    BeginFrame, ClientFrame, CommitFrame, EmptyReply, RollbackFrame, SendFrame, SetStateFrame,
    SettleFrame,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::link::Link;
use super::request::Permit;
use crate::ops::transactions::{commit, stage_send, stage_settle, stage_state};
use crate::problem::{Code, Problem};

/// How often transactions whose time is over are looked for.
const SWEEP_EVERY: Duration = Duration::from_secs(10);

/// A frame of a transaction, and what it holds until the transaction is over.
pub(super) struct Staged {
    pub frame: ClientFrame,
    pub permit: Permit,
    /// What it brings has no room, and is not here: its transaction is spoilt.
    pub bytes: Result<Option<Arc<StagedBytes>>, Problem>,
}

/// Held by all frames of transactions of one WebSocket message: its share of the connection's bytes and of all.
pub(super) struct StagedBytes {
    _own: OwnedSemaphorePermit,
    _all: OwnedSemaphorePermit,
}

/// What one connection may stage.
pub(super) struct Staging {
    own: Arc<Semaphore>,
    all: Arc<Semaphore>,
}

impl Staging {
    pub fn new(link: &Link) -> Self {
        let own = Arc::new(Semaphore::new(link.api.limits.staged_bytes_max));
        Self { own, all: link.api.staged.clone() }
    }

    /// A share for so many bytes, or word that there is none. Nobody waits for it: only the client's own commits can
    /// make room, and they stand behind this frame.
    pub fn share(&self, bytes: usize) -> Result<Arc<StagedBytes>, Problem> {
        let permits = u32::try_from(bytes).unwrap_or(u32::MAX);
        let refused = |why: &str| Problem::new(Code::Busy, why);
        let own = self.own.clone().try_acquire_many_owned(permits);
        let own = own.map_err(|_| refused("the transactions of this connection hold too much"))?;
        let all = self.all.clone().try_acquire_many_owned(permits);
        let all = all.map_err(|_| refused("the transactions of all connections hold too much"))?;
        Ok(Arc::new(StagedBytes { _own: own, _all: all }))
    }
}

/// Whether a frame belongs to this lane.
pub(super) fn is_staged(frame: &ClientFrame) -> bool {
    match frame {
        ClientFrame::Begin(_) | ClientFrame::Commit(_) | ClientFrame::Rollback(_) => true,
        ClientFrame::Send(SendFrame { transaction, .. })
        | ClientFrame::Settle(SettleFrame { transaction, .. })
        | ClientFrame::SetState(SetStateFrame { transaction, .. }) => transaction.is_some(),
        _ => false,
    }
}

/// Whether a frame has content to stage.
pub(super) fn has_content(frame: &ClientFrame) -> bool {
    matches!(frame, ClientFrame::Send(_) | ClientFrame::Settle(_) | ClientFrame::SetState(_))
}

/// The frame without its content, where only its ids are needed.
pub(super) fn without_content(mut frame: ClientFrame) -> ClientFrame {
    match &mut frame {
        ClientFrame::Send(frame) => frame.messages = Vec::new(),
        ClientFrame::Settle(frame) => frame.items = Vec::new(),
        ClientFrame::SetState(frame) => {
            (frame.change.state, frame.change.state_base64) = (None, None);
        }
        _ => {}
    }
    frame
}

/// A transaction that has been begun.
struct Open {
    transaction: Transaction,
    /// Why it can no longer be committed.
    spoilt: Option<Problem>,
    /// As the client wrote them.
    leases: Vec<String>,
    held: Vec<Arc<StagedBytes>>,
    /// What the caller must be allowed to do when it is committed.
    needs: Vec<(Action, Address)>,
}

/// By the client's own numbers.
type All = HashMap<u64, Open>;

type Committing = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Transactions, frame by frame.
pub(super) async fn lane(link: Arc<Link>, mut frames: mpsc::Receiver<Staged>) {
    let mut all = All::new();
    let mut committing: FuturesUnordered<Committing> = FuturesUnordered::new();
    let mut sweep = tokio::time::interval(SWEEP_EVERY);
    loop {
        tokio::select! {
            staged = frames.recv() => match staged {
                Some(staged) => committing.extend(handle(&link, &mut all, staged).await),
                None => return,
            },
            Some(()) = committing.next() => {}
            // What it held is needed by others, even if nobody asks for it any more.
            _ = sweep.tick(), if !all.is_empty() => all.retain(|_, open| !open.transaction.is_over()),
        }
    }
}

/// One frame. A commit is handed back: others need not wait for its disk.
async fn handle(link: &Arc<Link>, all: &mut All, staged: Staged) -> Option<Committing> {
    let Staged { frame, permit, bytes } = staged;
    let (id, result) = match frame {
        ClientFrame::Begin(BeginFrame { id, transaction }) => (id, begin(link, all, transaction)),
        ClientFrame::Rollback(RollbackFrame { id, transaction }) => {
            (id, all.remove(&transaction).map(drop).ok_or_else(|| missing(transaction)))
        }
        ClientFrame::Commit(CommitFrame { id, transaction }) => match ready(all, transaction) {
            Ok(open) => return Some(finish(link.clone(), id, open, permit)),
            Err(problem) => (id, Err(problem)),
        },
        ClientFrame::Send(SendFrame { id, messages, transaction }) => {
            match open(all, transaction, bytes) {
                Ok(open) => {
                    let into = &mut open.transaction;
                    let done = stage_send(&link.api, &link.caller, into, messages).await;
                    let done =
                        done.map(|to| to.into_iter().for_each(|to| open.need(Action::Send, to)));
                    (id, open.spoil(done))
                }
                Err(problem) => (id, Err(problem)),
            }
        }
        ClientFrame::Settle(SettleFrame { id, queue, items, transaction }) => {
            match open(all, transaction, bytes) {
                Ok(open) => {
                    open.leases.extend(items.iter().flat_map(|item| item.leases.iter().cloned()));
                    let into = &mut open.transaction;
                    let done = stage_settle(&link.api, &link.caller, into, &queue, items);
                    let done = done.map(|queue| open.need(Action::Receive, queue.into()));
                    (id, open.spoil(done))
                }
                Err(problem) => (id, Err(problem)),
            }
        }
        ClientFrame::SetState(SetStateFrame { id, queue, change, transaction }) => {
            match open(all, transaction, bytes) {
                Ok(open) => {
                    let into = &mut open.transaction;
                    let done = stage_state(&link.api, &link.caller, into, &queue, change);
                    let done = done.map(|queue| open.need(Action::Receive, queue.into()));
                    (id, open.spoil(done))
                }
                Err(problem) => (id, Err(problem)),
            }
        }
        // Not of this lane.
        _ => return None,
    };
    link.reply(Some(id), result.map(|()| EmptyReply {})).await;
    drop(permit);
    None
}

fn begin(link: &Link, all: &mut All, number: u64) -> Result<(), Problem> {
    all.retain(|_, open| !open.transaction.is_over());
    if all.contains_key(&number) {
        let why = format!("transaction {number} has been begun already");
        return Err(Problem::new(Code::TransactionExists, why));
    }
    let max = link.api.limits.transactions_max;
    if all.len() >= max {
        let why = format!("a connection has at most {max} transactions at once");
        return Err(Problem::new(Code::TooMany, why));
    }
    let transaction = link.api.engine.transaction();
    let (leases, held, needs) = (Vec::new(), Vec::new(), Vec::new());
    all.insert(number, Open { transaction, spoilt: None, leases, held, needs });
    Ok(())
}

fn missing(number: u64) -> Problem {
    let why = format!("this connection has no transaction {number}, or its time was over");
    Problem::new(Code::TransactionOver, why)
}

/// The transaction that a frame adds to. What it brings is held with it.
fn open(
    all: &mut All,
    number: Option<u64>,
    bytes: Result<Option<Arc<StagedBytes>>, Problem>,
) -> Result<&mut Open, Problem> {
    let number = number.unwrap_or_default();
    let open = all.get_mut(&number).ok_or_else(|| missing(number))?;
    let bytes = bytes.inspect_err(|problem| {
        open.spoilt.get_or_insert_with(|| problem.clone());
    })?;
    open.held.extend(bytes);
    Ok(open)
}

/// The transaction that is to be committed: in any case it is over.
fn ready(all: &mut All, number: u64) -> Result<Open, Problem> {
    let open = all.remove(&number).ok_or_else(|| missing(number))?;
    match open.spoilt {
        None => Ok(open),
        Some(problem) => {
            let why = format!("nothing of transaction {number} was done: {}", problem.detail());
            Err(Problem::new(problem.code(), why))
        }
    }
}

impl Open {
    fn need(&mut self, action: Action, on: Address) {
        if !self.needs.contains(&(action, on.clone())) {
            self.needs.push((action, on));
        }
    }

    /// One part that fails is the end of all: half a transaction is none.
    fn spoil(&mut self, done: Result<(), Problem>) -> Result<(), Problem> {
        if let Err(problem) = &done {
            self.spoilt.get_or_insert_with(|| problem.clone());
        }
        done
    }
}

fn finish(link: Arc<Link>, id: u64, open: Open, permit: Permit) -> Committing {
    Box::pin(async move {
        let Open { transaction, leases, held, needs, .. } = open;
        // What was allowed when it was staged may not be any more.
        let allowed =
            needs.iter().try_for_each(|(action, on)| link.api.allow_at(&link.caller, *action, on));
        let result = match allowed {
            Ok(()) => commit(&link.api, transaction).await,
            Err(problem) => Err(problem),
        };
        if result.is_ok() {
            link.leases.lock().settled(leases.iter());
        }
        link.reply(Some(id), result).await;
        drop((held, permit));
    })
}
