//! Handlers: `async` functions whose arguments implement [`FromDelivery`].
//!
//! The bounds on the function, its arguments and its result are separate, so that the compiler names the wrong part.

use std::pin::Pin;
use std::sync::Arc;

use crate::extract::FromDelivery;
use crate::incoming::{Incoming, StateMap};
use crate::outcome::{Failure, IntoOutcome, Outcome};

pub(crate) type BoxedHandler =
    Arc<dyn Fn(Arc<Incoming>) -> Pin<Box<dyn Future<Output = Outcome> + Send>> + Send + Sync>;

/// A function that a worker can call with a message.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a handler",
    label = "not an `async fn` of up to eight arguments",
    note = "a handler is an `async fn` whose arguments implement `malote::FromDelivery`: a body that serde can deserialize, `Meta`, `Session`, `State<T>` …",
    note = "it returns `()`, `malote::Outcome`, or a `Result` of these"
)]
pub trait Handler<Arguments>: Clone + Send + Sync + 'static {
    /// The future that it returns.
    type Returned: Future;

    /// Calls the function.
    fn call(&self, arguments: Arguments) -> Self::Returned;
}

/// All arguments of a handler.
pub trait HandlerArguments: Sized + Send + 'static {
    /// Extracts them from the message.
    fn from_delivery(
        incoming: &Arc<Incoming>,
    ) -> impl Future<Output = Result<Self, Failure>> + Send;

    /// The type of a state that an argument needs and the worker lacks.
    fn missing(states: &StateMap) -> Option<&'static str>;
}

pub(crate) fn boxed<Arguments, H>(handler: H) -> BoxedHandler
where
    H: Handler<Arguments, Returned: Future<Output: IntoOutcome> + Send + 'static>,
    Arguments: HandlerArguments,
{
    Arc::new(move |incoming| {
        let handler = handler.clone();
        Box::pin(async move {
            let arguments = match Arguments::from_delivery(&incoming).await {
                Ok(arguments) => arguments,
                Err(failure) => return failure.into(),
            };
            let outcome = handler.call(arguments).await.into_outcome();
            #[cfg(feature = "once")]
            let outcome = incoming.end_transaction(outcome).await;
            outcome
        })
    })
}

macro_rules! handlers {
    ($($argument:ident)*) => {
        impl<F, Returned, $($argument,)*> Handler<($($argument,)*)> for F
        where
            F: Fn($($argument),*) -> Returned + Clone + Send + Sync + 'static,
            Returned: Future,
        {
            type Returned = Returned;

            #[allow(non_snake_case)]
            fn call(&self, ($($argument,)*): ($($argument,)*)) -> Returned {
                self($($argument),*)
            }
        }

        impl<$($argument: FromDelivery + 'static,)*> HandlerArguments for ($($argument,)*) {
            async fn from_delivery(_incoming: &Arc<Incoming>) -> Result<Self, Failure> {
                Ok(($($argument::from_delivery(_incoming).await?,)*))
            }

            fn missing(_states: &StateMap) -> Option<&'static str> {
                None$(.or_else(|| $argument::missing(_states)))*
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
