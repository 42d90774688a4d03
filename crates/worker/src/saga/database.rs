//! Sagas in your own database: for brokers without session state, and for steps that write to that database.
//!
//! Each saga is a row. Updates compare and set its version. A step that takes a [`crate::Tx`] of the same database
//! commits its writes, its messages and the row together. A waiting saga is woken by a delayed message in the outbox,
//! which is written together with the row. The worker runs a relay for the outbox.
//!
//! ```text
//! message → claim (version + 1) → step → result (version + 2), in the step's transaction → next step …
//! ```
//!
//! If a claimed step has no result, its worker died. The step may have had an effect.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use malote_model::{SessionId, Value};
use malote_wire_native::saga::{SagaState, SagaStatus, Todo};

use super::progress::{AttemptResult, NextRun};
use super::run::{self, RETRY_DELAY, UNKNOWN_STEP_DELAY, VERSION};
use super::{SagaPlan, queue_of};
use crate::incoming::Incoming;
use crate::once::OutboxMessage;
use crate::outcome::Outcome;
use crate::{Error, Malote};

/// The subject of a message that wakes a saga.
const WAKE: &str = "wake";

pub(crate) type DatabaseFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send + 'a>>;

/// The row of a saga.
pub(crate) struct SagaRow {
    pub state: SagaState,
    /// A step was claimed, and its result is unknown.
    pub begun: bool,
    /// The saga waits for the wake-up message of this version.
    pub waits: bool,
}

/// An update of a row, if the row still has the expected version.
#[derive(Clone)]
pub(crate) struct SagaUpdate {
    pub name: String,
    pub id: String,
    /// The expected version; 0 if the row must not exist.
    pub from: u64,
    pub version: u64,
    pub status: SagaStatus,
    pub deadline: Option<u64>,
    pub changed_at: u64,
    pub state: String,
    pub begun: bool,
    pub waits: bool,
    /// The message that wakes the saga.
    pub wake: Option<OutboxMessage>,
}

/// The sagas in a database.
pub(crate) trait SagaStore: Send + Sync {
    fn load(&self, name: &str, id: &str) -> DatabaseFuture<'_, Option<SagaRow>>;
    /// Returns false if the row did not have the expected version.
    fn save(&self, update: SagaUpdate) -> DatabaseFuture<'_, bool>;
    /// Publishes the outbox until `stop` completes.
    fn relay(
        &self,
        malote: Malote,
        stop: Pin<Box<dyn Future<Output = ()> + Send>>,
    ) -> DatabaseFuture<'_, ()>;
    /// The kind of database. Steps can take transactions of the same kind.
    fn database(&self) -> &'static str;
}

/// A database for sagas: see [`crate::Worker::of_saga_in`].
#[derive(Clone)]
pub struct SagaDatabase(pub(crate) Arc<dyn SagaStore>);

/// Delivers the message again after a delay. If the broker has no delays, it waits here.
async fn deliver_later(incoming: &Incoming, pause: Duration) -> Outcome {
    if incoming.broker.capabilities().delay {
        return Outcome::Snooze(pause);
    }
    tokio::time::sleep(pause).await;
    Outcome::Release
}

/// Runs steps of a saga until it must wait or is over.
pub(super) async fn drive(
    plan: Arc<SagaPlan>,
    database: SagaDatabase,
    incoming: Arc<Incoming>,
) -> Outcome {
    let message = incoming.message();
    let id = message.correlation_id.as_deref().or(incoming.session().map(SessionId::as_str));
    // A text in a database cannot contain a zero byte.
    let id = id.filter(|id| SessionId::new(id).is_ok() && !id.contains('\0'));
    let Some(id) = id else {
        let text = "the correlation id of the message is not the id of a saga".to_owned();
        return Outcome::Dead { reason: "NoSaga".into(), text };
    };
    let driver = SagaDriver { plan: &plan, store: &*database.0, incoming: &incoming, id };
    match driver.drive().await {
        Ok(outcome) => outcome,
        Err(error) => {
            tracing::warn!(saga = plan.name, id, %error, "the database of a saga failed; retrying");
            deliver_later(&incoming, RETRY_DELAY).await
        }
    }
}

struct SagaDriver<'a> {
    plan: &'a SagaPlan,
    store: &'a dyn SagaStore,
    incoming: &'a Arc<Incoming>,
    id: &'a str,
}

