//! Transactions of one connection: begin, stage, commit or roll back.
//!
//! Frames of transactions are handled in order in their own lane, so that a client can send begin, the operations and
//! commit without waiting. Staged operations are bounded in number, bytes and time, and are dropped with the
//! connection. After a failed frame, the commit of its transaction is refused.

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

use super::connection::NativeConnection;
use super::request::Permit;
use crate::ops::transactions::{commit, stage_send, stage_settle, stage_state};
use crate::problem::{Code, Problem};

/// Interval of the search for expired transactions.
const SWEEP_EVERY: Duration = Duration::from_secs(10);

/// A frame of a transaction, with its permits.
pub(super) struct Staged {
    pub frame: ClientFrame,
    pub permit: Permit,
    /// An error if there was no room for the content. Then the frame has no content, and the transaction fails.
    pub bytes: Result<Option<Arc<StagedBytes>>, Problem>,
}

/// The bytes of a WebSocket message, counted for the connection and for all connections until its transactions end.
pub(super) struct StagedBytes {
    _own: OwnedSemaphorePermit,
    _all: OwnedSemaphorePermit,
}

/// The budget of a connection for staged bytes.
pub(super) struct Staging {
    own: Arc<Semaphore>,
    all: Arc<Semaphore>,
}

impl Staging {
    pub fn new(conn: &NativeConnection) -> Self {
        let own = Arc::new(Semaphore::new(conn.api.limits.staged_bytes_max));
        Self { own, all: conn.api.staged.clone() }
    }

    /// Takes a share of the budget, or refuses. It does not wait: only commits of the client free bytes, and they come
    /// after this frame.
    pub fn share(&self, bytes: usize) -> Result<Arc<StagedBytes>, Problem> {
        let permits = u32::try_from(bytes).unwrap_or(u32::MAX);
        let refused = |why: &str| Problem::new(Code::Busy, why);
        let own = self.own.clone().try_acquire_many_owned(permits);
        let own =
            own.map_err(|_| refused("the transactions of this connection use too much memory"))?;
        let all = self.all.clone().try_acquire_many_owned(permits);
        let all =
            all.map_err(|_| refused("the transactions of all connections use too much memory"))?;
        Ok(Arc::new(StagedBytes { _own: own, _all: all }))
    }
}

/// Whether a frame belongs to a transaction.
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

/// Removes the content of a frame and keeps its ids.
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

/// A transaction in progress.
struct OpenTransaction {
    transaction: Transaction,
    /// Why it can no longer be committed.
    failed: Option<Problem>,
    /// Tokens of settled leases, as the client wrote them.
    leases: Vec<String>,
    held: Vec<Arc<StagedBytes>>,
    /// Permissions that are checked again at the commit.
    needs: Vec<(Action, Address)>,
}

/// Transactions by the numbers of the client.
type OpenTransactions = HashMap<u64, OpenTransaction>;

type Committing = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Handles the frames of transactions in order.
pub(super) async fn lane(conn: Arc<NativeConnection>, mut frames: mpsc::Receiver<Staged>) {
    let mut all = OpenTransactions::new();
    let mut committing: FuturesUnordered<Committing> = FuturesUnordered::new();
    let mut sweep = tokio::time::interval(SWEEP_EVERY);
    loop {
        tokio::select! {
            staged = frames.recv() => match staged {
                Some(staged) => committing.extend(handle(&conn, &mut all, staged).await),
                None => return,
            },
            Some(()) = committing.next() => {}
            // Expired transactions must return their bytes, even if the client never mentions them again.
            _ = sweep.tick(), if !all.is_empty() => all.retain(|_, open| !open.transaction.is_over()),
        }
    }
}

