//! Error responses: RFC 9457 problems with a stable code and a fix.
//!
//! A published code keeps its meaning. `Refusal` and `EngineError` are mapped here in one exhaustive `match`:
//! a new refusal stops this crate from compiling until it has a code.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use malote_engine::EngineError;
use malote_model::{Denied, Refusal, SignInRequired};
use malote_wire_native::problem::ProblemBody;
use serde::Serialize;

macro_rules! codes {
    ($($variant:ident $code:literal $status:literal $title:literal => $fix:literal;)+) => {
        /// The kind of a problem, for programs.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[allow(missing_docs)] // the title says it
        pub enum Code { $($variant),+ }

        impl Code {
            /// All codes, in the order of the reference page.
            pub const ALL: &'static [Code] = &[$(Code::$variant),+];
            /// The stable text of the code.
            pub fn as_str(self) -> &'static str { match self { $(Code::$variant => $code),+ } }
            /// The HTTP status.
            pub fn status(self) -> u16 { match self { $(Code::$variant => $status),+ } }
            /// A summary, the same for every occurrence.
            pub fn title(self) -> &'static str { match self { $(Code::$variant => $title),+ } }
            /// How to fix it.
            pub fn fix(self) -> &'static str { match self { $(Code::$variant => $fix),+ } }
        }
    };
}

