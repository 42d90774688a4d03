//! The table of paths for users, permissions, virtual hosts, policies, parameters and definitions.

use super::answer::{Answer, json, no_content, put};
use super::error::ApiError;
use super::list::{Rendered, list};
use super::request::{Call, Caller};
use super::state::ManagementState;
use super::{definitions, parameters, permissions, policies, users, vhosts};
use crate::administration::AdministrationError;
use crate::metadata::MetadataError;
use crate::policy::PolicyKind;
use crate::users::UserError;
use axum::http::{Method, StatusCode};
use malote_model::{AuditAction, AuditEntry};
use serde_json::{Map, Value, json as value};

const READ_WRITE: &str = "HEAD, GET, PUT, DELETE, OPTIONS";

/// A path that this table does not have.
pub(super) enum Routed {
    Answered(Result<Answer, ApiError>),
    Unknown,
}

/// Answers a request of this part of the API.
pub(super) async fn route(state: &ManagementState, call: &Call) -> Routed {
    let path: Vec<&str> = call.path.iter().map(String::as_str).collect();
    let answered = match path[..] {
        ["users"] => only(call, Method::GET, users::all(state, call)).await,
        ["users", "without-permissions"] => {
            only(call, Method::GET, users::without_permissions(state, call)).await
        }
        ["users", "bulk-delete"] => only(call, Method::POST, users::delete_many(state, call)).await,
        ["users", name] => match call.method {
            Method::GET => users::one(state, call, name).await,
            Method::PUT => users::put(state, call, name).await,
            Method::DELETE => users::delete(state, call, name).await,
            _ => Err(ApiError::no_method(READ_WRITE)),
        },
        ["users", name, "permissions"] => {
            only(call, Method::GET, permissions::of_user(state, call, name)).await
        }
        ["users", name, "topic-permissions"] => {
            only(call, Method::GET, permissions::topics_of_user(state, call, name)).await
        }
        ["permissions"] => only(call, Method::GET, permissions::all(state, call)).await,
        ["permissions", vhost, user] => match call.method {
            Method::GET => permissions::one(state, call, vhost, user).await,
            Method::PUT => permissions::put(state, call, vhost, user).await,
            Method::DELETE => permissions::delete(state, call, vhost, user).await,
            _ => Err(ApiError::no_method(READ_WRITE)),
        },
        ["topic-permissions"] => only(call, Method::GET, permissions::topics(state, call)).await,
        ["topic-permissions", vhost, user] => match call.method {
            Method::GET => permissions::topics_of(state, call, vhost, user).await,
            Method::PUT => permissions::put_topic(state, call, vhost, user).await,
            Method::DELETE => permissions::delete_topics(state, call, vhost, user).await,
            _ => Err(ApiError::no_method(READ_WRITE)),
        },
        ["vhosts"] => only(call, Method::GET, vhosts::all(state, call)).await,
        ["vhosts", name] => match call.method {
            Method::GET => vhosts::one(state, call, name).await,
            Method::PUT => vhosts::put(state, call, name).await,
            Method::DELETE => vhosts::delete(state, call, name).await,
            _ => Err(ApiError::no_method(READ_WRITE)),
        },
        ["vhosts", name, "permissions"] => {
            only(call, Method::GET, permissions::of_vhost(state, call, name)).await
        }
        ["vhosts", name, "topic-permissions"] => {
            only(call, Method::GET, permissions::topics_of_vhost(state, call, name)).await
        }
        ["policies", ref rest @ ..] => policies::route(state, call, PolicyKind::User, rest).await,
        ["operator-policies", ref rest @ ..] => {
            policies::route(state, call, PolicyKind::Operator, rest).await
        }
        ["parameters", ref rest @ ..] => parameters::route(state, call, rest).await,
        ["global-parameters", ref rest @ ..] => parameters::route_global(state, call, rest).await,
        ["definitions"] => definitions::route(state, call, None).await,
        ["definitions", vhost] => definitions::route(state, call, Some(vhost)).await,
        // No other way to sign in than with a password.
        ["auth"] => {
            only(call, Method::GET, async { Ok(json(&value!({ "oauth_enabled": false }))) }).await
        }
        _ => return Routed::Unknown,
    };
    Routed::Answered(answered)
}

/// Runs `answer` for one method, and refuses others.
async fn only(
    call: &Call,
    method: Method,
    answer: impl Future<Output = Result<Answer, ApiError>>,
) -> Result<Answer, ApiError> {
    match (call.method == method, method) {
        (true, _) => answer.await,
        (false, Method::POST) => Err(ApiError::no_method("POST, OPTIONS")),
        (false, _) => Err(ApiError::no_method("HEAD, GET, OPTIONS")),
    }
}

/// A list that is in memory.
pub(super) async fn list_of(
    state: &ManagementState,
    call: &Call,
    name: &str,
    objects: impl IntoIterator<Item = Value>,
) -> Result<Answer, ApiError> {
    let named = |object: Value| {
        (object.get(name).and_then(Value::as_str).unwrap_or_default().to_owned(), object)
    };
    list(state, call, Rendered::new(objects.into_iter().map(named).collect())).await
}

/// 201 or 204, and a line in the audit log.
pub(super) fn done(state: &ManagementState, entry: AuditEntry, is_new: bool) -> Answer {
    state.front.access.audit().record(entry);
    put(is_new)
}

/// 204, or 404 if there was nothing to delete.
pub(super) fn deleted(
    state: &ManagementState,
    entry: AuditEntry,
    existed: bool,
) -> Result<Answer, ApiError> {
    if !existed {
        return Err(ApiError::not_found());
    }
    state.front.access.audit().record(entry);
    Ok(no_content())
}

impl Caller {
    /// An audit entry for something in a virtual host.
    pub(super) fn audit_in(
        &self,
        action: AuditAction,
        what: &str,
        vhost: &str,
        name: &str,
    ) -> AuditEntry {
        self.audit(action, &format!("{what} {name} in vhost {vhost}"))
    }
}

impl Call {
    /// A field of the body that must be there.
    pub(super) fn required<'o>(
        object: &'o Map<String, Value>,
        key: &str,
    ) -> Result<&'o Value, ApiError> {
        let missing = || ApiError::bad_request(format!("[{{key_missing,{key}}}]"));
        object.get(key).ok_or_else(missing)
    }

    /// A text in the body that must be there.
    pub(super) fn required_text<'o>(
        object: &'o Map<String, Value>,
        key: &str,
    ) -> Result<&'o str, ApiError> {
        let wrong = || ApiError::bad_request(format!("{key} must be a string"));
        Self::required(object, key)?.as_str().ok_or_else(wrong)
    }
}

impl From<AdministrationError> for ApiError {
    fn from(error: AdministrationError) -> Self {
        match error {
            AdministrationError::Engine(error) => error.into(),
            AdministrationError::Users(error) => error.into(),
            AdministrationError::Metadata(MetadataError::NoVhost(_)) => {
                ApiError::missing("vhost_not_found")
            }
            AdministrationError::Metadata(
                error @ (MetadataError::Unwritable(_) | MetadataError::Malformed(_)),
            ) => ApiError::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                "internal_error",
                error.to_string(),
            ),
            AdministrationError::Metadata(error) => ApiError::bad_request(error.to_string()),
        }
    }
}

impl From<UserError> for ApiError {
    fn from(error: UserError) -> Self {
        match error {
            UserError::NotFound(_) => ApiError::not_found(),
            UserError::Invalid(why) => ApiError::bad_request(why),
            UserError::Failed(why) => {
                ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal_error", why)
            }
        }
    }
}