impl SagaDriver<'_> {
    async fn drive(&self) -> Result<Outcome, Error> {
        let mut row = match self.store.load(&self.plan.name, self.id).await? {
            Some(row) => row,
            None => match run::begin(self.plan, self.incoming) {
                Ok(state) => SagaRow { state, begun: false, waits: false },
                Err(outcome) => return Ok(outcome),
            },
        };
        let wakes = match self.incoming.message().properties.get(VERSION) {
            Some(Value::I64(version)) => u64::try_from(*version).ok(),
            _ => None,
        };
        // Only the wake-up message of this version wakes a waiting saga.
        if row.waits && wakes != Some(row.state.version) {
            return Ok(Outcome::Done);
        }
        while row.state.todo() != Todo::Nothing {
            match self.run_step(row).await? {
                Ok(next) => row = next,
                Err(outcome) => return Ok(outcome),
            }
        }
        Ok(Outcome::Done)
    }

    /// Runs one step. Returns the new row, or the outcome of the message if the saga must wait.
    async fn run_step(&self, row: SagaRow) -> Result<Result<SagaRow, Outcome>, Error> {
        let SagaRow { mut state, begun, .. } = row;
        let (plan, id) = (self.plan, self.id);
        let Some(next_step) = run::next_step(plan, id, &state) else {
            return Ok(Err(deliver_later(self.incoming, UNKNOWN_STEP_DELAY).await));
        };
        state.steps[next_step.nth].in_doubt |= begun;
        let from = state.version;
        state.version += 1;
        if !self.store.save(self.update(&state, from, true, None)?).await? {
            // Another worker has changed the row.
            return Ok(Err(deliver_later(self.incoming, RETRY_DELAY).await));
        }
        let incoming = self.incoming.for_next_step();
        let lost = self.incoming.lost();
        state.steps[next_step.nth].lost = state.steps[next_step.nth].lost.max(lost);
        // A step that cannot be compensated is retried in any case.
        let lost = if next_step.undo || state.is_forward_only() { 0 } else { lost };
        let database = Some(self.store.database());
        let Some(attempt) = next_step.attempt(&incoming, &state, lost, database).await else {
            return Ok(Err(Outcome::Release));
        };
        let transaction = incoming.transaction.lock().take();
        let done = matches!(attempt, AttemptResult::Done(_));
        let from = state.version;
        let after = next_step.record_attempt(&mut state, attempt, incoming.broker.now().0);
        let delay = match after {
            NextRun::After(delay) if !delay.is_zero() => Some(delay),
            _ => None,
        };
        let update = self.update(&state, from, false, delay)?;
        let saved = match transaction {
            // A worker that was frozen past its lock must not commit.
            Some(transaction)
                if done && incoming.lock.is_valid() && transaction.save(update.clone()).await? =>
            {
                transaction.commit().await.map_err(|failure| {
                    Error::Database(format!("cannot commit the transaction of a step: {failure:?}"))
                })?;
                true
            }
            Some(transaction) => {
                transaction.rollback().await;
                !done && self.store.save(update).await?
            }
            None => self.store.save(update).await?,
        };
        Ok(match (saved, delay) {
            (false, _) => Err(deliver_later(self.incoming, RETRY_DELAY).await),
            (true, Some(_)) => Err(Outcome::Done),
            (true, None) => Ok(SagaRow { state, begun: false, waits: false }),
        })
    }

    fn update(
        &self,
        state: &SagaState,
        from: u64,
        begun: bool,
        delay: Option<Duration>,
    ) -> Result<SagaUpdate, Error> {
        let wake = match delay {
            Some(delay) => Some(self.wake(state.version, delay)?),
            None => None,
        };
        Ok(SagaUpdate {
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

    fn wake(&self, version: u64, delay: Duration) -> Result<OutboxMessage, Error> {
        let session = SessionId::new(self.id).map_err(|refusal| {
            Error::Settings(format!("invalid saga id `{}`: {refusal}", self.id))
        })?;
        let version = i64::try_from(version).unwrap_or(i64::MAX);
        let mut wake = OutboxMessage::text(&queue_of(&self.plan.name), "")
            .session(session)
            .subject(WAKE)
            .id(format!("wake:{version}:{}", self.id))
            .property(VERSION, Value::I64(version))
            .delay(delay);
        wake.message.correlation_id = Some(self.id.to_owned());
        Ok(wake)
    }
}

/// The state in a row.
pub(crate) fn decode_state(id: &str, state: &str) -> Result<SagaState, Error> {
    SagaState::read(state.as_bytes())
        .map_err(|error| Error::Database(format!("the state of saga `{id}` is invalid: {error}")))
}
