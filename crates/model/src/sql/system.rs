//! The properties under `sys.`: fields of the message by the names that Service Bus gives them.

use crate::facts::Facts;
use crate::ids::SessionId;
use crate::limits;
use crate::message::{Message, When};

use super::operand::Operand;

/// A field of the message. Only what is known when a message is routed: there is no sequence and no lock yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum System {
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

/// The name, the field, whether an action may set it.
const NAMES: [(&str, System, bool); 14] = [
    ("MessageId", System::MessageId, true),
    ("CorrelationId", System::CorrelationId, true),
    ("Label", System::Subject, true),
    ("Subject", System::Subject, true),
    ("To", System::To, true),
    ("ReplyTo", System::ReplyTo, true),
    ("ReplyToSessionId", System::ReplyToSessionId, true),
    ("SessionId", System::SessionId, true),
    ("ContentType", System::ContentType, true),
    ("PartitionKey", System::PartitionKey, true),
    ("TimeToLive", System::TimeToLive, true),
    ("EnqueuedTimeUtc", System::EnqueuedTimeUtc, false),
    ("ScheduledEnqueueTimeUtc", System::ScheduledEnqueueTimeUtc, false),
    ("DeliveryCount", System::DeliveryCount, false),
];

impl System {
    /// By its name, in any case.
    pub(super) fn named(name: &str) -> Option<Self> {
        let found = NAMES.iter().find(|(have, ..)| have.eq_ignore_ascii_case(name));
        found.map(|&(_, system, _)| system)
    }

    /// All names, for an error message.
    pub(super) fn names() -> String {
        NAMES.map(|(name, ..)| name).join(", ")
    }

    /// Whether an action may set it.
    pub(super) fn settable(self) -> bool {
        NAMES.iter().any(|&(_, system, settable)| system == self && settable)
    }

    /// What the message says; unknown where it says nothing.
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

    /// Sets the field, or clears it where the value is unknown. What the field cannot hold leaves it as it was: an
    /// action has no caller that could be told. A message is never left without its id.
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