codes! {
    QueueNotFound "queue_not_found" 404 "The queue does not exist" => "Create it with PUT /api/v1/queues/{name} (percent-encode a slash as %2F), or send with ?create=true.";
    QueueDiffers "queue_differs" 409 "The queue exists with other settings" => "Declare it with its current settings, or change it with PATCH /api/v1/queues/{name}.";
    QueueFixed "queue_fixed" 409 "The setting of an existing queue cannot be changed" => "Delete the queue and declare it again.";
    TopicNotFound "topic_not_found" 404 "The topic does not exist" => "Create it with PUT /api/v1/topics/{name} (percent-encode a slash as %2F).";
    TopicDiffers "topic_differs" 409 "The topic exists with other settings" => "Declare it with its current settings, or delete it first.";
    TopicInternal "topic_internal" 409 "The topic is internal" => "Send to a topic or queue that forwards to it.";
    RuleDiffers "rule_differs" 409 "A different rule has this name" => "Choose another name, or delete the other rule first.";
    RuleNotFound "rule_not_found" 404 "The rule does not exist" => "GET /api/v1/topics/{name}/rules lists the rules.";
    QueueFull "queue_full" 409 "The queue is full" => "Receive from it, or raise the limit that `detail` names with PATCH /api/v1/queues/{name}.";
    QueueExclusive "queue_exclusive" 409 "The queue belongs to another connection" => "Use it over the connection that declared it, or declare another queue.";
    Disabled "disabled" 409 "The queue or topic is disabled for this operation" => "Change its `status` with PATCH /api/v1/queues/{name}, or wait until an operator does.";
    ConsumerExclusive "consumer_exclusive" 409 "An exclusive consumer is the only consumer of its queue" => "Try again once the other consumers have ended.";
    HasSessions "has_sessions" 409 "The queue has sessions" => "Settle messages there with their leases.";
    TransactionOver "transaction_over" 409 "The transaction has ended" => "Begin another transaction; nothing of this one was applied.";
    TransactionExists "transaction_exists" 409 "The connection already has this transaction" => "Choose another number, or commit or roll back the transaction first.";
    NoReply "no_reply" 504 "No reply arrived in time" => "Check that a responder sends its reply to the queue in `reply_to` with the request's `correlation_id`, or wait longer with ?timeout-ms=.";
    QueueInUse "queue_in_use" 409 "Another queue uses this one" => "Update the queue that sends its dead letters here first.";
    BadSpec "bad_spec" 400 "Invalid specification" => "Correct the field that `detail` names.";
    BadName "bad_name" 400 "Invalid name of a queue or topic" => "Use 1 to 260 bytes without control characters, \\ ? # @, empty segments, segments that begin with $, or a segment Subscriptions.";
    DeadLetterSet "dead_letter_set" 409 "The operation is not supported for dead letters" => "Use the queue itself, or its /dead-letters routes.";
    BadSessionId "bad_session_id" 400 "Invalid session id" => "Use 1 to 128 characters.";
    SessionRequired "session_required" 400 "The queue needs a session id on every message" => "Give `session`, or session-from-key=true with a `key` if the queue has a fixed list of sessions.";
    NoSessions "no_sessions" 409 "The queue has no sessions" => "Declare a queue with \"sessions\": \"dynamic\" or a list of ids.";
    SessionNotListed "session_not_listed" 400 "The session is not on the queue's fixed list" => "Use one of its ids, or send with a key and session-from-key=true.";
    SessionHeld "session_held" 409 "Another receiver holds the session" => "Wait until the hold ends, or accept the next free session by leaving `session` out.";
    HoldRequired "hold_required" 409 "The operation needs a session lock" => "POST /api/v1/queues/{name}/sessions/accept first, then receive with its `session_token`.";
    LeaseLost "lease_lost" 409 "The lease or session lock has ended" => "Receive again; renew before `until` if the work takes longer than the lock.";
    BadToken "bad_token" 400 "Invalid token" => "Use `lease` or `token` exactly as in the answer: 32 hexadecimal digits.";
    MessageNotFound "message_not_found" 404 "No such message in this state" => "GET /api/v1/queues/{name}/messages lists the messages.";
    MessageTooLarge "message_too_large" 413 "The message is too large for the queue" => "Send a smaller message, or raise message_bytes_max with PATCH /api/v1/queues/{name}.";
    BatchTooLarge "batch_too_large" 413 "The request is too large" => "Split it into several requests.";
    OutOfRange "out_of_range" 400 "A value is out of range" => "Correct the value that `detail` names.";
    TooMany "too_many" 429 "A limit of the broker is reached" => "Settle, detach or delete what is no longer needed, then try again.";
    DiskFull "disk_full" 507 "The disk is full" => "Free space on the data directory's disk. Receiving and settling still work.";
    NoSegment "no_segment" 503 "The journal cannot be continued" => "Remove the cause that `detail` names. Receiving and settling still work.";
    Poisoned "poisoned" 503 "The broker failed" => "The outcome is unknown. Restart the broker, check its log and try again.";
    Stopping "stopping" 503 "The broker is stopping" => "Try again when it has restarted.";
    Damaged "damaged" 500 "A stored message cannot be read" => "Stop the broker and run `malote verify` on its data directory.";
    Internal "internal" 500 "Internal error" => "Check the broker's log and report the error.";
    MalformedJson "malformed_json" 400 "The body is not JSON" => "Correct the JSON at the line and column that `detail` names.";
    UnknownField "unknown_field" 400 "The body has an unknown field" => "Remove or correct it; GET /api/v1/openapi.json lists the fields of each request.";
    BadField "bad_field" 400 "A field of the body is invalid" => "Correct it; GET /api/v1/openapi.json lists the fields of each request.";
    BadQuery "bad_query" 400 "The query of the URL is invalid" => "Correct it; GET /api/v1/openapi.json lists the fields of each request.";
    BadHeader "bad_header" 400 "A header is invalid" => "Correct it; GET /api/v1/openapi.json lists the fields of each request.";
    BadPath "bad_path" 400 "The path of the URL is invalid" => "Percent-encode names as UTF-8; a slash in a queue's name is %2F.";
    SagaNotFound "saga_not_found" 404 "The saga does not exist" => "GET /api/v1/sagas/{name} lists the sagas. A finished saga is kept for a week by default.";
    RouteNotFound "route_not_found" 404 "The route does not exist" => "GET /api/v1/openapi.json lists every route.";
    MethodNotAllowed "method_not_allowed" 405 "The route does not support this method" => "Use a method of the `allow` header.";
    UnsupportedMediaType "unsupported_media_type" 415 "The body must be JSON" => "Send content-type: application/json.";
    BodyTooLarge "body_too_large" 413 "The body is too large" => "Split it into several requests.";
    BodyTooSlow "body_too_slow" 408 "The body did not arrive in time" => "Send the whole body without long pauses.";
    BodyCut "body_cut" 400 "The body is incomplete" => "Send as many bytes as content-length announces.";
    Busy "busy" 429 "The broker is busy" => "Try again after the seconds in `retry-after`.";
    Unauthenticated "unauthenticated" 401 "Credentials are required" => "Send Authorization: Basic with a user of `malote user add`, or Bearer with a token of `malote token add`.";
    Forbidden "forbidden" 403 "Not allowed" => "Request the grant that `detail` names.";
    CrossOrigin "cross_origin" 403 "A page of another origin may not call this" => "Serve the page from the broker's own address, or allow its origin in the settings.";
    ForeignHost "foreign_host" 421 "Unknown host name" => "Call it by its address or by localhost, or allow the name in the settings.";
    NotWebSocket "not_websocket" 426 "This route needs a WebSocket" => "Connect with a WebSocket client and the sub-protocol malote.v1.json or malote.v1.msgpack.";
    BadFrame "bad_frame" 400 "The frame is invalid" => "Send one frame or an array of frames as GET /api/v1/openapi.json describes them.";
    ConsumerNotFound "consumer_not_found" 404 "The connection has no such consumer" => "Attach it first, or again after the connection was lost.";
    ConsumerExists "consumer_exists" 409 "The connection already has this consumer" => "Choose another number, or detach it first.";
    ResumeRefused "resume_refused" 409 "The connection cannot be resumed" => "Use the new connection: attach and receive again.";
}

