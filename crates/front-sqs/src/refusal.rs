//! What is said to a caller that cannot have what it asked for, in the words of both protocols.
//!
//! SDKs read the shape (`__type`), the code of the Query protocol (header or XML) or both: each error has the two.

use std::fmt;

use malote_engine::EngineError;
use malote_model::{Denied, Refusal, SignInRequired};

/// Spells every error once: variant, JSON shape, Query code, HTTP status.
macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident, $shape:literal, $query:literal, $status:literal;)+) => {
        /// Which error. The names are the service's own.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Code { $($(#[$doc])* $name,)+ }

        impl Code {
            /// The shape that JSON answers name in `__type`.
            pub fn shape(self) -> &'static str { match self { $(Self::$name => $shape,)+ } }
            /// The code of the Query protocol.
            pub fn query(self) -> &'static str { match self { $(Self::$name => $query,)+ } }
            /// The HTTP status.
            pub fn status(self) -> u16 { match self { $(Self::$name => $status,)+ } }
        }
    };
}

codes! {
    /// No such queue.
    QueueDoesNotExist, "QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue", 400;
    /// It exists with other attributes.
    QueueNameExists, "QueueNameExists", "QueueAlreadyExists", 400;
    /// Not a handle of that queue.
    ReceiptHandleIsInvalid, "ReceiptHandleIsInvalid", "ReceiptHandleIsInvalid", 400;
    /// A handle of a message that was deleted. The service answers the Query protocol's general code; the shape is the
    /// one that its model declares for this case, so that SDKs raise the typed error.
    MessageGone, "ReceiptHandleIsInvalid", "InvalidParameterValue", 400;
    /// Most of what can be wrong.
    InvalidParameterValue, "InvalidParameterValueException", "InvalidParameterValue", 400;
    /// A parameter is missing.
    MissingParameter, "MissingRequiredParameterException", "MissingParameter", 400;
    /// No such attribute.
    InvalidAttributeName, "InvalidAttributeName", "InvalidAttributeName", 400;
    /// Not a value of that attribute.
    InvalidAttributeValue, "InvalidAttributeValue", "InvalidAttributeValue", 400;
    /// A character that no message may hold.
    InvalidMessageContents, "InvalidMessageContents", "InvalidMessageContents", 400;
    /// Too many are out.
    OverLimit, "OverLimit", "OverLimit", 403;
    /// One purge a minute.
    PurgeQueueInProgress, "PurgeQueueInProgress", "AWS.SimpleQueueService.PurgeQueueInProgress", 403;
    /// More than ten.
    TooManyEntriesInBatchRequest, "TooManyEntriesInBatchRequest",
        "AWS.SimpleQueueService.TooManyEntriesInBatchRequest", 400;
    /// None.
    EmptyBatchRequest, "EmptyBatchRequest", "AWS.SimpleQueueService.EmptyBatchRequest", 400;
    /// Two with one id.
    BatchEntryIdsNotDistinct, "BatchEntryIdsNotDistinct", "AWS.SimpleQueueService.BatchEntryIdsNotDistinct", 400;
    /// Not an id.
    InvalidBatchEntryId, "InvalidBatchEntryId", "AWS.SimpleQueueService.InvalidBatchEntryId", 400;
    /// More than 1 MiB together.
    BatchRequestTooLong, "BatchRequestTooLong", "AWS.SimpleQueueService.BatchRequestTooLong", 400;
    /// Not possible here.
    UnsupportedOperation, "UnsupportedOperation", "AWS.SimpleQueueService.UnsupportedOperation", 400;
    /// A task or the queue of an ARN.
    ResourceNotFound, "ResourceNotFoundException", "ResourceNotFoundException", 404;
    /// Later.
    RequestThrottled, "RequestThrottled", "RequestThrottled", 403;
    /// A request that names no action at all.
    NoOperation, "UnknownOperationException", "UnknownOperationException", 404;
    /// No such action.
    UnknownOperation, "UnknownOperationException", "InvalidAction", 400;
    /// The body is no request.
    Serialization, "SerializationException", "MalformedInput", 400;
    /// The body is larger than any request.
    TooLarge, "RequestEntityTooLarge", "RequestEntityTooLarge", 413;
    /// The access key is not known.
    InvalidClientTokenId, "InvalidClientTokenId", "InvalidClientTokenId", 403;
    /// The signature is another.
    SignatureDoesNotMatch, "SignatureDoesNotMatch", "SignatureDoesNotMatch", 403;
    /// The signature lacks a part.
    IncompleteSignature, "IncompleteSignature", "IncompleteSignature", 400;
    /// Signed too long ago.
    RequestExpired, "RequestExpired", "RequestExpired", 400;
    /// Not signed at all.
    MissingAuthenticationToken, "MissingAuthenticationToken", "MissingAuthenticationToken", 403;
    /// Signed, and not allowed.
    AccessDenied, "AccessDeniedException", "AccessDenied", 403;
    /// The broker cannot.
    InternalFailure, "InternalFailure", "InternalFailure", 500;
    /// The broker cannot now.
    ServiceUnavailable, "ServiceUnavailable", "ServiceUnavailable", 503;
}

