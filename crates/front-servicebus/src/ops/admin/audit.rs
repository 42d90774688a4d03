//! Audit records of the administration API. Every operation needs the manage permission, so every operation is
//! recorded. Permitted reads are recorded once an hour.

use std::net::IpAddr;

use axum::http::{HeaderMap, Method};
use axum::response::Response;
use malote_model::{
    Action, AuditAction, AuditEntry, AuditOutcome, AuditPending, AuditProtocol, CallerKind,
};

use super::AdminCall;
use super::error::{AdminError, AdminResult};
use super::path::ResourcePath;
use crate::Front;
use crate::wire::sas::SasToken;

const PROTOCOL: AuditProtocol = AuditProtocol::ServiceBusAdmin;

/// Records a request with missing or wrong authorization.
pub(super) fn refused_login(front: &Front, headers: &HeaderMap, peer: IpAddr, error: &AdminError) {
    let entry = AuditEntry::new(PROTOCOL, AuditAction::Login).from(peer);
    let header = headers.get("authorization").map(|value| value.to_str().unwrap_or_default());
    let entry = match header.map(SasToken::parse) {
        Some(Some(token)) => entry.claimed(&token.key_name, CallerKind::Key),
        Some(None) => entry.claimed(CallerKind::Anonymous.as_str(), CallerKind::Token),
        None => entry,
    };
    front.access.audit().record(entry.outcome(error.audit_outcome()));
}

/// The audit record of a request in progress.
pub(super) struct PendingAudit {
    pending: AuditPending,
    action: AuditAction,
    peer: IpAddr,
}

impl PendingAudit {
    /// None for an unsupported method.
    pub fn begin(
        call: &AdminCall<'_>,
        peer: IpAddr,
        method: &Method,
        target: &ResourcePath,
    ) -> Option<PendingAudit> {
        let action = action_of(call.update, method, target)?;
        let (object, detail) = match target {
            ResourcePath::Namespace | ResourcePath::Queues | ResourcePath::Topics => {
                (String::new(), None)
            }
            ResourcePath::Entity(name) => (name.clone(), None),
            ResourcePath::Subscriptions { topic } => (topic.clone(), None),
            ResourcePath::Subscription { topic, name: subscription }
            | ResourcePath::Rules { topic, subscription } => {
                (format!("{topic}/Subscriptions/{subscription}"), None)
            }
            ResourcePath::Rule { topic, subscription, name } => {
                (format!("{topic}/Subscriptions/{subscription}"), Some(name))
            }
        };
        let detail = detail.map(|rule| format!("{method} rule={rule}"));
        let entry = AuditEntry::new(PROTOCOL, action).from(peer);
        let entry = entry.detail(detail.as_deref().unwrap_or(method.as_str()));
        let (access, by) = (&call.admin.front.access, (&call.who, Action::Manage));
        let pending = AuditPending::begin(access, by, entry, &object);
        Some(PendingAudit { pending, action, peer })
    }

    /// Sets the entity's own spelling.
    pub fn found(&mut self, name: &str) {
        self.pending.on(name);
    }

    /// Records the outcome.
    pub fn end(self, call: &AdminCall<'_>, answer: &AdminResult<Response>) {
        let PendingAudit { pending, action, peer } = self;
        let outcome = answer.as_ref().err().map_or(AuditOutcome::Done, AdminError::audit_outcome);
        let audit = call.admin.front.access.audit();
        match outcome == AuditOutcome::Done
            && action == AuditAction::Read
            && !audit.is_due(&call.who, peer, PROTOCOL, action)
        {
            true => pending.forget(),
            false => pending.end(outcome),
        }
    }
}

fn action_of(update: bool, method: &Method, target: &ResourcePath) -> Option<AuditAction> {
    Some(match (method, target) {
        (&Method::GET, _) => AuditAction::Read,
        (&Method::PUT, ResourcePath::Rule { .. }) => AuditAction::Bind,
        (&Method::PUT, _) if update => AuditAction::Update,
        (&Method::PUT, ResourcePath::Subscription { .. }) => AuditAction::Subscribe,
        (&Method::PUT, _) => AuditAction::Declare,
        (&Method::DELETE, ResourcePath::Rule { .. }) => AuditAction::Unbind,
        (&Method::DELETE, _) => AuditAction::Delete,
        _ => return None,
    })
}
