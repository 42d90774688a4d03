//! A message on its way to a handler: what extractors look at.

use std::any::{Any, TypeId, type_name};
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use malote_connectors::{Broker, Delivery, Held};
use malote_model::{Message, Properties, QueueName, SessionId, Value};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

#[cfg(feature = "once")]
use crate::once::Effect;
use crate::outcome::Outcome;
use crate::pool::Lock;
use crate::saga::Step;

/// How often a handler failed on a message, laid over it with every failure.
pub(crate) const ATTEMPTS: &str = "malote-attempts";
/// What happened each time, newest last.
pub(crate) const HISTORY: &str = "malote-history";

/// The values given to a worker with [`crate::Worker::state`], one of each type.
#[derive(Clone, Default)]
pub struct Shared(HashMap<TypeId, Arc<dyn Any + Send + Sync>>);

impl Shared {
    pub(crate) fn insert<T: Send + Sync + 'static>(&mut self, value: T) {
        self.0.insert(TypeId::of::<T>(), Arc::new(value));
    }

    /// The name of the type if the worker was given no value of it.
    pub fn missing<T: Send + Sync + 'static>(&self) -> Option<&'static str> {
        (!self.0.contains_key(&TypeId::of::<T>())).then(type_name::<T>)
    }

    pub(crate) fn get<T: Send + Sync + 'static>(&self) -> Option<Arc<T>> {
        self.0.get(&TypeId::of::<T>()).cloned().and_then(|value| value.downcast().ok())
    }
}

/// Names a value that a handler needs and its worker was not given.
pub(crate) type FindMissing = fn(&Shared) -> Option<&'static str>;

/// A message, with what is known about it and about who has it.
pub struct Incoming {
    pub(crate) delivery: Delivery,
    pub(crate) queue: QueueName,
    pub(crate) held: Option<Held>,
    pub(crate) broker: Arc<dyn Broker>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) cancelled: CancellationToken,
    /// The lock that it is handled under: its own, or its session's.
    pub(crate) lock: Arc<Lock>,
    /// What is to be committed with the handler's success.
    #[cfg(feature = "once")]
    pub(crate) effect: Mutex<Option<Arc<dyn Effect>>>,
    /// A state that is to change with the settlement.
    pub(crate) new_state: Mutex<Option<StateChange>>,
    /// What it is in a saga.
    pub(crate) step: OnceLock<Step>,
}

/// A session's state that changes with a settlement.
pub(crate) struct StateChange {
    /// Nothing clears it.
    pub state: Option<Bytes>,
    /// What a step of a saga said: its state changes, too, when its message comes again. None of a handler, whose state
    /// changes when it is done and not otherwise.
    pub of_step: Option<Outcome>,
}

impl Incoming {
    /// The message.
    pub fn message(&self) -> &Message {
        &self.delivery.message
    }

    /// Its queue.
    pub fn queue(&self) -> &QueueName {
        &self.queue
    }

    /// The session in hand.
    pub fn held(&self) -> Option<&Held> {
        self.held.as_ref()
    }

    /// Its session.
    pub fn session(&self) -> Option<&SessionId> {
        self.delivery.message.session.as_ref()
    }

    /// The id that stays the same through every attempt, redrive and move: the key for doing things once. Of a step of
    /// a saga it is the step's.
    pub fn origin_id(&self) -> &str {
        if let Some(step) = self.step.get() {
            return step.key();
        }
        let message = &self.delivery.message;
        message.origin_id.as_deref().or(message.message_id.as_deref()).unwrap_or_default()
    }

    /// The trace that it is a part of, as W3C writes it: what a handler's own spans continue.
    pub fn traceparent(&self) -> Option<&str> {
        self.text("traceparent").or_else(|| self.text("Diagnostic-Id"))
    }

    /// What others added to the trace.
    pub fn tracestate(&self) -> Option<&str> {
        self.text("tracestate")
    }

    fn text(&self, property: &str) -> Option<&str> {
        match self.delivery.message.properties.get(property) {
            Some(Value::String(text)) => Some(text),
            _ => None,
        }
    }

    /// 1 the first time, one more after each failure of a handler.
    pub fn attempt(&self) -> u32 {
        self.counted().0.saturating_add(1)
    }

    /// How often a worker that had it vanished.
    pub fn lost(&self) -> u32 {
        self.counted().1
    }

    fn counted(&self) -> (u32, u32) {
        attempts(&self.delivery, self.broker.capabilities().changes)
    }

    /// The same message, for another step of its saga.
    #[cfg(feature = "once")]
    pub(crate) fn again(&self) -> Arc<Self> {
        Arc::new(Self {
            delivery: self.delivery.clone(),
            queue: self.queue.clone(),
            held: self.held.clone(),
            broker: self.broker.clone(),
            shared: self.shared.clone(),
            cancelled: self.cancelled.child_token(),
            lock: self.lock.clone(),
            effect: Mutex::new(None),
            new_state: Mutex::new(None),
            step: OnceLock::new(),
        })
    }

    /// Fires when the lock is lost, the time is over or the worker must stop. Whoever does not look is dropped at its
    /// next `.await`.
    pub fn cancelled(&self) -> &CancellationToken {
        &self.cancelled
    }
}

/// Failures of handlers and losses of workers so far.
///
/// A handler's failure is written on the message where the broker can do that: what failed beyond it was lost. A
/// redrive starts the broker's counter anew and leaves our property: no more than the broker counted is believed.
pub(crate) fn attempts(delivery: &Delivery, written: bool) -> (u32, u32) {
    let unwritten = if written { 0 } else { delivery.failed };
    let recorded = recorded(&delivery.message.properties).unwrap_or(unwritten);
    let attempts = recorded.min(delivery.failed);
    (attempts, delivery.failed - attempts)
}

fn recorded(properties: &Properties) -> Option<u32> {
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
        attempts(&delivery, written)
    }

    #[test]
    fn what_failed_and_was_not_an_attempt_was_lost() {
        assert_eq!(counted(0, None, true), (0, 0));
        assert_eq!(counted(3, Some(1), true), (1, 2));
        assert_eq!(counted(2, None, true), (0, 2));
        // Where nothing can be written on a message, every failure counts as an attempt.
        assert_eq!(counted(2, None, false), (2, 0));
        // Redriven: the broker counts from nothing.
        assert_eq!(counted(0, Some(10), true), (0, 0));
        assert_eq!(counted(1, Some(-5), true), (0, 1));
    }
}
