//! `/api/parameters` and `/api/global-parameters`.

use axum::http::Method;
use malote_model::AuditAction;
use serde_json::{Value, json};

use super::administration::{deleted, done, list_of};
use super::answer::Answer;
use super::error::ApiError;
use super::list;
use super::request::Call;
use super::state::ManagementState;
use crate::administration::OPERATOR_POLICY;

/// Refuses a caller who may not change policies and parameters in a virtual host.
pub(super) fn require_policymaker(
    state: &ManagementState,
    call: &Call,
    vhost: &str,
) -> Result<(), ApiError> {
    let caller = &call.caller;
    let allowed = caller.is_policymaker()
        && (caller.is_administrator() || caller.sees_vhost(&state.front, vhost));
    match allowed {
        true => Ok(()),
        false => Err(not_authorised()),
    }
}

fn not_authorised() -> ApiError {
    ApiError::not_authorised("User not authorised to access object")
}

/// The parameters, with operator policies, which are parameters in RabbitMQ.
fn objects(state: &ManagementState, call: &Call) -> Vec<(String, String, String, Value)> {
    let metadata = state.front.metadata.current();
    let mut all: Vec<_> = metadata
        .parameters
        .iter()
        .map(|((component, vhost, name), value)| {
            (component.clone(), vhost.clone(), name.clone(), value.clone())
        })
        .collect();
    all.extend(metadata.operator_policies.iter().map(|((vhost, name), policy)| {
        (OPERATOR_POLICY.to_owned(), vhost.clone(), name.clone(), policy.value().into())
    }));
    all.retain(|(_, vhost, ..)| call.caller.sees_vhost(&state.front, vhost));
    all
}

fn object((component, vhost, name, value): &(String, String, String, Value)) -> Value {
    json!({ "value": value, "vhost": vhost, "component": component, "name": name })
}

pub(super) async fn route(
    state: &ManagementState,
    call: &Call,
    rest: &[&str],
) -> Result<Answer, ApiError> {
    if !call.caller.is_policymaker() {
        return Err(not_authorised());
    }
    match (rest, &call.method) {
        ([component, vhost, name], &Method::PUT) => {
            require_policymaker(state, call, vhost)?;
            let mut body = call.object()?;
            Call::required(&body, "value")?;
            let value = body.remove("value").unwrap_or_default();
            let is_new = state.front.put_parameter(component, vhost, name, value).await?;
            let entry = call.caller.audit_in(AuditAction::Update, component, vhost, name);
            Ok(done(state, entry, is_new))
        }
        ([component, vhost, name], &Method::DELETE) => {
            require_policymaker(state, call, vhost)?;
            let existed = state.front.delete_parameter(component, vhost, name).await?;
            let entry = call.caller.audit_in(AuditAction::Update, component, vhost, name);
            deleted(state, entry, existed)
        }
        ([component, vhost, name], &Method::GET) => {
            let all = objects(state, call);
            let found =
                all.iter().find(|(c, v, n, _)| (&**c, &**v, &**n) == (component, vhost, name));
            Ok(list::one(call, object(found.ok_or_else(ApiError::not_found)?)))
        }
        ([] | [_] | [_, _], &Method::GET) => {
            if let [_, vhost] = rest {
                call.caller.require_vhost(&state.front, vhost).await?;
            }
            let (component, vhost) = (rest.first(), rest.get(1));
            let all = objects(state, call);
            let all = all.iter().filter(|(c, v, ..)| {
                component.is_none_or(|one| one == c) && vhost.is_none_or(|one| one == v)
            });
            list_of(state, call, "name", all.map(object).collect::<Vec<_>>()).await
        }
        ([] | [_] | [_, _], _) => Err(ApiError::no_method("HEAD, GET, OPTIONS")),
        ([_, _, _], _) => Err(ApiError::no_method("HEAD, GET, PUT, DELETE, OPTIONS")),
        _ => Err(ApiError::not_found()),
    }
}

pub(super) async fn route_global(
    state: &ManagementState,
    call: &Call,
    rest: &[&str],
) -> Result<Answer, ApiError> {
    if !call.caller.is_policymaker() {
        return Err(not_authorised());
    }
    let metadata = state.front.metadata.current();
    match (rest, &call.method) {
        ([], &Method::GET) => {
            let all = metadata.global_parameters.iter();
            let all = all.map(|(name, value)| json!({ "name": name, "value": value }));
            list_of(state, call, "name", all.collect::<Vec<_>>()).await
        }
        ([name], &Method::GET) => {
            let value = metadata.global_parameters.get(*name).ok_or_else(ApiError::not_found)?;
            Ok(list::one(call, json!({ "name": name, "value": value })))
        }
        ([name], &Method::PUT) => {
            let mut body = call.object()?;
            Call::required(&body, "value")?;
            let value = body.remove("value").unwrap_or_default();
            let is_new = state.front.put_global_parameter(name, value).await?;
            let entry = call.caller.audit(AuditAction::Update, &format!("global parameter {name}"));
            Ok(done(state, entry, is_new))
        }
        ([name], &Method::DELETE) => {
            let existed = state.front.delete_global_parameter(name).await?;
            let entry = call.caller.audit(AuditAction::Update, &format!("global parameter {name}"));
            deleted(state, entry, existed)
        }
        ([], _) => Err(ApiError::no_method("HEAD, GET, OPTIONS")),
        ([_], _) => Err(ApiError::no_method("HEAD, GET, PUT, DELETE, OPTIONS")),
        _ => Err(ApiError::not_found()),
    }
}
