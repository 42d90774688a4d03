//! The properties under `sys.`: fields of the message, by their Service Bus names.

use crate::facts::Facts;
use crate::ids::SessionId;
use crate::limits;
use crate::message::{Message, When};

use super::operand::Operand;

/// A field of the message that is known when it is routed. It has no sequence number and no lock yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SystemProperty {
    MessageId,
    CorrelationId,
    Subject,
    To,
    ReplyTo,
    ReplyToSessionId,
    SessionId,
    ContentType,
    PartitionKey,
    TimeToLive,
    EnqueuedTimeUtc,
    ScheduledEnqueueTimeUtc,
    DeliveryCount,
}

/// The name, the field, and whether an action may set it.
const NAMES: [(&str, SystemProperty, bool); 14] = [
    ("MessageId", SystemProperty::MessageId, true),
    ("CorrelationId", SystemProperty::CorrelationId, true),
    ("Label", SystemProperty::Subject, true),
    ("Subject", SystemProperty::Subject, true),
    ("To", SystemProperty::To, true),
    ("ReplyTo", SystemProperty::ReplyTo, true),
    ("ReplyToSessionId", SystemProperty::ReplyToSessionId, true),
    ("SessionId", SystemProperty::SessionId, true),
    ("ContentType", SystemProperty::ContentType, true),
    ("PartitionKey", SystemProperty::PartitionKey, true),
    ("TimeToLive", SystemProperty::TimeToLive, true),
    ("EnqueuedTimeUtc", SystemProperty::EnqueuedTimeUtc, false),
    ("ScheduledEnqueueTimeUtc", SystemProperty::ScheduledEnqueueTimeUtc, false),
    ("DeliveryCount", SystemProperty::DeliveryCount, false),
];

impl SystemProperty {
    /// Finds a field by name, in any case.
    pub(super) fn named(name: &str) -> Option<Self> {
        let found = NAMES.iter().find(|(have, ..)| have.eq_ignore_ascii_case(name));
        found.map(|&(_, system, _)| system)
    }

    /// All names, for error messages.
    pub(super) fn names() -> String {
        NAMES.map(|(name, ..)| name).join(", ")
    }

    /// Whether an action may set it.
    pub(super) fn settable(self) -> bool {
        NAMES.iter().any(|&(_, system, settable)| system == self && settable)
    }

    /// The value of the field; unknown if the message has none.
    pub(super) fn of<'a>(self, facts: &Facts<'a>) -> Operand<'a> {
        let m = facts.message;
        let time = |ms: u64| Operand::Time(i64::try_from(ms).unwrap_or(i64::MAX));
        let text = match self {
            Self::MessageId => m.message_id.as_deref(),
            Self::CorrelationId => m.correlation_id.as_deref(),
            Self::Subject => m.subject.as_deref(),
            Self::To => m.to.as_deref(),
            Self::ReplyTo => m.reply_to.as_deref(),
            Self::ReplyToSessionId => m.reply_to_session.as_deref(),
            Self::SessionId => m.session.as_ref().map(SessionId::as_str),
            Self::ContentType => m.content_type.as_deref(),
            Self::PartitionKey => m.key.as_deref(),
            Self::TimeToLive => {
                return m.ttl_ms.map_or(Operand::Unknown, |ms| Operand::Int(ms.into()));
            }
            Self::EnqueuedTimeUtc => return time(facts.at.0),
            Self::ScheduledEnqueueTimeUtc => {
                return match m.when {
                    When::At(at) => time(at.0),
                    When::Now | When::Delay(_) => Operand::Unknown,
                };
            }
            Self::DeliveryCount => return Operand::Int(0),
        };
        text.map_or(Operand::Unknown, |text| Operand::Text(text.into()))
    }

    /// Sets the field, or clears it if the value is unknown. A value that the field cannot hold leaves it unchanged,
    /// because an action cannot report errors. The message id cannot be cleared.
    pub(super) fn set(self, message: &mut Message, value: &Operand<'_>) {
        if self == Self::TimeToLive {
            match value {
                Operand::Unknown => message.ttl_ms = None,
                Operand::Int(ms) => {
                    let ms = u64::try_from(*ms).ok().filter(|&ms| ms <= limits::DELAY_MS_MAX);
                    message.ttl_ms = ms.or(message.ttl_ms);
                }
                _ => {}
            }
            return;
        }
        let text = match value {
            Operand::Unknown if self == Self::MessageId => return,
            Operand::Unknown => None,
            value => match value.to_text() {
                Some(text) if text.len() <= limits::MESSAGE_ID_BYTES_MAX => Some(text),
                _ => return,
            },
        };
        let field = match self {
            Self::MessageId => &mut message.message_id,
            Self::CorrelationId => &mut message.correlation_id,
            Self::Subject => &mut message.subject,
            Self::To => &mut message.to,
            Self::ReplyTo => &mut message.reply_to,
            Self::ReplyToSessionId => &mut message.reply_to_session,
            Self::ContentType => &mut message.content_type,
            Self::PartitionKey => &mut message.key,
            Self::SessionId => {
                match text.map(|text| SessionId::new(&text)).transpose() {
                    Ok(session) => message.session = session,
                    Err(_bad) => {}
                }
                return;
            }
            Self::TimeToLive
            | Self::EnqueuedTimeUtc
            | Self::ScheduledEnqueueTimeUtc
            | Self::DeliveryCount => return,
        };
        *field = text;
    }
}
