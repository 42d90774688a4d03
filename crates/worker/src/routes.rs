//! Selects the handler of a message by its type: its subject or, without one, its property `type`.

use std::collections::HashMap;
use std::time::Duration;

use malote_connectors::Delivery;
use malote_model::Value;

use crate::batch::BoxedBatchHandler;
use crate::handler::BoxedHandler;
use crate::outcome::Outcome;
use crate::pool::BatchLimits;

/// What happens to messages whose type has no handler in this worker.
///
/// Another worker may have one, so the message is returned to the queue. After several receives it is dead-lettered as
/// `UnknownType`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownTypes {
    /// The delay before the message is delivered again. It does not count as an attempt.
    pub delay: Duration,
    /// Receives before the message is dead-lettered.
    pub receives: u32,
}

impl Default for UnknownTypes {
    /// Every five seconds for a minute.
    fn default() -> Self {
        Self { delay: Duration::from_secs(5), receives: 12 }
    }
}

impl UnknownTypes {
    /// Dead-letters such a message at its first receive. Use it if all workers have the same handlers.
    pub fn dead_letter() -> Self {
        Self { delay: Duration::ZERO, receives: 1 }
    }
}

pub(crate) struct BatchHandler {
    pub run: BoxedBatchHandler,
    pub limits: BatchLimits,
}

/// The handler for some messages.
pub(crate) enum Route {
    Single(BoxedHandler),
    Batch(BatchHandler),
}

enum HandlerRef {
    Single(BoxedHandler),
    /// The index in `Routes::batch_handlers`.
    Batch(usize),
}

#[derive(Default)]
pub(crate) struct Routes {
    by_type: HashMap<String, HandlerRef>,
    default: Option<HandlerRef>,
    batch_handlers: Vec<BatchHandler>,
    pub(crate) unknown_types: UnknownTypes,
}

impl Routes {
    fn add(&mut self, route: Route) -> HandlerRef {
        match route {
            Route::Single(handler) => HandlerRef::Single(handler),
            Route::Batch(handler) => {
                self.batch_handlers.push(handler);
                HandlerRef::Batch(self.batch_handlers.len() - 1)
            }
        }
    }

    /// Returns false if the type had a handler before.
    pub(crate) fn set_for_type(&mut self, message_type: String, route: Route) -> bool {
        let handler = self.add(route);
        self.by_type.insert(message_type, handler).is_none()
    }

    /// Returns false if there was a default handler before.
    pub(crate) fn set_default(&mut self, route: Route) -> bool {
        let handler = self.add(route);
        self.default.replace(handler).is_none()
    }

    pub(crate) fn batch_handlers(&self) -> impl Iterator<Item = &BatchHandler> {
        self.batch_handlers.iter()
    }

    pub(crate) fn batch_handler(&self, index: usize) -> Option<&BatchHandler> {
        self.batch_handlers.get(index)
    }

    /// The index of the batch handler of a message, if it has one.
    pub(crate) fn batch_index(&self, delivery: &Delivery) -> Option<usize> {
        if self.batch_handlers.is_empty() {
            return None;
        }
        match self.find(delivery)? {
            HandlerRef::Batch(index) => Some(*index),
            HandlerRef::Single(_) => None,
        }
    }

    pub(crate) fn batch_handler_of(&self, delivery: &Delivery) -> Option<&BatchHandler> {
        self.batch_handler(self.batch_index(delivery)?)
    }

    fn find(&self, delivery: &Delivery) -> Option<&HandlerRef> {
        if self.by_type.is_empty() {
            return self.default.as_ref();
        }
        let by_type = message_type(delivery).and_then(|name| self.by_type.get(name));
        by_type.or(self.default.as_ref())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_type.is_empty() && self.default.is_none()
    }

    /// Whether messages of unknown types are delivered again with a delay.
    pub(crate) fn delays_unknown_types(&self) -> bool {
        let UnknownTypes { delay, receives } = self.unknown_types;
        self.default.is_none() && receives > 1 && !delay.is_zero()
    }

    /// The handler of a message that is not part of a batch, or the outcome of a message without a handler.
    pub(crate) fn handler_of(&self, delivery: &Delivery) -> Result<&BoxedHandler, Outcome> {
        if let Some(HandlerRef::Single(handler)) = self.find(delivery) {
            return Ok(handler);
        }
        let UnknownTypes { delay, receives } = self.unknown_types;
        if delivery.receives < receives {
            return Err(Outcome::Snooze(delay));
        }
        let text = match message_type(delivery) {
            Some(name) => format!("no worker has a handler for messages of type `{name}`"),
            None => {
                "the message has no subject, and no worker has a handler for all messages".into()
            }
        };
        Err(Outcome::Dead { reason: "UnknownType".into(), text })
    }
}

/// The subject. Clients of SQS, which has no subject, set the property `type`.
fn message_type(delivery: &Delivery) -> Option<&str> {
    let message = &delivery.message;
    message.subject.as_deref().or_else(|| match message.properties.get("type") {
        Some(Value::String(name)) => Some(name),
        _ => None,
    })
}
