//! Handlers that take several messages at once, with an outcome for each.
//!
//! ```no_run
//! use std::time::Duration;
//! use malote::{Batch, Failure, Malote, Worker};
//!
//! #[derive(serde::Deserialize)]
//! struct Reading { sensor: String, celsius: f64 }
//!
//! /// One answer for all; a `Vec` has one for each.
//! async fn store(readings: Batch<Reading>) -> Result<(), Failure> {
//!     let rows: Vec<_> = readings.iter().map(|one| (&one.sensor, one.celsius)).collect();
//!     // one insert for all of them
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
use crate::incoming::{Incoming, Shared};
use crate::outcome::{Failed, Failure, IntoOutcome, Outcome};

/// Messages of one call, in the order in which they came: of a queue with sessions they are all of one session.
///
/// One that cannot be read is not among them: it goes to the dead letters by itself.
pub struct Batch<T>(Vec<One<T>>);

/// One of a batch.
pub struct One<T> {
    /// What was read of it.
    pub value: T,
    /// All the rest.
    pub meta: Meta,
}

impl<T> Deref for One<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> Deref for Batch<T> {
    type Target = [One<T>];
    fn deref(&self) -> &[One<T>] {
        &self.0
    }
}

impl<T> IntoIterator for Batch<T> {
    type Item = One<T>;
    type IntoIter = std::vec::IntoIter<One<T>>;
    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<'a, T> IntoIterator for &'a Batch<T> {
    type Item = &'a One<T>;
    type IntoIter = std::slice::Iter<'a, One<T>>;
    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

/// What a batch can be of: a body.
#[diagnostic::on_unimplemented(
    message = "there is no batch of `{Self}`",
    label = "not the body of a message",
    note = "derive `serde::Deserialize` for the body's type, or use `malote::{{Text, Body}}`; each one's `meta` has the rest"
)]
pub trait OfMessage: FromDelivery {}

// What is missing is a body, of which serde is one way.
#[diagnostic::do_not_recommend]
impl<T: DeserializeOwned + Send + 'static> OfMessage for T {}
impl OfMessage for Text {}
impl OfMessage for Body {}

/// What a batch handler can ask for beside the batch: what is the same for all messages.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be an argument of a batch handler",
    label = "not the same for all messages of a batch",
    note = "the first argument is `malote::Batch<T>`, others are `malote::State<T>` or `malote::Cancelled`; each one's `meta` has what differs"
)]
pub trait OfWorker: FromDelivery {}

impl<T: Send + Sync + 'static> OfWorker for State<T> {}
impl OfWorker for Cancelled {}

/// What a batch handler may return: one outcome for each message, or one for all.
#[diagnostic::on_unimplemented(
    message = "a batch handler cannot return `{Self}`",
    label = "not outcomes",
    note = "return a `Vec` with an outcome for each message, in order, or one for all: `()`, `malote::Outcome`, or a `Result` of these"
)]
pub trait IntoOutcomes {
    /// What it means for so many messages.
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
            // Nobody can say which outcome is whose.
            let error = format!("the handler gave {} outcomes for {messages} messages", self.len());
            let failed = Failed { error, ..Failed::default() };
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

pub(crate) type BoxedBatch = Arc<
    dyn Fn(Vec<Arc<Incoming>>) -> Pin<Box<dyn Future<Output = Vec<Outcome>> + Send>> + Send + Sync,
>;

/// The arguments of a batch handler: the batch, then what is the same for all messages.
#[diagnostic::on_unimplemented(
    message = "`{Self}` are not the arguments of a batch handler",
    label = "its first argument is not a `malote::Batch`, or there are more than four",
    note = "the first argument is `malote::Batch<T>`, others are `malote::State<T>` or `malote::Cancelled`"
)]
pub trait FromBatch: Sized + Send + 'static {
    /// Takes them from the messages, with the outcomes of those that could not be read; no arguments if that is all of
    /// them, or with what became of the others.
    fn from_batch(all: &[Arc<Incoming>]) -> impl Future<Output = Taken<Self>> + Send;

    /// See [`FromDelivery::missing`].
    fn missing(shared: &Shared) -> Option<&'static str>;
}

/// What was taken from the messages of a batch.
pub struct Taken<Arguments> {
    arguments: Result<Arguments, Outcome>,
    /// In the order of the messages: none of one that the handler gets.
    known: Vec<Option<Outcome>>,
}

pub(crate) fn boxed<Arguments, H>(handler: H) -> BoxedBatch
where
    H: Handler<Arguments, Returned: Future<Output: IntoOutcomes> + Send + 'static>,
    Arguments: FromBatch,
{
    Arc::new(move |incoming| {
        let handler = handler.clone();
        Box::pin(async move {
            let Taken { arguments, known } = Arguments::from_batch(&incoming).await;
            let count = known.iter().filter(|known| known.is_none()).count();
            let given = match arguments {
                Ok(arguments) => handler.call(arguments).await.into_outcomes(count),
                Err(outcome) => vec![outcome; count],
            };
            let mut given = given.into_iter();
            let each = known.into_iter().map(|known| known.or_else(|| given.next()));
            each.map(|outcome| outcome.unwrap_or(Outcome::Release)).collect()
        })
    })
}

async fn bodies<T: OfMessage>(all: &[Arc<Incoming>]) -> (Vec<One<T>>, Vec<Option<Outcome>>) {
    let (mut read, mut known) = (Vec::with_capacity(all.len()), Vec::with_capacity(all.len()));
    for one in all {
        known.push(match T::from_delivery(one).await {
            Ok(value) => {
                read.push(One { value, meta: Meta::of(one) });
                None
            }
            Err(failure) => Some(failure.into()),
        });
    }
    (read, known)
}

macro_rules! from_batch {
    ($($argument:ident)*) => {
        impl<T: OfMessage + 'static, $($argument: OfWorker + 'static,)*> FromBatch
            for (Batch<T>, $($argument,)*)
        {
            async fn from_batch(all: &[Arc<Incoming>]) -> Taken<Self> {
                let (read, known) = bodies::<T>(all).await;
                let Some(_first) = all.first().filter(|_| !read.is_empty()) else {
                    return Taken { arguments: Err(Outcome::Release), known };
                };
                let arguments = async {
                    Ok::<_, Failure>((Batch(read), $($argument::from_delivery(_first).await?,)*))
                };
                let arguments = arguments.await.map_err(Outcome::from);
                Taken { arguments, known }
            }

            fn missing(_shared: &Shared) -> Option<&'static str> {
                T::missing(_shared)$(.or_else(|| $argument::missing(_shared)))*
            }
        }
    };
}

from_batch!();
from_batch!(A);
from_batch!(A B);
from_batch!(A B C);
