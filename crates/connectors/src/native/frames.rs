//! The frames of the native connection as a client writes and reads them (docs/protocols/http.md), in MessagePack.
//!
//! What a server says beyond this is ignored: a newer server may say more.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use malote_model::{
    Address, Body, BodyKind, Changes, DeadLetterTarget, Message, OnExpiry, Overflow, Properties,
    QueueSpec, RetryOrder, Seq, SessionId, Sessions, Settlement, Timestamp, When,
};
use malote_wire_native::PropertyMap;
use serde::de::{Deserializer, Visitor};
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};

use crate::broker::{BrokerError, Delivery, Settle};
use crate::depth::{Depth, SessionDepth};

/// How deep a server's frame may nest: properties have their own, smaller bound.
const DEPTH_MAX: usize = 64;

/// What a client asks.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Frame {
    Send {
        id: u64,
        messages: Vec<NewMessage>,
    },
    Declare {
        id: u64,
        queue: String,
        spec: Box<Spec>,
    },
    Attach {
        id: u64,
        consumer: u64,
        queue: String,
        credit: u32,
        lock_ms: u64,
        session_token: Option<String>,
    },
    Credit {
        id: u64,
        consumer: u64,
        credit: u32,
    },
    Detach {
        id: u64,
        consumer: u64,
    },
    Settle {
        id: u64,
        queue: String,
        items: Vec<SettleItem>,
    },
    Renew {
        id: u64,
        queue: String,
        leases: Vec<String>,
        lock_ms: u64,
    },
    Accept {
        id: u64,
        queue: String,
        session: Option<String>,
        wait_ms: u64,
        lock_ms: u64,
    },
    Release {
        id: u64,
        queue: String,
        token: String,
    },
    GetState {
        id: u64,
        queue: String,
        session: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        token: Option<String>,
    },
    ListSessions {
        id: u64,
        queue: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        after: Option<String>,
        max: u64,
    },
    Depth {
        id: u64,
        queue: String,
    },
    Resume {
        id: u64,
        connection: u64,
        secret: String,
        leases: Vec<String>,
    },
}

/// What a server says.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Says {
    Welcome(Welcome),
    Reply(Box<Reply>),
    Deliver(Deliver),
    Ended(Ended),
}

#[derive(Debug, Deserialize)]
pub(super) struct Welcome {
    pub connection: u64,
    pub secret: String,
    pub limits: WelcomeLimits,
}

#[derive(Debug, Deserialize)]
pub(super) struct WelcomeLimits {
    pub requests_max: u64,
    pub silence_max_ms: u64,
}

#[derive(Debug, Deserialize)]
pub(super) struct Reply {
    pub id: Option<u64>,
    pub ok: Option<Answer>,
    pub problem: Option<Box<Problem>>,
}

