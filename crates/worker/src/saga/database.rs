//! Sagas in a database of yours: for brokers whose sessions have no state, and for steps that write to that database.
//!
//! A row says where a saga stands; it changes by compare-and-set on its version. A step that asks for a [`crate::Tx`] of
//! the same database commits its writes, its messages and the row together. A saga that waits is woken by a message
//! that waits in the outbox, written with the row: the worker runs a relay for it.
//!
//! ```text
//! message → claim (version + 1) → step → its end (version + 2), with the transaction of the step → next step …
//! ```
//!
//! A step that was claimed and has no end was under way when its worker vanished: it may have had an effect.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use malote_model::{SessionId, Value};
use malote_wire_native::saga::{SagaState, SagaStatus, Todo};

use super::progress::{After, Attempt};
use super::run::{self, PAUSE, UNKNOWN_PAUSE, VERSION};
use super::{Plan, prefixed};
use crate::incoming::Incoming;
use crate::once::Outgoing;
use crate::outcome::Outcome;
use crate::{Error, Malote};

/// The subject of a message that wakes a saga.
const WAKE: &str = "wake";

pub(crate) type Doing<'a, T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send + 'a>>;

/// What a database knows about a saga.
pub(crate) struct Row {
    pub state: SagaState,
    /// A step was begun, and its end is not known.
    pub begun: bool,
    /// It waits for a message of its version, which is on its way.
    pub waits: bool,
}

/// A row that is to change, if it is still as it was.
#[derive(Clone)]
pub(crate) struct Save {
    pub name: String,
    pub id: String,
    /// The version that it must have; 0 if there must be none.
    pub from: u64,
    pub version: u64,
    pub status: SagaStatus,
    pub deadline: Option<u64>,
    pub changed_at: u64,
    pub state: String,
    pub begun: bool,
    pub waits: bool,
    /// What wakes it.
    pub wake: Option<Outgoing>,
}

/// Where a database keeps sagas.
pub(crate) trait Table: Send + Sync {
    fn load(&self, name: &str, id: &str) -> Doing<'_, Option<Row>>;
    /// Whether the row was as it was.
    fn save(&self, save: Save) -> Doing<'_, bool>;
    /// Publishes what wakes sagas until `stop` is over.
    fn relay(
        &self,
        malote: Malote,
        stop: Pin<Box<dyn Future<Output = ()> + Send>>,
    ) -> Doing<'_, ()>;
    /// Which database it is, for steps that ask for a transaction of it.
    fn database(&self) -> &'static str;
}

/// A database that can keep sagas.
#[derive(Clone)]
pub struct SagaTable(pub(crate) Arc<dyn Table>);

/// Later, by the broker's delay if it has one.
async fn later(incoming: &Incoming, pause: Duration) -> Outcome {
    if incoming.broker.capabilities().delay {
        return Outcome::Snooze(pause);
    }
    tokio::time::sleep(pause).await;
    Outcome::Release
}

/// Drives a saga as far as it goes without waiting.
pub(super) async fn drive(plan: Arc<Plan>, table: SagaTable, incoming: Arc<Incoming>) -> Outcome {
    let message = incoming.message();
    let id = message.correlation_id.as_deref().or(incoming.session().map(SessionId::as_str));
    // No database keeps a zero byte in a text.
    let id = id.filter(|id| SessionId::new(id).is_ok() && !id.contains('\0'));
    let Some(id) = id else {
        let text = "a message of a saga has its id as its correlation id".to_owned();
        return Outcome::Dead { reason: "NoSaga".into(), text };
    };
    let driver = Driver { plan: &plan, table: &*table.0, incoming: &incoming, id };
    match driver.drive().await {
        Ok(outcome) => outcome,
        Err(error) => {
            tracing::warn!(saga = plan.name, id, %error, "the database of a saga: tried again");
            later(&incoming, PAUSE).await
        }
    }
}

struct Driver<'a> {
    plan: &'a Plan,
    table: &'a dyn Table,
    incoming: &'a Arc<Incoming>,
    id: &'a str,
}

