//! A message on its way to a handler. Extractors take the arguments of the handler from it.

use std::any::{Any, TypeId, type_name};
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use malote_connectors::{Broker, Delivery, SessionHold};
use malote_model::{Message, Properties, QueueName, SessionId, Value};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

#[cfg(feature = "once")]
use crate::once::HandlerTransaction;
use crate::outcome::Outcome;
use crate::pool::Lock;
use crate::saga::Step;

/// The property with the number of failed attempts. Every failure updates it.
pub(crate) const ATTEMPTS: &str = "malote-attempts";
/// The property with the list of failed attempts, newest last.
pub(crate) const HISTORY: &str = "malote-history";

/// The values that a worker got with [`crate::Worker::state`], one of each type.
#[derive(Clone, Default)]
pub struct StateMap(HashMap<TypeId, Arc<dyn Any + Send + Sync>>);

impl StateMap {
    pub(crate) fn insert<T: Send + Sync + 'static>(&mut self, value: T) {
        self.0.insert(TypeId::of::<T>(), Arc::new(value));
    }

    /// The name of the type if there is no value of it.
    pub fn missing<T: Send + Sync + 'static>(&self) -> Option<&'static str> {
        (!self.0.contains_key(&TypeId::of::<T>())).then(type_name::<T>)
    }

    pub(crate) fn get<T: Send + Sync + 'static>(&self) -> Option<Arc<T>> {
        self.0.get(&TypeId::of::<T>()).cloned().and_then(|value| value.downcast().ok())
    }
}

/// Returns the type of a value that a handler needs and the worker does not have.
pub(crate) type MissingState = fn(&StateMap) -> Option<&'static str>;

/// A message that is being handled, with its session, lock and broker.
pub struct Incoming {
    pub(crate) delivery: Delivery,
    pub(crate) queue: QueueName,
    pub(crate) held: Option<SessionHold>,
    pub(crate) broker: Arc<dyn Broker>,
    pub(crate) states: Arc<StateMap>,
    pub(crate) cancelled: CancellationToken,
    /// The lock of the message or of its session.
    pub(crate) lock: Arc<Lock>,
    /// The transaction to commit when the handler succeeds.
    #[cfg(feature = "once")]
    pub(crate) transaction: Mutex<Option<Arc<dyn HandlerTransaction>>>,
    /// The new session state to write with the settlement.
    pub(crate) new_state: Mutex<Option<NewSessionState>>,
    /// Set if the handler is a step of a saga.
    pub(crate) step: OnceLock<Step>,
}

/// A session state to write with a settlement.
pub(crate) struct NewSessionState {
    /// `None` clears the state.
    pub state: Option<Bytes>,
    /// The outcome of a step of a saga. With it, the state is also written when the message is delivered again.
    /// Otherwise the state is written only when the message is completed.
    pub step_outcome: Option<Outcome>,
}

impl Incoming {
    /// The message as the broker delivered it.
    pub fn message(&self) -> &Message {
        &self.delivery.message
    }

    /// The queue of the message.
    pub fn queue(&self) -> &QueueName {
        &self.queue
    }

    /// The session that the worker holds.
    pub fn held(&self) -> Option<&SessionHold> {
        self.held.as_ref()
    }

    /// The session of the message.
    pub fn session(&self) -> Option<&SessionId> {
        self.delivery.message.session.as_ref()
    }

    /// The id that is the same for every attempt, also after a redrive. For a step of a saga, it is the key of the
    /// step.
    pub fn origin_id(&self) -> &str {
        if let Some(step) = self.step.get() {
            return step.key();
        }
        let message = &self.delivery.message;
        message.origin_id.as_deref().or(message.message_id.as_deref()).unwrap_or_default()
    }

    /// The W3C `traceparent` of the message. Older Azure clients call the property `Diagnostic-Id`.
    pub fn traceparent(&self) -> Option<&str> {
        self.text("traceparent").or_else(|| self.text("Diagnostic-Id"))
    }

    /// The W3C `tracestate` of the message.
    pub fn tracestate(&self) -> Option<&str> {
        self.text("tracestate")
    }

    fn text(&self, property: &str) -> Option<&str> {
        match self.delivery.message.properties.get(property) {
            Some(Value::String(text)) => Some(text),
            _ => None,
        }
    }

    /// The number of this attempt: 1 plus the number of failed attempts.
    pub fn attempt(&self) -> u32 {
        self.counted().0.saturating_add(1)
    }

    /// How many workers were lost while they had this message.
    pub fn lost(&self) -> u32 {
        self.counted().1
    }

    fn counted(&self) -> (u32, u32) {
        count_attempts(&self.delivery, self.broker.capabilities().changes)
    }

    /// The same message, for the next step of its saga.
    #[cfg(feature = "once")]
    pub(crate) fn for_next_step(&self) -> Arc<Self> {
        Arc::new(Self {
            delivery: self.delivery.clone(),
            queue: self.queue.clone(),
            held: self.held.clone(),
            broker: self.broker.clone(),
            states: self.states.clone(),
            cancelled: self.cancelled.child_token(),
            lock: self.lock.clone(),
            transaction: Mutex::new(None),
            new_state: Mutex::new(None),
            step: OnceLock::new(),
        })
    }

    /// Fires when the lock is lost, the time-out is reached or the worker stops. A handler that ignores it is dropped
    /// at its next `.await`.
    pub fn cancelled(&self) -> &CancellationToken {
        &self.cancelled
    }
}

/// The number of failed attempts, and the number of lost workers.
///
/// If the broker can change properties (`recorded`), a failed attempt is recorded in the message, and all other failed
/// deliveries are lost workers. A redrive resets the broker's counter but not the property, so the broker's counter is
/// the upper limit.
pub(crate) fn count_attempts(delivery: &Delivery, recorded: bool) -> (u32, u32) {
    let unrecorded = if recorded { 0 } else { delivery.failed };
    let recorded = recorded_attempts(&delivery.message.properties).unwrap_or(unrecorded);
    let attempts = recorded.min(delivery.failed);
    (attempts, delivery.failed - attempts)
}

fn recorded_attempts(properties: &Properties) -> Option<u32> {
    match properties.get(ATTEMPTS)? {
        Value::I64(count) => u32::try_from(*count).ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use malote_model::{LeaseToken, Seq, Timestamp};

    use super::*;

    fn counted(failed: u32, recorded: Option<i64>, written: bool) -> (u32, u32) {
        let mut message = Message::default();
        if let Some(count) = recorded {
            message.properties.set(ATTEMPTS, Value::I64(count));
        }
        let (lease, enqueued_at) = (LeaseToken::default(), Timestamp(0));
        let (seq, receives, last, dead) = (Seq(1), failed + 1, false, None);
        let delivery = Delivery { seq, lease, receives, failed, enqueued_at, last, dead, message };
        count_attempts(&delivery, written)
    }

    #[test]
    fn failed_deliveries_without_a_recorded_attempt_are_lost_workers() {
        assert_eq!(counted(0, None, true), (0, 0));
        assert_eq!(counted(3, Some(1), true), (1, 2));
        assert_eq!(counted(2, None, true), (0, 2));
        // If the broker cannot change properties, every failure counts as an attempt.
        assert_eq!(counted(2, None, false), (2, 0));
        // After a redrive, the broker's counter is 0.
        assert_eq!(counted(0, Some(10), true), (0, 0));
        assert_eq!(counted(1, Some(-5), true), (0, 1));
    }
}
