//! Effects exactly once, in your own database.
//!
//! A message may come twice; what a handler writes must not. A handler that asks for a [`Tx`] runs inside one
//! transaction of your database: a row in `malote_inbox` says that the message was handled, your writes follow, and
//! messages that you send wait in `malote_outbox`. All of it is committed when the handler says that it is done, and
//! nothing of it otherwise. A message whose row is there already is done without the handler.
//!
//! Of a session, `malote_fence` keeps the newest holder: whoever was frozen and comes back to a session that somebody
//! else has by now commits nothing.
//!
//! `relay.rs` publishes what waits in an outbox. Each database has a file of its own, with its tables.

mod outgoing;
pub mod sqlite;

use std::pin::Pin;
use std::sync::Arc;

use crate::incoming::Incoming;
use crate::outcome::{Failure, Outcome};

pub use outgoing::Outgoing;

/// What is to be committed with a handler's success.
pub(crate) trait Effect: Send + Sync {
    fn commit(&self) -> Pin<Box<dyn Future<Output = Result<(), Failure>> + Send + '_>>;
    fn rollback(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;
}

/// Whose transaction a handler can ask for.
pub trait Database: Send + Sync + 'static {
    /// An open transaction.
    type Open: Send + Sync + 'static;
}

/// The transaction of one message. Give it to your statements; the worker commits it.
pub struct Tx<D: Database> {
    pub(crate) open: Arc<D::Open>,
    pub(crate) incoming: Arc<Incoming>,
}

impl Incoming {
    /// Commits what the handler did if it says that it is done; else nothing of it happened.
    pub(crate) async fn finish(&self, outcome: Outcome) -> Outcome {
        let Some(effect) = self.effect.lock().take() else { return outcome };
        if outcome != Outcome::Done {
            effect.rollback().await;
            return outcome;
        }
        // Whoever was frozen past its lock does not commit, even if nobody else has the message yet.
        if !self.lock.holds() {
            effect.rollback().await;
            return Outcome::Release;
        }
        match effect.commit().await {
            Ok(()) => outcome,
            Err(failure) => failure.into(),
        }
    }

    /// Notes the transaction. A handler has one: two databases cannot commit together.
    pub(crate) fn begin(&self, effect: Arc<dyn Effect>) -> Result<(), Failure> {
        let mut have = self.effect.lock();
        if have.is_some() {
            return Err(Failure::dead("TwoTransactions", "a handler can have one transaction"));
        }
        *have = Some(effect);
        Ok(())
    }

    /// Whose row says that the message was handled, unless the database names another.
    pub(crate) fn consumer(&self) -> &str {
        self.queue.as_str()
    }

    /// The key and number by which an old holder is told from a new one: of a session only. One message has its row
    /// in the inbox.
    pub(crate) fn fence(&self) -> Option<(&str, i64)> {
        let held = self.held.as_ref()?;
        Some((held.session.as_str(), i64::try_from(held.epoch).unwrap_or(i64::MAX)))
    }
}
