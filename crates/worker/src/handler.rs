//! Any `async fn` whose arguments can be taken from a message is a handler.
//!
//! What a function is, what it takes and what it returns are asked for one by one, so that the compiler names the part
//! that is wrong.

use std::pin::Pin;
use std::sync::Arc;

use crate::extract::FromDelivery;
use crate::incoming::{Incoming, Shared};
use crate::outcome::{Failure, IntoOutcome, Outcome};

pub(crate) type Boxed =
    Arc<dyn Fn(Arc<Incoming>) -> Pin<Box<dyn Future<Output = Outcome> + Send>> + Send + Sync>;

/// A function that a worker can run.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a handler",
    label = "not an `async fn` of up to eight arguments",
    note = "a handler is an `async fn` whose arguments implement `malote::FromDelivery`: a body that serde can deserialize, `Meta`, `Session`, `State<T>` …",
    note = "it returns `()`, `malote::Outcome`, or a `Result` of these"
)]
pub trait Handler<Arguments>: Clone + Send + Sync + 'static {
    /// What it returns at once: a future.
    type Returned: Future;

    /// Calls it.
    fn call(&self, arguments: Arguments) -> Self::Returned;
}

/// The arguments of a handler, all of them.
pub trait FromDeliveryAll: Sized + Send + 'static {
    /// Takes them from the message.
    fn from_delivery_all(
        incoming: &Arc<Incoming>,
    ) -> impl Future<Output = Result<Self, Failure>> + Send;

    /// See [`FromDelivery::missing`].
    fn missing(shared: &Shared) -> Option<&'static str>;
}

pub(crate) fn boxed<Arguments, H>(handler: H) -> Boxed
where
    H: Handler<Arguments, Returned: Future<Output: IntoOutcome> + Send + 'static>,
    Arguments: FromDeliveryAll,
{
    Arc::new(move |incoming| {
        let handler = handler.clone();
        Box::pin(async move {
            let arguments = match Arguments::from_delivery_all(&incoming).await {
                Ok(arguments) => arguments,
                Err(failure) => return failure.into(),
            };
            let outcome = handler.call(arguments).await.into_outcome();
            #[cfg(feature = "once")]
            let outcome = incoming.finish(outcome).await;
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

        impl<$($argument: FromDelivery + 'static,)*> FromDeliveryAll for ($($argument,)*) {
            async fn from_delivery_all(_incoming: &Arc<Incoming>) -> Result<Self, Failure> {
                Ok(($($argument::from_delivery(_incoming).await?,)*))
            }

            fn missing(_shared: &Shared) -> Option<&'static str> {
                None$(.or_else(|| $argument::missing(_shared)))*
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
