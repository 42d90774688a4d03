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
//! `relay.rs` publishes what waits in an outbox. Each database has a file or folder of its own, with its tables.

mod outgoing;
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

use crate::incoming::Incoming;
use crate::outcome::{Failure, Outcome};
use crate::saga::database::{Doing, Save};

pub use outgoing::Outgoing;

/// How long rows of an inbox are kept unless you know better: longer than any message may take to come again.
pub const INBOX_AGE: Duration = Duration::from_secs(7 * 24 * 3600);

/// Rows that a cleaner removes at once: others wait no longer than for these.
const SLICE: usize = 1000;

/// What is to be committed with a handler's success.
pub(crate) trait Effect: Send + Sync {
    fn commit(&self) -> Pin<Box<dyn Future<Output = Result<(), Failure>> + Send + '_>>;
    fn rollback(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;
    /// Writes where a saga stands into the transaction; whether it was as it was.
    fn save(&self, save: Save) -> Doing<'_, bool>;
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
    sends: AtomicU32,
}

impl<D: Database> Tx<D> {
    fn new(open: Arc<D::Open>, incoming: Arc<Incoming>) -> Self {
        Self { open, incoming, sends: AtomicU32::new(0) }
    }

    /// The id of the next message that is sent with it: made from the one that is handled, so that a repeat has the
    /// same.
    fn next_id(&self) -> String {
        let nth = self.sends.fetch_add(1, Ordering::Relaxed);
        let origin = self.incoming.inbox_id();
        let id = format!("{origin}/{nth}");
        if id.len() <= limits::MESSAGE_ID_BYTES_MAX {
            return id;
        }
        // Too long for a broker. The place in the queue tells as much as the end that is cut.
        let place = format!("~{}/{nth}", self.incoming.delivery.seq.0);
        let room = limits::MESSAGE_ID_BYTES_MAX - place.len();
        format!("{}{place}", &origin[..origin.floor_char_boundary(room)])
    }
}

/// What a transaction found when it began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Begun {
    Fresh,
    /// The message was handled before.
    Handled,
    /// Somebody else has the session by now.
    Fenced,
}

impl Begun {
    /// Whether there is something to do; if not, what becomes of the message without the handler.
    fn go_on(self) -> Result<(), Failure> {
        match self {
            Self::Fresh => Ok(()),
            Self::Handled => Err(Failure::already(Outcome::Done)),
            // Whoever has the session now does it.
            Self::Fenced => Err(Failure::already(Outcome::Release)),
        }
    }
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

    /// A step has a transaction only of the database that keeps its saga. Of another one its writes would be committed
    /// without its data.
    pub(crate) fn may_begin(&self, database: &str) -> Result<(), Failure> {
        match self.step.get() {
            Some(step) if step.database() != Some(database) => {
                let text = "the saga is not kept in this database: use `Worker::of_saga_in`, or the step's key";
                Err(Failure::dead("NoTransaction", text))
            }
            _ => Ok(()),
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

    /// Which row says that the message was handled. One without any id is known by its place in the queue: all of
    /// them would share one row otherwise.
    pub(crate) fn inbox_id(&self) -> Cow<'_, str> {
        match self.origin_id() {
            "" => Cow::Owned(format!("seq:{}", self.delivery.seq.0)),
            id => Cow::Borrowed(id),
        }
    }

    /// The key and number by which an old holder is told from a new one: of a session only. One message has its row
    /// in the inbox.
    pub(crate) fn fence(&self) -> Option<(&str, i64)> {
        let held = self.held.as_ref()?;
        Some((held.session.as_str(), i64::try_from(held.epoch).unwrap_or(i64::MAX)))
    }
}