/// An error response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem(Box<Inner>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Inner {
    code: Code,
    detail: String,
    fix: Option<String>,
    differs: Option<FieldDifference>,
    retry_after_s: Option<u32>,
    header: Option<(header::HeaderName, String)>,
}

/// A field in which a declaration differs from the existing object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldDifference {
    pub field: String,
    /// The current value.
    pub is: String,
    /// The requested value.
    pub asked: String,
}

impl Problem {
    /// Creates a problem. `detail` says what happened to which object.
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        let retry_after_s = match code {
            Code::Busy | Code::TooMany | Code::Stopping => Some(1),
            Code::DiskFull | Code::NoSegment => Some(30),
            Code::Poisoned => Some(10),
            _ => None,
        };
        let (fix, differs, header) = (None, None, None);
        Self(Box::new(Inner { code, detail: detail.into(), fix, differs, retry_after_s, header }))
    }

    /// Replaces the fix of the code by a more specific one.
    #[must_use]
    pub fn fix(mut self, fix: impl Into<String>) -> Self {
        self.0.fix = Some(fix.into());
        self
    }

    /// Adds a header that the status requires.
    #[must_use]
    pub fn header(mut self, name: header::HeaderName, value: impl Into<String>) -> Self {
        self.0.header = Some((name, value.into()));
        self
    }

    pub fn code(&self) -> Code {
        self.0.code
    }

    pub fn detail(&self) -> &str {
        &self.0.detail
    }

    /// The body of the response.
    pub fn body(&self) -> ProblemBody {
        let Inner { code, detail, fix, differs, retry_after_s, .. } = &*self.0;
        ProblemBody {
            kind: format!("/problems/{}", code.as_str()),
            title: code.title().into(),
            status: code.status(),
            code: code.as_str().into(),
            detail: detail.clone(),
            fix: fix.clone().unwrap_or_else(|| code.fix().into()),
            field: differs.as_ref().map(|d| d.field.clone()),
            is: differs.as_ref().map(|d| d.is.clone()),
            asked: differs.as_ref().map(|d| d.asked.clone()),
            retry_after_s: *retry_after_s,
        }
    }
}

