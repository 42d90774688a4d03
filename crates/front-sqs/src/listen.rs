//! Serves one HTTP request: detects its protocol and action, authenticates the caller, runs the operation and encodes
//! the reply.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{ConnectInfo, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, Response, Uri, header};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use malote_http::{check_origin, header_text};
use malote_model::{AuditPending, AuditProtocol, PeerMark, Principal, WebGuard};
use parking_lot::Mutex;
use tokio::sync::OwnedSemaphorePermit;

use crate::refusal::{Code, SqsError};
use crate::sigv4::{SignatureLocation, SignedRequest, VerifiedCaller};
use crate::wire::name::QueueAddressing;
use crate::wire::{Protocol, clip, query};
use crate::{Sqs, audit, ops};

/// The size limit of a request body. A message of 1 MiB can be three times as large when it is form-encoded.
const BODY_BYTES_MAX: usize = 4 << 20;
/// Longer trace headers are ignored.
const TRACE_BYTES_MAX: usize = 512;
/// A request is refused if its body makes no progress for this long.
const BODY_PAUSE_MAX: Duration = Duration::from_secs(20);
/// The prefix of `X-Amz-Target` for SQS.
const TARGET: &str = "AmazonSQS.";
/// The prefix of `X-Amz-Target` for CloudWatch, which serves the metrics of queues.
const METRICS_TARGET: &str = "GraniteServiceVersion20100801.";
/// The path of CloudWatch's CBOR protocol, followed by the operation.
const METRICS_PATH: &str = "/service/GraniteServiceVersion20100801/operation/";
/// The actions of CloudWatch. Their names differ from all actions of SQS.
const METRICS_ACTIONS: [&str; 3] = ["GetMetricStatistics", "GetMetricData", "ListMetrics"];

/// Actions without side effects. An unsigned GET may call only these.
const READ_ONLY: [&str; 9] = [
    "GetQueueUrl",
    "ListQueues",
    "GetQueueAttributes",
    "ListQueueTags",
    "ListDeadLetterSourceQueues",
    "ListMessageMoveTasks",
    METRICS_ACTIONS[0],
    METRICS_ACTIONS[1],
    METRICS_ACTIONS[2],
];

/// An authenticated request whose parameters are not parsed yet.
pub(crate) struct Call {
    pub caller: Principal,
    pub addressing: QueueAddressing,
    pub protocol: Protocol,
    pub action: String,
    /// JSON or a form.
    pub body: Bytes,
    /// The path. In the Query protocol, it names the queue if there is no `QueueUrl`.
    pub path: String,
    pub request_id: String,
    /// The trace header, set by a tracing SDK or a proxy.
    pub trace: Option<String>,
    /// The caller's address.
    pub peer: IpAddr,
    /// For the audit log, if the action is an administrative one.
    pub audit: Mutex<Option<AuditPending>>,
    /// The body's share of the memory limit for request bodies.
    _share: Option<OwnedSemaphorePermit>,
}

/// A router for a port that serves only SQS. `tls`: whether the port uses TLS, which decides the scheme of queue URLs.
pub fn router(sqs: Sqs, tls: bool) -> Router {
    Router::new().fallback(move |request: Request| {
        let sqs = sqs.clone();
        async move { serve(&sqs, request, tls).await }
    })
}

/// Whether a request on a shared port is for SQS.
///
/// It is if it has a target header, a signature or an action of SQS, or if it posts to `/` or `/<account>/<queue>`. The
/// native API has no such requests.
pub fn claims(method: &Method, uri: &Uri, headers: &HeaderMap) -> bool {
    let starts = |name: &str, start: &str| {
        headers.get(name).is_some_and(|value| value.as_bytes().starts_with(start.as_bytes()))
    };
    let target = starts("x-amz-target", TARGET) || starts("x-amz-target", METRICS_TARGET);
    if target || uri.path().starts_with(METRICS_PATH) || starts("authorization", "AWS4-HMAC-SHA256")
    {
        return true;
    }
    let query = uri.query().unwrap_or("");
    let asks = ["Action=", "X-Amz-Algorithm="];
    if query.split('&').any(|pair| asks.iter().any(|name| pair.starts_with(name))) {
        return true;
    }
    *method == Method::POST && (uri.path() == "/" || is_of_queue(uri.path()))
}

/// Whether a path has the form of a queue URL.
fn is_of_queue(path: &str) -> bool {
    let mut segments = path.trim_start_matches('/').split('/');
    let account = segments.next().unwrap_or("");
    account.len() == 12
        && account.bytes().all(|b| b.is_ascii_digit())
        && segments.next().is_some()
        && segments.next().is_none()
}

