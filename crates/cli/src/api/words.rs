//! What the API takes and answers, field by field (crates/front-http/src/wire writes the other side).

use std::fmt;

use serde::de::{MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

/// Fields that may be absent, and then are not written.
macro_rules! sparse {
    ($(#[$meta:meta])* pub struct $name:ident { $($(#[$doc:meta])* $field:ident: $kind:ty,)* }) => {
        #[derive(Clone, Debug, Default, Deserialize, Serialize)]
        $(#[$meta])*
        pub(crate) struct $name {
            $($(#[$doc])* #[serde(default, skip_serializing_if = "Option::is_none")] pub $field: Option<$kind>,)*
        }
    };
}

sparse! {
    /// What a queue is asked to be; what is absent is the default, or stays.
    pub struct Spec {
        /// `none`, `dynamic` or a list of ids.
        sessions: SessionsWord,
        /// How long a lease lasts.
        lock_ms: u64,
        /// Failed deliveries before a message is dead-lettered; `null` is no limit.
        #[serde(deserialize_with = "present")]
        failed_max: OrNone<u64>,
        /// Deliveries before a message is dead-lettered; `null` is no limit.
        #[serde(deserialize_with = "present")]
        receives_max: OrNone<u64>,
        /// Messages expire after so long.
        #[serde(deserialize_with = "present")]
        ttl_ms: OrNone<u64>,
        /// `drop` or `dead_letter`.
        on_expiry: String,
        /// The highest priority that counts.
        priority_max: u8,
        /// Which messages count as sent before.
        #[serde(deserialize_with = "present")]
        dedup: OrNone<Dedup>,
        /// Ready messages at most.
        #[serde(deserialize_with = "present")]
        length_max: OrNone<u64>,
        /// Bytes of ready messages at most.
        #[serde(deserialize_with = "present")]
        bytes_max: OrNone<u64>,
        /// `reject`, `drop_oldest` or `dead_letter_oldest`.
        overflow: String,
        /// Gone with its last consumer.
        auto_delete: bool,
        /// Gone when nobody used it for so long.
        #[serde(deserialize_with = "present")]
        idle_ms_max: OrNone<u64>,
        /// It belongs to a connection.
        exclusive: bool,
        /// Where its messages go on to.
        #[serde(deserialize_with = "present")]
        forward_to: OrNone<Target>,
        /// Dead letters live from when they came into the queue, not from when they died.
        dead_letters_keep_age: bool,
        /// A session id names a tenant where there are no sessions; a noisy one is passed by the others.
        fair: bool,
        /// `active`, `send_disabled`, `receive_disabled` or `disabled`.
        status: String,
        /// Where dead letters go.
        dead_letter: DeadLetterWord,
        /// `fsync` or `relaxed`.
        durability: String,
        /// `hold` or `skip`.
        retry: String,
        /// Added to every message.
        delay_ms: u64,
        /// The largest message.
        message_bytes_max: u64,
        /// Health warns above so many messages.
        backlog_warning: u64,
    }
}

/// A setting that can be none at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(transparent)]
pub(crate) struct OrNone<T>(pub Option<T>);

/// `null` is something that was said, not something left out.
fn present<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<OrNone<T>>, D::Error> {
    Option::<T>::deserialize(deserializer).map(|value| Some(OrNone(value)))
}

/// Which messages count as sent before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) struct Dedup {
    /// How long a key is remembered.
    pub window_ms: u64,
    /// Each session has keys of its own.
    #[serde(default)]
    pub per_session: bool,
    /// A message without a key is known by its body.
    #[serde(default)]
    pub content: bool,
}

/// A queue or a topic.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(untagged)]
pub(crate) enum Target {
    /// A queue.
    Queue {
        /// Its name.
        queue: String,
    },
    /// A topic.
    Topic {
        /// Its name.
        topic: String,
    },
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Queue { queue } => write!(f, "queue {queue}"),
            Self::Topic { topic } => write!(f, "topic {topic}"),
        }
    }
}

/// Which sessions a queue has.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(untagged)]
pub(crate) enum SessionsWord {
    /// `none` or `dynamic`.
    Word(String),
    /// Only these.
    Fixed(Vec<String>),
}

/// Where dead letters go.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(untagged)]
pub(crate) enum DeadLetterWord {
    /// `own` or `drop`.
    Word(String),
    /// Another queue.
    Queue {
        /// Its name.
        queue: String,
    },
    /// A topic.
    Topic {
        /// Its name.
        topic: String,
        /// Under this key, if not under their own.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        key: Option<String>,
    },
}

/// Names and values in their order, the values as they were written.
#[derive(Clone, Debug, Default)]
pub(crate) struct Properties(pub Vec<(String, Box<RawValue>)>);

impl Properties {
    /// Sets a value, in its old place if there was one.
    pub(crate) fn set(&mut self, name: &str, value: Box<RawValue>) {
        match self.0.iter_mut().find(|(have, _)| have == name) {
            Some((_, old)) => *old = value,
            None => self.0.push((name.to_owned(), value)),
        }
    }
}

impl Serialize for Properties {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, value) in &self.0 {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for Properties {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;
        impl<'de> Visitor<'de> for InOrder {
            type Value = Properties;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("names and values")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Properties, A::Error> {
                let mut all = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    all.push(entry);
                }
                Ok(Properties(all))
            }
        }
        deserializer.deserialize_map(InOrder)
    }
}

/// Messages for one queue, all or nothing.
#[derive(Debug, Serialize)]
pub(crate) struct Batch<'a> {
    /// In this order.
    pub messages: &'a [NewMessage],
}

