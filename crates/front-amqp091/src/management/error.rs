//! Errors of the API, with RabbitMQ's status codes and JSON.

use axum::body::Body;
use axum::http::{Response, StatusCode, header};
use malote_engine::EngineError;
use malote_model::{Denied, Foreign, Refusal};
use serde_json::{Value, json};

/// What a client shows when it asks for a password.
const CHALLENGE: &str = "Basic realm=\"RabbitMQ Management\"";

/// Why a request was refused.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ApiError {
    pub status: StatusCode,
    /// The word in the field `error`; without one, the body is empty.
    pub error: &'static str,
    pub reason: Value,
    /// The methods that the path has, for 405.
    allow: Option<&'static str>,
}

impl ApiError {
    pub fn new(status: StatusCode, error: &'static str, reason: impl Into<Value>) -> Self {
        Self { status, error, reason: reason.into(), allow: None }
    }

    /// The request has no credential.
    pub fn no_credential() -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "", "")
    }

    /// The user does not exist, or has another password.
    pub fn login_failed() -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "not_authorized", "Login failed")
    }

    /// The caller may not do that.
    pub fn not_authorised(reason: impl Into<Value>) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "not_authorised", reason)
    }

    /// The path, or the object that it names, does not exist.
    pub fn not_found() -> Self {
        Self::new(StatusCode::NOT_FOUND, "Object Not Found", "Not Found")
    }

    /// The same for an object that the operation needs.
    pub fn missing(reason: impl Into<Value>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", reason)
    }

    pub fn bad_request(reason: impl Into<Value>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad_request", reason)
    }

    /// The path exists, without this method. `allow` lists its methods, as in `GET, HEAD`.
    pub fn no_method(allow: &'static str) -> Self {
        Self { allow: Some(allow), ..Self::new(StatusCode::METHOD_NOT_ALLOWED, "", "") }
    }

    pub fn busy(reason: impl Into<Value>) -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, "busy", reason)
    }

    pub fn response(&self) -> Response<Body> {
        let body = match self.error {
            "" => Body::empty(),
            error => Body::from(json!({ "error": error, "reason": self.reason }).to_string()),
        };
        let mut response = Response::new(body);
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        if !self.error.is_empty() {
            headers.insert(
                header::CONTENT_TYPE,
                header::HeaderValue::from_static(super::answer::JSON),
            );
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, header::HeaderValue::from_static(CHALLENGE));
        }
        if let Some(allow) = self.allow {
            headers.insert(header::ALLOW, header::HeaderValue::from_static(allow));
        }
        response
    }
}

impl From<EngineError> for ApiError {
    fn from(error: EngineError) -> Self {
        match &error {
            EngineError::Refused(
                Refusal::QueueNotFound { .. }
                | Refusal::TopicNotFound { .. }
                | Refusal::RuleNotFound { .. },
            ) => Self::not_found(),
            EngineError::Refused(Refusal::Busy) => Self::busy(error.to_string()),
            EngineError::Refused(refusal) => Self::bad_request(refusal.to_string()),
            EngineError::Stopping | EngineError::Poisoned => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", error.to_string())
            }
            EngineError::Damaged { .. } => {
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal_error", error.to_string())
            }
        }
    }
}

impl From<Denied> for ApiError {
    fn from(_: Denied) -> Self {
        Self::not_authorised("Access refused.")
    }
}

impl From<Foreign> for ApiError {
    fn from(foreign: Foreign) -> Self {
        Self::new(StatusCode::FORBIDDEN, "forbidden", foreign.to_string())
    }
}

/// The answer of a server that is too busy for another request.
pub fn management_busy(reason: &'static str) -> Response<Body> {
    ApiError::busy(reason).response()
}