/// The answers to all requests: each has fields of its own.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Answer {
    pub messages: Option<Vec<SentOne>>,
    pub results: Option<Vec<OneResult>>,
    pub held: Option<HeldOne>,
    pub state: Option<Raw>,
    pub depth: Option<Box<DepthOne>>,
    pub sessions: Option<Vec<OneSession>>,
    pub next: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(super) struct OneSession {
    pub session: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct SentOne {
    pub seq: u64,
    pub id: String,
    #[serde(default)]
    pub duplicate: bool,
}

#[derive(Debug, Deserialize)]
pub(super) struct OneResult {
    pub ok: bool,
    pub problem: Option<Problem>,
}

#[derive(Debug, Deserialize)]
pub(super) struct HeldOne {
    pub session: String,
    pub token: String,
    pub until: u64,
}

#[derive(Debug, Deserialize)]
pub(super) struct DepthOne {
    ready: u64,
    delayed: u64,
    in_flight: u64,
    oldest_ms: u64,
    sent: Option<u64>,
    #[serde(default)]
    paused: bool,
    sessions: Option<SessionsOne>,
}

#[derive(Debug, Deserialize)]
struct SessionsOne {
    runnable: u64,
    held: u64,
    #[serde(default)]
    other: u64,
}

impl From<DepthOne> for Depth {
    fn from(depth: DepthOne) -> Self {
        Self {
            ready: depth.ready,
            delayed: depth.delayed,
            in_flight: depth.in_flight,
            oldest: Duration::from_millis(depth.oldest_ms),
            sent: depth.sent,
            paused: depth.paused,
            sessions: depth.sessions.map(|SessionsOne { runnable, held, other }| SessionDepth {
                runnable,
                held,
                other,
            }),
            uncounted_sessions: false,
        }
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct Deliver {
    pub consumer: u64,
    pub messages: Vec<Received>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Ended {
    pub consumer: u64,
    pub problem: Problem,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Problem {
    pub code: String,
    #[serde(default)]
    pub detail: String,
    #[serde(default)]
    pub fix: String,
}

impl From<Problem> for BrokerError {
    fn from(Problem { code, detail, fix }: Problem) -> Self {
        let text = format!("{detail}. {fix}");
        match code.as_str() {
            "lease_lost" | "consumer_not_found" => Self::LockLost,
            "busy" | "too_many" | "disk_full" | "no_segment" | "stopping" => Self::Busy { text },
            "poisoned" => Self::Unreachable { text },
            _ => Self::Refused { code, text },
        }
    }
}

/// The frames of one WebSocket message.
pub(super) fn decode(bytes: &[u8]) -> Result<Vec<Says>, rmp_serde::decode::Error> {
    let mut reader = rmp_serde::Deserializer::from_read_ref(bytes);
    reader.set_max_depth(DEPTH_MAX);
    match bytes.first() {
        Some(0x90..=0x9f | 0xdc | 0xdd) => Vec::<Says>::deserialize(&mut reader),
        _ => Says::deserialize(&mut reader).map(|says| vec![says]),
    }
}

/// Several frames as one WebSocket message.
pub(super) fn encode(frames: &[Frame]) -> Result<Vec<u8>, rmp_serde::encode::Error> {
    match frames {
        [one] => rmp_serde::to_vec_named(one),
        all => rmp_serde::to_vec_named(all),
    }
}

/// Bytes, in MessagePack `bin` or `str`.
#[derive(Debug)]
pub(super) enum Raw {
    Text(Bytes),
    Bytes(Bytes),
}

impl Raw {
    pub(super) fn into_bytes(self) -> Bytes {
        match self {
            Self::Text(bytes) | Self::Bytes(bytes) => bytes,
        }
    }
}

impl Serialize for Raw {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Text(text) => match std::str::from_utf8(text) {
                Ok(text) => serializer.serialize_str(text),
                Err(_) => serializer.serialize_bytes(text),
            },
            Self::Bytes(bytes) => serializer.serialize_bytes(bytes),
        }
    }
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl Visitor<'_> for Either {
            type Value = Raw;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bin or str")
            }
            fn visit_str<E>(self, v: &str) -> Result<Raw, E> {
                Ok(Raw::Text(Bytes::copy_from_slice(v.as_bytes())))
            }
            fn visit_string<E>(self, v: String) -> Result<Raw, E> {
                Ok(Raw::Text(v.into()))
            }
            fn visit_bytes<E>(self, v: &[u8]) -> Result<Raw, E> {
                Ok(Raw::Bytes(Bytes::copy_from_slice(v)))
            }
            fn visit_byte_buf<E>(self, v: Vec<u8>) -> Result<Raw, E> {
                Ok(Raw::Bytes(v.into()))
            }
        }
        deserializer.deserialize_any(Either)
    }
}