impl Code {
    /// Whether the caller can do something about it.
    pub fn is_sender(self) -> bool {
        self.status() < 500
    }
}

/// What is answered instead of a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SqsError {
    /// Which.
    pub code: Code,
    /// For people; some tools compare it, so the texts are the service's where those are known.
    pub message: String,
}

impl SqsError {
    /// An error with its text.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// A parameter that must be there.
    pub fn missing(parameter: &str) -> Self {
        let text = format!("The request must contain the parameter {parameter}.");
        Self::new(Code::MissingParameter, text)
    }

    /// A parameter that cannot be so.
    pub fn invalid(value: impl fmt::Display, parameter: &str, reason: &str) -> Self {
        // Ids of 128 characters are the longest that are good: what is too long by a little is shown whole.
        let shown: String = value.to_string().chars().take(512).collect();
        let text = format!("Value {shown} for parameter {parameter} is invalid. Reason: {reason}");
        Self::new(Code::InvalidParameterValue, text)
    }

    /// No such queue.
    pub fn no_queue() -> Self {
        Self::new(Code::QueueDoesNotExist, "The specified queue does not exist.")
    }
}

/// The one place where the engine's refusals get SQS's words.
impl From<Refusal> for SqsError {
    fn from(refusal: Refusal) -> Self {
        let code = match &refusal {
            Refusal::QueueNotFound { .. } => return Self::no_queue(),
            Refusal::QueueDiffers { .. } => Code::QueueNameExists,
            Refusal::LeaseLost { .. } | Refusal::BadToken { .. } => Code::ReceiptHandleIsInvalid,
            Refusal::QueueFixed { .. } | Refusal::BadSpec { .. } => Code::InvalidAttributeValue,
            Refusal::SessionRequired { .. } => return Self::missing("MessageGroupId"),
            Refusal::BadName { .. }
            | Refusal::BadSessionId { .. }
            | Refusal::SessionNotListed { .. }
            | Refusal::MessageTooLarge { .. }
            | Refusal::OutOfRange { .. }
            | Refusal::BatchTooLarge { .. }
            | Refusal::MessageNotFound { .. } => Code::InvalidParameterValue,
            Refusal::DeadLetterSet { .. }
            | Refusal::QueueInUse { .. }
            | Refusal::NoSessions { .. }
            | Refusal::HoldRequired { .. }
            | Refusal::SessionHeld { .. }
            | Refusal::QueueExclusive { .. }
            | Refusal::Disabled { .. }
            | Refusal::HasSessions { .. }
            | Refusal::TransactionOver { .. }
            | Refusal::TopicDiffers { .. }
            | Refusal::TopicInternal { .. }
            | Refusal::RuleDiffers { .. }
            | Refusal::RuleNotFound { .. } => Code::UnsupportedOperation,
            Refusal::TopicNotFound { .. } => Code::ResourceNotFound,
            Refusal::QueueFull { .. } | Refusal::BoundReached { .. } => Code::OverLimit,
            // SDKs wait and try again on this one by themselves.
            Refusal::Busy => Code::RequestThrottled,
            Refusal::DiskFull | Refusal::NoSegment { .. } => Code::ServiceUnavailable,
        };
        Self::new(code, refusal.to_string())
    }
}

impl From<EngineError> for SqsError {
    fn from(error: EngineError) -> Self {
        let code = match error {
            EngineError::Refused(refusal) => return refusal.into(),
            EngineError::Poisoned | EngineError::Damaged { .. } => Code::InternalFailure,
            EngineError::Stopping => Code::ServiceUnavailable,
        };
        Self::new(code, error.to_string())
    }
}

impl From<SignInRequired> for SqsError {
    fn from(required: SignInRequired) -> Self {
        Self::new(Code::MissingAuthenticationToken, required.to_string())
    }
}

impl From<Denied> for SqsError {
    fn from(denied: Denied) -> Self {
        let code = match denied.who.is_anonymous() {
            true => Code::MissingAuthenticationToken,
            false => Code::AccessDenied,
        };
        Self::new(code, denied.to_string())
    }
}
