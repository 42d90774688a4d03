//! Records of this front end in the audit log.
//!
//! The table of routes marks the administrative operations; `around` in `routes.rs` records each of them with its
//! outcome. Frames of the native connection, and queues that a send creates, are recorded where they are handled.

use std::net::IpAddr;

use axum::extract::{FromRequestParts, RawPathParams};
use axum::http::HeaderMap;
use axum::http::request::Parts;
use axum::response::Response;
use malote_http::Credential;
use malote_model::{
    Action, AuditAction, AuditEntry, AuditOutcome, AuditPending, AuditProtocol, CallerKind,
    Principal,
};

use crate::Api;
use crate::problem::{Code, Problem};
use crate::routes::Route;

/// Extension of an answer: the operation succeeded and changed nothing.
#[derive(Clone, Copy)]
pub(crate) struct NoChange;

/// Clients repeat these operations all the time, so a success is recorded once per hour.
const RARELY: [AuditAction; 1] = [AuditAction::ReadAudit];

impl Api {
    /// Records a request with invalid credentials.
    pub(crate) fn record_refused_login(&self, headers: &HeaderMap, peer: IpAddr) {
        let entry = AuditEntry::new(AuditProtocol::Http, AuditAction::Login).from(peer);
        let entry = match Credential::of(headers) {
            Ok(Credential::None) => entry.refused("no_credentials"),
            Ok(Credential::Basic { user, .. }) => {
                entry.claimed(&user, CallerKind::User).refused("wrong_credentials")
            }
            Ok(Credential::Bearer(_)) => {
                let anonymous = CallerKind::Anonymous.as_str();
                entry.claimed(anonymous, CallerKind::Token).refused("wrong_credentials")
            }
            Err(_) => entry.refused("malformed_credentials"),
        };
        self.access.audit().record(entry);
    }

    /// Begins an administrative operation of the native connection, or inside another operation.
    pub(crate) fn begin_audit(
        &self,
        (who, peer): (&Principal, IpAddr),
        protocol: AuditProtocol,
        action: AuditAction,
        (object, detail): (&str, &str),
    ) -> AuditPending {
        let entry = AuditEntry::new(protocol, action).from(peer).detail(detail);
        AuditPending::begin(&self.access, (who, Action::Manage), entry, object)
    }
}

/// An administrative request in progress.
pub(crate) struct Audited {
    pending: AuditPending,
    action: AuditAction,
    who: Principal,
    peer: IpAddr,
}

impl Audited {
    /// Begins the operation of a route, if it is administrative.
    pub async fn begin(
        api: &Api,
        route: &Route,
        parts: &mut Parts,
        (who, peer): (&Principal, IpAddr),
    ) -> Option<Audited> {
        let action = route.audit.filter(|action| is_administrative(*action, &parts.headers))?;
        let (object, detail) = names(api, route, parts).await;
        let pending = api.begin_audit((who, peer), AuditProtocol::Http, action, (&object, &detail));
        Some(Audited { pending, action, who: who.clone(), peer })
    }

    /// Records the outcome.
    pub fn end(self, api: &Api, response: &Response) {
        let outcome = match response.extensions().get::<Code>() {
            Some(code) => outcome_of(*code),
            None => AuditOutcome::Done,
        };
        let Audited { pending, action, who, peer } = self;
        let audit = api.access.audit();
        let repeated = outcome == AuditOutcome::Done
            && RARELY.contains(&action)
            && !audit.is_due(&who, peer, AuditProtocol::Http, action);
        match repeated || response.extensions().get::<NoChange>().is_some() {
            true => pending.forget(),
            false => pending.end(outcome),
        }
    }
}

/// Whether the holder of a session reads its own state.
fn is_administrative(action: AuditAction, headers: &HeaderMap) -> bool {
    action != AuditAction::ReadState || !headers.contains_key(crate::ops::sessions::TOKEN_HEADER)
}

/// The object of a request, from its path, and the details: the operation and the rest of the path.
async fn names(api: &Api, route: &Route, parts: &mut Parts) -> (String, String) {
    let params = RawPathParams::from_request_parts(parts, api).await.ok();
    let named = |name: &str| {
        let mut params = params.iter().flatten();
        params.find(|(key, _)| *key == name).map(|(_, value)| value)
    };
    let object = match (named("queue"), named("topic"), named("subscription")) {
        (Some(queue), ..) => queue.to_owned(),
        (None, Some(topic), Some(name)) => format!("{topic}/Subscriptions/{name}"),
        (None, Some(topic), None) => topic.to_owned(),
        (None, None, _) => String::new(),
    };
    let mut detail = route.name.to_owned();
    let topic = ("topic", named("topic").filter(|_| named("queue").is_some()));
    for (name, value) in
        [topic, ("rule", named("rule")), ("session", named("session")), ("seq", named("seq"))]
    {
        if let Some(value) = value {
            detail.push_str(&format!(" {name}={value}"));
        }
    }
    (object, detail)
}

/// After a failure of the broker, the outcome is unknown.
pub(crate) fn outcome_of(code: Code) -> AuditOutcome {
    match code {
        Code::Poisoned | Code::Stopping | Code::Damaged | Code::Internal => {
            AuditOutcome::Unknown(code.as_str().into())
        }
        _ => AuditOutcome::Refused(code.as_str().into()),
    }
}

/// The outcome of a result.
pub(crate) fn outcome<T>(result: &Result<T, Problem>) -> AuditOutcome {
    result.as_ref().err().map_or(AuditOutcome::Done, |problem| outcome_of(problem.code()))
}