/// Spells the fields that a message has in both directions.
macro_rules! message_fields {
    ($($field:ident),+) => {
        /// A message to send.
        #[derive(Debug, Default, Serialize)]
        pub(super) struct NewMessage {
            #[serde(skip_serializing_if = "Option::is_none")]
            queue: Option<String>,
            #[serde(skip_serializing_if = "Option::is_none")]
            topic: Option<String>,
            $(#[serde(skip_serializing_if = "Option::is_none")]
            $field: Option<String>,)+
            #[serde(skip_serializing_if = "Option::is_none")]
            id: Option<String>,
            #[serde(skip_serializing_if = "Option::is_none")]
            session: Option<String>,
            #[serde(skip_serializing_if = "Option::is_none")]
            body: Option<Raw>,
            #[serde(skip_serializing_if = "Option::is_none")]
            delay_ms: Option<u64>,
            #[serde(skip_serializing_if = "Option::is_none")]
            at: Option<u64>,
            #[serde(skip_serializing_if = "Option::is_none")]
            ttl_ms: Option<u64>,
            #[serde(skip_serializing_if = "Option::is_none")]
            priority: Option<u8>,
            #[serde(skip_serializing_if = "Option::is_none")]
            properties: Option<PropertyMap>,
        }

        impl NewMessage {
            pub(super) fn new(to: Address, message: Message) -> Self {
                let (queue, topic) = match to {
                    Address::Queue(queue) => (Some(queue.as_str().to_owned()), None),
                    Address::Topic(topic) => (None, Some(topic.as_str().to_owned())),
                };
                let (delay_ms, at) = match message.when {
                    When::Now => (None, None),
                    When::Delay(ms) => (Some(ms), None),
                    When::At(at) => (None, Some(at.0)),
                };
                let body = match message.body.kind {
                    BodyKind::Text => Raw::Text(message.body.bytes),
                    _ => Raw::Bytes(message.body.bytes),
                };
                Self {
                    queue,
                    topic,
                    $($field: message.$field,)+
                    id: message.message_id,
                    session: message.session.map(|session| session.as_str().to_owned()),
                    body: Some(body),
                    delay_ms,
                    at,
                    ttl_ms: message.ttl_ms,
                    priority: (message.priority != 0).then_some(message.priority),
                    properties: (!message.properties.is_empty())
                        .then_some(PropertyMap(message.properties)),
                }
            }
        }

        /// A message in hand.
        #[derive(Debug, Deserialize)]
        pub(super) struct Received {
            seq: u64,
            id: Option<String>,
            origin_id: Option<String>,
            session: Option<String>,
            $($field: Option<String>,)+
            priority: Option<u8>,
            ttl_ms: Option<u64>,
            properties: Option<PropertyMap>,
            body: Option<Raw>,
            body_kind: Option<String>,
            enqueued_at: Option<u64>,
            #[serde(default)]
            receives: u32,
            #[serde(default)]
            failed: u32,
            #[serde(default)]
            last: bool,
            lease: Option<String>,
            dead_letter: Option<Dead>,
        }

        impl Received {
            /// The delivery that it is; none of what has no lease.
            pub(super) fn into_delivery(self) -> Option<Delivery> {
                let body = self.body.unwrap_or(Raw::Bytes(Bytes::new()));
                let kind = match (self.body_kind.as_deref(), &body) {
                    (Some("amqp-value"), _) => BodyKind::AmqpValue,
                    (Some("amqp-sequence"), _) => BodyKind::AmqpSequence,
                    (_, Raw::Text(_)) => BodyKind::Text,
                    (_, Raw::Bytes(_)) => BodyKind::Bytes,
                };
                let message = Message {
                    message_id: self.id,
                    origin_id: self.origin_id,
                    session: self.session.and_then(|id| SessionId::new(&id).ok()),
                    $($field: self.$field,)+
                    properties: self.properties.map_or_else(Properties::new, |map| map.0),
                    priority: self.priority.unwrap_or_default(),
                    when: When::Now,
                    ttl_ms: self.ttl_ms,
                    body: Body { bytes: body.into_bytes(), kind },
                    native: None,
                };
                Some(Delivery {
                    seq: Seq(self.seq),
                    lease: self.lease?.parse().ok()?,
                    receives: self.receives,
                    failed: self.failed,
                    last: self.last,
                    enqueued_at: Timestamp(self.enqueued_at.unwrap_or_default()),
                    dead: self.dead_letter.map(|dead| (dead.reason, dead.text)),
                    message,
                })
            }
        }
    };
}

message_fields!(
    key,
    subject,
    to,
    reply_to,
    reply_to_session,
    correlation_id,
    content_type,
    content_encoding,
    user_id,
    app_id,
    dedup_id
);

