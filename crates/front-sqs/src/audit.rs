//! Audit records: logins, and the actions that `ops/mod.rs` marks as administrative.

use std::net::IpAddr;

use malote_model::{
    Action, AuditAction, AuditEntry, AuditOutcome, AuditPending, AuditProtocol, CallerKind,
    Principal,
};

use crate::Sqs;
use crate::listen::Call;
use crate::ops::ACTIONS;
use crate::refusal::{Code, SqsError};
use crate::sigv4::{SignedRequest, claimed_key};

/// Records a request with a missing or wrong signature.
pub(crate) fn refused_login(sqs: &Sqs, signed: &SignedRequest<'_>, peer: IpAddr, error: &SqsError) {
    let entry = AuditEntry::new(AuditProtocol::Sqs, AuditAction::Login).from(peer);
    let entry = match claimed_key(signed) {
        Some(key) => entry.claimed(&key, CallerKind::Key),
        None => entry,
    };
    sqs.0.access.audit().record(entry.refused(error.code.query()));
}

/// Begins the audit of an administrative action; none for other actions.
pub(crate) fn begin(
    sqs: &Sqs,
    caller: &Principal,
    peer: IpAddr,
    action: &str,
) -> Option<AuditPending> {
    let (name, audit) = ACTIONS.iter().find(|(name, _)| *name == action)?;
    let entry = AuditEntry::new(AuditProtocol::Sqs, (*audit)?).from(peer).detail(name);
    Some(AuditPending::begin(&sqs.0.access, (caller, Action::Manage), entry, ""))
}

impl Call {
    /// Sets the queue of an administrative action.
    pub(crate) fn audited_on(&self, queue: &str) {
        if let Some(pending) = &mut *self.audit.lock() {
            pending.on(queue);
        }
    }

    /// Records the outcome of the action. Permitted reads are recorded once an hour.
    pub(crate) fn audited<T>(&self, sqs: &Sqs, answered: &Result<T, SqsError>) {
        let Some(pending) = self.audit.lock().take() else { return };
        let outcome = match answered {
            Ok(_) => AuditOutcome::Done,
            Err(error) => match error.code {
                Code::InternalFailure | Code::ServiceUnavailable => {
                    AuditOutcome::Unknown(error.code.query().into())
                }
                code => AuditOutcome::Refused(code.query().into()),
            },
        };
        let read = AuditAction::Read;
        let is_read = ACTIONS.contains(&(self.action.as_str(), Some(read)));
        let audit = sqs.0.access.audit();
        match outcome == AuditOutcome::Done
            && is_read
            && !audit.is_due(&self.caller, self.peer, AuditProtocol::Sqs, read)
        {
            true => pending.forget(),
            false => pending.end(outcome),
        }
    }
}
