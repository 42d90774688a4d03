//! Origin and host checks: a web page must not use its reader's browser to call the broker.

use axum::http::HeaderMap;
use malote_model::{Foreign, WebGuard};

/// The text of a header.
pub fn header_text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).map(|value| value.to_str().unwrap_or("(not ASCII)"))
}

/// Refuses requests of pages of other origins, and requests for other host names.
pub fn check_origin(guard: &WebGuard, headers: &HeaderMap) -> Result<(), Foreign> {
    guard.check(|name| header_text(headers, name))
}
