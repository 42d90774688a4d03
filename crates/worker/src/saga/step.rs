//! Steps of a saga: functions, their arguments and their results.

use std::pin::Pin;
use std::sync::Arc;

use malote_wire_native::saga::DATA_BYTES_MAX;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use crate::extract::FromDelivery;
use crate::handler::Handler;
use crate::incoming::{Incoming, StateMap};
use crate::outcome::{Failure, IntoOutcome, Outcome};

type StepFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Takes the data and returns the new data, or the outcome if the step is not done.
pub(super) type BoxedStep = Arc<
    dyn Fn(Arc<Incoming>, Box<RawValue>) -> StepFuture<Result<Box<RawValue>, Outcome>>
        + Send
        + Sync,
>;
/// Takes the data and undoes the step.
pub(super) type BoxedCompensation =
    Arc<dyn Fn(Arc<Incoming>, Box<RawValue>) -> StepFuture<Outcome> + Send + Sync>;

/// An argument of steps and compensations: the saga, the step and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    pub(super) saga: String,
    pub(super) name: String,
    pub(super) key: String,
    pub(super) undoes: Option<String>,
    pub(super) attempt: u32,
    /// The database with the saga. The step can take its transactions.
    pub(super) database: Option<&'static str>,
}

impl Step {
    /// The id of the saga.
    pub fn saga(&self) -> &str {
        &self.saga
    }

    /// The name of the step.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A key that is the same at every attempt and different for every other step. Pass it to services that must not do
    /// the same thing twice. A compensation has its own key.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// In a compensation, the key of the step that it undoes.
    pub fn undoes(&self) -> Option<&str> {
        self.undoes.as_deref()
    }

    #[cfg(feature = "once")]
    pub(crate) fn database(&self) -> Option<&'static str> {
        self.database
    }

    /// The number of this attempt; the first is 1.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }
}

impl FromDelivery for Step {
    async fn from_delivery(incoming: &Arc<Incoming>) -> Result<Self, Failure> {
        let none =
            || Failure::dead("NoSaga", "a handler takes a `Step`, but is not part of a saga");
        incoming.step.get().cloned().ok_or_else(none)
    }
}

/// All arguments of a step.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the arguments of a step of a saga with data `{T}`",
    label = "the first argument must be the saga's data",
    note = "a step is an `async fn(data: {T}, …) -> Result<{T}, malote::Failure>` of up to six arguments; all but the first implement `malote::FromDelivery`: `Step`, `State<T>`, `Cancelled` …"
)]
pub trait FromStep<T>: Sized + Send + 'static {
    /// Extracts them from the data and the message.
    fn from_step(
        data: T,
        incoming: &Arc<Incoming>,
    ) -> impl Future<Output = Result<Self, Failure>> + Send;

    /// The type of a state that an argument needs and the worker lacks.
    fn missing(states: &StateMap) -> Option<&'static str>;
}

macro_rules! arguments {
    ($($argument:ident)*) => {
        impl<T: Send + 'static, $($argument: FromDelivery + 'static,)*> FromStep<T> for (T, $($argument,)*) {
            async fn from_step(data: T, _incoming: &Arc<Incoming>) -> Result<Self, Failure> {
                Ok((data, $($argument::from_delivery(_incoming).await?,)*))
            }

            fn missing(_states: &StateMap) -> Option<&'static str> {
                None$(.or_else(|| $argument::missing(_states)))*
            }
        }
    };
}

arguments!();
arguments!(A);
arguments!(A B);
arguments!(A B C);
arguments!(A B C D);
arguments!(A B C D E);

/// A return type of steps.
#[diagnostic::on_unimplemented(
    message = "a step of a saga with data `{T}` cannot return `{Self}`",
    label = "not the saga's data",
    note = "return the data for the next step: `Result<{T}, malote::Failure>`"
)]
pub trait IntoData<T> {
    /// The data for the next step, or the failure.
    fn into_data(self) -> Result<T, Failure>;
}

impl<T, E: Into<Failure>> IntoData<T> for Result<T, E> {
    fn into_data(self) -> Result<T, Failure> {
        self.map_err(Into::into)
    }
}

fn decode<T: DeserializeOwned>(data: &RawValue) -> Result<T, Failure> {
    serde_json::from_str(data.get()).map_err(|error| {
        let name = std::any::type_name::<T>();
        Failure::undecodable(format_args!(
            "the data of the saga cannot be decoded as {name}: {error}"
        ))
    })
}

fn encode<T: Serialize>(data: &T) -> Result<Box<RawValue>, Failure> {
    let raw = serde_json::value::to_raw_value(data).map_err(|error| {
        Failure::retry(format_args!("the data of the saga cannot be encoded as JSON: {error}"))
    })?;
    check_size(raw.get().len()).map_err(Failure::retry)?;
    Ok(raw)
}

/// Refuses data that is too large for a session state.
pub(super) fn check_size(bytes: usize) -> Result<(), String> {
    if bytes <= DATA_BYTES_MAX {
        return Ok(());
    }
    Err(format!("the data of the saga has {bytes} bytes as JSON: the limit is {DATA_BYTES_MAX}"))
}

async fn arguments<T, Arguments>(
    incoming: &Arc<Incoming>,
    data: &RawValue,
) -> Result<Arguments, Failure>
where
    T: DeserializeOwned,
    Arguments: FromStep<T>,
{
    Arguments::from_step(decode(data)?, incoming).await
}

pub(super) fn boxed<T, Arguments, H>(step: H) -> BoxedStep
where
    T: Serialize + DeserializeOwned + Send + 'static,
    H: Handler<Arguments, Returned: Future<Output: IntoData<T>> + Send + 'static>,
    Arguments: FromStep<T>,
{
    Arc::new(move |incoming, data| {
        let step = step.clone();
        Box::pin(async move {
            let arguments = arguments::<T, Arguments>(&incoming, &data).await?;
            let data = step.call(arguments).await.into_data()?;
            Ok(encode(&data)?)
        })
    })
}

pub(super) fn boxed_compensation<T, Arguments, H>(undo: H) -> BoxedCompensation
where
    T: DeserializeOwned + Send + 'static,
    H: Handler<Arguments, Returned: Future<Output: IntoOutcome> + Send + 'static>,
    Arguments: FromStep<T>,
{
    Arc::new(move |incoming, data| {
        let undo = undo.clone();
        Box::pin(async move {
            match arguments::<T, Arguments>(&incoming, &data).await {
                Ok(arguments) => undo.call(arguments).await.into_outcome(),
                Err(failure) => failure.into(),
            }
        })
    })
}
