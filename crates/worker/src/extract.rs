//! What a handler can ask for, by the types of its arguments.

use std::any::{Any, type_name};
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use malote_connectors::Delivery;
use malote_model::{Message, SessionId};
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;

pub use crate::incoming::Shared;
use crate::incoming::{Incoming, StateChange};
use crate::outcome::Failure;

/// An argument of a handler.
///
/// Every type that serde can deserialize is one: it is the body, read as JSON; a `String` is the body's text as it is.
/// A body that cannot be read goes to the dead letters as `Undecodable`, at once: it will not get better.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be an argument of a handler",
    label = "not something a message has",
    note = "derive `serde::Deserialize` for the body's type, or use `malote::{{Text, Body, Meta, Session, SessionState, State, Attempt, Cancelled}}`",
    note = "a handler of a `malote::Batch` is given to the worker with `handle_batch` or `on_batch`"
)]
pub trait FromDelivery: Sized + Send {
    /// Takes it from the message.
    fn from_delivery(
        incoming: &Arc<Incoming>,
    ) -> impl Future<Output = Result<Self, Failure>> + Send;

    /// The type of a value that this argument needs and the worker was not given. A worker checks this when it
    /// starts.
    fn missing(_shared: &Shared) -> Option<&'static str> {
        None
    }
}

// What is missing is an argument, of which serde is one way.
#[diagnostic::do_not_recommend]
impl<T: DeserializeOwned + Send + 'static> FromDelivery for T {
    async fn from_delivery(incoming: &Arc<Incoming>) -> Result<Self, Failure> {
        let bytes = &incoming.message().body.bytes;
        let mut text: Option<T> = None;
        if let Some(wanted) = (&mut text as &mut dyn Any).downcast_mut::<Option<String>>() {
            *wanted = Some(utf8(bytes)?);
        }
        match text {
            Some(text) => Ok(text),
            None => serde_json::from_slice(bytes).map_err(|error| {
                Failure::undecodable(format_args!("the body is no {}: {error}", type_name::<T>()))
            }),
        }
    }
}

fn utf8(bytes: &Bytes) -> Result<String, Failure> {
    let text = std::str::from_utf8(bytes).map(str::to_owned);
    text.map_err(|error| Failure::undecodable(format_args!("the body is no text: {error}")))
}

/// The body as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Text(pub String);

impl FromDelivery for Text {
    async fn from_delivery(incoming: &Arc<Incoming>) -> Result<Self, Failure> {
        utf8(&incoming.message().body.bytes).map(Self)
    }
}

/// The body as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Body(pub Bytes);

impl FromDelivery for Body {
    async fn from_delivery(incoming: &Arc<Incoming>) -> Result<Self, Failure> {
        Ok(Self(incoming.message().body.bytes.clone()))
    }
}

/// What is known about a message beside its body.
#[derive(Clone)]
pub struct Meta(Arc<Incoming>);

impl Meta {
    pub(crate) fn of(incoming: &Arc<Incoming>) -> Self {
        Self(incoming.clone())
    }

    /// The message: subject, properties, correlation id and all.
    pub fn message(&self) -> &Message {
        self.0.message()
    }

    /// As it was delivered: sequence, lease, counters, times.
    pub fn delivery(&self) -> &Delivery {
        &self.0.delivery
    }

    /// 1 the first time, one more after each failure of a handler.
    pub fn attempt(&self) -> u32 {
        self.0.attempt()
    }

    /// How often a worker that had it vanished.
    pub fn lost(&self) -> u32 {
        self.0.lost()
    }

    /// The trace that the message is a part of, as W3C writes it: what your own spans and calls continue.
    pub fn traceparent(&self) -> Option<&str> {
        self.0.traceparent()
    }

    /// What others added to that trace.
    pub fn tracestate(&self) -> Option<&str> {
        self.0.tracestate()
    }

