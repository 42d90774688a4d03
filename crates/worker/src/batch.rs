//! Handlers that take several messages at once, with an outcome for each.
//!
//! ```no_run
//! use std::time::Duration;
//! use malote::{Batch, BatchHandler, Failure, Malote, Worker};
//!
//! #[derive(serde::Deserialize)]
//! struct Reading { sensor: String, value: f64 }
//!
//! /// One answer for all; a `Vec` has one for each.
//! async fn store(readings: Batch<Reading>) -> Result<(), Failure> {
//!     let rows: Vec<_> = readings.iter().map(|one| (&one.sensor, one.value)).collect();
//!     // one insert for all of them
//!     # drop(rows);
//!     Ok(())
//! }
//!
//! # async fn run(malote: Malote) -> Result<(), malote::Error> {
//! let store = store.batch(100, Duration::from_millis(200));
//! Worker::new(&malote, "readings").handle(store).run_until_signal().await?;
//! # Ok(()) }
//! ```

use std::marker::PhantomData;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;

use crate::extract::{Body, Cancelled, FromDelivery, Meta, State, Text};
use crate::handler::{Handler, Route};
use crate::incoming::Incoming;
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

/// A function that takes several messages at once.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a batch handler",
    label = "not an `async fn` that takes a `malote::Batch`",
    note = "a batch handler is an `async fn` whose first argument is `malote::Batch<T>`; others are `State<T>` or `Cancelled`",
    note = "it returns a `Vec` with an outcome for each message, or one outcome for all, and its future is `Send`"
)]
pub trait BatchHandler<Arguments>: Clone + Send + Sync + 'static {
    /// Takes messages apart and runs. As many outcomes as messages.
    fn call_all(
        self,
        incoming: Vec<Arc<Incoming>>,
    ) -> impl Future<Output = Vec<Outcome>> + Send + 'static;

    /// As a worker takes it: up to `max` messages at once, and no longer than `wait` from when the first is there.
    fn batch(self, max: usize, wait: Duration) -> Batched<Self, Arguments>
    where
        Self: Sized,
    {
        Batched { handler: self, max, wait, arguments: PhantomData }
    }
}

/// A batch handler, with how many messages it takes.
pub struct Batched<H, Arguments> {
    handler: H,
    max: usize,
    wait: Duration,
    arguments: PhantomData<fn(Arguments)>,
}

impl<H: Clone, Arguments> Clone for Batched<H, Arguments> {
    fn clone(&self) -> Self {
        let (handler, arguments) = (self.handler.clone(), PhantomData);
        Self { handler, max: self.max, wait: self.wait, arguments }
    }
}

impl<Arguments, H> Handler<Batch<Arguments>> for Batched<H, Arguments>
where
    H: BatchHandler<Arguments>,
    Arguments: 'static,
{
    /// A batch of one.
    async fn call(self, incoming: Arc<Incoming>) -> Outcome {
        let mut outcomes = self.handler.call_all(vec![incoming]).await;
        outcomes.pop().unwrap_or(Outcome::Release)
    }

    fn route(self) -> Route {
        let Self { handler, max, wait, .. } = self;
        let run: BoxedBatch =
            Arc::new(move |incoming| Box::pin(handler.clone().call_all(incoming)));
        Route::Batch { run, max, wait }
    }
}

/// Outcomes of all: those that are known already, and in between those that the handler gave.
fn merged(known: Vec<Option<Outcome>>, given: Vec<Outcome>) -> Vec<Outcome> {
    let mut given = given.into_iter();
    let each = known.into_iter().map(|known| known.or_else(|| given.next()));
    each.map(|outcome| outcome.unwrap_or(Outcome::Release)).collect()
}

macro_rules! batch_handlers {
    ($($argument:ident)*) => {
        impl<F, T, Returned, Output, $($argument,)*> BatchHandler<(T, $($argument,)*)> for F
        where
            F: Fn(Batch<T>, $($argument),*) -> Returned + Clone + Send + Sync + 'static,
            Returned: Future<Output = Output> + Send + 'static,
            Output: IntoOutcomes + 'static,
            T: OfMessage + 'static,
            $($argument: OfWorker + 'static,)*
        {
            #[allow(non_snake_case)]
            async fn call_all(self, incoming: Vec<Arc<Incoming>>) -> Vec<Outcome> {
                let (mut all, mut known) = (Vec::with_capacity(incoming.len()), Vec::new());
                for one in &incoming {
                    match T::from_delivery(one).await {
                        Ok(value) => {
                            all.push(One { value, meta: Meta::of(one) });
                            known.push(None);
                        }
                        Err(failure) => known.push(Some(failure.into())),
                    }
                }
                let (count, Some(_first)) = (all.len(), incoming.first()) else {
                    return Vec::new();
                };
                if count == 0 {
                    return merged(known, Vec::new());
                }
                $(let $argument = match $argument::from_delivery(_first).await {
                    Ok(argument) => argument,
                    Err(failure) => return merged(known, vec![failure.into(); count]),
                };)*
                let given = self(Batch(all), $($argument),*).await.into_outcomes(count);
                merged(known, given)
            }
        }
    };
}

batch_handlers!();
batch_handlers!(A);
batch_handlers!(A B);
batch_handlers!(A B C);
