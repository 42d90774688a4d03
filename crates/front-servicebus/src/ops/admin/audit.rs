//! What the administration reports to the audit log. All of it needs the right to manage, so all of it is recorded;
//! looking is recorded once an hour when it is allowed.

use std::net::IpAddr;

use axum::http::{HeaderMap, Method};
use axum::response::Response;
use malote_model::{
    Action, AuditAction, AuditEntry, AuditOutcome, AuditPending, AuditProtocol, CallerKind,
};

use super::Call;
use super::error::{AdminError, Answer};
use super::path::Target;
use crate::Front;
use crate::wire::sas::Token;

const PROTOCOL: AuditProtocol = AuditProtocol::ServiceBusAdmin;

/// A request whose authorization is missing or wrong.
pub(super) fn refused_login(front: &Front, headers: &HeaderMap, peer: IpAddr, error: &AdminError) {
    let entry = AuditEntry::new(PROTOCOL, AuditAction::Login).from(peer);
    let header = headers.get("authorization").map(|value| value.to_str().unwrap_or_default());
    let entry = match header.map(Token::parse) {
        Some(Some(token)) => entry.claimed(&token.key_name, CallerKind::Key),
        Some(None) => entry.claimed(CallerKind::Anonymous.as_str(), CallerKind::Token),
        None => entry,
    };
    front.access.audit().record(entry.outcome(error.audit_outcome()));
}

/// A request under way.
pub(super) struct Audited {
    pending: AuditPending,
    action: AuditAction,
    peer: IpAddr,
}

impl Audited {
    /// Begins it; none for a method that has no meaning.
    pub fn begin(
        call: &Call<'_>,
        peer: IpAddr,
        method: &Method,
        target: &Target,
    ) -> Option<Audited> {
        let action = action_of(call.update, method, target)?;
        let (object, detail) = match target {
            Target::Namespace | Target::Queues | Target::Topics => (String::new(), None),
            Target::Entity(name) => (name.clone(), None),
            Target::Subscriptions { topic } => (topic.clone(), None),
            Target::Subscription { topic, name: subscription }
            | Target::Rules { topic, subscription } => {
                (format!("{topic}/Subscriptions/{subscription}"), None)
            }
            Target::Rule { topic, subscription, name } => {
                (format!("{topic}/Subscriptions/{subscription}"), Some(name))
            }
        };
        let detail = detail.map(|rule| format!("{method} rule={rule}"));
        let entry = AuditEntry::new(PROTOCOL, action).from(peer);
        let entry = entry.detail(detail.as_deref().unwrap_or(method.as_str()));
        let (access, by) = (&call.admin.front.access, (&call.who, Action::Manage));
        let pending = AuditPending::begin(access, by, entry, &object);
        Some(Audited { pending, action, peer })
    }

    /// The entity was found, by its own spelling.
    pub fn found(&mut self, name: &str) {
        self.pending.on(name);
    }

    /// Records how it ended.
    pub fn end(self, call: &Call<'_>, answer: &Answer<Response>) {
        let Audited { pending, action, peer } = self;
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

fn action_of(update: bool, method: &Method, target: &Target) -> Option<AuditAction> {
    Some(match (method, target) {
        (&Method::GET, _) => AuditAction::Read,
        (&Method::PUT, Target::Rule { .. }) => AuditAction::Bind,
        (&Method::PUT, _) if update => AuditAction::Update,
        (&Method::PUT, Target::Subscription { .. }) => AuditAction::Subscribe,
        (&Method::PUT, _) => AuditAction::Declare,
        (&Method::DELETE, Target::Rule { .. }) => AuditAction::Unbind,
        (&Method::DELETE, _) => AuditAction::Delete,
        _ => return None,
    })
}
