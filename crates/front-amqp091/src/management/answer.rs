//! Answers without an error.

use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode, header};
use serde_json::Value;

pub(super) const JSON: &str = "application/json";

pub(crate) type Answer = Response<Body>;

fn empty(status: StatusCode) -> Answer {
    let mut answer = Answer::new(Body::empty());
    *answer.status_mut() = status;
    answer
}

/// 204: done, or the object was already there.
pub(crate) fn no_content() -> Answer {
    empty(StatusCode::NO_CONTENT)
}

/// 201: the object is new.
pub(crate) fn created() -> Answer {
    empty(StatusCode::CREATED)
}

/// 201 with the address of the new object, relative to that of the request.
pub(crate) fn created_at(location: &str) -> Answer {
    let mut answer = created();
    if let Ok(location) = HeaderValue::try_from(location) {
        answer.headers_mut().insert(header::LOCATION, location);
    }
    answer
}

/// 201 for a new object, 204 for an old one.
pub(crate) fn put(is_new: bool) -> Answer {
    if is_new { created() } else { no_content() }
}

pub(crate) fn json(value: &Value) -> Answer {
    json_with(StatusCode::OK, value)
}

pub(crate) fn json_with(status: StatusCode, value: &Value) -> Answer {
    json_body(status, Body::from(value.to_string()))
}

pub(crate) fn json_body(status: StatusCode, body: Body) -> Answer {
    let mut answer = Answer::new(body);
    *answer.status_mut() = status;
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(JSON));
    answer
}
