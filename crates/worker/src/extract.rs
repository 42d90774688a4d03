//! The arguments that a handler can have. Their types say what they contain.

use std::any::{Any, type_name};
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use malote_connectors::Delivery;
use malote_model::{Message, SessionId};
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;

pub use crate::incoming::StateMap;
use crate::incoming::{Incoming, NewSessionState};
use crate::outcome::Failure;

/// An argument of a handler.
///
/// Every type that implements `serde::Deserialize` is the body, decoded from JSON. A `String` is the body as text. A
/// message whose body cannot be decoded is dead-lettered at once, with the reason `Undecodable`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be an argument of a handler",
    label = "not an argument of a handler",
    note = "derive `serde::Deserialize` for the body's type, or use `malote::{{Text, Body, Meta, Session, SessionState, State, Attempt, Cancelled}}`",
    note = "to use a handler of a `malote::Batch`, call `handle_batch` or `on_batch` of the worker"
)]
pub trait FromDelivery: Sized + Send {
    /// Extracts it from the message. If it fails, the handler is not called, and the failure decides what happens to
    /// the message.
    fn from_delivery(
        incoming: &Arc<Incoming>,
    ) -> impl Future<Output = Result<Self, Failure>> + Send;

    /// The type of a value that this argument needs and that [`crate::Worker::state`] was not called with. A worker
    /// checks this when it starts.
    fn missing(_states: &StateMap) -> Option<&'static str> {
        None
    }
}

// The compiler should suggest `FromDelivery`, not the traits of serde.
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
                let name = type_name::<T>();
                Failure::undecodable(format_args!("the body cannot be decoded as {name}: {error}"))
            }),
        }
    }
}

fn utf8(bytes: &Bytes) -> Result<String, Failure> {
    let text = std::str::from_utf8(bytes).map(str::to_owned);
    text.map_err(|error| Failure::undecodable(format_args!("the body is not UTF-8 text: {error}")))
}

/// The body as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Text(pub String);

impl FromDelivery for Text {
    async fn from_delivery(incoming: &Arc<Incoming>) -> Result<Self, Failure> {
        utf8(&incoming.message().body.bytes).map(Self)
    }
}

/// The body as bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Body(pub Bytes);

impl FromDelivery for Body {
    async fn from_delivery(incoming: &Arc<Incoming>) -> Result<Self, Failure> {
        Ok(Self(incoming.message().body.bytes.clone()))
    }
}

/// The message and its delivery: properties, counters, idempotency key.
#[derive(Clone)]
pub struct Meta(Arc<Incoming>);

impl Meta {
    pub(crate) fn of(incoming: &Arc<Incoming>) -> Self {
        Self(incoming.clone())
    }

    /// The message, with its subject, properties and correlation id.
    pub fn message(&self) -> &Message {
        self.0.message()
    }

    /// The delivery: sequence number, lease, counters and times.
    pub fn delivery(&self) -> &Delivery {
        &self.0.delivery
    }

    /// The number of this attempt: 1 plus the number of failed attempts.
    pub fn attempt(&self) -> u32 {
        self.0.attempt()
    }

    /// How many workers were lost while they had this message.
    pub fn lost(&self) -> u32 {
        self.0.lost()
    }

    /// The W3C `traceparent` of the message. Use it as the parent of your own spans and calls.
    pub fn traceparent(&self) -> Option<&str> {
        self.0.traceparent()
    }

    /// The W3C `tracestate` of the message.
    pub fn tracestate(&self) -> Option<&str> {
        self.0.tracestate()
    }

    /// A key that is the same for every attempt, also after a redrive. Pass it to services that must not do the same
    /// thing twice.
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
            Failure::dead("NoSession", "the handler takes a `Session`, but the message has none")
        })
    }
}

/// The number of this attempt; the first is 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempt(pub u32);

impl FromDelivery for Attempt {
    async fn from_delivery(incoming: &Arc<Incoming>) -> Result<Self, Failure> {
        Ok(Self(incoming.attempt()))
    }
}

/// A value that the worker got with [`crate::Worker::state`].
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
        incoming.states.get().map(Self).ok_or_else(|| {
            // Another worker may have the value.
            Failure::retry(format_args!(
                "the worker has no value of type {name}: add one with `Worker::state`"
            ))
        })
    }

    fn missing(states: &StateMap) -> Option<&'static str> {
        states.missing::<T>()
    }
}

/// The state of the message's session. It is read before the handler runs. Changes are written in the same step as the
/// settlement.
pub struct SessionState {
    incoming: Arc<Incoming>,
    state: Option<Bytes>,
}

impl SessionState {
    /// The state when the handler started.
    pub fn get(&self) -> Option<&Bytes> {
        self.state.as_ref()
    }

    /// Sets the state when the message is completed. A handler that fails does not change it.
    pub fn set(&self, state: impl Into<Bytes>) {
        let state = Some(state.into());
        *self.incoming.new_state.lock() = Some(NewSessionState { state, step_outcome: None });
    }

    /// Clears the state when the message is completed.
    pub fn clear(&self) {
        *self.incoming.new_state.lock() = Some(NewSessionState { state: None, step_outcome: None });
    }
}

impl FromDelivery for SessionState {
    async fn from_delivery(incoming: &Arc<Incoming>) -> Result<Self, Failure> {
        let no_session = || {
            Failure::dead(
                "NoSession",
                "the handler takes a `SessionState`, but the worker has no sessions: call `Worker::sessions`",
            )
        };
        if !incoming.broker.capabilities().state_with_settle {
            let text = "the broker cannot change the state of a session together with a settlement: \
                        store the state in your own database";
            return Err(Failure::dead("NoSessionState", text));
        }
        let held = incoming.held().ok_or_else(no_session)?;
        let state = incoming.broker.state(incoming.queue(), held).await?;
        Ok(Self { incoming: incoming.clone(), state })
    }
}

/// A signal that the handler should end: the lock is lost, the time-out is reached, or the worker stops.
#[derive(Clone)]
pub struct Cancelled(CancellationToken);

impl Cancelled {
    /// Whether the signal has fired.
    pub fn is_cancelled(&self) -> bool {
        self.0.is_cancelled()
    }

    /// Waits until the signal fires.
    pub async fn wait(&self) {
        self.0.cancelled().await;
    }

    /// Sleeps until the time is over or the signal fires. Returns true if the whole time has passed.
    pub async fn sleep(&self, time: Duration) -> bool {
        self.0.run_until_cancelled(tokio::time::sleep(time)).await.is_some()
    }
}

impl FromDelivery for Cancelled {
    async fn from_delivery(incoming: &Arc<Incoming>) -> Result<Self, Failure> {
        Ok(Self(incoming.cancelled().clone()))
    }
}
