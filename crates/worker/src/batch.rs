//! Handlers that take several messages in one call, with one outcome for each.
//!
//! ```no_run
//! use std::time::Duration;
//! use malote::{Batch, Failure, Malote, Worker};
//!
//! #[derive(serde::Deserialize)]
//! struct Reading { sensor: String, celsius: f64 }
//!
//! /// One result for all messages. Return a `Vec` for one result per message.
//! async fn store(readings: Batch<Reading>) -> Result<(), Failure> {
//!     let rows: Vec<_> = readings.iter().map(|one| (&one.sensor, one.celsius)).collect();
//!     // … one insert for all rows
//!     # drop(rows);
//!     Ok(())
//! }
//!
//! # async fn run(malote: Malote) -> Result<(), malote::Error> {
//! let worker = Worker::new(&malote, "readings");
//! worker.handle_batch(store, 100, Duration::from_millis(200)).run_until_signal().await?;
//! # Ok(()) }
//! ```

use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;

use serde::de::DeserializeOwned;

use crate::extract::{Body, Cancelled, FromDelivery, Meta, State, Text};
use crate::handler::Handler;
use crate::incoming::{Incoming, StateMap};
use crate::outcome::{FailedAttempt, Failure, IntoOutcome, Outcome};

/// The messages of one call, in order. On a queue with sessions, all belong to the same session.
///
/// A message whose body cannot be decoded is not included. It is dead-lettered on its own.
pub struct Batch<T>(Vec<BatchItem<T>>);

/// One message of a batch.
pub struct BatchItem<T> {
    /// The decoded body.
    pub value: T,
    /// The rest of the message.
    pub meta: Meta,
}

impl<T> Deref for BatchItem<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> Deref for Batch<T> {
    type Target = [BatchItem<T>];
    fn deref(&self) -> &[BatchItem<T>] {
        &self.0
    }
}

impl<T> IntoIterator for Batch<T> {
    type Item = BatchItem<T>;
    type IntoIter = std::vec::IntoIter<BatchItem<T>>;
    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<'a, T> IntoIterator for &'a Batch<T> {
    type Item = &'a BatchItem<T>;
    type IntoIter = std::slice::Iter<'a, BatchItem<T>>;
    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

/// A body that can be part of a batch.
#[diagnostic::on_unimplemented(
    message = "there is no batch of `{Self}`",
    label = "not the body of a message",
    note = "derive `serde::Deserialize` for the body's type, or use `malote::{{Text, Body}}`; each one's `meta` has the rest"
)]
pub trait BatchBody: FromDelivery {}

// The compiler should suggest `BatchBody`, not the traits of serde.
#[diagnostic::do_not_recommend]
impl<T: DeserializeOwned + Send + 'static> BatchBody for T {}
impl BatchBody for Text {}
impl BatchBody for Body {}

/// A further argument of a batch handler: a value that is the same for all messages.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be an argument of a batch handler",
    label = "not the same for all messages of a batch",
    note = "the first argument is `malote::Batch<T>`, others are `malote::State<T>` or `malote::Cancelled`; each one's `meta` has what differs"
)]
pub trait BatchArgument: FromDelivery {}

impl<T: Send + Sync + 'static> BatchArgument for State<T> {}
impl BatchArgument for Cancelled {}

/// A return type of batch handlers: one outcome for each message, or one for all.
#[diagnostic::on_unimplemented(
    message = "a batch handler cannot return `{Self}`",
    label = "not outcomes",
    note = "return a `Vec` with an outcome for each message, in order, or one for all: `()`, `malote::Outcome`, or a `Result` of these"
)]
pub trait IntoOutcomes {
    /// The outcome of each of `messages` messages, in order.
    fn into_outcomes(self, messages: usize) -> Vec<Outcome>;
}

impl IntoOutcomes for () {
    fn into_outcomes(self, messages: usize) -> Vec<Outcome> {
        vec![Outcome::Done; messages]
    }
}

impl IntoOutcomes for Outcome {
    fn into_outcomes(self, messages: usize) -> Vec<Outcome> {
        vec![self; messages]
    }
}

impl<T: IntoOutcome> IntoOutcomes for Vec<T> {
    fn into_outcomes(self, messages: usize) -> Vec<Outcome> {
        if self.len() != messages {
            // It is unknown which outcome belongs to which message.
            let (given, expected) = (self.len(), messages);
            let error = format!("the handler returned {given} outcomes for {expected} messages");
            let failed = FailedAttempt { error, ..FailedAttempt::default() };
            return vec![Outcome::Retry(failed); messages];
        }
        self.into_iter().map(IntoOutcome::into_outcome).collect()
    }
}

