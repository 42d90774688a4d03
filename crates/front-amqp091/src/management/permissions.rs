//! `/api/permissions` and `/api/topic-permissions`.

use serde_json::{Value, json};

use super::administration::list_of;
use super::answer::{Answer, no_content, put as created_or_changed};
use super::error::ApiError;
use super::list;
use super::request::Call;
use super::state::ManagementState;
use super::users::find;
use crate::name_expression::NameExpression;
use crate::users::{TopicPermission, UserChange, UserEntry, VhostPermission};

fn object(user: &str, permission: &VhostPermission) -> Value {
    let VhostPermission { vhost, configure, write, read } = permission;
    json!({ "user": user, "vhost": vhost, "configure": configure, "write": write, "read": read })
}

fn topic_object(user: &str, permission: &TopicPermission) -> Value {
    let TopicPermission { vhost, exchange, write, read } = permission;
    json!({ "user": user, "vhost": vhost, "exchange": exchange, "write": write, "read": read })
}

fn objects(users: &[UserEntry], vhost: Option<&str>) -> Vec<Value> {
    let of_user = |user: &UserEntry| {
        let held = user.permissions.iter();
        let held = held.filter(|one| vhost.is_none_or(|vhost| one.vhost == vhost));
        held.map(|one| object(&user.name, one)).collect::<Vec<_>>()
    };
    users.iter().flat_map(of_user).collect()
}

fn topic_objects(users: &[UserEntry], vhost: Option<&str>) -> Vec<Value> {
    let of_user = |user: &UserEntry| {
        let held = user.topic_permissions.iter();
        let held = held.filter(|one| vhost.is_none_or(|vhost| one.vhost == vhost));
        held.map(|one| topic_object(&user.name, one)).collect::<Vec<_>>()
    };
    users.iter().flat_map(of_user).collect()
}

pub(super) async fn all(state: &ManagementState, call: &Call) -> Result<Answer, ApiError> {
    call.caller.require_administrator()?;
    list_of(state, call, "user", objects(&state.front.users.list(), None)).await
}

pub(super) async fn topics(state: &ManagementState, call: &Call) -> Result<Answer, ApiError> {
    call.caller.require_administrator()?;
    list_of(state, call, "user", topic_objects(&state.front.users.list(), None)).await
}

pub(super) async fn of_user(
    state: &ManagementState,
    call: &Call,
    user: &str,
) -> Result<Answer, ApiError> {
    call.caller.require_administrator()?;
    list_of(state, call, "vhost", objects(&[find(state, user)?], None)).await
}

pub(super) async fn topics_of_user(
    state: &ManagementState,
    call: &Call,
    user: &str,
) -> Result<Answer, ApiError> {
    call.caller.require_administrator()?;
    list_of(state, call, "vhost", topic_objects(&[find(state, user)?], None)).await
}

pub(super) async fn of_vhost(
    state: &ManagementState,
    call: &Call,
    vhost: &str,
) -> Result<Answer, ApiError> {
    call.caller.require_administrator()?;
    call.caller.require_vhost(&state.front, vhost).await?;
    list_of(state, call, "user", objects(&state.front.users.list(), Some(vhost))).await
}

pub(super) async fn topics_of_vhost(
    state: &ManagementState,
    call: &Call,
    vhost: &str,
) -> Result<Answer, ApiError> {
    call.caller.require_administrator()?;
    call.caller.require_vhost(&state.front, vhost).await?;
    list_of(state, call, "user", topic_objects(&state.front.users.list(), Some(vhost))).await
}

pub(super) async fn one(
    state: &ManagementState,
    call: &Call,
    vhost: &str,
    user: &str,
) -> Result<Answer, ApiError> {
    call.caller.require_administrator()?;
    let user = find(state, user)?;
    let held = user.permissions.iter().find(|one| one.vhost == vhost);
    Ok(list::one(call, object(&user.name, held.ok_or_else(ApiError::not_found)?)))
}

