//! Extracts the typed parts of a request. A missing or invalid part is a problem.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use axum::body::Body;
use axum::extract::{ConnectInfo, FromRequest, FromRequestParts, RawPathParams, Request};
use axum::http::request::Parts;
use axum::http::{Extensions, HeaderMap, header};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use malote_model::{Principal, QueueName, Seq, SessionId, TopicName};
use serde::de::DeserializeOwned;

use crate::Api;
use crate::nearest::nearest;
use crate::problem::{Code, Problem};

/// The caller, as the authentication before every route found it.
pub struct Caller(pub Principal);

impl FromRequestParts<Api> for Caller {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, _: &Api) -> Result<Self, Problem> {
        Ok(Self(parts.extensions.get().cloned().unwrap_or_else(Principal::anonymous)))
    }
}

/// The address of the caller.
pub struct PeerAddress(pub IpAddr);

impl FromRequestParts<Api> for PeerAddress {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, _: &Api) -> Result<Self, Problem> {
        Ok(Self(address_of(&parts.extensions)))
    }
}

/// Refuses a request that takes messages while the caller has not read its last answers. Checked before messages are
/// taken: a later refusal would lose them.
pub struct RoomForAnswer;

impl RoomForAnswer {
    /// Room for one answer, about.
    pub const BYTES: usize = 16 << 20;
}

impl FromRequestParts<Api> for RoomForAnswer {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Self, Problem> {
        let address = address_of(&parts.extensions);
        if api.limits.received.has_room(address, Self::BYTES) {
            return Ok(Self);
        }
        let why = "too many answers wait to be read: read them before you receive more";
        Err(Problem::new(Code::Busy, why))
    }
}

async fn path_part(parts: &mut Parts, api: &Api, name: &str) -> Result<String, Problem> {
    let wrong = |why: String| Problem::new(Code::BadPath, why);
    let params = RawPathParams::from_request_parts(parts, api).await;
    let params = params.map_err(|error| wrong(error.body_text()))?;
    let found = params.iter().find(|(key, _)| *key == name).map(|(_, value)| value.to_owned());
    found.ok_or_else(|| wrong(format!("the path has no {name}")))
}

/// `{queue}` of the path.
pub struct Queue(pub QueueName);

impl FromRequestParts<Api> for Queue {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Self, Problem> {
        Ok(Self(QueueName::new(&path_part(parts, api, "queue").await?)?))
    }
}

/// `{topic}` of the path.
pub struct Topic(pub TopicName);

impl FromRequestParts<Api> for Topic {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Self, Problem> {
        Ok(Self(TopicName::new(&path_part(parts, api, "topic").await?)?))
    }
}

/// `{target}` of the path: the topic that a rule leads to.
pub struct TargetTopic(pub TopicName);

impl FromRequestParts<Api> for TargetTopic {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Self, Problem> {
        Ok(Self(TopicName::new(&path_part(parts, api, "target").await?)?))
    }
}

/// `{topic}` and `{subscription}` of the path: the queue of that subscription.
pub struct Subscription(pub QueueName);

impl FromRequestParts<Api> for Subscription {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Self, Problem> {
        let Topic(topic) = Topic::from_request_parts(parts, api).await?;
        let name = path_part(parts, api, "subscription").await?;
        Ok(Self(QueueName::subscription(&topic, &name)?))
    }
}

/// `{rule}` of the path.
pub struct RuleName(pub String);

impl FromRequestParts<Api> for RuleName {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Self, Problem> {
        Ok(Self(path_part(parts, api, "rule").await?))
    }
}

/// `{session}` of the path.
pub struct Session(pub SessionId);

impl FromRequestParts<Api> for Session {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Self, Problem> {
        Ok(Self(SessionId::new(&path_part(parts, api, "session").await?)?))
    }
}

/// `{saga}` of the path.
pub struct SagaName(pub String);

impl FromRequestParts<Api> for SagaName {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Self, Problem> {
        Ok(Self(path_part(parts, api, "saga").await?))
    }
}

/// `{seq}` of the path.
pub struct Sequence(pub Seq);

impl FromRequestParts<Api> for Sequence {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Self, Problem> {
        let text = path_part(parts, api, "seq").await?;
        let wrong = || Problem::new(Code::BadPath, "the sequence in the path must be a number");
        text.parse().map(|seq| Self(Seq(seq))).map_err(|_| wrong())
    }
}

/// The query of the URL.
pub struct Query<T>(pub T);