/// Handles one frame. Returns a commit as a future, so that other frames do not wait for the disk.
async fn handle(
    conn: &Arc<NativeConnection>,
    all: &mut OpenTransactions,
    staged: Staged,
) -> Option<Committing> {
    let Staged { frame, permit, bytes } = staged;
    let (id, result) = match frame {
        ClientFrame::Begin(BeginFrame { id, transaction }) => (id, begin(conn, all, transaction)),
        ClientFrame::Rollback(RollbackFrame { id, transaction }) => {
            (id, all.remove(&transaction).map(drop).ok_or_else(|| missing(transaction)))
        }
        ClientFrame::Commit(CommitFrame { id, transaction }) => match ready(all, transaction) {
            Ok(open) => return Some(finish(conn.clone(), id, open, permit)),
            Err(problem) => (id, Err(problem)),
        },
        ClientFrame::Send(SendFrame { id, messages, transaction }) => {
            match open(all, transaction, bytes) {
                Ok(open) => {
                    let into = &mut open.transaction;
                    let done = stage_send(&conn.api, &conn.caller, into, messages).await;
                    let done =
                        done.map(|to| to.into_iter().for_each(|to| open.need(Action::Send, to)));
                    (id, open.record_failure(done))
                }
                Err(problem) => (id, Err(problem)),
            }
        }
        ClientFrame::Settle(SettleFrame { id, queue, items, transaction }) => {
            match open(all, transaction, bytes) {
                Ok(open) => {
                    open.leases.extend(items.iter().flat_map(|item| item.leases.iter().cloned()));
                    let into = &mut open.transaction;
                    let done = stage_settle(&conn.api, &conn.caller, into, &queue, items);
                    let done = done.map(|queue| open.need(Action::Receive, queue.into()));
                    (id, open.record_failure(done))
                }
                Err(problem) => (id, Err(problem)),
            }
        }
        ClientFrame::SetState(SetStateFrame { id, queue, change, transaction }) => {
            match open(all, transaction, bytes) {
                Ok(open) => {
                    let into = &mut open.transaction;
                    let done = stage_state(&conn.api, &conn.caller, into, &queue, change);
                    let done = done.map(|queue| open.need(Action::Receive, queue.into()));
                    (id, open.record_failure(done))
                }
                Err(problem) => (id, Err(problem)),
            }
        }
        // Handled in other lanes.
        _ => return None,
    };
    conn.reply(Some(id), result.map(|()| EmptyReply {})).await;
    drop(permit);
    None
}

fn begin(conn: &NativeConnection, all: &mut OpenTransactions, number: u64) -> Result<(), Problem> {
    all.retain(|_, open| !open.transaction.is_over());
    if all.contains_key(&number) {
        let why = format!("transaction {number} exists already");
        return Err(Problem::new(Code::TransactionExists, why));
    }
    let max = conn.api.limits.transactions_max;
    if all.len() >= max {
        let why = format!("a connection has at most {max} open transactions");
        return Err(Problem::new(Code::TooMany, why));
    }
    let transaction = conn.api.engine.transaction();
    let (leases, held, needs) = (Vec::new(), Vec::new(), Vec::new());
    all.insert(number, OpenTransaction { transaction, failed: None, leases, held, needs });
    Ok(())
}

fn missing(number: u64) -> Problem {
    let why = format!("this connection has no transaction {number}, or it has expired");
    Problem::new(Code::TransactionOver, why)
}

/// The transaction of a frame. It keeps the bytes of the frame.
fn open(
    all: &mut OpenTransactions,
    number: Option<u64>,
    bytes: Result<Option<Arc<StagedBytes>>, Problem>,
) -> Result<&mut OpenTransaction, Problem> {
    let number = number.unwrap_or_default();
    let open = all.get_mut(&number).ok_or_else(|| missing(number))?;
    let bytes = bytes.inspect_err(|problem| {
        open.failed.get_or_insert_with(|| problem.clone());
    })?;
    open.held.extend(bytes);
    Ok(open)
}

/// Removes the transaction that is to be committed.
fn ready(all: &mut OpenTransactions, number: u64) -> Result<OpenTransaction, Problem> {
    let open = all.remove(&number).ok_or_else(|| missing(number))?;
    match open.failed {
        None => Ok(open),
        Some(problem) => {
            let why = format!("nothing of transaction {number} was applied: {}", problem.detail());
            Err(Problem::new(problem.code(), why))
        }
    }
}

impl OpenTransaction {
    fn need(&mut self, action: Action, on: Address) {
        if !self.needs.contains(&(action, on.clone())) {
            self.needs.push((action, on));
        }
    }

    /// Marks the transaction as failed if one operation failed.
    fn record_failure(&mut self, done: Result<(), Problem>) -> Result<(), Problem> {
        if let Err(problem) = &done {
            self.failed.get_or_insert_with(|| problem.clone());
        }
        done
    }
}

fn finish(
    conn: Arc<NativeConnection>,
    id: u64,
    open: OpenTransaction,
    permit: Permit,
) -> Committing {
    Box::pin(async move {
        let OpenTransaction { transaction, leases, held, needs, .. } = open;
        // Permissions may have changed since the operations were staged.
        let allowed =
            needs.iter().try_for_each(|(action, on)| conn.api.allow_at(&conn.caller, *action, on));
        let result = match allowed {
            Ok(()) => commit(&conn.api, transaction).await,
            Err(problem) => Err(problem),
        };
        if result.is_ok() {
            conn.leases.lock().settled(leases.iter());
        }
        conn.reply(Some(id), result).await;
        drop((held, permit));
    })
}
