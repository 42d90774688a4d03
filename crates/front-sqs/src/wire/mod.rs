//! Bytes ↔ typed requests and results, in all protocols. No engine calls.

pub mod attribute;
pub mod body;
pub mod cbor;
pub mod handle;
pub mod name;
pub mod query;
pub mod shapes;
pub mod xml;

use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode, header};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::refusal::{Code, SqsError};

/// The first `max` characters of a text, for error messages.
pub(crate) fn clip(text: &str, max: usize) -> String {
    text.chars().take(max).collect()
}

/// The protocol of a request; the reply uses the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// AWS JSON 1.0.
    Json,
    /// A form in the request, XML in the reply.
    Query,
    /// The same, with lists in `member` elements, for CloudWatch.
    MemberQuery,
    /// Smithy RPC v2, for newer CloudWatch clients.
    Cbor,
}

const JSON_TYPE: HeaderValue = HeaderValue::from_static("application/x-amz-json-1.0");
const XML_TYPE: HeaderValue = HeaderValue::from_static("text/xml");
const CBOR_TYPE: HeaderValue = HeaderValue::from_static("application/cbor");

impl Protocol {
    pub fn decode<T: DeserializeOwned>(self, body: &[u8]) -> Result<T, SqsError> {
        let wrong =
            |error: serde_json::Error| SqsError::new(Code::Serialization, error.to_string());
        match self {
            Self::Json if body.is_empty() => serde_json::from_slice(b"{}").map_err(wrong),
            Self::Json => serde_json::from_slice(body).map_err(wrong),
            Self::Query => serde_json::from_value(query::unflatten(body)?).map_err(wrong),
            Self::MemberQuery => serde_json::from_value(query::members(body)?).map_err(wrong),
            Self::Cbor => serde_json::from_value(cbor::decode(body)?).map_err(wrong),
        }
    }

    /// Encodes the reply to an action.
    pub fn encode<T: Serialize>(
        self,
        action: &str,
        result: &T,
        request_id: &str,
    ) -> Result<Response<Body>, SqsError> {
        let broken =
            |error: serde_json::Error| SqsError::new(Code::InternalFailure, error.to_string());
        let tree = || serde_json::to_value(result).map_err(broken);
        let body = match self {
            Self::Json => serde_json::to_vec(result).map_err(broken)?,
            Self::Query => xml::answer(action, &tree()?, request_id).into_bytes(),
            Self::MemberQuery => xml::member_answer(action, &tree()?, request_id).into_bytes(),
            Self::Cbor => cbor::encode(&tree()?),
        };
        Ok(self.response(StatusCode::OK, body, request_id))
    }

    /// Encodes an error.
    pub fn refuse(self, error: &SqsError, request_id: &str) -> Response<Body> {
        let SqsError { code, message } = error;
        let status = StatusCode::from_u16(code.status()).unwrap_or(StatusCode::BAD_REQUEST);
        let kind = if code.is_sender() { "Sender" } else { "Receiver" };
        match self {
            Self::Json | Self::Cbor => {
                let shape = format!("com.amazonaws.sqs#{}", code.shape());
                let tree = serde_json::json!({ "__type": shape, "message": message });
                let body = match self {
                    Self::Cbor => cbor::encode(&tree),
                    _ => tree.to_string().into_bytes(),
                };
                let mut response = self.response(status, body, request_id);
                if let Ok(value) = HeaderValue::from_str(&format!("{};{kind}", code.query())) {
                    response.headers_mut().insert("x-amzn-query-error", value);
                }
                response
            }
            Self::Query if *code == Code::NoOperation => {
                self.response(status, xml::UNKNOWN_OPERATION.into(), request_id)
            }
            Self::Query | Self::MemberQuery => {
                // The Query protocol includes its version here; some tools compare the whole sentence.
                let version =
                    if *code == Code::QueueDoesNotExist { " for this wsdl version" } else { "" };
                let message = match message.strip_suffix('.') {
                    Some(sentence) => format!("{sentence}{version}."),
                    None => message.clone(),
                };
                let body = xml::error(kind, code.query(), &message, request_id);
                self.response(status, body.into_bytes(), request_id)
            }
        }
    }

    fn response(self, status: StatusCode, body: Vec<u8>, request_id: &str) -> Response<Body> {
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = status;
        let kind = match self {
            Self::Json => JSON_TYPE,
            Self::Query | Self::MemberQuery => XML_TYPE,
            Self::Cbor => {
                let named = HeaderValue::from_static("rpc-v2-cbor");
                response.headers_mut().insert("smithy-protocol", named);
                CBOR_TYPE
            }
        };
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
        if let Ok(id) = HeaderValue::from_str(request_id) {
            response.headers_mut().insert("x-amzn-requestid", id);
        }
        response
    }
}