impl Serialize for Problem {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.body().serialize(serializer)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status =
            StatusCode::from_u16(self.0.code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body = serde_json::to_vec(&self.body()).unwrap_or_default();
        let mut response = (status, body).into_response();
        // For the audit log.
        response.extensions_mut().insert(self.0.code);
        let headers = response.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/problem+json; charset=utf-8"),
        );
        if let Some(seconds) = self.0.retry_after_s {
            headers.insert(header::RETRY_AFTER, seconds.into());
        }
        if status == StatusCode::UNAUTHORIZED {
            headers.append(
                header::WWW_AUTHENTICATE,
                HeaderValue::from_static("Basic realm=\"malote\", charset=\"UTF-8\""),
            );
            headers.append(
                header::WWW_AUTHENTICATE,
                HeaderValue::from_static("Bearer realm=\"malote\""),
            );
        }
        if let Some((name, value)) = self.0.header
            && let Ok(value) = HeaderValue::from_str(&value)
        {
            headers.insert(name, value);
        }
        response
    }
}

/// The answer to a request that is refused because the server is busy.
pub fn busy_answer(why: &'static str) -> Response {
    Problem::new(Code::Busy, why).into_response()
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        let code = match &refusal {
            Refusal::QueueNotFound { .. } => Code::QueueNotFound,
            Refusal::QueueDiffers { .. } => Code::QueueDiffers,
            Refusal::QueueFixed { .. } => Code::QueueFixed,
            Refusal::BadSpec { .. } => Code::BadSpec,
            Refusal::BadName { .. } => Code::BadName,
            Refusal::DeadLetterSet { .. } => Code::DeadLetterSet,
            Refusal::QueueInUse { .. } => Code::QueueInUse,
            Refusal::BadSessionId { .. } => Code::BadSessionId,
            Refusal::SessionRequired { .. } => Code::SessionRequired,
            Refusal::NoSessions { .. } => Code::NoSessions,
            Refusal::SessionNotListed { .. } => Code::SessionNotListed,
            Refusal::SessionHeld { .. } => Code::SessionHeld,
            Refusal::HoldRequired { .. } => Code::HoldRequired,
            Refusal::LeaseLost { .. } => Code::LeaseLost,
            Refusal::BadToken { .. } => Code::BadToken,
            Refusal::MessageNotFound { .. } => Code::MessageNotFound,
            Refusal::MessageTooLarge { .. } => Code::MessageTooLarge,
            Refusal::OutOfRange { .. } => Code::OutOfRange,
            Refusal::TopicNotFound { .. } => Code::TopicNotFound,
            Refusal::TopicDiffers { .. } => Code::TopicDiffers,
            Refusal::TopicInternal { .. } => Code::TopicInternal,
            Refusal::RuleDiffers { .. } => Code::RuleDiffers,
            Refusal::RuleNotFound { .. } => Code::RuleNotFound,
            Refusal::QueueFull { .. } => Code::QueueFull,
            Refusal::QueueExclusive { .. } => Code::QueueExclusive,
            Refusal::Disabled { .. } => Code::Disabled,
            Refusal::ConsumerExclusive { .. } => Code::ConsumerExclusive,
            Refusal::HasSessions { .. } => Code::HasSessions,
            Refusal::TransactionOver { .. } => Code::TransactionOver,
            Refusal::BatchTooLarge { .. } => Code::BatchTooLarge,
            Refusal::BoundReached { .. } => Code::TooMany,
            Refusal::Busy => Code::Busy,
            Refusal::DiskFull => Code::DiskFull,
            Refusal::NoSegment { .. } => Code::NoSegment,
        };
        let mut problem = Self::new(code, refusal.to_string());
        match refusal {
            Refusal::QueueNotFound { queue } => {
                let encoded = |name: &str| name.replace('%', "%25").replace('/', "%2F");
                problem.0.fix = Some(match queue.subscription_of() {
                    Some((topic, name)) => format!(
                        "Create it with PUT /api/v1/topics/{}/subscriptions/{}.",
                        encoded(topic.as_str()),
                        encoded(name)
                    ),
                    None => format!(
                        "Create it with PUT /api/v1/queues/{}, or send with ?create=true.",
                        encoded(queue.as_str())
                    ),
                });
            }
            Refusal::QueueDiffers { field, is, asked, .. }
            | Refusal::TopicDiffers { field, is, asked, .. } => {
                problem.0.differs = Some(FieldDifference { field: field.into(), is, asked });
            }
            _ => {}
        }
        problem
    }
}

