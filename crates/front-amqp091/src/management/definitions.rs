//! `/api/definitions`. With `?report=true`, the answer of an import lists what was left alone.

use axum::http::{HeaderValue, Method};
use malote_model::AuditAction;
use serde_json::to_value;

use super::answer::{Answer, json, no_content};
use super::error::ApiError;
use super::request::Call;
use super::state::ManagementState;
use crate::definitions::{Definitions, ImportReport};

/// Names what was left alone. RabbitMQ says nothing about it.
const SKIPPED_HEADER: &str = "malote-skipped";
/// Bytes of that header.
const SKIPPED_BYTES_MAX: usize = 4_096;

pub(super) async fn route(
    state: &ManagementState,
    call: &Call,
    vhost: Option<&str>,
) -> Result<Answer, ApiError> {
    call.caller.require_administrator()?;
    match call.method {
        Method::GET => {
            if let Some(vhost) = vhost
                && !state.front.has_vhost(vhost).await?
            {
                return Err(ApiError::bad_request("vhost_not_found"));
            }
            let definitions = state.front.export_definitions(vhost).await?;
            let entry = call.caller.audit(AuditAction::Export, vhost.unwrap_or_default());
            state.front.access.audit().record(entry);
            Ok(json(&to_value(definitions).unwrap_or_default()))
        }
        Method::POST => import(state, call, vhost).await,
        _ => Err(ApiError::no_method("HEAD, GET, POST, OPTIONS")),
    }
}

async fn import(
    state: &ManagementState,
    call: &Call,
    vhost: Option<&str>,
) -> Result<Answer, ApiError> {
    if let Some(vhost) = vhost
        && !state.front.has_vhost(vhost).await?
    {
        return Err(ApiError::missing("vhost_not_found"));
    }
    let body = call.object().map_err(|_| ApiError::bad_request("failed_to_parse_json"))?;
    let definitions: Definitions = serde_json::from_value(body.into())
        .map_err(|error| ApiError::bad_request(format!("invalid definitions: {error}")))?;
    let entry = call.caller.audit(AuditAction::Import, vhost.unwrap_or_default());
    state.front.access.audit().record(entry);
    let report =
        state.front.import_definitions(definitions, vhost, &call.caller.audit_users()).await;
    let report = report.map_err(|error| ApiError::bad_request(error.to_string()))?;
    match call.flag("report") {
        true => Ok(json(&serde_json::json!({ "skipped": report.skipped }))),
        false => Ok(answer(&report)),
    }
}

fn answer(report: &ImportReport) -> Answer {
    let mut answer = no_content();
    let mut skipped = report.skipped.join("; ").replace(|c: char| !(' '..='~').contains(&c), "?");
    skipped.truncate(SKIPPED_BYTES_MAX);
    if let (false, Ok(value)) = (skipped.is_empty(), HeaderValue::try_from(skipped)) {
        answer.headers_mut().insert(SKIPPED_HEADER, value);
    }
    answer
}