#[derive(Debug, Deserialize)]
struct Dead {
    reason: String,
    text: String,
}

/// How leases end.
#[derive(Debug, Serialize)]
pub(super) struct SettleItem {
    pub leases: Vec<String>,
    outcome: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    delay_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    properties: Option<PropertyMap>,
    #[serde(skip_serializing_if = "Option::is_none")]
    session_state: Option<StateOut>,
}

#[derive(Debug, Serialize)]
struct StateOut {
    token: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<Raw>,
}

impl SettleItem {
    /// Settlements as items, in order; those that complete side by side become one.
    pub(super) fn all(items: Vec<Settle>) -> Vec<Self> {
        let mut all: Vec<Self> = Vec::new();
        for item in items {
            let plain = item.settlement == Settlement::Complete && item.state.is_none();
            match all.last_mut() {
                Some(last)
                    if plain && last.outcome == "complete" && last.session_state.is_none() =>
                {
                    last.leases.push(item.lease.to_string());
                }
                _ => all.push(Self::one(item)),
            }
        }
        all
    }

    fn one(Settle { lease, settlement, state }: Settle) -> Self {
        let outcome = settlement.word();
        let laid =
            |changes: Changes| (!changes.is_empty()).then_some(PropertyMap(changes.properties));
        let (mut delay_ms, mut reason, mut text, mut properties) = (None, None, None, None);
        match settlement {
            Settlement::Complete => {}
            Settlement::Abandon { delay_ms: ms, changes } => {
                (delay_ms, properties) = (Some(ms), laid(changes));
            }
            Settlement::Release { delay_ms: ms } => delay_ms = Some(ms),
            Settlement::Defer { changes } => properties = laid(changes),
            Settlement::DeadLetter { reason: why, text: what, changes } => {
                (reason, text, properties) = (Some(why), Some(what), laid(changes));
            }
        }
        let session_state = state
            .map(|new| StateOut { token: new.hold.to_string(), state: new.state.map(Raw::Bytes) });
        let leases = vec![lease.to_string()];
        Self { leases, outcome, delay_ms, reason, text, properties, session_state }
    }
}

