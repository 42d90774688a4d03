//! Settling leases and releasing sessions. Concurrent calls share a transaction.
//!
//! Both go through one channel in the order of the calls, so that a session is never released before its settlements.
//! `settle_transaction.rs` has the statements.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use malote_model::{Settlement, limits};
use tokio::sync::{mpsc, oneshot};

use super::local_holds::LocalHold;
use super::settle_transaction::{
    self, ReturnKind, ReturnedMessage, SettleTransaction, StateUpdate,
};
use super::token::PgToken;
use super::{PgShared, error, message};
use crate::broker::{BrokerError, Settle};

/// The most settlements of one transaction.
const BATCH_MAX: usize = 2048;
/// Calls that may wait.
const CALLS_MAX: usize = 4096;
/// Attempts of a transaction that conflicts with another one.
const ATTEMPTS_MAX: usize = 5;

type Answers = Vec<Result<(), BrokerError>>;

/// The pause before settlements without a waiting caller are repeated.
const RETRY_AFTER: std::time::Duration = std::time::Duration::from_millis(200);

/// A call to settle leases or to release a hold.
pub(super) enum SettleCall {
    Settle { items: Vec<Settle>, reply: Option<oneshot::Sender<Answers>> },
    ReleaseHold { hold: Arc<LocalHold>, reply: Option<oneshot::Sender<Result<(), BrokerError>>> },
}

impl SettleCall {
    fn len(&self) -> usize {
        match self {
            Self::Settle { items, .. } => items.len(),
            Self::ReleaseHold { .. } => 1,
        }
    }
}

pub(super) fn channel() -> (mpsc::Sender<SettleCall>, mpsc::Receiver<SettleCall>) {
    mpsc::channel(CALLS_MAX)
}

/// The answer to one settlement: known already, or depending on the transaction.
enum PendingAnswer {
    Known(Result<(), BrokerError>),
    Pending { seq: i64, lease: Option<i64>, hold: Option<Arc<LocalHold>>, again: bool },
}

/// The settlements of one transaction while they are collected.
#[derive(Default)]
struct PgSettleBatch {
    plan: SettleTransaction,
    /// Sessions whose rows must be locked.
    locked: BTreeMap<i64, ()>,
    /// Holds that end with the transaction.
    ending: HashMap<i64, Arc<LocalHold>>,
    delay_ms: Option<i64>,
}

impl PgShared {
    pub(super) async fn settle(&self, items: Vec<Settle>) -> Result<Answers, BrokerError> {
        let (reply, answer) = oneshot::channel();
        let call = SettleCall::Settle { items, reply: Some(reply) };
        self.settle_calls.send(call).await.map_err(|_| BrokerError::Closed)?;
        answer.await.map_err(|_| BrokerError::Closed)
    }

    /// Settles and releases until the connector is dropped.
    pub(super) async fn write_settlements(self: Arc<Self>, mut calls: mpsc::Receiver<SettleCall>) {
        while let Some(first) = calls.recv().await {
            let mut count = first.len();
            let mut all = vec![first];
            while count < BATCH_MAX
                && let Ok(call) = calls.try_recv()
            {
                count += call.len();
                all.push(call);
            }
            self.settle_batch(all).await;
        }
    }

