//! `/api/vhosts`.

use malote_model::AuditAction;
use serde_json::{Value, json};

use super::administration::{done, list_of};
use super::answer::{Answer, no_content};
use super::error::ApiError;
use super::list;
use super::request::Call;
use super::state::ManagementState;
use crate::conn::handshake::CLUSTER_NAME;
use crate::definitions::tags_of;
use crate::metadata::VhostFacts;
use crate::name_expression::NameExpression;
use crate::users::{UserChange, VhostPermission};

fn object(state: &ManagementState, name: &str) -> Value {
    let VhostFacts { description, tags, default_queue_type, .. } = state.front.vhost_facts(name);
    json!({
        "name": name,
        "description": description,
        "tags": tags,
        "default_queue_type": default_queue_type.unwrap_or_else(|| "undefined".to_owned()),
        "metadata": { "description": description, "tags": tags },
        "tracing": false,
        "cluster_state": { CLUSTER_NAME: "running" },
    })
}

pub(super) async fn all(state: &ManagementState, call: &Call) -> Result<Answer, ApiError> {
    let names = state.front.vhost_names().into_iter();
    let names = names.filter(|name| call.caller.sees_vhost(&state.front, name));
    list_of(state, call, "name", names.map(|name| object(state, &name))).await
}

pub(super) async fn one(
    state: &ManagementState,
    call: &Call,
    name: &str,
) -> Result<Answer, ApiError> {
    call.caller.require_administrator()?;
    call.caller.require_vhost(&state.front, name).await?;
    Ok(list::one(call, object(state, name)))
}

pub(super) async fn put(
    state: &ManagementState,
    call: &Call,
    name: &str,
) -> Result<Answer, ApiError> {
    call.caller.require_administrator()?;
    let body = call.object()?;
    let text = |key: &str| body.get(key).and_then(Value::as_str).map(str::to_owned);
    let tags = body.get("tags").map_or(Some(Vec::new()), tags_of);
    let facts = VhostFacts {
        description: text("description").unwrap_or_default(),
        tags: tags.ok_or_else(|| ApiError::bad_request("tags must be a list"))?,
        default_queue_type: text("default_queue_type").filter(|kind| kind != "undefined"),
        deleting: false,
    };
    let is_new = state.front.put_vhost(name, facts).await?;
    // As in RabbitMQ, the creator may use what it has created.
    let creator = &call.caller.user;
    if is_new && state.front.users.list().iter().any(|user| user.name == *creator) {
        let all = NameExpression::everything();
        let vhost = name.to_owned();
        let (configure, write, read) = (all.clone(), all.clone(), all);
        let permission = VhostPermission { vhost, configure, write, read };
        let change = UserChange::Permit { user: creator.clone(), permission };
        state.front.users.change(vec![change], call.caller.audit_users()).await?;
    }
    let entry = call.caller.audit(AuditAction::Declare, &format!("vhost {name}"));
    Ok(done(state, entry, is_new))
}

pub(super) async fn delete(
    state: &ManagementState,
    call: &Call,
    name: &str,
) -> Result<Answer, ApiError> {
    call.caller.require_administrator()?;
    let entry = call.caller.audit(AuditAction::Delete, &format!("vhost {name}"));
    match state.front.delete_vhost(name, entry).await? {
        true => Ok(no_content()),
        false => Err(ApiError::not_found()),
    }
}