/// Answers one request.
pub async fn serve(sqs: &Sqs, request: Request, tls: bool) -> Response<Body> {
    let request_id = sqs.new_id();
    let (parts, body) = request.into_parts();
    let (protocol, action) = detect_protocol(&parts);
    let call = read_call(sqs, &parts, body, tls, (protocol, action), request_id.clone()).await;
    let answered = match call {
        Ok(call) => {
            let answered = ops::answer(sqs, &call).await;
            call.audited(sqs, &answered);
            let code = answered.as_ref().err().map(|error| error.code.query());
            tracing::debug!(front = "sqs", operation = call.action, code, "request");
            answered
        }
        Err(error) => Err(error),
    };
    answered.unwrap_or_else(|error| {
        if !error.code.is_sender() {
            tracing::warn!(front = "sqs", error = error.message, "a request could not be answered");
        }
        protocol.refuse(&error, &request_id)
    })
}

/// The protocol of a request, and its action if the headers or the path name it.
fn detect_protocol(parts: &Parts) -> (Protocol, Option<String>) {
    let clip = |text: &str| clip(text, 128);
    if let Some(operation) = parts.uri.path().strip_prefix(METRICS_PATH) {
        return (Protocol::Cbor, Some(clip(operation)));
    }
    let target = parts.headers.get("x-amz-target").and_then(|value| value.to_str().ok());
    let Some(target) = target else { return (Protocol::Query, None) };
    let action = target.strip_prefix(TARGET).or_else(|| target.strip_prefix(METRICS_TARGET));
    (Protocol::Json, Some(clip(action.unwrap_or(target))))
}

async fn read_call(
    sqs: &Sqs,
    parts: &Parts,
    body: Body,
    tls: bool,
    (protocol, action): (Protocol, Option<String>),
    request_id: String,
) -> Result<Call, SqsError> {
    check_page(sqs, &parts.headers)?;
    let (method, uri, headers) = (&parts.method, &parts.uri, &parts.headers);
    let peer = parts.extensions.get::<ConnectInfo<SocketAddr>>().map(|peer| peer.0.ip());
    // Requests from within the process have no peer address.
    let peer = peer.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
    let head = SignedRequest { method, uri, headers, body: &[] };
    let refused = |error: SqsError| {
        audit::refused_login(sqs, &head, peer, &error);
        error
    };
    sqs.0.verifier.check_head(&head).map_err(refused)?;
    let (bytes, share) = read_body(sqs, headers, body).await?;
    let signed = SignedRequest { method, uri, headers, body: &bytes };
    let verified = sqs.0.verifier.verify(&signed, sqs.0.engine.now());
    let VerifiedCaller { who: caller, scope, signature } = verified.map_err(refused)?;
    sqs.0.access.audit().authenticated(&caller, peer, AuditProtocol::Sqs);
    if let Some(mark) = parts.extensions.get::<PeerMark>().filter(|_| sqs.0.access.knows(&caller)) {
        mark.set_known();
    }
    let (protocol, action, body) = match protocol {
        Protocol::Query | Protocol::MemberQuery => {
            // The form is in the body or in the query string, not in both.
            let form = match uri.query() {
                Some(query)
                    if !bytes.is_empty()
                        && query::parameter(query.as_bytes(), "Action").is_some() =>
                {
                    let text =
                        "the query string and the body both have parameters: use one of them";
                    return Err(SqsError::new(Code::Serialization, text));
                }
                Some(query) if bytes.is_empty() => Bytes::copy_from_slice(query.as_bytes()),
                _ => bytes,
            };
            let action = query::parameter(&form, "Action");
            match action.as_deref() {
                Some(metrics) if METRICS_ACTIONS.contains(&metrics) => {
                    (Protocol::MemberQuery, action, form)
                }
                _ => (protocol, action, form),
            }
        }
        other => (other, action, bytes),
    };
    let Some(action) = action else {
        let text = "Neither a parameter Action nor a header X-Amz-Target says what to do.";
        return Err(SqsError::new(Code::NoOperation, text));
    };
    if *method != Method::POST && !READ_ONLY.contains(&action.as_str()) {
        check_deliberate(signature, sqs.0.verifier.is_open(), headers)?;
    }
    let of_account = ["CreateQueue", "ListQueues"].contains(&action.as_str());
    if of_account && is_of_queue(uri.path()) && protocol == Protocol::Query {
        let text = format!("The action {action} is not valid for this endpoint.");
        return Err(SqsError::new(Code::UnknownOperation, text));
    }
    let region = scope.map_or_else(|| sqs.0.settings.region.clone(), |scope| scope.region);
    let base = sqs.0.settings.public_url.clone().unwrap_or_else(|| base(headers, tls));
    let addressing = QueueAddressing { base, region, account: sqs.0.settings.account.clone() };
    let path = uri.path().to_owned();
    let trace = headers.get("x-amzn-trace-id").and_then(|value| value.to_str().ok());
    let trace = trace.filter(|text| (1..=TRACE_BYTES_MAX).contains(&text.len()));
    let trace = trace.map(str::to_owned);
    let audit = Mutex::new(audit::begin(sqs, &caller, peer, &action));
    Ok(Call {
        caller,
        addressing,
        protocol,
        action,
        body,
        path,
        request_id,
        trace,
        peer,
        audit,
        _share: share,
    })
}

