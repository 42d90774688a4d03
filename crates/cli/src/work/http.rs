//! An HTTP address as a handler.

use std::time::Duration;

use http_body_util::Full;
use hyper::header::{CONTENT_TYPE, HOST, RETRY_AFTER};
use hyper::{Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use malote::{Failure, Meta, State};
use tokio::net::TcpStream;

/// The name of the breaker.
pub(super) const DEPENDENCY: &str = "address";

/// Where messages are sent.
pub(super) struct Endpoint(pub String);

/// Refuses an address that no request could reach.
pub(super) fn check(url: &str) -> anyhow::Result<()> {
    let refused = |why: &str| crate::failure::Failure::Usage(format!("--http {url}: {why}"));
    let uri: Uri = url.parse().map_err(|error| refused(&format!("{error}")))?;
    if uri.scheme_str() != Some("http") {
        return Err(refused("only http:// addresses are supported").into());
    }
    if uri.host().is_none_or(str::is_empty) {
        return Err(refused("the address has no host").into());
    }
    Ok(())
}

pub(super) async fn post(target: State<Endpoint>, meta: Meta) -> Result<(), Failure> {
    let bad = |why: &str| Failure::retry(format_args!("--http {}: {why}", target.0));
    let uri: Uri = target.0.parse()?;
    if uri.scheme_str() != Some("http") {
        return Err(bad("only http:// addresses are supported"));
    }
    let host = uri.host().ok_or_else(|| bad("the address has no host"))?;
    let stream = TcpStream::connect((host, uri.port_u16().unwrap_or(80))).await;
    let stream = stream.map_err(|error| Failure::of_dependency(DEPENDENCY, error))?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let served = tokio::spawn(connection);
    let message = meta.message();
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let mut request = Request::post(path).header(HOST, host);
    let kind = message.content_type.as_deref().unwrap_or("application/octet-stream");
    let texts = [
        (CONTENT_TYPE.as_str(), Some(kind)),
        ("malote-message-id", message.message_id.as_deref()),
        ("malote-session", message.session.as_ref().map(|session| session.as_str())),
        ("malote-subject", message.subject.as_deref()),
        ("idempotency-key", Some(meta.idempotency_key())),
        ("traceparent", meta.traceparent()),
        ("tracestate", meta.tracestate()),
    ];
    for (name, text) in texts {
        // A value that cannot be a header is omitted.
        let text = text.and_then(|text| hyper::header::HeaderValue::from_str(text).ok());
        if let Some(text) = text {
            request = request.header(name, text);
        }
    }
    let request = request.header("malote-attempt", meta.attempt());
    let answer = sender.send_request(request.body(Full::new(message.body.bytes.clone()))?).await?;
    served.abort();
    let status = answer.status();
    let after =
        answer.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
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
            Err(Failure::dead("Rejected", format_args!("{} answered {status}", target.0)))
        }
        (status, None) => {
            Err(Failure::of_dependency(DEPENDENCY, format_args!("answered {status}")))
        }
    }
}