impl<T: DeserializeOwned> FromRequestParts<Api> for Query<T> {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, _: &Api) -> Result<Self, Problem> {
        match axum::extract::Query::<T>::try_from_uri(&parts.uri) {
            Ok(axum::extract::Query(query)) => Ok(Self(query)),
            Err(rejection) => {
                let text = rejection.body_text();
                let text =
                    text.strip_prefix("Failed to deserialize query string: ").unwrap_or(&text);
                Err(Problem::new(Code::BadQuery, with_suggestion(text)))
            }
        }
    }
}

/// Which budget a body counts against. Waiting senders must not block settlements.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Messages,
    Control,
}

impl Purpose {
    fn body_bytes_max(self, api: &Api) -> usize {
        match self {
            Self::Messages => api.limits.message_body_bytes_max,
            Self::Control => api.limits.control_body_bytes_max,
        }
    }
}

/// A body that is a message, and its share of the budget.
pub struct RawMessage {
    pub bytes: Bytes,
    _share: BodyShare,
}

impl FromRequest<Api> for RawMessage {
    type Rejection = Problem;
    async fn from_request(request: Request, api: &Api) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        read_body(api, &parts, body, Purpose::Messages).await
    }
}

/// A raw body that is not a message.
pub struct RawBody(pub Bytes);

impl FromRequest<Api> for RawBody {
    type Rejection = Problem;
    async fn from_request(request: Request, api: &Api) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        let raw = read_body(api, &parts, body, Purpose::Control).await?;
        Ok(Self(raw.bytes))
    }
}

/// A JSON request without messages.
pub struct Json<T>(pub T);

impl<T: DeserializeOwned> FromRequest<Api> for Json<T> {
    type Rejection = Problem;
    async fn from_request(request: Request, api: &Api) -> Result<Self, Problem> {
        read_json(request, api, Purpose::Control).await.map(|(value, _)| Self(value))
    }
}

/// A JSON request with messages. Its share of the budget is returned when the request ends.
pub struct JsonMessages<T>(pub T, #[allow(dead_code)] pub BodyShare);

/// A share of the budget for all bodies.
pub type BodyShare = Option<malote_http::Share>;

impl<T: DeserializeOwned> FromRequest<Api> for JsonMessages<T> {
    type Rejection = Problem;
    async fn from_request(request: Request, api: &Api) -> Result<Self, Problem> {
        read_json(request, api, Purpose::Messages).await.map(|(value, share)| Self(value, share))
    }
}

async fn read_json<T: DeserializeOwned>(
    request: Request,
    api: &Api,
    purpose: Purpose,
) -> Result<(T, BodyShare), Problem> {
    let (parts, body) = request.into_parts();
    let RawMessage { bytes, _share } = read_body(api, &parts, body, purpose).await?;
    if bytes.is_empty() {
        // An empty body means all defaults.
        return Ok((from_json(b"{}")?, _share));
    }
    check_json_type(&parts.headers)?;
    Ok((from_json(&bytes)?, _share))
}

fn check_json_type(headers: &HeaderMap) -> Result<(), Problem> {
    // This also stops forms of foreign web pages, because browsers send a preflight request before JSON.
    let kind =
        headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
    let essence = kind.split(';').next().unwrap_or("").trim().to_ascii_lowercase();
    if essence == "application/json" || essence.ends_with("+json") {
        return Ok(());
    }
    let shown = if kind.is_empty() { "nothing" } else { kind };
    let why = format!("the body must be application/json; the content-type is {shown}");
    Err(Problem::new(Code::UnsupportedMediaType, why))
}

async fn read_body(
    api: &Api,
    parts: &Parts,
    mut body: Body,
    purpose: Purpose,
) -> Result<RawMessage, Problem> {
    let headers = &parts.headers;
    let address = address_of(&parts.extensions);
    let max = purpose.body_bytes_max(api);
    let too_large =
        || Problem::new(Code::BodyTooLarge, format!("the body may have at most {max} bytes"));
    let declared = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    if declared.and_then(|text| text.parse::<u64>().ok()).is_some_and(|len| len > max as u64) {
        return Err(too_large());
    }
    let mut first = Bytes::new();
    let mut rest = BytesMut::new();
    let mut share: BodyShare = None;
    loop {
        let frame = tokio::time::timeout(api.limits.body_pause_max, body.frame()).await;
        let frame = frame.map_err(|_| {
            let pause = api.limits.body_pause_max.as_secs();
            Problem::new(Code::BodyTooSlow, format!("no byte of the body arrived for {pause} s"))
        })?;
        let Some(frame) = frame else { break };
        let frame = frame.map_err(|error| {
            Problem::new(Code::BodyCut, format!("the body was cut off: {error}"))
        })?;
        let Ok(data) = frame.into_data() else { continue };
        let total = first.len() + rest.len() + data.len();
        if total > max {
            return Err(too_large());
        }
        api.grow_share(purpose, address, &mut share, total)?;
        if first.is_empty() && rest.is_empty() {
            first = data;
        } else {
            if rest.is_empty() {
                rest.extend_from_slice(&std::mem::take(&mut first));
            }
            rest.extend_from_slice(&data);
        }
    }
    let bytes = if rest.is_empty() { first } else { rest.freeze() };
    Ok(RawMessage { bytes, _share: share })
}

/// The budget is counted in units of this size.
const SHARE_BYTES: usize = 1024;

/// The address of the client.
pub(crate) fn address_of(extensions: &Extensions) -> IpAddr {
    let peer = extensions.get::<ConnectInfo<SocketAddr>>().map(|peer| peer.0.ip());
    // A caller inside the process has no address.
    peer.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
}

impl Api {
    /// A share of the budget for messages, or a problem if it is used up.
    pub(crate) fn share_of_messages(
        &self,
        address: IpAddr,
        bytes: usize,
    ) -> Result<BodyShare, Problem> {
        let mut share = None;
        self.grow_share(Purpose::Messages, address, &mut share, bytes)?;
        Ok(share)
    }

    /// Grows a share to `total` bytes, or refuses the request as busy.
    fn grow_share(
        &self,
        purpose: Purpose,
        address: IpAddr,
        share: &mut BodyShare,
        total: usize,
    ) -> Result<(), Problem> {
        let have = share.as_ref().map_or(0, malote_http::Share::bytes);
        let more = (total.div_ceil(SHARE_BYTES) * SHARE_BYTES).saturating_sub(have);
        if more == 0 {
            return Ok(());
        }
        let all = if purpose == Purpose::Messages { &self.bodies } else { &self.control_bodies };
        let grown = match share {
            Some(share) => share.grow(more),
            None => {
                *share = all.take(address, more);
                share.is_some()
            }
        };
        if grown {
            return Ok(());
        }
        Err(Problem::new(Code::Busy, "the bodies of all pending requests are too large together"))
    }
}

pub fn from_json<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    serde_json::from_slice(bytes).map_err(|error| json_problem(&error))
}

