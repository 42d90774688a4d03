//! From a request to its typed parts, each with a problem of its own when it is not there or wrong.

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

/// Who calls. The authentication in front of every route has put it there.
pub struct Caller(pub Principal);

impl FromRequestParts<Api> for Caller {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, _: &Api) -> Result<Self, Problem> {
        Ok(Self(parts.extensions.get().cloned().unwrap_or_else(Principal::anonymous)))
    }
}

/// From where.
pub struct PeerAddress(pub IpAddr);

impl FromRequestParts<Api> for PeerAddress {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, _: &Api) -> Result<Self, Problem> {
        Ok(Self(address_of(&parts.extensions)))
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

/// The query of the address, typed.
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

/// What a body is counted with: senders that wait must not keep settlements from being read.
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

/// A body that is a message, and its share of what all of those may hold.
pub struct Raw {
    /// All of it.
    pub bytes: Bytes,
    _share: Share,
}

impl FromRequest<Api> for Raw {
    type Rejection = Problem;
    async fn from_request(request: Request, api: &Api) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        read_body(api, &parts, body, Purpose::Messages).await
    }
}

/// A body of any kind that is no message.
pub struct RawControl(pub Bytes);

impl FromRequest<Api> for RawControl {
    type Rejection = Problem;
    async fn from_request(request: Request, api: &Api) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        let raw = read_body(api, &parts, body, Purpose::Control).await?;
        Ok(Self(raw.bytes))
    }
}

/// A JSON body that carries a request.
pub struct Json<T>(pub T);

impl<T: DeserializeOwned> FromRequest<Api> for Json<T> {
    type Rejection = Problem;
    async fn from_request(request: Request, api: &Api) -> Result<Self, Problem> {
        read_json(request, api, Purpose::Control).await.map(|(value, _)| Self(value))
    }
}

/// A JSON body that carries messages: larger, and its share is kept while it is handled.
pub struct JsonMessages<T>(pub T, #[allow(dead_code)] pub Share);

/// A share of what all bodies may hold.
pub type Share = Option<malote_http::Share>;

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
) -> Result<(T, Share), Problem> {
    let (parts, body) = request.into_parts();
    let Raw { bytes, _share } = read_body(api, &parts, body, purpose).await?;
    if bytes.is_empty() {
        // An empty body asks for every default.
        return Ok((from_json(b"{}")?, _share));
    }
    check_json_type(&parts.headers)?;
    Ok((from_json(&bytes)?, _share))
}

fn check_json_type(headers: &HeaderMap) -> Result<(), Problem> {
    // Also what keeps a foreign web page from sending a form: browsers ask first before they send JSON.
    let kind =
        headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
    let essence = kind.split(';').next().unwrap_or("").trim().to_ascii_lowercase();
    if essence == "application/json" || essence.ends_with("+json") {
        return Ok(());
    }
    let shown = if kind.is_empty() { "nothing" } else { kind };
    let why = format!("the body must be application/json; content-type says {shown}");
    Err(Problem::new(Code::UnsupportedMediaType, why))
}

async fn read_body(
    api: &Api,
    parts: &Parts,
    mut body: Body,
    purpose: Purpose,
) -> Result<Raw, Problem> {
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
    let mut share: Share = None;
    loop {
        let frame = tokio::time::timeout(api.limits.body_pause_max, body.frame()).await;
        let frame = frame.map_err(|_| {
            let pause = api.limits.body_pause_max.as_secs();
            Problem::new(Code::BodyTooSlow, format!("no byte of the body came for {pause} s"))
        })?;
        let Some(frame) = frame else { break };
        let frame = frame
            .map_err(|error| Problem::new(Code::BodyCut, format!("the body broke off: {error}")))?;
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
    Ok(Raw { bytes, _share: share })
}

/// The bodies of all requests are counted in pieces of this size.
const SHARE_BYTES: usize = 1024;

/// Where a request comes from.
pub(crate) fn address_of(extensions: &Extensions) -> IpAddr {
    let peer = extensions.get::<ConnectInfo<SocketAddr>>().map(|peer| peer.0.ip());
    // Callers within the process have none.
    peer.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
}

impl Api {
    /// A share of what all messages on their way in may hold, or word that it is used up.
    pub(crate) fn share_of_messages(
        &self,
        address: IpAddr,
        bytes: usize,
    ) -> Result<Share, Problem> {
        let mut share = None;
        self.grow_share(Purpose::Messages, address, &mut share, bytes)?;
        Ok(share)
    }

    /// Grows a share to `total` bytes, or says that too much is under way.
    fn grow_share(
        &self,
        purpose: Purpose,
        address: IpAddr,
        share: &mut Share,
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
        Err(Problem::new(Code::Busy, "the bodies of all requests under way together are too large"))
    }
}

/// JSON as a typed request.
pub fn from_json<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    serde_json::from_slice(bytes).map_err(|error| json_problem(&error))
}

/// What is wrong with the JSON, with line and column.
pub fn json_problem(error: &serde_json::Error) -> Problem {
    let text = error.to_string();
    if !error.is_data() {
        return Problem::new(Code::MalformedJson, text);
    }
    let code = if text.starts_with("unknown field") { Code::UnknownField } else { Code::BadField };
    Problem::new(code, with_suggestion(&text))
}

/// serde's "unknown field `x`, expected one of `a`, `b`" with the nearest of them named first.
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