/// How the caller addressed this server, for queue URLs in replies.
fn base(headers: &HeaderMap, tls: bool) -> String {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    // A proxy may have terminated TLS. A forged header affects only the caller's own reply.
    let scheme = match text("x-forwarded-proto") {
        Some("https") => "https",
        Some("http") => "http",
        _ if tls => "https",
        _ => "http",
    };
    format!("{scheme}://{}", text("host").unwrap_or("localhost"))
}

/// Refuses requests from web pages of other origins, and unknown host names. Any web page can send a form of the Query
/// protocol to a server on the reader's machine.
fn check_page(sqs: &Sqs, headers: &HeaderMap) -> Result<(), SqsError> {
    check_origin(&sqs.0.settings.web, headers)
        .map_err(|foreign| SqsError::new(Code::AccessDenied, foreign.to_string()))
}

/// Refuses a GET with side effects unless a signature shows that a program made it, because any web page or mail can
/// make a browser follow a link. A server without credentials verifies no signature, so it refuses presigned URLs from
/// browsers.
fn check_deliberate(
    signature: SignatureLocation,
    open: bool,
    headers: &HeaderMap,
) -> Result<(), SqsError> {
    let rule = "A GET request for an action that changes something";
    let (code, why) = match signature {
        SignatureLocation::Header => return Ok(()),
        SignatureLocation::Query
            if !open || !WebGuard::is_browser(|name| header_text(headers, name)) =>
        {
            return Ok(());
        }
        SignatureLocation::Query => {
            (Code::AccessDenied, "is not taken from a browser while the broker has no credentials")
        }
        SignatureLocation::None => (Code::MissingAuthenticationToken, "must be signed"),
    };
    Err(SqsError::new(code, format!("{rule} {why}: use POST.")))
}

async fn read_body(
    sqs: &Sqs,
    headers: &HeaderMap,
    mut body: Body,
) -> Result<(Bytes, Option<OwnedSemaphorePermit>), SqsError> {
    let too_large = || {
        SqsError::new(
            Code::TooLarge,
            format!("the request may have at most {BODY_BYTES_MAX} bytes"),
        )
    };
    let declared = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    if declared.and_then(|text| text.parse::<u64>().ok()).is_some_and(|n| n > BODY_BYTES_MAX as u64)
    {
        return Err(too_large());
    }
    let (mut bytes, mut share) = (BytesMut::new(), None::<OwnedSemaphorePermit>);
    loop {
        let frame = tokio::time::timeout(BODY_PAUSE_MAX, body.frame()).await;
        let broken = |text: String| SqsError::new(Code::Serialization, text);
        let Some(frame) = frame.map_err(|_| broken("the request's body does not come".into()))?
        else {
            return Ok((bytes.freeze(), share));
        };
        let frame = frame.map_err(|error| broken(format!("the request broke off: {error}")))?;
        let Ok(data) = frame.into_data() else { continue };
        if bytes.len() + data.len() > BODY_BYTES_MAX {
            return Err(too_large());
        }
        let more = u32::try_from(data.len().div_ceil(1024)).unwrap_or(u32::MAX);
        let permit = sqs.0.bodies.clone().try_acquire_many_owned(more).map_err(|_| {
            let text = "the requests under way together are too large";
            SqsError::new(Code::RequestThrottled, text)
        })?;
        match &mut share {
            Some(share) => share.merge(permit),
            None => share = Some(permit),
        }
        bytes.extend_from_slice(&data);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sqs_requests_are_distinguished_from_native_ones() {
        let claimed = |method: Method, uri: &'static str, header: Option<(&'static str, &str)>| {
            let mut headers = HeaderMap::new();
            header.map(|(name, value)| headers.insert(name, value.parse().unwrap()));
            claims(&method, &Uri::from_static(uri), &headers)
        };
        assert!(claimed(Method::POST, "/", None));
        assert!(claimed(Method::POST, "/000000000000/orders", None));
        assert!(claimed(Method::GET, "/?Action=ListQueues", None));
        assert!(claimed(Method::GET, "/000000000000/q?X-Amz-Algorithm=x", None));
        let metrics = "/service/GraniteServiceVersion20100801/operation/ListMetrics";
        assert!(claimed(Method::POST, metrics, None));
        assert!(claimed(Method::POST, "/", Some(("x-amz-target", "AmazonSQS.ListQueues"))));
        for (method, uri) in [
            (Method::GET, "/"),
            (Method::GET, "/metrics"),
            (Method::POST, "/api/v1/send"),
            (Method::POST, "/api/v1/queues/000000000000/messages"),
            (Method::GET, "/health/queue"),
            (Method::POST, "/000000000000"),
            (Method::POST, "/12345/orders"),
        ] {
            assert!(!claimed(method, uri, None), "{uri}");
        }
        assert!(!claimed(Method::POST, "/api/v1/send", Some(("authorization", "Bearer x"))));
    }
}