impl From<EngineError> for Problem {
    fn from(error: EngineError) -> Self {
        let code = match error {
            EngineError::Refused(refusal) => return refusal.into(),
            EngineError::Poisoned => Code::Poisoned,
            EngineError::Stopping => Code::Stopping,
            EngineError::Damaged { .. } => Code::Damaged,
        };
        Self::new(code, error.to_string())
    }
}

impl From<SignInRequired> for Problem {
    fn from(required: SignInRequired) -> Self {
        Self::new(Code::Unauthenticated, required.to_string())
    }
}

impl From<Denied> for Problem {
    fn from(denied: Denied) -> Self {
        let code = if denied.who.is_anonymous() { Code::Unauthenticated } else { Code::Forbidden };
        Self::new(code, denied.to_string())
    }
}

#[cfg(test)]
mod tests {
    use malote_model::{QueueName, Refusal};

    use super::*;

    #[test]
    fn codes_are_distinct_words_and_statuses_are_errors() {
        let mut seen = std::collections::HashSet::new();
        for code in Code::ALL {
            assert!(seen.insert(code.as_str()), "{} stands twice", code.as_str());
            assert!(code.as_str().bytes().all(|b| b.is_ascii_lowercase() || b == b'_'));
            assert!((400..600).contains(&code.status()));
            assert!(!code.fix().is_empty() && !code.title().ends_with('.'));
        }
    }

    #[test]
    fn a_differing_declaration_names_field_is_and_asked() {
        let queue = QueueName::new("a/b").unwrap();
        let (is, asked) = ("30000".to_owned(), "5".to_owned());
        let problem = Problem::from(Refusal::QueueDiffers { queue, field: "lock_ms", is, asked });
        let json = serde_json::to_value(&problem).unwrap();
        assert_eq!(json["status"], 409);
        assert_eq!(json["type"], "/problems/queue_differs");
        assert_eq!(
            (&json["field"], &json["is"], &json["asked"]),
            (&"lock_ms".into(), &"30000".into(), &"5".into())
        );
    }

    #[test]
    fn a_missing_queue_says_how_to_create_it() {
        let queue = QueueName::new("a/b").unwrap();
        let problem = Problem::from(Refusal::QueueNotFound { queue });
        assert!(problem.body().fix.contains("PUT /api/v1/queues/a%2Fb"));
        let queue = QueueName::new("a/b/Subscriptions/c").unwrap();
        let problem = Problem::from(Refusal::QueueNotFound { queue });
        assert!(problem.body().fix.contains("PUT /api/v1/topics/a%2Fb/subscriptions/c"));
    }

    #[test]
    fn statuses_bring_the_headers_they_ask_for() {
        let response = Problem::new(Code::Unauthenticated, "x").into_response();
        assert_eq!(response.headers().get_all(header::WWW_AUTHENTICATE).iter().count(), 2);
        let response = Problem::from(Refusal::DiskFull).into_response();
        assert_eq!(response.status(), StatusCode::INSUFFICIENT_STORAGE);
        assert!(response.headers().contains_key(header::RETRY_AFTER));
        let (what, limit) = ("leases", 1);
        let response = Problem::from(Refusal::BatchTooLarge { what, limit }).into_response();
        assert_eq!(response.status(), StatusCode::PAYLOAD_TOO_LARGE);
        assert!(!response.headers().contains_key(header::RETRY_AFTER), "it would be refused again");
        let response = Problem::from(Refusal::BoundReached { what, limit }).into_response();
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
        assert!(response.headers().contains_key(header::RETRY_AFTER));
        let response = Problem::from(EngineError::Poisoned).into_response();
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    }
}
