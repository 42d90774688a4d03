//! An HTTP endpoint as a handler.

use std::time::Duration;

use http_body_util::Full;
use hyper::header::{CONTENT_TYPE, HOST, HeaderValue, RETRY_AFTER};
use hyper::{Request, StatusCode, Uri};
use malote::{Failure, Meta, State};
use malote_http::ClientConnection;

/// The dependency that the circuit breaker watches.
pub(super) const DEPENDENCY: &str = "address";

/// Receives a POST request for each message.
pub(super) struct HttpHandler {
    url: String,
    host: String,
    port: u16,
    /// The value of the `Host` header.
    authority: String,
    path: String,
}

impl HttpHandler {
    /// Refuses an address that no request could reach.
    pub(super) fn new(url: &str) -> anyhow::Result<Self> {
        let refused = |why: &str| crate::failure::Failure::Usage(format!("--http {url}: {why}"));
        let uri: Uri = url.parse().map_err(|error| refused(&format!("{error}")))?;
        if uri.scheme_str() != Some("http") {
            return Err(refused("only http:// addresses are supported").into());
        }
        let host = uri.host().filter(|host| !host.is_empty());
        let host = host.ok_or_else(|| refused("the address has no host"))?;
        let port = uri.port_u16().unwrap_or(80);
        Ok(Self {
            url: url.to_owned(),
            // An IPv6 address has brackets in a URL.
            host: host.trim_start_matches('[').trim_end_matches(']').to_owned(),
            port,
            authority: format!("{host}:{port}"),
            path: uri.path_and_query().map_or("/", |path| path.as_str()).to_owned(),
        })
    }
}

pub(super) async fn post(handler: State<HttpHandler>, meta: Meta) -> Result<(), Failure> {
    let connection = ClientConnection::connect(&handler.host, handler.port).await;
    let mut connection = connection.map_err(|error| Failure::of_dependency(DEPENDENCY, error))?;
    let message = meta.message();
    let mut request = Request::post(&handler.path).header(HOST, &handler.authority);
    let content_type = message.content_type.as_deref().unwrap_or("application/octet-stream");
    let headers = [
        (CONTENT_TYPE.as_str(), Some(content_type)),
        ("malote-message-id", message.message_id.as_deref()),
        ("malote-session", message.session.as_ref().map(|session| session.as_str())),
        ("malote-subject", message.subject.as_deref()),
        ("idempotency-key", Some(meta.idempotency_key())),
        ("traceparent", meta.traceparent()),
        ("tracestate", meta.tracestate()),
    ];
    for (name, value) in headers {
        // A value that is not allowed in a header is left out.
        if let Some(value) = value.and_then(|value| HeaderValue::from_str(value).ok()) {
            request = request.header(name, value);
        }
    }
    let request = request.header("malote-attempt", meta.attempt());
    let response = connection.send(request.body(Full::new(message.body.bytes.clone()))?).await?;
    let status = response.status();
    let after =
        response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
    match (status, after) {
        (status, _) if status.is_success() => Ok(()),
        (_, Some(seconds)) => Err(Failure::retry_after(
            format_args!("answered {status}"),
            Duration::from_secs(seconds),
        )),
        (StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS, None) => {
            Err(Failure::retry(format_args!("answered {status}")))
        }
        (status, None) if status.is_client_error() => {
            Err(Failure::dead("Rejected", format_args!("{} answered {status}", handler.url)))
        }
        (status, None) => {
            Err(Failure::of_dependency(DEPENDENCY, format_args!("answered {status}")))
        }
    }
}
