//! Records an operation even if its caller disconnects before the answer.

use std::sync::Arc;

use super::{AuditEntry, AuditOutcome, CALLER_LEFT};
use crate::access::{Access, Action, Principal, Resource};
use crate::ids::QueueName;

/// An operation in progress. If it is dropped without an outcome, because its caller disconnected, it is recorded as
/// unknown, so that closing the connection does not hide what was done. If the caller lacks the permission, it is
/// recorded as refused.
#[must_use]
pub struct AuditPending {
    access: Arc<dyn Access>,
    who: Principal,
    needs: Action,
    /// The object's unescaped name, for the permission check.
    object: String,
    entry: Option<AuditEntry>,
}

impl AuditPending {
    /// Begins an operation of this caller that needs this permission.
    pub fn begin(
        access: &Arc<dyn Access>,
        (who, needs): (&Principal, Action),
        entry: AuditEntry,
        object: &str,
    ) -> AuditPending {
        let entry = Some(entry.by(who).on(object));
        let object = object.to_owned();
        AuditPending { access: access.clone(), who: who.clone(), needs, object, entry }
    }

    /// Sets the object.
    pub fn on(&mut self, object: &str) {
        self.entry = self.entry.take().map(|entry| entry.on(object));
        self.object = object.to_owned();
    }

    /// Records the outcome.
    pub fn end(mut self, outcome: AuditOutcome) {
        if let Some(entry) = self.entry.take() {
            self.access.audit().record(entry.outcome(outcome));
        }
    }

    /// Drops the entry without recording it.
    pub fn forget(mut self) {
        self.entry = None;
    }

    fn is_permitted(&self) -> bool {
        let may = |on: Resource<'_>| self.access.check(&self.who, self.needs, on).is_ok();
        match self.object.as_str() {
            "" => may(Resource::EVERYTHING),
            // Queues and topics share one name space.
            name => QueueName::new(name).is_ok_and(|name| may((&name).into())),
        }
    }
}

impl Drop for AuditPending {
    fn drop(&mut self) {
        if let Some(entry) = self.entry.take() {
            let outcome = match self.is_permitted() {
                true => AuditOutcome::Unknown(CALLER_LEFT.into()),
                false => AuditOutcome::Refused(CALLER_LEFT.into()),
            };
            self.access.audit().record(entry.outcome(outcome));
        }
    }
}