impl Driver<'_> {
    async fn drive(&self) -> Result<Outcome, Error> {
        let mut row = match self.table.load(&self.plan.name, self.id).await? {
            Some(row) => row,
            None => match run::begin(self.plan, self.incoming) {
                Ok(state) => Row { state, begun: false, waits: false },
                Err(outcome) => return Ok(outcome),
            },
        };
        let wakes = match self.incoming.message().properties.get(VERSION) {
            Some(Value::I64(version)) => u64::try_from(*version).ok(),
            _ => None,
        };
        // What waits is woken by its own message, and by no older or newer one.
        if row.waits && wakes != Some(row.state.version) {
            return Ok(Outcome::Done);
        }
        while row.state.todo() != Todo::Nothing {
            match self.one(row).await? {
                Ok(next) => row = next,
                Err(outcome) => return Ok(outcome),
            }
        }
        Ok(Outcome::Done)
    }

    /// One step; the row after it, or what becomes of the message if this is all for now.
    async fn one(&self, row: Row) -> Result<Result<Row, Outcome>, Error> {
        let Row { mut state, begun, .. } = row;
        let (plan, id) = (self.plan, self.id);
        let Some(turn) = run::turn(plan, id, &state) else {
            return Ok(Err(later(self.incoming, UNKNOWN_PAUSE).await));
        };
        state.steps[turn.nth].in_doubt |= begun;
        let from = state.version;
        state.version += 1;
        if !self.table.save(self.row(&state, from, true, None)?).await? {
            return Ok(Err(later(self.incoming, PAUSE).await)); // somebody else is at it
        }
        let incoming = self.incoming.again();
        let lost = self.incoming.lost();
        state.steps[turn.nth].lost = state.steps[turn.nth].lost.max(lost);
        // Without a way back it is tried all the same.
        let lost = if turn.undo || state.is_forward_only() { 0 } else { lost };
        let database = Some(self.table.database());
        let Some(attempt) = turn.attempt(&incoming, &state, lost, database).await else {
            return Ok(Err(Outcome::Release));
        };
        let effect = incoming.effect.lock().take();
        let done = matches!(attempt, Attempt::Done(_));
        let from = state.version;
        let after = turn.follow(&mut state, attempt, incoming.broker.now().0);
        let delay = match after {
            After::Delay(delay) if !delay.is_zero() => Some(delay),
            _ => None,
        };
        let save = self.row(&state, from, false, delay)?;
        let saved = match effect {
            // Whoever was frozen past its lock does not commit.
            Some(effect) if done && incoming.lock.holds() && effect.save(save.clone()).await? => {
                effect.commit().await.map_err(|failure| {
                    Error::Database(format!("a step's transaction: {failure:?}"))
                })?;
                true
            }
            Some(effect) => {
                effect.rollback().await;
                !done && self.table.save(save).await?
            }
            None => self.table.save(save).await?,
        };
        Ok(match (saved, delay) {
            (false, _) => Err(later(self.incoming, PAUSE).await),
            (true, Some(_)) => Err(Outcome::Done),
            (true, None) => Ok(Row { state, begun: false, waits: false }),
        })
    }

    fn row(
        &self,
        state: &SagaState,
        from: u64,
        begun: bool,
        delay: Option<Duration>,
    ) -> Result<Save, Error> {
        let wake = match delay {
            Some(delay) => Some(self.wake(state.version, delay)?),
            None => None,
        };
        Ok(Save {
            name: self.plan.name.clone(),
            id: self.id.to_owned(),
            from,
            version: state.version,
            status: state.status,
            deadline: state.current().and_then(|step| step.deadline),
            changed_at: state.changed_at,
            state: serde_json::to_string(state)
                .map_err(|error| Error::Encode(error.to_string()))?,
            begun,
            waits: wake.is_some(),
            wake,
        })
    }

    fn wake(&self, version: u64, delay: Duration) -> Result<Outgoing, Error> {
        let session = SessionId::new(self.id)
            .map_err(|refusal| Error::Settings(format!("the saga's id: {refusal}")))?;
        let version = i64::try_from(version).unwrap_or(i64::MAX);
        let mut wake = Outgoing::text(&prefixed(&self.plan.name), "")
            .session(session)
            .subject(WAKE)
            .id(format!("wake:{version}:{}", self.id))
            .property(VERSION, Value::I64(version))
            .delay(delay);
        wake.message.correlation_id = Some(self.id.to_owned());
        Ok(wake)
    }
}
