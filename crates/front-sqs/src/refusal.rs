//! Maps refusals to SQS errors.
//!
//! SDKs read the shape (`__type`), the code of the Query protocol (header or XML), or both, so each error has both.

use std::fmt;

use malote_engine::EngineError;
use malote_model::{Denied, Refusal, SignInRequired};

use crate::wire::clip;

/// Defines every error: variant, JSON shape, Query code, HTTP status.
macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident, $shape:literal, $query:literal, $status:literal;)+) => {
        /// The error codes; the names are those of the service.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Code { $($(#[$doc])* $name,)+ }

        impl Code {
            /// The shape in the `__type` of JSON replies.
            pub fn shape(self) -> &'static str { match self { $(Self::$name => $shape,)+ } }
            /// The code of the Query protocol.
            pub fn query(self) -> &'static str { match self { $(Self::$name => $query,)+ } }
            pub fn status(self) -> u16 { match self { $(Self::$name => $status,)+ } }
        }
    };
}

codes! {
    QueueDoesNotExist, "QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue", 400;
    /// It exists with other attributes.
    QueueNameExists, "QueueNameExists", "QueueAlreadyExists", 400;
    ReceiptHandleIsInvalid, "ReceiptHandleIsInvalid", "ReceiptHandleIsInvalid", 400;
    /// The receipt handle of a deleted message. The service replies with the general code of the Query protocol. The
    /// shape is the one that its model declares for this case, so that SDKs raise the typed error.
    MessageDeleted, "ReceiptHandleIsInvalid", "InvalidParameterValue", 400;
    InvalidParameterValue, "InvalidParameterValueException", "InvalidParameterValue", 400;
    MissingParameter, "MissingRequiredParameterException", "MissingParameter", 400;
    InvalidAttributeName, "InvalidAttributeName", "InvalidAttributeName", 400;
    InvalidAttributeValue, "InvalidAttributeValue", "InvalidAttributeValue", 400;
    InvalidMessageContents, "InvalidMessageContents", "InvalidMessageContents", 400;
    /// Too many messages are in flight, or another limit was reached.
    OverLimit, "OverLimit", "OverLimit", 403;
    PurgeQueueInProgress, "PurgeQueueInProgress", "AWS.SimpleQueueService.PurgeQueueInProgress", 403;
    TooManyEntriesInBatchRequest, "TooManyEntriesInBatchRequest",
        "AWS.SimpleQueueService.TooManyEntriesInBatchRequest", 400;
    EmptyBatchRequest, "EmptyBatchRequest", "AWS.SimpleQueueService.EmptyBatchRequest", 400;
    BatchEntryIdsNotDistinct, "BatchEntryIdsNotDistinct", "AWS.SimpleQueueService.BatchEntryIdsNotDistinct", 400;
    InvalidBatchEntryId, "InvalidBatchEntryId", "AWS.SimpleQueueService.InvalidBatchEntryId", 400;
    BatchRequestTooLong, "BatchRequestTooLong", "AWS.SimpleQueueService.BatchRequestTooLong", 400;
    UnsupportedOperation, "UnsupportedOperation", "AWS.SimpleQueueService.UnsupportedOperation", 400;
    /// A task, or the queue of an ARN.
    ResourceNotFound, "ResourceNotFoundException", "ResourceNotFoundException", 404;
    RequestThrottled, "RequestThrottled", "RequestThrottled", 403;
    /// The request names no action.
    NoOperation, "UnknownOperationException", "UnknownOperationException", 404;
    UnknownOperation, "UnknownOperationException", "InvalidAction", 400;
    /// The body cannot be decoded.
    Serialization, "SerializationException", "MalformedInput", 400;
    TooLarge, "RequestEntityTooLarge", "RequestEntityTooLarge", 413;
    InvalidClientTokenId, "InvalidClientTokenId", "InvalidClientTokenId", 403;
    SignatureDoesNotMatch, "SignatureDoesNotMatch", "SignatureDoesNotMatch", 403;
    IncompleteSignature, "IncompleteSignature", "IncompleteSignature", 400;
    RequestExpired, "RequestExpired", "RequestExpired", 400;
    MissingAuthenticationToken, "MissingAuthenticationToken", "MissingAuthenticationToken", 403;
    AccessDenied, "AccessDeniedException", "AccessDenied", 403;
    InternalFailure, "InternalFailure", "InternalFailure", 500;
    ServiceUnavailable, "ServiceUnavailable", "ServiceUnavailable", 503;
}

impl Code {
    /// Whether the caller is at fault.
    pub fn is_sender(self) -> bool {
        self.status() < 500
    }
}

/// An error reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SqsError {
    pub code: Code,
    /// The texts are those of the service where they are known, because some tools compare them.
    pub message: String,
}

impl SqsError {
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// A required parameter is missing.
    pub fn missing(parameter: &str) -> Self {
        let text = format!("The request must contain the parameter {parameter}.");
        Self::new(Code::MissingParameter, text)
    }

    /// A parameter has an invalid value.
    pub fn invalid(value: impl fmt::Display, parameter: &str, reason: &str) -> Self {
        // Valid ids have at most 128 characters; a slightly longer one is shown completely.
        let shown = clip(&value.to_string(), 512);
        let text = format!("Value {shown} for parameter {parameter} is invalid. Reason: {reason}");
        Self::new(Code::InvalidParameterValue, text)
    }

    pub fn no_queue() -> Self {
        Self::new(Code::QueueDoesNotExist, "The specified queue does not exist.")
    }
}

/// The only mapping of refusals to SQS errors.
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
            | Refusal::ConsumerExclusive { .. }
            | Refusal::Disabled { .. }
            | Refusal::HasSessions { .. }
            | Refusal::TransactionOver { .. }
            | Refusal::TopicDiffers { .. }
            | Refusal::TopicInternal { .. }
            | Refusal::RuleDiffers { .. }
            | Refusal::RuleNotFound { .. } => Code::UnsupportedOperation,
            Refusal::TopicNotFound { .. } => Code::ResourceNotFound,
            Refusal::QueueFull { .. } | Refusal::BoundReached { .. } => Code::OverLimit,
            // SDKs retry on this error.
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