/// What was sent.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct SentOne {
    /// Its place in the queue.
    pub seq: u64,
    /// The sender's id, or the one that was given.
    pub id: String,
    /// It was sent before.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub duplicate: bool,
    /// Of a topic: how many queues have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copies: Option<u32>,
}

#[derive(Debug, Deserialize)]
pub(super) struct SentAll {
    pub messages: Vec<SentOne>,
}

/// A queue and all about it.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Queue {
    /// Its name.
    pub name: String,
    /// When it was made.
    pub created_at: u64,
    /// Whether delivery is stopped.
    pub paused: bool,
    /// What it is.
    pub spec: Spec,
    /// What it holds.
    pub counts: Counts,
    /// What it has seen.
    pub totals: Totals,
}

#[derive(Debug, Deserialize)]
pub(super) struct Queues {
    pub queues: Vec<Queue>,
}

/// What a queue holds.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct Counts {
    /// Waiting for a receiver.
    pub ready: u64,
    /// Out to a receiver.
    pub locked: u64,
    /// In their place, not yet due.
    pub delayed: u64,
    /// To be sent later.
    pub scheduled: u64,
    /// Set aside.
    pub deferred: u64,
    /// Dead letters of its own.
    pub dead_lettered: u64,
    /// Of all messages.
    pub bytes: u64,
    /// When the oldest was sent.
    pub oldest_at: Option<u64>,
    /// Who waits for messages.
    pub consumers: u64,
    /// Sessions with messages or state.
    pub sessions: u64,
    /// Of them held.
    pub sessions_held: u64,
    /// Of them waiting for a holder.
    pub sessions_ready: u64,
}

/// What a queue has seen.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct Totals {
    /// Messages taken in.
    pub sent: u64,
    /// Handed out.
    pub delivered: u64,
    /// Handed out again.
    pub redelivered: u64,
    /// Done.
    pub completed: u64,
    /// Given back as failed.
    pub abandoned: u64,
    /// Given up.
    pub dead_lettered: u64,
    /// Set aside.
    pub deferred: u64,
    /// Too late.
    pub expired: u64,
    /// Leases that ran out.
    pub lost: u64,
    /// Holds that ran out.
    pub sessions_lost: u64,
}

/// How many are gone.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Removed {
    /// So many.
    pub removed: u64,
}

/// Asks for messages.
#[derive(Debug, Serialize)]
pub(crate) struct Receive {
    /// At most so many.
    pub max: u32,
    /// How long to wait for the first.
    pub wait_ms: u64,
    /// The queue's lock if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lock_ms: Option<u64>,
    /// Only of the session held with this token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_token: Option<String>,
}

