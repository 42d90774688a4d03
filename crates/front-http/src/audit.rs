//! What this front end reports to the audit log, and how it is read.
//!
//! The table of routes says which operations are administrative; `around` in `routes.rs` records each of them with its
//! outcome. Frames of the native connection, and queues that are made by a send, are recorded where they are handled.

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

/// In the extensions of an answer: nothing was changed, as the caller asked.
#[derive(Clone, Copy)]
pub(crate) struct NothingDone;

/// Recorded once an hour when they are carried out: clients repeat them all the time.
const RARELY: [AuditAction; 1] = [AuditAction::ReadAudit];

impl Api {
    /// A request whose credentials are not good.
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

    /// Begins an administrative operation of the native connection, or within another one.
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

/// An administrative request under way.
pub(crate) struct Audited {
    pending: AuditPending,
    action: AuditAction,
    who: Principal,
    peer: IpAddr,
}

impl Audited {
    /// Begins the operation of a route, if it is an administrative one.
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

    /// Records how it ended.
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
        match repeated || response.extensions().get::<NothingDone>().is_some() {
            true => pending.forget(),
            false => pending.end(outcome),
        }
    }
}

/// The holder of a session reads its own state.
fn is_administrative(action: AuditAction, headers: &HeaderMap) -> bool {
    action != AuditAction::ReadState || !headers.contains_key(crate::ops::sessions::TOKEN_HEADER)
}

/// What a request is about, by its path; and the name of the operation with the rest of the path.
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

/// A failure of the broker leaves open what was carried out.
pub(crate) fn outcome_of(code: Code) -> AuditOutcome {
    match code {
        Code::Poisoned | Code::Stopping | Code::Damaged | Code::Internal => {
            AuditOutcome::Unknown(code.as_str().into())
        }
        _ => AuditOutcome::Refused(code.as_str().into()),
    }
}

/// The same of a result.
pub(crate) fn outcome<T>(result: &Result<T, Problem>) -> AuditOutcome {
    result.as_ref().err().map_or(AuditOutcome::Done, |problem| outcome_of(problem.code()))
}
