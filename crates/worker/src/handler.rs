//! Any `async fn` whose arguments can be taken from a message is a handler.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::batch::BoxedBatch;
use crate::extract::FromDelivery;
use crate::incoming::Incoming;
use crate::outcome::{IntoOutcome, Outcome};

pub(crate) type Boxed =
    Arc<dyn Fn(Arc<Incoming>) -> Pin<Box<dyn Future<Output = Outcome> + Send>> + Send + Sync>;

/// How a worker runs it.
pub enum Route {
    /// One message after the other.
    One(Boxed),
    /// Several at once.
    Batch {
        /// The handler.
        run: BoxedBatch,
        /// At most so many.
        max: usize,
        /// No longer than this from when the first is there.
        wait: Duration,
    },
}

/// What a worker can run for a message.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a handler",
    label = "not an `async fn` that takes a message apart",
    note = "a handler is an `async fn` with up to eight arguments that implement `malote::FromDelivery`: a body that serde can deserialize, `Meta`, `Session`, `State<T>` …",
    note = "it returns `()`, `malote::Outcome`, or a `Result` of these, and its future is `Send`"
)]
pub trait Handler<Arguments>: Clone + Send + Sync + 'static {
    /// Takes the arguments from the message and runs.
    fn call(self, incoming: Arc<Incoming>) -> impl Future<Output = Outcome> + Send + 'static;

    /// How a worker runs it.
    #[doc(hidden)]
    fn route(self) -> Route {
        Route::One(Arc::new(move |incoming| Box::pin(self.clone().call(incoming))))
    }
}

macro_rules! handlers {
    ($($argument:ident)*) => {
        impl<F, Returned, Output, $($argument,)*> Handler<($($argument,)*)> for F
        where
            F: Fn($($argument),*) -> Returned + Clone + Send + Sync + 'static,
            Returned: Future<Output = Output> + Send + 'static,
            Output: IntoOutcome + 'static,
            $($argument: FromDelivery + 'static,)*
        {
            #[allow(non_snake_case, unused_variables)]
            async fn call(self, incoming: Arc<Incoming>) -> Outcome {
                $(let $argument = match $argument::from_delivery(&incoming).await {
                    Ok(argument) => argument,
                    Err(failure) => return failure.into(),
                };)*
                let outcome = self($($argument),*).await.into_outcome();
                #[cfg(feature = "sqlite")]
                let outcome = incoming.finish(outcome).await;
                outcome
            }
        }
    };
}

handlers!();
handlers!(A);
handlers!(A B);
handlers!(A B C);
handlers!(A B C D);
handlers!(A B C D E);
handlers!(A B C D E G);
handlers!(A B C D E G H);
handlers!(A B C D E G H I);
