//! The settings of a queue as flags.

use std::time::Duration;

use clap::ValueEnum;
use malote_model::SessionId;

use crate::api::words::{DeadLetterWord, Dedup, OrNone, SessionsWord, Spec, Target};
use crate::args::{queue_name, session_id, topic_name};
use crate::when;

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Sessions {
    /// No sessions
    None,
    /// Every message needs a session id, which can be any text
    Dynamic,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Durability {
    /// Acknowledge a send when it is synced to disk
    Fsync,
    /// Acknowledge a send when it is written; a power failure may lose the newest messages
    Relaxed,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Retry {
    /// The session waits for the retry
    Hold,
    /// The session continues without the message
    Skip,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum OnExpiry {
    /// Delete the message
    Drop,
    /// Dead-letter the message
    DeadLetter,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Overflow {
    /// Refuse the new message
    Reject,
    /// Delete the oldest message
    DropOldest,
    /// Dead-letter the oldest message
    DeadLetterOldest,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Status {
    /// Sending and receiving are allowed
    Active,
    /// Sending is refused
    SendDisabled,
    /// Receiving is refused
    ReceiveDisabled,
    /// Sending and receiving are refused
    Disabled,
}

/// The flags of `create` and `update`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct SpecArgs {
    /// Whether messages have sessions [default: none]
    #[arg(long, value_enum, value_name = "MODE")]
    sessions: Option<Sessions>,
    /// Fixed list of sessions; other session ids are refused
    #[arg(long, value_name = "ID,…", value_delimiter = ',', value_parser = session_id, conflicts_with = "sessions")]
    session_ids: Vec<SessionId>,
    /// Lock time, unless the receiver requests another [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = when::duration)]
    lock: Option<Duration>,
    /// Failed deliveries before a message is dead-lettered, or `none` [default: 10]
    #[arg(long, value_name = "COUNT", value_parser = limit)]
    failed_max: Option<OrNone<u64>>,
    /// Deliveries before a message is dead-lettered, or `none` [default: none]
    #[arg(long, value_name = "COUNT", value_parser = limit)]
    receives_max: Option<OrNone<u64>>,
    /// Where dead letters go: `own`, `drop`, `queue:NAME` or `topic:NAME[:KEY]` [default: own]
    #[arg(long, value_name = "WHERE", value_parser = dead_letter)]
    dead_letter: Option<DeadLetterWord>,
    /// When a send is acknowledged [default: fsync]
    #[arg(long, value_enum, value_name = "MODE")]
    durability: Option<Durability>,
    /// Whether a session waits for a delayed retry [default: hold]
    #[arg(long, value_enum, value_name = "MODE")]
    retry: Option<Retry>,
    /// Delay of messages without a delay of their own [default: 0s]
    #[arg(long, value_name = "TIME", value_parser = when::duration)]
    delay: Option<Duration>,
    /// Maximum size of a message, body and headers [default: 1MiB]
    #[arg(long, value_name = "SIZE", value_parser = when::size)]
    message_size: Option<u64>,
    /// Number of messages above which `malote health` warns [default: 1000]
    #[arg(long, value_name = "COUNT")]
    backlog_warning: Option<u64>,
    /// Time to live of messages, or `none` [default: none]
    #[arg(long, value_name = "TIME", value_parser = time)]
    ttl: Option<OrNone<u64>>,
    /// What happens to an expired message [default: drop]
    #[arg(long, value_enum, value_name = "WHAT")]
    on_expiry: Option<OnExpiry>,
    /// Highest priority; 0 disables priorities [default: 0]
    #[arg(long, value_name = "0-255")]
    priority_max: Option<u8>,
    /// De-duplication window: ignore a message whose id was sent within this time, or `none` [default: none]
    #[arg(long, value_name = "TIME", value_parser = time)]
    dedup: Option<OrNone<u64>>,
    /// With --dedup: identify a message without an id by its body
    #[arg(long, requires = "dedup")]
    dedup_content: bool,
    /// With --dedup: compare ids within a session only
    #[arg(long, requires = "dedup")]
    dedup_per_session: bool,
    /// Maximum number of ready messages, or `none` [default: none]
    #[arg(long, value_name = "COUNT", value_parser = limit)]
    length_max: Option<OrNone<u64>>,
    /// Maximum size of all ready messages, or `none` [default: none]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    bytes_max: Option<OrNone<u64>>,
    /// What happens when a limit is reached [default: reject]
    #[arg(long, value_enum, value_name = "WHAT")]
    overflow: Option<Overflow>,
    /// Delete the queue when its last consumer disconnects [default: false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    auto_delete: Option<bool>,
    /// Delete the queue when it was not used for this long, or `none` [default: none]
    #[arg(long, value_name = "TIME", value_parser = time)]
    idle_max: Option<OrNone<u64>>,
    /// Forward messages to `queue:NAME` or `topic:NAME`, or `none` [default: none]
    #[arg(long, value_name = "WHERE", value_parser = forward_to)]
    forward_to: Option<OrNone<Target>>,
    /// The time to live of dead letters starts when they were enqueued, not when they were dead-lettered [default: false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    dead_letters_keep_age: Option<bool>,
    /// Fair queue without sessions: the session id names a tenant, and tenants with many locked messages are served
    /// last [default: false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    fair: Option<bool>,
    /// Whether sending and receiving are allowed [default: active]
    #[arg(long, value_enum, value_name = "STATUS")]
    status: Option<Status>,
}

impl SpecArgs {
    /// The settings in the format of the API.
    pub(crate) fn spec(&self) -> Spec {
        let fixed = || self.session_ids.iter().map(|id| id.as_str().to_owned()).collect();
        let word = |value: &dyn Fn() -> Option<clap::builder::PossibleValue>| {
            value().map(|value| value.get_name().replace('-', "_"))
        };
        let dedup = |OrNone(window)| {
            let (per_session, content) = (self.dedup_per_session, self.dedup_content);
            OrNone(window.map(|window_ms| Dedup { window_ms, per_session, content }))
        };
        Spec {
            sessions: match self.sessions {
                Some(Sessions::None) => Some(SessionsWord::Word("none".into())),
                Some(Sessions::Dynamic) => Some(SessionsWord::Word("dynamic".into())),
                None if self.session_ids.is_empty() => None,
                None => Some(SessionsWord::Fixed(fixed())),
            },
            lock_ms: self.lock.map(when::ms),
            failed_max: self.failed_max,
            receives_max: self.receives_max,
            dead_letter: self.dead_letter.clone(),
            durability: word(&|| self.durability?.to_possible_value()),
            retry: word(&|| self.retry?.to_possible_value()),
            delay_ms: self.delay.map(when::ms),
            message_bytes_max: self.message_size,
            backlog_warning: self.backlog_warning,
            ttl_ms: self.ttl,
            on_expiry: word(&|| self.on_expiry?.to_possible_value()),
            priority_max: self.priority_max,
            dedup: self.dedup.map(dedup),
            length_max: self.length_max,
            bytes_max: self.bytes_max,
            overflow: word(&|| self.overflow?.to_possible_value()),
            auto_delete: self.auto_delete,
            idle_ms_max: self.idle_max,
            // Only a connection can have such a queue, and a command line is none.
            exclusive: None,
            forward_to: self.forward_to.clone(),
            dead_letters_keep_age: self.dead_letters_keep_age,
            fair: self.fair,
            status: word(&|| self.status?.to_possible_value()),
        }
    }

    /// Whether nothing was said.
    pub(super) fn is_empty(&self) -> bool {
        serde_json::to_string(&self.spec()).is_ok_and(|text| text == "{}")
    }
}

fn or_none<T>(
    text: &str,
    read: impl FnOnce(&str) -> Result<T, String>,
) -> Result<OrNone<T>, String> {
    match text {
        "none" => Ok(OrNone(None)),
        _ => read(text).map(|value| OrNone(Some(value))).map_err(|why| format!("{why}, or none")),
    }
}

fn limit(text: &str) -> Result<OrNone<u64>, String> {
    or_none(text, |text| text.parse().map_err(|_| "expected a number".into()))
}

fn time(text: &str) -> Result<OrNone<u64>, String> {
    or_none(text, |text| when::duration(text).map(when::ms))
}

fn size(text: &str) -> Result<OrNone<u64>, String> {
    or_none(text, when::size)
}

fn dead_letter(text: &str) -> Result<DeadLetterWord, String> {
    match text.split_once(':') {
        None if matches!(text, "own" | "drop") => Ok(DeadLetterWord::Word(text.to_owned())),
        Some(("queue", name)) => {
            queue_name(name).map(|name| DeadLetterWord::Queue { queue: name.as_str().to_owned() })
        }
        Some(("topic", rest)) => {
            let (name, key) = rest.split_once(':').map_or((rest, None), |(n, k)| (n, Some(k)));
            let topic = topic_name(name)?.as_str().to_owned();
            Ok(DeadLetterWord::Topic { topic, key: key.map(str::to_owned) })
        }
        _ => Err("expected own, drop, queue:NAME or topic:NAME[:KEY]".to_owned()),
    }
}

fn forward_to(text: &str) -> Result<OrNone<Target>, String> {
    or_none(text, |text| match text.split_once(':') {
        Some(("queue", name)) => {
            queue_name(name).map(|name| Target::Queue { queue: name.as_str().to_owned() })
        }
        Some(("topic", name)) => {
            topic_name(name).map(|name| Target::Topic { topic: name.as_str().to_owned() })
        }
        _ => Err("expected queue:NAME or topic:NAME".to_owned()),
    })
}