/// What a message has on the way in and on the way out, around what only one of the two has.
macro_rules! messages {
    ($($field:ident: $kind:ty = $doc:literal,)*) => {
        sparse! {
            /// A message to send.
            #[serde(deny_unknown_fields)]
            pub struct NewMessage {
                /// Text, or any other JSON value.
                body: Box<RawValue>,
                $(#[doc = $doc] $field: $kind,)*
                /// Take the session from the queue's fixed list by `key`.
                session_from_key: bool,
                /// Delivered after so long, in its place.
                delay_ms: u64,
                /// Sent at that time.
                at: Box<RawValue>,
            }
        }

        /// A message in hand, or looked at.
        #[derive(Clone, Debug, Default, Deserialize, Serialize)]
        #[serde(default)]
        pub(crate) struct Received {
            /// Its place in the queue.
            pub seq: u64,
            /// Proof that it is in hand.
            #[serde(skip_serializing_if = "Option::is_none")]
            pub lease: Option<String>,
            /// When the lease ends.
            #[serde(skip_serializing_if = "Option::is_none")]
            pub until: Option<u64>,
            /// Where it stands in its life, when looked at.
            #[serde(skip_serializing_if = "Option::is_none")]
            pub state: Option<String>,
            /// When it is due.
            #[serde(skip_serializing_if = "Option::is_none")]
            pub due: Option<u64>,
            /// When it was sent.
            #[serde(skip_serializing_if = "Option::is_none")]
            pub enqueued_at: Option<u64>,
            /// The first id it had.
            #[serde(skip_serializing_if = "Option::is_none")]
            pub origin_id: Option<String>,
            /// As text, if it is.
            #[serde(skip_serializing_if = "Option::is_none")]
            pub body: Option<String>,
            /// What AMQP called the body.
            #[serde(skip_serializing_if = "Option::is_none")]
            pub body_kind: Option<String>,
            $(#[doc = $doc] #[serde(skip_serializing_if = "Option::is_none")] pub $field: Option<$kind>,)*
            /// How often it was handed out.
            pub receives: u32,
            /// How often that failed.
            pub failed: u32,
            /// Why it is a dead letter.
            #[serde(skip_serializing_if = "Option::is_none")]
            pub dead_letter: Option<DeadLetter>,
            /// Every place and reason for which it became one.
            #[serde(skip_serializing_if = "Vec::is_empty")]
            pub deaths: Vec<Death>,
            /// The disk holds it no longer whole.
            #[serde(skip_serializing_if = "std::ops::Not::not")]
            pub damaged: bool,
            /// Where, and what is wrong there.
            #[serde(skip_serializing_if = "Option::is_none")]
            pub problem: Option<String>,
        }

        impl From<Received> for NewMessage {
            /// The same message once more; what only an answer has is left behind.
            fn from(received: Received) -> Self {
                Self {
                    body: received.body.as_deref().map(raw_text),
                    $($field: received.$field,)*
                    session_from_key: None,
                    delay_ms: None,
                    at: None,
                }
            }
        }
    };
}

messages! {
    body_base64: String = "As bytes, if it is not text.",
    session: String = "The FIFO session.",
    id: String = "The sender's id.",
    dedup_id: String = "Key for de-duplication.",
    key: String = "Partition or routing key.",
    subject: String = "What it is about.",
    to: String = "Where the sender meant it to go.",
    reply_to: String = "Where answers go.",
    reply_to_session: String = "The session that answers belong to.",
    correlation_id: String = "The request that this answers.",
    content_type: String = "The media type of the body.",
    content_encoding: String = "The encoding of the body.",
    user_id: String = "Who sent it.",
    app_id: String = "Which application sent it.",
    ttl_ms: u64 = "Expires so long after it was enqueued.",
    priority: u8 = "Higher first.",
    properties: Properties = "The user's own names and values.",
}

/// What an answer has and a message to send has not.
const ANSWER_ONLY: [&str; 14] = [
    "seq",
    "lease",
    "until",
    "state",
    "due",
    "enqueued_at",
    "origin_id",
    "body_kind",
    "receives",
    "failed",
    "dead_letter",
    "deaths",
    "damaged",
    "problem",
];

impl NewMessage {
    /// A message from a line of JSON, also one that `receive`, `peek` or `dlq export` wrote.
    pub(crate) fn from_line(line: &str) -> Result<Self, serde_json::Error> {
        let mut fields: Properties = serde_json::from_str(line)?;
        fields.0.retain(|(name, _)| !ANSWER_ONLY.contains(&name.as_str()));
        serde_json::from_str(&serde_json::to_string(&fields)?)
    }
}

/// Text as a JSON string.
pub(crate) fn raw_text(text: &str) -> Box<RawValue> {
    serde_json::value::to_raw_value(text).expect("text is JSON")
}

/// Why and when a message became a dead letter.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct DeadLetter {
    /// A word.
    pub reason: String,
    /// For people.
    pub text: String,
    /// When.
    pub at: u64,
    /// Of which queue.
    pub from: String,
    /// Its place there.
    pub from_seq: u64,
    /// How often it had been handed out.
    pub receives: u32,
    /// How often that had failed.
    pub failed: u32,
}

/// What killed a message, where, and how often.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct Death {
    /// A word.
    pub reason: String,
    /// For people.
    pub text: String,
    /// When, the last time.
    pub at: u64,
    /// Of which queue.
    pub from: String,
    /// How often.
    pub count: u32,
}

