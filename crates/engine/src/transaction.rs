//! A transaction: staged in memory, then committed by one command. Dropping it has no effect.

use malote_model::{
    Address, LeaseToken, Message, QueueName, Refusal, Settlement, Timestamp, limits,
};

use crate::command::{Command, Reply, StateChange, TransactionWork};
use crate::handle::{AssignedId, Engine, EngineError, Sent, publishing_bytes};

/// Sends, settlements and session states that take effect together or not at all.
pub struct Transaction {
    engine: Engine,
    began: Timestamp,
    work: TransactionWork,
    given: Vec<AssignedId>,
    bytes: u64,
}

impl Engine {
    /// Begins a transaction. It must be committed within two minutes.
    pub fn transaction(&self) -> Transaction {
        let (began, work) = (self.now(), TransactionWork::default());
        Transaction { engine: self.clone(), began, work, given: Vec::new(), bytes: 0 }
    }
}

impl Transaction {
    /// Whether the time limit has passed: nothing more can be staged or committed.
    pub fn is_over(&self) -> bool {
        self.engine.now().0 > self.began.0 + limits::TRANSACTION_MS_MAX
    }

    pub fn send(&mut self, to: impl Into<Address>, message: Message) -> Result<(), EngineError> {
        let (items, given) = self.engine.outgoing(vec![(to.into(), message)])?;
        let bytes = items.iter().map(|(_, message)| message.size() as u64).sum();
        self.stage(bytes)?;
        self.work.sends.extend(items);
        self.given.extend(given);
        Ok(())
    }

    /// Stages a settlement. If a queue is given, the lease must belong to it.
    pub fn settle(
        &mut self,
        queue: Option<QueueName>,
        lease: LeaseToken,
        settlement: Settlement,
    ) -> Result<(), EngineError> {
        let bytes = match &settlement {
            Settlement::DeadLetter { reason, text, changes } => {
                reason.len() + text.len() + changes.size()
            }
            Settlement::Abandon { changes, .. } | Settlement::Defer { changes } => changes.size(),
            Settlement::Complete | Settlement::Release { .. } => 0,
        };
        self.stage(bytes as u64 + 256)?;
        self.work.settles.push((queue, lease, settlement));
        Ok(())
    }

    /// Stages a change of a session's state. If a queue is given, the session must belong to it.
    pub fn state(
        &mut self,
        queue: Option<QueueName>,
        change: StateChange,
    ) -> Result<(), EngineError> {
        self.stage(change.state.as_ref().map_or(0, |state| state.len() as u64) + 256)?;
        self.work.states.push((queue, change));
        Ok(())
    }

    fn stage(&mut self, bytes: u64) -> Result<(), Refusal> {
        self.check_time()?;
        let parts = self.work.sends.len() + self.work.settles.len() + self.work.states.len();
        if parts >= limits::SEND_BATCH_MAX {
            let limit = limits::SEND_BATCH_MAX as u64;
            return Err(Refusal::BatchTooLarge { what: "operations in one transaction", limit });
        }
        if self.bytes + bytes > limits::TRANSACTION_BYTES_MAX {
            let limit = limits::TRANSACTION_BYTES_MAX;
            return Err(Refusal::BatchTooLarge { what: "bytes in one transaction", limit });
        }
        self.bytes += bytes;
        Ok(())
    }

    fn check_time(&self) -> Result<(), Refusal> {
        if self.is_over() {
            return Err(Refusal::TransactionOver { limit_ms: limits::TRANSACTION_MS_MAX });
        }
        Ok(())
    }

    /// Commits everything durably, or nothing. Returns the results of the sends, in order.
    pub async fn commit(self) -> Result<Vec<Sent>, EngineError> {
        self.commit_unless(std::future::pending()).await
    }

    /// Like [`Transaction::commit`], but stops waiting for admission when `enough` completes: then it returns
    /// [`Refusal::Busy`] and nothing was done. A transaction without sends needs no admission.
    pub async fn commit_unless(
        self,
        enough: impl Future<Output = ()>,
    ) -> Result<Vec<Sent>, EngineError> {
        self.check_time()?;
        let Self { engine, work, given, .. } = self;
        let bytes = publishing_bytes(&work.sends);
        let command = Command::Commit { work };
        let committed = match bytes {
            0 => engine.ask(command).await,
            bytes => engine.shared.mailbox.publish(command, bytes, enough).await,
        };
        match committed? {
            Reply::Sent(sent) => Ok(sent
                .into_iter()
                .zip(given)
                .map(|(receipt, given)| Sent::of(receipt, given))
                .collect()),
            other => unreachable!("the core answered {other:?}"),
        }
    }
}