    async fn settle_batch(&self, all: Vec<SettleCall>) {
        let mut batch = PgSettleBatch::default();
        let mut waiting = Vec::with_capacity(all.len());
        let mut unawaited = Vec::new();
        for call in all {
            match call {
                SettleCall::Settle { items, reply } => {
                    if reply.is_none() {
                        unawaited.push(SettleCall::Settle { items: items.clone(), reply: None });
                    }
                    let pending: Vec<_> =
                        items.into_iter().map(|item| self.plan(&mut batch, item)).collect();
                    waiting.push((pending, reply));
                }
                SettleCall::ReleaseHold { hold, reply } => {
                    batch.locked.insert(hold.num, ());
                    unawaited.push(SettleCall::ReleaseHold { hold: hold.clone(), reply: None });
                    batch.ending.insert(hold.hold, hold);
                    if let Some(reply) = reply {
                        batch.plan.release_replies.push(reply);
                    }
                }
            }
        }
        batch.plan.locked = batch.locked.into_keys().collect();
        let settled_seqs = self.settle_transaction(&mut batch.plan, &batch.ending).await;
        let mut settled: HashSet<i64> = settled_seqs.as_ref().ok().cloned().unwrap_or_default();
        for (pending, reply) in waiting {
            let answers: Answers = pending
                .into_iter()
                .map(|pending| match pending {
                    PendingAnswer::Known(answer) => answer,
                    PendingAnswer::Pending { seq, lease, hold, again } => match &settled_seqs {
                        Err(error) => Err(error.clone()),
                        // A second settlement of the same message finds nothing.
                        Ok(_) if settled.remove(&seq) => {
                            self.finish(seq, lease, hold.as_deref(), again);
                            Ok(())
                        }
                        Ok(_) => {
                            self.finish(seq, lease, hold.as_deref(), false);
                            Err(BrokerError::LockLost)
                        }
                    },
                })
                .collect();
            if let Some(reply) = reply {
                let _ = reply.send(answers); // the caller gave up
            }
        }
        if settled_seqs.is_ok() {
            for hold in batch.ending.values() {
                self.remove_hold(hold);
            }
            if let Some(delay) = batch.delay_ms {
                self.due_in(delay);
            }
        }
        if settled_seqs.as_ref().is_err_and(BrokerError::is_transient) && !unawaited.is_empty() {
            self.retry_later(unawaited);
        }
        for reply in std::mem::take(&mut batch.plan.release_replies) {
            let _ = reply.send(settled_seqs.as_ref().map(drop).map_err(Clone::clone));
        }
    }

    /// Repeats settlements without a waiting caller. Otherwise the messages would stay leased while this process runs.
    fn retry_later(&self, unawaited: Vec<SettleCall>) {
        let settle_calls = self.settle_calls.clone();
        self.handle.spawn(async move {
            tokio::time::sleep(RETRY_AFTER).await;
            for call in unawaited {
                let _ = settle_calls.try_send(call); // if the channel is full, the leases end with their locks
            }
        });
    }

    /// Ends the lease of a message in this process.
    fn finish(&self, seq: i64, lease: Option<i64>, hold: Option<&LocalHold>, again: bool) {
        match (hold, lease) {
            (Some(hold), _) => hold.finish(seq, again),
            (None, Some(lease)) => self.forget_lease(seq, lease),
            (None, None) => {}
        }
    }

    /// Forgets the lease of a message in a queue without sessions.
    pub(super) fn forget_lease(&self, seq: i64, lease: i64) {
        let mut plain = self.plain_leases.lock();
        if plain.get(&seq) == Some(&lease) {
            plain.remove(&seq);
        }
    }

    /// Adds a settlement to the transaction.
    fn plan(
        &self,
        batch: &mut PgSettleBatch,
        Settle { lease, settlement, state }: Settle,
    ) -> PendingAnswer {
        let (seq, lease, hold) = match PgToken::decode(lease) {
            Some(PgToken::Message { seq, lease }) => (seq, Some(lease), None),
            Some(PgToken::SessionMessage { seq, hold }) => match self.hold(hold) {
                Some(hold) if hold.is_leased(seq) => (seq, None, Some(hold)),
                _ => return PendingAnswer::Known(Err(BrokerError::LockLost)),
            },
            Some(PgToken::Session { .. }) | None => {
                return PendingAnswer::Known(Err(BrokerError::LockLost));
            }
        };
        if let Some(hold) = &hold {
            batch.locked.insert(hold.num, ());
        }
        let hold_id = hold.as_ref().map(|hold| hold.hold);
        let returned = match returned_message(seq, lease, hold_id, settlement) {
            Ok(returned) => returned,
            Err(error) => return PendingAnswer::Known(Err(error)),
        };
        let again =
            returned.as_ref().is_some_and(|returned| returned.kind != ReturnKind::DeadLetter);
        if let (Some(returned), Some(hold)) = (&returned, &hold)
            && returned.delay_ms > 0
        {
            // The session waits for this message, so the hold ends.
            batch.ending.insert(hold.hold, hold.clone());
        }
        if let Some(returned) = &returned
            && returned.delay_ms > 0
        {
            let least = batch.delay_ms.unwrap_or(i64::MAX).min(returned.delay_ms);
            batch.delay_ms = Some(least);
        }
        if let Some(new) = state {
            let token = PgToken::decode(new.hold);
            let (Some(PgToken::Session { num, hold: id }), Some(held)) = (token, hold_id) else {
                return PendingAnswer::Known(Err(BrokerError::LockLost));
            };
            if id != held {
                return PendingAnswer::Known(Err(BrokerError::LockLost));
            }
            if new.state.as_ref().is_some_and(|s| s.len() > limits::SESSION_STATE_BYTES_MAX) {
                let text = format!(
                    "the session state is larger than {} bytes: store less",
                    limits::SESSION_STATE_BYTES_MAX
                );
                return PendingAnswer::Known(Err(BrokerError::Refused {
                    code: "state_too_large".into(),
                    text,
                }));
            }
            batch.plan.states.push(StateUpdate { seq, num, hold: id, returned, state: new.state });
        } else if let Some(returned) = returned {
            batch.plan.returns.push(returned);
        } else if let Some(lease) = lease {
            batch.plan.completed_plain.push((seq, lease));
        } else if let Some(hold) = hold_id {
            batch.plan.completed_held.push((seq, hold));
        }
        PendingAnswer::Pending { seq, lease, hold, again }
    }

