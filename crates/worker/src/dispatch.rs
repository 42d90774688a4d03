//! Which handler gets a message: by its subject, which names its type.

use std::collections::HashMap;
use std::time::Duration;

use malote_connectors::Delivery;
use malote_model::Value;

use crate::batch::BoxedBatch;
use crate::handler::Boxed;
use crate::outcome::Outcome;
use crate::pool::Gathers;

/// What becomes of a message whose type no handler of this worker knows. Another worker may: so it is put back, and
/// dies as `UnknownType` when nobody took it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unknown {
    /// It comes back after so long, uncounted.
    pub every: Duration,
    /// After so many receives it is nobody's.
    pub receives: u32,
}

impl Default for Unknown {
    /// Every five seconds for a minute.
    fn default() -> Self {
        Self { every: Duration::from_secs(5), receives: 12 }
    }
}

impl Unknown {
    /// It dies on first sight: there is one kind of worker.
    pub fn dies() -> Self {
        Self { every: Duration::ZERO, receives: 1 }
    }
}

/// A handler of several messages at once.
pub(crate) struct Batching {
    pub run: BoxedBatch,
    pub gathers: Gathers,
}

/// How a message is handled.
pub(crate) enum Route {
    One(Boxed),
    Batch(Batching),
}

enum To {
    One(Boxed),
    /// By its number.
    Batch(usize),
}

#[derive(Default)]
pub(crate) struct Routes {
    by_type: HashMap<String, To>,
    any: Option<To>,
    batches: Vec<Batching>,
    pub(crate) unknown: Unknown,
}

impl Routes {
    fn to(&mut self, route: Route) -> To {
        match route {
            Route::One(handler) => To::One(handler),
            Route::Batch(batching) => {
                self.batches.push(batching);
                To::Batch(self.batches.len() - 1)
            }
        }
    }

    pub(crate) fn on(&mut self, kind: String, route: Route) -> bool {
        let to = self.to(route);
        self.by_type.insert(kind, to).is_none()
    }

    pub(crate) fn any(&mut self, route: Route) -> bool {
        let to = self.to(route);
        self.any.replace(to).is_none()
    }

    pub(crate) fn batches(&self) -> impl Iterator<Item = &Batching> {
        self.batches.iter()
    }

    pub(crate) fn batching(&self, nth: usize) -> Option<&Batching> {
        self.batches.get(nth)
    }

    /// The batch handler of a message, if it has one.
    pub(crate) fn batch_of(&self, delivery: &Delivery) -> Option<usize> {
        if self.batches.is_empty() {
            return None;
        }
        match self.find(delivery)? {
            To::Batch(nth) => Some(*nth),
            To::One(_) => None,
        }
    }

    pub(crate) fn batching_of(&self, delivery: &Delivery) -> Option<&Batching> {
        self.batching(self.batch_of(delivery)?)
    }

    fn find(&self, delivery: &Delivery) -> Option<&To> {
        if self.by_type.is_empty() {
            return self.any.as_ref();
        }
        kind(delivery).and_then(|kind| self.by_type.get(kind)).or(self.any.as_ref())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_type.is_empty() && self.any.is_none()
    }

    /// Whether a message may be put off because nobody here knows its type.
    pub(crate) fn may_wait(&self) -> bool {
        self.any.is_none() && self.unknown.receives > 1 && !self.unknown.every.is_zero()
    }

    /// The handler of a message that is handled alone, or what becomes of one that has none.
    pub(crate) fn of(&self, delivery: &Delivery) -> Result<&Boxed, Outcome> {
        if let Some(To::One(handler)) = self.find(delivery) {
            return Ok(handler);
        }
        let Unknown { every, receives } = self.unknown;
        if delivery.receives < receives {
            return Err(Outcome::Snooze(every));
        }
        let text = match kind(delivery) {
            Some(kind) => format!("no worker has a handler for `{kind}`"),
            None => "it has no subject, and no worker has a handler for all".to_owned(),
        };
        Err(Outcome::Dead { reason: "UnknownType".into(), text })
    }
}

/// The subject, else the property `type`, which SQS and Kafka programs use.
fn kind(delivery: &Delivery) -> Option<&str> {
    let message = &delivery.message;
    message.subject.as_deref().or_else(|| match message.properties.get("type") {
        Some(Value::String(kind)) => Some(kind),
        _ => None,
    })
}