    /// The same through every attempt, redrive and move: give it to whoever must not do a thing twice.
    pub fn idempotency_key(&self) -> &str {
        self.0.origin_id()
    }
}

impl FromDelivery for Meta {
    async fn from_delivery(incoming: &Arc<Incoming>) -> Result<Self, Failure> {
        Ok(Self(incoming.clone()))
    }
}

/// The session of the message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session(pub SessionId);

impl FromDelivery for Session {
    async fn from_delivery(incoming: &Arc<Incoming>) -> Result<Self, Failure> {
        let session = incoming.session().cloned().map(Self);
        session.ok_or_else(|| {
            Failure::dead("NoSession", "the handler needs a session, and the message has none")
        })
    }
}

/// Which attempt this is: 1 the first time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempt(pub u32);

impl FromDelivery for Attempt {
    async fn from_delivery(incoming: &Arc<Incoming>) -> Result<Self, Failure> {
        Ok(Self(incoming.attempt()))
    }
}

/// What the worker was given with [`crate::Worker::state`].
pub struct State<T>(Arc<T>);

impl<T> Clone for State<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Deref for State<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Send + Sync + 'static> FromDelivery for State<T> {
    async fn from_delivery(incoming: &Arc<Incoming>) -> Result<Self, Failure> {
        let name = type_name::<T>();
        incoming.shared.get().map(Self).ok_or_else(|| {
            // Not the message's fault: another worker, made right, can do it.
            Failure::retry(format_args!("the worker has no {name}: give it one with Worker::state"))
        })
    }

    fn missing(shared: &Shared) -> Option<&'static str> {
        shared.missing::<T>()
    }
}

/// The state of the message's session: read before the handler runs, changed in the same step as the settlement.
pub struct SessionState {
    incoming: Arc<Incoming>,
    state: Option<Bytes>,
}

impl SessionState {
    /// As it was when the handler began.
    pub fn get(&self) -> Option<&Bytes> {
        self.state.as_ref()
    }

    /// To be set when the message is done. A handler that fails changes nothing.
    pub fn set(&self, state: impl Into<Bytes>) {
        let state = Some(state.into());
        *self.incoming.new_state.lock() = Some(StateChange { state, of_step: None });
    }

    /// To be cleared when the message is done.
    pub fn clear(&self) {
        *self.incoming.new_state.lock() = Some(StateChange { state: None, of_step: None });
    }
}

impl FromDelivery for SessionState {
    async fn from_delivery(incoming: &Arc<Incoming>) -> Result<Self, Failure> {
        let no_session = || {
            Failure::dead(
                "NoSession",
                "the handler needs a session's state, and the worker has no sessions",
            )
        };
        if !incoming.broker.capabilities().state_with_settle {
            let fix = "the broker cannot change a session's state together with a settlement";
            return Err(Failure::dead("NoSessionState", fix));
        }
        let held = incoming.held().ok_or_else(no_session)?;
        let state = incoming.broker.state(incoming.queue(), held).await?;
        Ok(Self { incoming: incoming.clone(), state })
    }
}

/// Fires when the work is no longer wanted: the lock is lost, the time is over, or the worker must stop.
#[derive(Clone)]
pub struct Cancelled(CancellationToken);

impl Cancelled {
    /// Whether it fired.
    pub fn is_cancelled(&self) -> bool {
        self.0.is_cancelled()
    }

    /// Waits for it.
    pub async fn wait(&self) {
        self.0.cancelled().await;
    }

    /// Sleeps, or less if it fires: true if the whole time has passed.
    pub async fn sleep(&self, time: Duration) -> bool {
        self.0.run_until_cancelled(tokio::time::sleep(time)).await.is_some()
    }
}

impl FromDelivery for Cancelled {
    async fn from_delivery(incoming: &Arc<Incoming>) -> Result<Self, Failure> {
        Ok(Self(incoming.cancelled().clone()))
    }
}
