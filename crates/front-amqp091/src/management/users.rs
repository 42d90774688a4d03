//! `/api/users`.

use serde_json::{Value, to_value};

use super::administration::list_of;
use super::answer::{Answer, no_content, put as created_or_changed};
use super::error::ApiError;
use super::list;
use super::request::Call;
use super::state::ManagementState;
use crate::definitions::{UserDefinition, tags_of};
use crate::users::{
    ADMINISTRATOR, HashAlgorithm, NewPassword, StoredPassword, UserChange, UserEntry,
};

fn object(user: UserEntry) -> Value {
    let mut user = UserDefinition::of(user);
    // Only an export of definitions contains hashes that RabbitMQ cannot read.
    user.malote_password_hash = None;
    to_value(user).unwrap_or_default()
}

pub(super) async fn all(state: &ManagementState, call: &Call) -> Result<Answer, ApiError> {
    call.caller.require_administrator()?;
    list_of(state, call, "name", state.front.users.list().into_iter().map(object)).await
}

pub(super) async fn without_permissions(
    state: &ManagementState,
    call: &Call,
) -> Result<Answer, ApiError> {
    call.caller.require_administrator()?;
    let users = state.front.users.list().into_iter().filter(|user| user.permissions.is_empty());
    list_of(state, call, "name", users.map(object)).await
}

pub(super) fn find(state: &ManagementState, name: &str) -> Result<UserEntry, ApiError> {
    let found = state.front.users.list().into_iter().find(|user| user.name == name);
    found.ok_or_else(ApiError::not_found)
}

pub(super) async fn one(
    state: &ManagementState,
    call: &Call,
    name: &str,
) -> Result<Answer, ApiError> {
    call.caller.require_administrator()?;
    Ok(list::one(call, object(find(state, name)?)))
}

pub(super) async fn put(
    state: &ManagementState,
    call: &Call,
    name: &str,
) -> Result<Answer, ApiError> {
    call.caller.require_administrator()?;
    let body = call.object()?;
    let tags = body.get("tags").ok_or_else(|| ApiError::bad_request("tags_not_present"))?;
    let tags = tags_of(tags)
        .ok_or_else(|| ApiError::bad_request("tags must be a list or a string with commas"))?;
    let text = |key: &str| match body.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(_) => Err(ApiError::bad_request(format!("{key} must be a string"))),
    };
    let password = match (text("password")?, text("password_hash")?) {
        (Some(_), Some(_)) => {
            return Err(ApiError::bad_request("both_password_and_password_hash_are_provided"));
        }
        (Some(password), None) if password.is_empty() => NewPassword::None,
        (Some(password), None) => NewPassword::Plain(password),
        (None, Some(hash)) if hash.is_empty() => NewPassword::None,
        (None, Some(hash)) => {
            if data_encoding::BASE64.decode(hash.as_bytes()).is_err() {
                return Err(ApiError::bad_request(vec!["not_base64".to_owned(), hash]));
            }
            let algorithm = match body.get("hashing_algorithm") {
                None | Some(Value::Null) => HashAlgorithm::default(),
                Some(word) => serde_json::from_value(word.clone()).map_err(|_| {
                    ApiError::bad_request(
                        "hashing_algorithm must be rabbit_password_hashing_sha256 or rabbit_password_hashing_sha512",
                    )
                })?,
            };
            NewPassword::Stored(StoredPassword::Rabbitmq { hash, algorithm })
        }
        (None, None) => NewPassword::None,
    };
    if state.front.keys.is_open() && !tags.iter().any(|tag| tag == ADMINISTRATOR) {
        // From then on, `guest` is refused, and no user could administer the broker.
        return Err(ApiError::bad_request("the first user must have the tag administrator"));
    }
    let is_new = find(state, name).is_err();
    let change = UserChange::Put { name: name.to_owned(), password, tags };
    // The store records the change in the audit log.
    state.front.users.change(vec![change], call.caller.audit_users()).await?;
    Ok(created_or_changed(is_new))
}

pub(super) async fn delete(
    state: &ManagementState,
    call: &Call,
    name: &str,
) -> Result<Answer, ApiError> {
    call.caller.require_administrator()?;
    let change = UserChange::Delete { name: name.to_owned() };
    state.front.users.change(vec![change], call.caller.audit_users()).await?;
    Ok(no_content())
}

/// Users that do not exist are ignored.
pub(super) async fn delete_many(state: &ManagementState, call: &Call) -> Result<Answer, ApiError> {
    call.caller.require_administrator()?;
    let body = call.object()?;
    let names = Call::required(&body, "users")?.as_array();
    let names = names.ok_or_else(|| ApiError::bad_request("users must be a list"))?;
    let known = state.front.users.list();
    let names = names.iter().filter_map(Value::as_str);
    let names = names.filter(|name| known.iter().any(|user| user.name == *name));
    let changes = names.map(|name| UserChange::Delete { name: name.to_owned() }).collect();
    state.front.users.change(changes, call.caller.audit_users()).await?;
    Ok(no_content())
}
