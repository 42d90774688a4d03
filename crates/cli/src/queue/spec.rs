//! The settings of a queue as flags.

use std::time::Duration;

use clap::ValueEnum;
use malote_model::SessionId;
use malote_wire_native::settings::{
    DeadLetterSetting, DeadLetterWord, DedupSetting, ForwardSetting, KeyedTopicTarget,
    QueueSettings, QueueTarget, SessionsSetting, SessionsWord, TopicTarget,
};

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
    /// Whether messages have sessions [default: none; without a value: dynamic]
    #[arg(long, value_name = "MODE", num_args = 0..=1, default_missing_value = "dynamic")]
    sessions: Option<Sessions>,
    /// Fixed list of sessions; other session ids are refused
    #[arg(long, value_name = "ID,…", value_delimiter = ',', value_parser = session_id, conflicts_with = "sessions")]
    session_ids: Vec<SessionId>,
    /// Lock time, unless the receiver requests another [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = when::duration)]
    lock: Option<Duration>,
    /// Failed deliveries before a message is dead-lettered, or `none` [default: 10]
    #[arg(long, value_name = "COUNT", value_parser = limit::<u32>)]
    failed_max: Option<OrNone<u32>>,
    /// Deliveries before a message is dead-lettered, or `none` [default: none]
    #[arg(long, value_name = "COUNT", value_parser = limit::<u32>)]
    receives_max: Option<OrNone<u32>>,
    /// Where dead letters go: `own`, `drop`, `queue:NAME` or `topic:NAME[:KEY]` [default: own]
    #[arg(long, value_name = "WHERE", value_parser = dead_letter)]
    dead_letter: Option<DeadLetterSetting>,
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
    #[arg(long, value_name = "COUNT", value_parser = limit::<u64>)]
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
    forward_to: Option<OrNone<ForwardSetting>>,
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
    pub(crate) fn spec(&self) -> QueueSettings {
        let fixed = || self.session_ids.iter().map(|id| id.as_str().to_owned()).collect();
        let dedup = |OrNone(window)| {
            let (per_session, content) = (self.dedup_per_session, self.dedup_content);
            window.map(|window_ms| DedupSetting { window_ms, per_session, content })
        };
        QueueSettings {
            sessions: match self.sessions {
                Some(Sessions::None) => Some(SessionsWord::None.into()),
                Some(Sessions::Dynamic) => Some(SessionsWord::Dynamic.into()),
                None if self.session_ids.is_empty() => None,
                None => Some(SessionsSetting::Fixed(fixed())),
            },
            lock_ms: self.lock.map(when::ms),
            failed_max: setting(&self.failed_max),
            receives_max: setting(&self.receives_max),
            dead_letter: self.dead_letter.clone(),
            durability: self.durability.and_then(word),
            retry: self.retry.and_then(word),
            delay_ms: self.delay.map(when::ms),
            message_bytes_max: self.message_size,
            backlog_warning: self.backlog_warning,
            ttl_ms: setting(&self.ttl),
            on_expiry: self.on_expiry.and_then(word),
            priority_max: self.priority_max,
            dedup: self.dedup.map(dedup),
            length_max: setting(&self.length_max),
            bytes_max: setting(&self.bytes_max),
            overflow: self.overflow.and_then(word),
            auto_delete: self.auto_delete,
            idle_ms_max: setting(&self.idle_max),
            forward_to: setting(&self.forward_to),
            dead_letters_keep_age: self.dead_letters_keep_age,
            fair: self.fair,
            status: self.status.and_then(word),
            // `exclusive` is for native connections only.
            ..QueueSettings::default()
        }
    }

    /// Whether no flag was given.
    pub(super) fn is_empty(&self) -> bool {
        serde_json::to_string(&self.spec()).is_ok_and(|text| text == "{}")
    }
}

/// A setting that can be `none`.
#[derive(Clone, Copy, Debug)]
struct OrNone<T>(Option<T>);

/// The setting as the API has it: absent, null or a value.
fn setting<T: Clone>(given: &Option<OrNone<T>>) -> Option<Option<T>> {
    given.as_ref().map(|OrNone(value)| value.clone())
}

/// The word of the API for a value of a flag.
fn word<T: serde::de::DeserializeOwned>(flag: impl ValueEnum) -> Option<T> {
    let name = flag.to_possible_value()?.get_name().replace('-', "_");
    serde_json::from_value(name.into()).ok()
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

fn limit<T: std::str::FromStr>(text: &str) -> Result<OrNone<T>, String> {
    or_none(text, |text| text.parse().map_err(|_| "expected a number".into()))
}

fn time(text: &str) -> Result<OrNone<u64>, String> {
    or_none(text, |text| when::duration(text).map(when::ms))
}

fn size(text: &str) -> Result<OrNone<u64>, String> {
    or_none(text, when::size)
}

fn dead_letter(text: &str) -> Result<DeadLetterSetting, String> {
    match text.split_once(':') {
        None if text == "own" => Ok(DeadLetterSetting::Word(DeadLetterWord::Own)),
        None if text == "drop" => Ok(DeadLetterSetting::Word(DeadLetterWord::Drop)),
        Some(("queue", name)) => queue_name(name)
            .map(|name| DeadLetterSetting::Queue(QueueTarget { queue: name.as_str().to_owned() })),
        Some(("topic", rest)) => {
            let (name, key) = rest.split_once(':').map_or((rest, None), |(n, k)| (n, Some(k)));
            let topic = topic_name(name)?.as_str().to_owned();
            let key = key.map(str::to_owned);
            Ok(DeadLetterSetting::Topic(KeyedTopicTarget { topic, key }))
        }
        _ => Err("expected own, drop, queue:NAME or topic:NAME[:KEY]".to_owned()),
    }
}

fn forward_to(text: &str) -> Result<OrNone<ForwardSetting>, String> {
    or_none(text, |text| match text.split_once(':') {
        Some(("queue", name)) => {
            let queue = queue_name(name)?.as_str().to_owned();
            Ok(ForwardSetting::Queue(QueueTarget { queue }))
        }
        Some(("topic", name)) => {
            let topic = topic_name(name)?.as_str().to_owned();
            Ok(ForwardSetting::Topic(TopicTarget { topic }))
        }
        _ => Err("expected queue:NAME or topic:NAME".to_owned()),
    })
}
