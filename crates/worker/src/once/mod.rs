//! Exactly-once writes to your own database.
//!
//! A message may be delivered more than once. A handler that takes a [`Tx`] runs in one transaction of your database.
//! The transaction contains a row in `malote_inbox` which records that the message was handled, your own writes, and
//! the messages that you send, as rows in `malote_outbox`. It is committed when the handler succeeds, and rolled back
//! otherwise. If the inbox row exists already, the message is completed without a call of the handler.
//!
//! For messages of a session, `malote_fence` stores the newest holder of the session. A worker that was frozen, and
//! whose session belongs to another worker now, cannot commit.
//!
//! `relay.rs` publishes the messages of an outbox. Each database has its own module with its tables.

mod outbox_message;
#[cfg(feature = "postgres")]
pub mod postgres;
mod relay;
#[cfg(feature = "sqlite")]
pub mod sqlite;

use std::borrow::Cow;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use malote_model::limits;

use crate::clock::signed;
use crate::incoming::Incoming;
use crate::outcome::{Failure, Outcome};
use crate::saga::database::{DatabaseFuture, SagaUpdate};
use crate::text::clip;

pub use outbox_message::OutboxMessage;

/// A good age for `clean_inbox`: longer than a message usually takes to be delivered again.
pub const INBOX_AGE: Duration = Duration::from_secs(7 * 24 * 3600);

/// Rows to delete or read in one statement, so that other transactions do not wait long.
const SLICE: usize = 1000;

/// The open transaction of a handler.
pub(crate) trait HandlerTransaction: Send + Sync {
    fn commit(&self) -> Pin<Box<dyn Future<Output = Result<(), Failure>> + Send + '_>>;
    fn rollback(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;
    /// Updates the row of a saga in the transaction. Returns false if the row did not have the expected version.
    fn save(&self, update: SagaUpdate) -> DatabaseFuture<'_, bool>;
}

/// A database whose transactions handlers can take as [`Tx`].
pub trait Database: Send + Sync + 'static {
    /// An open transaction.
    type Transaction: Send + Sync + 'static;
}

/// The transaction of one message. Run your statements in it; the worker commits it.
pub struct Tx<D: Database> {
    pub(crate) transaction: Arc<D::Transaction>,
    pub(crate) incoming: Arc<Incoming>,
    sends: AtomicU32,
}

impl<D: Database> Tx<D> {
    fn new(transaction: Arc<D::Transaction>, incoming: Arc<Incoming>) -> Self {
        Self { transaction, incoming, sends: AtomicU32::new(0) }
    }

    /// The id of the next message sent in this transaction. It is derived from the handled message, so that it is the
    /// same on every attempt.
    fn next_id(&self) -> String {
        let nth = self.sends.fetch_add(1, Ordering::Relaxed);
        let origin = self.incoming.inbox_id();
        let id = format!("{origin}/{nth}");
        if id.len() <= limits::MESSAGE_ID_BYTES_MAX {
            return id;
        }
        // Too long for a broker: the sequence number replaces the end of the id.
        let suffix = format!("~{}/{nth}", self.incoming.delivery.seq.0);
        let prefix = clip(&origin, limits::MESSAGE_ID_BYTES_MAX - suffix.len());
        format!("{prefix}{suffix}")
    }
}

/// The result of writing the inbox row at the start of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InboxCheck {
    New,
    /// The message was handled before.
    Handled,
    /// Another worker holds the session now.
    Fenced,
}

impl InboxCheck {
    /// An error, which ends the message without a call of the handler, unless the message is new.
    fn require_new(self) -> Result<(), Failure> {
        match self {
            Self::New => Ok(()),
            Self::Handled => Err(Failure::with_outcome(Outcome::Done)),
            // The worker that holds the session now handles the message.
            Self::Fenced => Err(Failure::with_outcome(Outcome::Release)),
        }
    }
}

impl Incoming {
    /// Commits the transaction if the handler succeeded, and rolls it back otherwise.
    pub(crate) async fn end_transaction(&self, outcome: Outcome) -> Outcome {
        let Some(transaction) = self.transaction.lock().take() else { return outcome };
        if outcome != Outcome::Done {
            transaction.rollback().await;
            return outcome;
        }
        // A worker that was frozen past its lock must not commit, even if no other worker has the message yet.
        if !self.lock.is_valid() {
            transaction.rollback().await;
            return Outcome::Release;
        }
        match transaction.commit().await {
            Ok(()) => outcome,
            Err(failure) => failure.into(),
        }
    }

    /// A step can take transactions only of the database with its saga. In another database, its writes would be
    /// committed without the data of the saga.
    pub(crate) fn check_database(&self, database: &str) -> Result<(), Failure> {
        match self.step.get() {
            Some(step) if step.database() != Some(database) => {
                let text = "a step takes a `Tx` of a database that does not contain the saga: use \
                            `Worker::of_saga_in` with that database, or the key of the step";
                Err(Failure::dead("NoTransaction", text))
            }
            _ => Ok(()),
        }
    }

    /// Sets the transaction to end after the handler. There can be only one, because two databases cannot commit
    /// together.
    pub(crate) fn set_transaction(
        &self,
        transaction: Arc<dyn HandlerTransaction>,
    ) -> Result<(), Failure> {
        let mut current = self.transaction.lock();
        if current.is_some() {
            let text = "the handler takes more than one `Tx`: it can take only one";
            return Err(Failure::dead("TwoTransactions", text));
        }
        *current = Some(transaction);
        Ok(())
    }

    /// The default of the column `consumer` in the inbox.
    pub(crate) fn consumer(&self) -> &str {
        self.queue.as_str()
    }

    /// The `message_id` in the inbox. A message without an id is identified by its sequence number.
    pub(crate) fn inbox_id(&self) -> Cow<'_, str> {
        match self.origin_id() {
            "" => Cow::Owned(format!("seq:{}", self.delivery.seq.0)),
            id => Cow::Borrowed(id),
        }
    }

    /// The session and the number of its holder. Newer holders have greater numbers. None without a session; the inbox
    /// row is enough then.
    pub(crate) fn fence(&self) -> Option<(&str, i64)> {
        let held = self.held.as_ref()?;
        Some((held.session.as_str(), signed(held.epoch)))
    }
}
