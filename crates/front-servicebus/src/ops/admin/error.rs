//! Errors of the administration API: a status, a sub-code and a text, as XML.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use malote_engine::EngineError;
use malote_model::{AuditOutcome, Denied};

use crate::refusal::{LockKind, engine_error, status_of};
use crate::wire::xml::escaped;

/// The operation that a caller lacks permission for. `Below` is an operation on a subscription or rule, by its name in
/// the service.
#[derive(Debug, Clone, Copy)]
pub(super) enum AdminAction {
    Read,
    Write,
    Delete,
    Below(&'static str),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AdminError {
    status: StatusCode,
    /// A finer code of the service, which some clients check.
    sub_code: u32,
    detail: String,
}

pub(super) type AdminResult<T> = Result<T, AdminError>;

impl AdminError {
    fn new(status: StatusCode, sub_code: u32, detail: impl Into<String>) -> AdminError {
        AdminError { status, sub_code, detail: detail.into() }
    }

    /// A missing permission. The text starts with the wording of the service.
    pub fn denied(action: AdminAction, denied: &Denied) -> AdminError {
        let detail = match action {
            AdminAction::Read => {
                format!("Manage,EntityRead claims required for this operation: {denied}.")
            }
            AdminAction::Write => denied_action("EntityWrite", denied),
            AdminAction::Delete => denied_action("EntityDelete", denied),
            AdminAction::Below(operation) => {
                let on = &denied.queue;
                format!("Unauthorized access for '{operation}' operation on '{on}': {denied}.")
            }
        };
        // Without the sub-code, clients take a 403 for an exceeded quota.
        match denied.who.is_anonymous() {
            true => AdminError::unauthorised(detail),
            false => AdminError::forbidden(detail),
        }
    }

    /// The reason in the audit log, derived from the status. It never contains text from a client.
    pub fn audit_outcome(&self) -> AuditOutcome {
        let reason = match self.status {
            StatusCode::BAD_REQUEST => "bad_request",
            StatusCode::UNAUTHORIZED => "unauthorized",
            StatusCode::FORBIDDEN => "forbidden",
            StatusCode::NOT_FOUND => "not_found",
            StatusCode::CONFLICT => "conflict",
            StatusCode::METHOD_NOT_ALLOWED => "method_not_allowed",
            StatusCode::PAYLOAD_TOO_LARGE => "too_large",
            status if status.is_server_error() => "failed",
            _ => "refused",
        };
        match self.status.is_server_error() {
            true => AuditOutcome::Unknown(reason.into()),
            false => AuditOutcome::Refused(reason.into()),
        }
    }

    pub fn bad(detail: impl Into<String>) -> AdminError {
        AdminError::new(StatusCode::BAD_REQUEST, 40_000, detail)
    }

    /// A property has an invalid value.
    pub fn property(name: &str, value: &str, must: &str) -> AdminError {
        let value: String = value.chars().take(64).collect();
        AdminError::bad(format!("The value `{value}` of the property {name} must be {must}."))
    }

    /// A property cannot be changed after creation. The text is the wording of the service.
    pub fn fixed(kind: &str, name: &str) -> AdminError {
        let what = match name {
            "EnablePartitioning" => format!("Partitioning cannot be changed for {kind}."),
            _ => format!(
                "The value for the {name} property of an existing {kind} cannot be changed."
            ),
        };
        AdminError::bad(format!("{what} Delete the entity and create it again."))
    }

    pub fn unauthorised(detail: impl Into<String>) -> AdminError {
        AdminError::new(StatusCode::UNAUTHORIZED, 40_100, detail)
    }

    pub fn forbidden(detail: impl Into<String>) -> AdminError {
        AdminError::new(StatusCode::FORBIDDEN, 40_301, detail)
    }

    pub fn not_found(what: impl std::fmt::Display) -> AdminError {
        let detail = format!("The messaging entity '{what}' could not be found.");
        AdminError::new(StatusCode::NOT_FOUND, 40_400, detail)
    }

    pub fn exists(what: impl std::fmt::Display) -> AdminError {
        let detail = format!("Conflict: the entity '{what}' already exists.");
        AdminError::new(StatusCode::CONFLICT, 40_900, detail)
    }

    pub fn too_large(bytes_max: usize) -> AdminError {
        let detail = format!("The request may have at most {bytes_max} bytes.");
        AdminError::new(StatusCode::PAYLOAD_TOO_LARGE, 41_300, detail)
    }

    pub fn method(method: &str) -> AdminError {
        let detail = format!("The method {method} is not allowed for this path.");
        AdminError::new(StatusCode::METHOD_NOT_ALLOWED, 40_500, detail)
    }
}

impl From<EngineError> for AdminError {
    /// Maps the error to an AMQP condition first, so that both protocols agree.
    fn from(error: EngineError) -> AdminError {
        let error = engine_error(error, LockKind::Message);
        let status =
            u16::try_from(status_of(&error)).ok().and_then(|n| StatusCode::from_u16(n).ok());
        let status = status.filter(|status| status.as_u16() >= 400);
        let status = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let detail = error.description.as_deref().unwrap_or(error.condition.as_str()).to_owned();
        AdminError::new(status, u32::from(status.as_u16()) * 100, detail)
    }
}

impl From<malote_model::Refusal> for AdminError {
    fn from(refusal: malote_model::Refusal) -> AdminError {
        EngineError::Refused(refusal).into()
    }
}

fn denied_action(action: &str, denied: &Denied) -> String {
    format!("Authorization failed for specified action: Manage,{action}. {denied}.")
}

impl IntoResponse for AdminError {
    fn into_response(self) -> Response {
        let AdminError { status, sub_code, detail } = self;
        let code = status.as_u16();
        let detail = escaped(&format!("SubCode={sub_code}. {detail}"));
        let text = format!("<Error><Code>{code}</Code><Detail>{detail}</Detail></Error>");
        let mut response = (status, text).into_response();
        let headers = response.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/xml; charset=utf-8"),
        );
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(
                header::WWW_AUTHENTICATE,
                HeaderValue::from_static("SharedAccessSignature"),
            );
        }
        response
    }
}