pub(super) async fn topics_of(
    state: &ManagementState,
    call: &Call,
    vhost: &str,
    user: &str,
) -> Result<Answer, ApiError> {
    call.caller.require_administrator()?;
    let found = topic_objects(&[find(state, user)?], Some(vhost));
    if found.is_empty() {
        return Err(ApiError::not_found());
    }
    list_of(state, call, "exchange", found).await
}

/// The user, if both it and the virtual host exist.
async fn target(state: &ManagementState, vhost: &str, user: &str) -> Result<UserEntry, ApiError> {
    let missing = || ApiError::bad_request("vhost_or_user_not_found");
    let user = find(state, user).map_err(|_| missing())?;
    match state.front.has_vhost(vhost).await? {
        true => Ok(user),
        false => Err(missing()),
    }
}

fn expression(text: &str) -> Result<NameExpression, ApiError> {
    NameExpression::new(text)
        .map_err(|error| ApiError::bad_request(json!(["invalid_regexp", error.text, error.why])))
}

pub(super) async fn put(
    state: &ManagementState,
    call: &Call,
    vhost: &str,
    user: &str,
) -> Result<Answer, ApiError> {
    call.caller.require_administrator()?;
    let body = call.object()?;
    let text = |key: &str| Call::required_text(&body, key);
    let (configure, write, read) = (text("configure")?, text("write")?, text("read")?);
    let permission = VhostPermission {
        vhost: vhost.to_owned(),
        configure: expression(configure)?,
        write: expression(write)?,
        read: expression(read)?,
    };
    let found = target(state, vhost, user).await?;
    let is_new = !found.permissions.iter().any(|one| one.vhost == vhost);
    let change = UserChange::Permit { user: user.to_owned(), permission };
    state.front.users.change(vec![change], call.caller.audit_users()).await?;
    Ok(created_or_changed(is_new))
}

pub(super) async fn delete(
    state: &ManagementState,
    call: &Call,
    vhost: &str,
    user: &str,
) -> Result<Answer, ApiError> {
    call.caller.require_administrator()?;
    if !find(state, user)?.permissions.iter().any(|one| one.vhost == vhost) {
        return Err(ApiError::not_found());
    }
    let change = UserChange::Forbid { user: user.to_owned(), vhost: vhost.to_owned() };
    state.front.users.change(vec![change], call.caller.audit_users()).await?;
    Ok(no_content())
}

pub(super) async fn put_topic(
    state: &ManagementState,
    call: &Call,
    vhost: &str,
    user: &str,
) -> Result<Answer, ApiError> {
    call.caller.require_administrator()?;
    let body = call.object()?;
    let text = |key: &str| Call::required_text(&body, key);
    let permission = TopicPermission {
        vhost: vhost.to_owned(),
        exchange: text("exchange")?.to_owned(),
        write: expression(text("write")?)?,
        read: expression(text("read")?)?,
    };
    let found = target(state, vhost, user).await?;
    let is_new = !found.topic_permissions.iter().any(|one| one.vhost == vhost);
    let change = UserChange::PermitTopic { user: user.to_owned(), permission };
    state.front.users.change(vec![change], call.caller.audit_users()).await?;
    Ok(created_or_changed(is_new))
}

pub(super) async fn delete_topics(
    state: &ManagementState,
    call: &Call,
    vhost: &str,
    user: &str,
) -> Result<Answer, ApiError> {
    call.caller.require_administrator()?;
    if !find(state, user)?.topic_permissions.iter().any(|one| one.vhost == vhost) {
        return Err(ApiError::not_found());
    }
    let (user, vhost) = (user.to_owned(), vhost.to_owned());
    let change = UserChange::ForbidTopic { user, vhost, exchange: None };
    state.front.users.change(vec![change], call.caller.audit_users()).await?;
    Ok(no_content())
}
