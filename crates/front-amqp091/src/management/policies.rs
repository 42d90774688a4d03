//! `/api/policies` and `/api/operator-policies`.

use axum::http::Method;
use malote_model::AuditAction;
use serde_json::{Map, Value};

use super::administration::{deleted, done, list_of};
use super::answer::Answer;
use super::error::ApiError;
use super::list;
use super::request::Call;
use super::state::ManagementState;
use crate::metadata::Metadata;
use crate::names::VirtualHost;
use crate::policy::{EffectivePolicy, PolicyKind, PolicyTarget};

pub(super) async fn route(
    state: &ManagementState,
    call: &Call,
    kind: PolicyKind,
    rest: &[&str],
) -> Result<Answer, ApiError> {
    match (rest, &call.method) {
        ([], &Method::GET) => all(state, call, kind, None).await,
        ([vhost], &Method::GET) => {
            call.caller.require_vhost(&state.front, vhost).await?;
            all(state, call, kind, Some(vhost)).await
        }
        ([vhost, name], &Method::GET) => {
            call.caller.require_vhost(&state.front, vhost).await?;
            let metadata = state.front.metadata.current();
            let found = metadata.policies(kind).get(&((*vhost).to_owned(), (*name).to_owned()));
            let policy = found.ok_or_else(ApiError::not_found)?;
            Ok(list::one(call, policy.to_json(Some(vhost), name).into()))
        }
        ([vhost, name], &Method::PUT) => put(state, call, kind, vhost, name).await,
        ([vhost, name], &Method::DELETE) => {
            require_change(state, call, kind, vhost)?;
            let existed = state.front.delete_policy(kind, vhost, name).await?;
            deleted(
                state,
                call.caller.audit_in(AuditAction::Update, "policy", vhost, name),
                existed,
            )
        }
        ([] | [_], _) => Err(ApiError::no_method("HEAD, GET, OPTIONS")),
        ([_, _], _) => Err(ApiError::no_method("HEAD, GET, PUT, DELETE, OPTIONS")),
        _ => Err(ApiError::not_found()),
    }
}

/// Operator policies belong to administrators.
fn require_change(
    state: &ManagementState,
    call: &Call,
    kind: PolicyKind,
    vhost: &str,
) -> Result<(), ApiError> {
    match kind {
        PolicyKind::Operator => call.caller.require_administrator(),
        PolicyKind::User => super::parameters::require_policymaker(state, call, vhost),
    }
}

async fn all(
    state: &ManagementState,
    call: &Call,
    kind: PolicyKind,
    vhost: Option<&str>,
) -> Result<Answer, ApiError> {
    let metadata = state.front.metadata.current();
    let policies = metadata.policies(kind).iter();
    let seen = policies.filter(|((host, _), _)| match vhost {
        Some(vhost) => vhost == host,
        None => call.caller.sees_vhost(&state.front, host),
    });
    let objects: Vec<Value> =
        seen.map(|((host, name), policy)| policy.to_json(Some(host), name).into()).collect();
    list_of(state, call, "name", objects).await
}

async fn put(
    state: &ManagementState,
    call: &Call,
    kind: PolicyKind,
    vhost: &str,
    name: &str,
) -> Result<Answer, ApiError> {
    require_change(state, call, kind, vhost)?;
    let is_new = state.front.put_policy(kind, vhost, name, &call.object()?).await?;
    let entry = call.caller.audit_in(AuditAction::Update, "policy", vhost, name);
    Ok(done(state, entry, is_new))
}

/// The fields of a queue or exchange that tell its policies.
pub(super) fn put_policies(
    object: &mut Map<String, Value>,
    metadata: &Metadata,
    host: &VirtualHost,
    target: PolicyTarget,
    name: &str,
) {
    let effective = EffectivePolicy::of(metadata, host.name(), target, name);
    object.insert("policy".into(), effective.policy.into());
    if target != PolicyTarget::Exchange {
        object.insert("operator_policy".into(), effective.operator_policy.into());
        let definition = Value::Object(effective.definition);
        object.insert("effective_policy_definition".into(), definition);
    }
}