    async fn settle_transaction(
        &self,
        plan: &mut SettleTransaction,
        ending: &HashMap<i64, Arc<LocalHold>>,
    ) -> Result<HashSet<i64>, BrokerError> {
        // All processes lock rows in the same order, as far as the server keeps it.
        plan.completed_plain.sort_unstable();
        plan.completed_held.sort_unstable();
        plan.returns.sort_unstable_by_key(|returned| returned.seq);
        // The other leased messages of a released session return uncounted.
        let settled: HashSet<i64> = plan.seqs().collect();
        let mut ends: Vec<&Arc<LocalHold>> = ending.values().collect();
        ends.sort_unstable_by_key(|hold| hold.num);
        for hold in ends {
            plan.ended_holds.push((hold.num, hold.hold));
            plan.released.extend(hold.leased().into_iter().filter(|seq| !settled.contains(seq)));
        }
        if plan.is_empty() {
            return Ok(HashSet::new());
        }
        let mut attempts = 0;
        loop {
            let connection = self.settling.connection().await?;
            attempts += 1;
            match settle_transaction::execute(&connection, plan).await {
                Ok(result) => {
                    self.notify_arrivals(result.arrivals);
                    return Ok(result.settled);
                }
                Err(error) => {
                    let _ = connection.execute("rollback").await; // a broken connection is rolled back by the server
                    self.settling.discard_if_broken(&connection, Some(&error)).await;
                    if !error::is_conflict(&error) || attempts == ATTEMPTS_MAX {
                        return Err(error.into());
                    }
                }
            }
        }
    }
}

/// The row changes of a settlement; None completes the message.
fn returned_message(
    seq: i64,
    lease: Option<i64>,
    hold: Option<i64>,
    settlement: Settlement,
) -> Result<Option<ReturnedMessage>, BrokerError> {
    let ms = |delay: u64| i64::try_from(delay.min(limits::DELAY_MS_MAX)).unwrap_or(i64::MAX);
    let mut returned = ReturnedMessage {
        seq,
        lease,
        hold,
        kind: ReturnKind::Release,
        delay_ms: 0,
        changes: None,
        reason: None,
        text: None,
    };
    let changes = match settlement {
        Settlement::Complete => return Ok(None),
        Settlement::Release { delay_ms } => {
            returned.delay_ms = ms(delay_ms);
            return Ok(Some(returned));
        }
        Settlement::Abandon { delay_ms, changes } => {
            (returned.kind, returned.delay_ms) = (ReturnKind::Abandon, ms(delay_ms));
            changes
        }
        Settlement::DeadLetter { reason, text, changes } => {
            returned.kind = ReturnKind::DeadLetter;
            (returned.reason, returned.text) = (Some(clip(&reason)), Some(clip(&text)));
            changes
        }
        Settlement::Defer { .. } => {
            return Err(BrokerError::Unsupported {
                broker: super::BROKER,
                what: "deferred messages",
                fix: "release the message with a delay instead",
            });
        }
    };
    if changes.size() > limits::CHANGES_BYTES_MAX {
        let text = format!(
            "the changes of a message are larger than {} bytes: change less",
            limits::CHANGES_BYTES_MAX
        );
        return Err(BrokerError::Refused { code: "changes_too_large".into(), text });
    }
    returned.changes = message::encode_changes(changes.properties)?;
    Ok(Some(returned))
}

/// Shortens a text and replaces characters that PostgreSQL cannot store.
fn clip(text: &str) -> String {
    let mut end = text.len().min(limits::DEAD_LETTER_TEXT_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].replace('\0', "\u{fffd}")
}