/// The problem of invalid JSON, with line and column.
pub fn json_problem(error: &serde_json::Error) -> Problem {
    let text = error.to_string();
    if !error.is_data() {
        return Problem::new(Code::MalformedJson, text);
    }
    let code = if text.starts_with("unknown field") { Code::UnknownField } else { Code::BadField };
    Problem::new(code, with_suggestion(&text))
}

/// Adds the nearest known name to serde's "unknown field `x`, expected one of `a`, `b`".
pub fn with_suggestion(text: &str) -> String {
    let mut quoted = text.split('`').skip(1).step_by(2);
    if !text.starts_with("unknown field") && !text.starts_with("unknown variant") {
        return text.to_owned();
    }
    let Some(unknown) = quoted.next() else { return text.to_owned() };
    match nearest(unknown, quoted) {
        Some(meant) => format!("{text}; did you mean `{meant}`?"),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use malote_wire_native::receive::ReceiveRequest;

    use super::*;

    #[test]
    fn problems_name_the_place_and_the_nearest_field() {
        let problem = from_json::<ReceiveRequest>(b"{\n \"max\": }").unwrap_err();
        assert_eq!(problem.code(), Code::MalformedJson);
        assert!(problem.detail().contains("line 2 column 9"), "{}", problem.detail());
        let problem = from_json::<ReceiveRequest>(br#"{"wait":1}"#).unwrap_err();
        assert_eq!(problem.code(), Code::UnknownField);
        let problem = from_json::<ReceiveRequest>(br#"{"waitms":1}"#).unwrap_err();
        assert!(problem.detail().ends_with("did you mean `wait_ms`?"), "{}", problem.detail());
        let problem = from_json::<ReceiveRequest>(br#"{"max":-1}"#).unwrap_err();
        assert_eq!(problem.code(), Code::BadField);
        assert!(problem.detail().contains("-1"), "{}", problem.detail());
        for bytes in [&b"\xff"[..], b"", b"{", b"[1", b"\"", b"nul", b"{\"max\":1}}"] {
            assert_eq!(from_json::<ReceiveRequest>(bytes).unwrap_err().code(), Code::MalformedJson);
        }
    }
}
