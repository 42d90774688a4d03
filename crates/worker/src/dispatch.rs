//! Which handler gets a message: by its subject, which names its type.

use std::collections::HashMap;
use std::time::Duration;

use malote_connectors::Delivery;
use malote_model::Value;

use crate::handler::Boxed;
use crate::outcome::Outcome;

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

#[derive(Default)]
pub(crate) struct Routes {
    by_type: HashMap<String, Boxed>,
    any: Option<Boxed>,
    pub(crate) unknown: Unknown,
}

impl Routes {
    pub(crate) fn on(&mut self, kind: String, handler: Boxed) -> bool {
        self.by_type.insert(kind, handler).is_none()
    }

    pub(crate) fn any(&mut self, handler: Boxed) -> bool {
        self.any.replace(handler).is_none()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_type.is_empty() && self.any.is_none()
    }

    /// Whether a message may be put off because nobody here knows its type.
    pub(crate) fn may_wait(&self) -> bool {
        self.any.is_none() && self.unknown.receives > 1 && !self.unknown.every.is_zero()
    }

    /// The handler, or what becomes of a message that has none.
    pub(crate) fn of(&self, delivery: &Delivery) -> Result<&Boxed, Outcome> {
        let kind = kind(delivery);
        let known = kind.and_then(|kind| self.by_type.get(kind)).or(self.any.as_ref());
        known.ok_or_else(|| {
            let Unknown { every, receives } = self.unknown;
            if delivery.receives < receives {
                return Outcome::Snooze(every);
            }
            let text = match kind {
                Some(kind) => format!("no worker has a handler for `{kind}`"),
                None => "it has no subject, and no worker has a handler for all".to_owned(),
            };
            Outcome::Dead { reason: "UnknownType".into(), text }
        })
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