impl<T: IntoOutcomes, E: Into<Failure>> IntoOutcomes for Result<T, E> {
    fn into_outcomes(self, messages: usize) -> Vec<Outcome> {
        match self {
            Ok(outcomes) => outcomes.into_outcomes(messages),
            Err(error) => {
                let failure: Failure = error.into();
                vec![Outcome::from(failure); messages]
            }
        }
    }
}

pub(crate) type BoxedBatchHandler = Arc<
    dyn Fn(Vec<Arc<Incoming>>) -> Pin<Box<dyn Future<Output = Vec<Outcome>> + Send>> + Send + Sync,
>;

/// All arguments of a batch handler: the batch, then values that are the same for all messages.
#[diagnostic::on_unimplemented(
    message = "`{Self}` are not the arguments of a batch handler",
    label = "its first argument is not a `malote::Batch`, or there are more than four",
    note = "the first argument is `malote::Batch<T>`, others are `malote::State<T>` or `malote::Cancelled`"
)]
pub trait FromBatch: Sized + Send + 'static {
    /// Extracts them from the messages.
    fn from_batch(messages: &[Arc<Incoming>]) -> impl Future<Output = ExtractedBatch<Self>> + Send;

    /// The type of a state that an argument needs and the worker lacks.
    fn missing(states: &StateMap) -> Option<&'static str>;
}

/// The arguments that were extracted from the messages of a batch.
pub struct ExtractedBatch<Arguments> {
    /// Otherwise the outcome of all messages whose body could be decoded.
    arguments: Result<Arguments, Outcome>,
    /// For each message, the outcome if its body could not be decoded. The handler gets the other messages.
    undecodable: Vec<Option<Outcome>>,
}

pub(crate) fn boxed<Arguments, H>(handler: H) -> BoxedBatchHandler
where
    H: Handler<Arguments, Returned: Future<Output: IntoOutcomes> + Send + 'static>,
    Arguments: FromBatch,
{
    Arc::new(move |incoming| {
        let handler = handler.clone();
        Box::pin(async move {
            let ExtractedBatch { arguments, undecodable } = Arguments::from_batch(&incoming).await;
            let count = undecodable.iter().filter(|outcome| outcome.is_none()).count();
            let outcomes = match arguments {
                Ok(arguments) => handler.call(arguments).await.into_outcomes(count),
                Err(outcome) => vec![outcome; count],
            };
            let mut outcomes = outcomes.into_iter();
            let all = undecodable.into_iter().map(|outcome| outcome.or_else(|| outcomes.next()));
            all.map(|outcome| outcome.unwrap_or(Outcome::Release)).collect()
        })
    })
}

/// The bodies that can be decoded, and the outcomes of the messages whose body cannot.
async fn decode_bodies<T: BatchBody>(
    messages: &[Arc<Incoming>],
) -> (Vec<BatchItem<T>>, Vec<Option<Outcome>>) {
    let mut bodies = Vec::with_capacity(messages.len());
    let mut undecodable = Vec::with_capacity(messages.len());
    for message in messages {
        undecodable.push(match T::from_delivery(message).await {
            Ok(value) => {
                bodies.push(BatchItem { value, meta: Meta::of(message) });
                None
            }
            Err(failure) => Some(failure.into()),
        });
    }
    (bodies, undecodable)
}

macro_rules! from_batch {
    ($($argument:ident)*) => {
        impl<T: BatchBody + 'static, $($argument: BatchArgument + 'static,)*> FromBatch
            for (Batch<T>, $($argument,)*)
        {
            async fn from_batch(messages: &[Arc<Incoming>]) -> ExtractedBatch<Self> {
                let (bodies, undecodable) = decode_bodies::<T>(messages).await;
                let Some(_first) = messages.first().filter(|_| !bodies.is_empty()) else {
                    return ExtractedBatch { arguments: Err(Outcome::Release), undecodable };
                };
                let arguments = async {
                    Ok::<_, Failure>((Batch(bodies), $($argument::from_delivery(_first).await?,)*))
                };
                let arguments = arguments.await.map_err(Outcome::from);
                ExtractedBatch { arguments, undecodable }
            }

            fn missing(_states: &StateMap) -> Option<&'static str> {
                T::missing(_states)$(.or_else(|| $argument::missing(_states)))*
            }
        }
    };
}

from_batch!();
from_batch!(A);
from_batch!(A B);
from_batch!(A B C);