/// Messages, and where the next page begins.
#[derive(Debug, Deserialize)]
pub(crate) struct Page {
    /// In order.
    pub messages: Vec<Received>,
    /// Where to go on.
    #[serde(default)]
    pub next: Option<u64>,
}

/// Ends leases.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Settle {
    /// Which.
    pub leases: Vec<String>,
    /// `complete`, `abandon`, `release`, `defer` or `dead_letter`.
    pub outcome: &'static str,
    /// abandon, release: not before so long.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<u64>,
    /// dead_letter: a word.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// dead_letter: for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

/// One for each lease, in the order asked.
#[derive(Debug, Deserialize)]
pub(crate) struct Results {
    /// What became of it.
    pub results: Vec<Outcome>,
}

/// What became of one lease.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Outcome {
    /// Which.
    pub lease: String,
    /// Whether it is settled.
    pub ok: bool,
    /// Why not.
    #[serde(default)]
    pub problem: Option<super::Problem>,
}

/// Asks to hold a session.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Accept {
    /// This one, or the next that is ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// How long to wait.
    pub wait_ms: u64,
    /// The queue's lock if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lock_ms: Option<u64>,
}

/// A session in hand.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Held {
    /// Which.
    pub session: String,
    /// Proof of it.
    pub token: String,
    /// When the hold ends unless it is renewed.
    pub until: u64,
}

/// Sessions, by id.
#[derive(Debug, Deserialize)]
pub(crate) struct Sessions {
    /// By id.
    pub sessions: Vec<Session>,
    /// Where to go on.
    #[serde(default)]
    pub next: Option<String>,
}

/// What a session is and holds.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct Session {
    /// Its id.
    pub session: String,
    /// Messages of it.
    pub messages: u64,
    /// Out to its holder.
    pub locked: u64,
    /// Until when somebody holds it.
    pub held_until: Option<u64>,
    /// Bytes of its state.
    pub state_bytes: u64,
    /// Its first message.
    pub first: Option<u64>,
    /// A delayed retry holds it back until then.
    pub delayed_until: Option<u64>,
}

/// Which dead letters to move.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Redrive {
    /// Exactly these.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seqs: Option<Vec<u64>>,
    /// Where to; where each came from if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// At most so many of the oldest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// Count, and move nothing.
    pub dry_run: bool,
}

/// What was, or would be, moved.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Redriven {
    /// So many moved.
    pub moved: u64,
    /// So many are still there.
    pub left: u64,
}

/// A dead letter, corrected.
#[derive(Debug, Serialize)]
pub(crate) struct Resend {
    /// What is sent in its stead.
    pub message: NewMessage,
    /// Where to; where it came from if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
}

/// How a queue does.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Health {
    /// `OK`, `Warning` or `Error`.
    pub status: String,
    /// Why not OK.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Waiting and being worked on.
    #[serde(rename = "messageCount", default, skip_serializing_if = "Option::is_none")]
    pub message_count: Option<u64>,
}

/// Who answers.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Version {
    /// Of the server.
    pub version: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_out_can_be_sent_again() {
        let line = r#"{"seq":7,"state":"ready","body":"x","session":"s","properties":{"z":1,"a":{"$type":"i8","value":2}},"receives":1,"failed":0,"dead_letter":{"reason":"r"},"deaths":[{"reason":"r"}]}"#;
        let message = NewMessage::from_line(line).unwrap();
        let again = serde_json::to_string(&message).unwrap();
        assert_eq!(
            again,
            r#"{"body":"x","session":"s","properties":{"z":1,"a":{"$type":"i8","value":2}}}"#
        );
        let received: Received = serde_json::from_str(line).unwrap();
        assert_eq!(serde_json::to_string(&NewMessage::from(received)).unwrap(), again);
    }

    #[test]
    fn a_body_of_any_json_keeps_its_digits_and_unknown_fields_are_refused() {
        let message = NewMessage::from_line(r#"{"body":{"n":1.10}}"#).unwrap();
        assert_eq!(serde_json::to_string(&message).unwrap(), r#"{"body":{"n":1.10}}"#);
        assert!(
            NewMessage::from_line(r#"{"sesion":"a"}"#).unwrap_err().to_string().contains("sesion")
        );
        assert!(NewMessage::from_line("text").is_err());
    }
}