/// A queue as it is declared: what differs from the default of the native API.
#[derive(Debug, Serialize)]
pub(super) struct Spec {
    sessions: SessionsOut,
    lock_ms: u64,
    failed_max: Option<u32>,
    receives_max: Option<u32>,
    ttl_ms: Option<u64>,
    on_expiry: &'static str,
    priority_max: u8,
    dedup: Option<DedupOut>,
    length_max: Option<u64>,
    bytes_max: Option<u64>,
    overflow: &'static str,
    auto_delete: bool,
    idle_ms_max: Option<u64>,
    exclusive: bool,
    forward_to: Option<ToAddress>,
    dead_letter: DeadLetterOut,
    durability: &'static str,
    retry: &'static str,
    delay_ms: u64,
    message_bytes_max: u64,
    backlog_warning: u64,
    dead_letters_keep_age: bool,
    fair: bool,
    status: &'static str,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum SessionsOut {
    Word(&'static str),
    Fixed(Vec<String>),
}

#[derive(Debug, Serialize)]
struct DedupOut {
    window_ms: u64,
    per_session: bool,
    content: bool,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum ToAddress {
    Queue(String),
    Topic(String),
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum DeadLetterOut {
    Word(&'static str),
    Queue {
        queue: String,
    },
    Topic {
        topic: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        key: Option<String>,
    },
}

impl From<QueueSpec> for Spec {
    fn from(spec: QueueSpec) -> Self {
        Self {
            sessions: match spec.sessions {
                Sessions::None => SessionsOut::Word("none"),
                Sessions::Dynamic => SessionsOut::Word("dynamic"),
                Sessions::Fixed(ids) => {
                    SessionsOut::Fixed(ids.iter().map(|id| id.as_str().to_owned()).collect())
                }
            },
            lock_ms: spec.lock_ms,
            failed_max: spec.failed_max,
            receives_max: spec.receives_max,
            ttl_ms: spec.ttl_ms,
            on_expiry: match spec.on_expiry {
                OnExpiry::Drop => "drop",
                OnExpiry::DeadLetter => "dead_letter",
            },
            priority_max: spec.priority_max,
            dedup: spec.dedup.map(|dedup| DedupOut {
                window_ms: dedup.window_ms,
                per_session: dedup.per_session,
                content: dedup.content,
            }),
            length_max: spec.length_max,
            bytes_max: spec.bytes_max,
            overflow: match spec.overflow {
                Overflow::Reject => "reject",
                Overflow::DropOldest => "drop_oldest",
                Overflow::DeadLetterOldest => "dead_letter_oldest",
            },
            auto_delete: spec.auto_delete,
            idle_ms_max: spec.idle_ms_max,
            exclusive: spec.exclusive,
            forward_to: spec.forward_to.map(|to| match to {
                Address::Queue(queue) => ToAddress::Queue(queue.as_str().to_owned()),
                Address::Topic(topic) => ToAddress::Topic(topic.as_str().to_owned()),
            }),
            dead_letter: match spec.dead_letter {
                DeadLetterTarget::Own => DeadLetterOut::Word("own"),
                DeadLetterTarget::Drop => DeadLetterOut::Word("drop"),
                DeadLetterTarget::Queue(queue) => {
                    DeadLetterOut::Queue { queue: queue.as_str().to_owned() }
                }
                DeadLetterTarget::Topic { topic, key } => {
                    DeadLetterOut::Topic { topic: topic.as_str().to_owned(), key }
                }
            },
            durability: match spec.durability {
                malote_model::Durability::Fsync => "fsync",
                malote_model::Durability::Relaxed => "relaxed",
            },
            retry: match spec.retry {
                RetryOrder::Hold => "hold",
                RetryOrder::Skip => "skip",
            },
            delay_ms: spec.delay_ms,
            message_bytes_max: spec.message_bytes_max,
            backlog_warning: spec.backlog_warning,
            dead_letters_keep_age: spec.dead_letters_keep_age,
            fair: spec.fair,
            status: spec.status.word(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_bytes_are_an_error_or_ignored_and_never_a_panic() {
        let seeds: Vec<Vec<u8>> = vec![
            rmp_serde::to_vec_named(&serde_map()).unwrap(),
            vec![0xdd, 0xff, 0xff, 0xff, 0xff],
            vec![0xc6, 0xff, 0xff, 0xff, 0xff, 1],
            vec![0x91; 200],
        ];
        let mut state = 88_172_645_463_325_252_u64;
        for round in 0..20_000 {
            let mut bytes = seeds[round % seeds.len()].clone();
            for _ in 0..1 + round % 3 {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                let at = (state >> 20) as usize % bytes.len();
                bytes[at] = (state >> 40) as u8;
            }
            if let Ok(all) = decode(&bytes) {
                for says in all {
                    if let Says::Deliver(deliver) = says {
                        deliver.messages.into_iter().for_each(|m| drop(m.into_delivery()));
                    }
                }
            }
        }
    }

    fn serde_map() -> std::collections::BTreeMap<&'static str, Deliver2> {
        let message = Received2 { seq: 7, lease: "0".repeat(32), body: "x", receives: 1 };
        [("deliver", Deliver2 { consumer: 1, messages: vec![message] })].into()
    }

    #[derive(Serialize)]
    struct Deliver2 {
        consumer: u64,
        messages: Vec<Received2>,
    }

    #[derive(Serialize)]
    struct Received2 {
        seq: u64,
        lease: String,
        body: &'static str,
        receives: u32,
    }

    #[test]
    fn a_delivery_is_read() {
        let bytes = rmp_serde::to_vec_named(&serde_map()).unwrap();
        let [Says::Deliver(deliver)] = &mut decode(&bytes).unwrap()[..] else { panic!() };
        let delivery = deliver.messages.remove(0).into_delivery().unwrap();
        assert_eq!((delivery.seq, delivery.receives), (Seq(7), 1));
        assert_eq!(delivery.message.body.kind, BodyKind::Text);
    }
}
