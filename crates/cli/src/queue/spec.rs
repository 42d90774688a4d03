//! The flags that say what a queue is to be.

use std::time::Duration;

use clap::ValueEnum;
use malote_model::SessionId;

use crate::api::words::{DeadLetterWord, Limit, SessionsWord, Spec};
use crate::args::{queue_name, session_id};
use crate::when;

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Sessions {
    /// Plain FIFO
    None,
    /// Any session id; every message needs one
    Dynamic,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Durability {
    /// A send is answered when it is on disk
    Fsync,
    /// A send is answered when it is written; power loss may cut the newest
    Relaxed,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Retry {
    /// The session waits for it
    Hold,
    /// The session goes on without it
    Skip,
}

/// What `create` and `update` take.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct SpecArgs {
    /// Whether messages belong to sessions
    #[arg(long, value_enum, value_name = "MODE")]
    sessions: Option<Sessions>,
    /// A fixed list of sessions; others are refused
    #[arg(long, value_name = "ID,…", value_delimiter = ',', value_parser = session_id, conflicts_with = "sessions")]
    session_ids: Vec<SessionId>,
    /// How long a lease lasts unless the receiver asks otherwise [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = when::duration)]
    lock: Option<Duration>,
    /// Failed deliveries before a message is dead-lettered, or `none` [default: 10]
    #[arg(long, value_name = "COUNT", value_parser = limit)]
    failed_max: Option<Limit>,
    /// Deliveries before a message is dead-lettered, or `none` [default: none]
    #[arg(long, value_name = "COUNT", value_parser = limit)]
    receives_max: Option<Limit>,
    /// Where dead letters go: `own`, `drop` or `queue:NAME` [default: own]
    #[arg(long, value_name = "WHERE", value_parser = dead_letter)]
    dead_letter: Option<DeadLetterWord>,
    /// What an answered send has survived [default: fsync]
    #[arg(long, value_enum, value_name = "MODE")]
    durability: Option<Durability>,
    /// What a delayed retry does to the rest of its session [default: hold]
    #[arg(long, value_enum, value_name = "MODE")]
    retry: Option<Retry>,
    /// Delay of every message that brings none of its own [default: 0s]
    #[arg(long, value_name = "TIME", value_parser = when::duration)]
    delay: Option<Duration>,
    /// The largest message, body and headers [default: 1MiB]
    #[arg(long, value_name = "SIZE", value_parser = when::size)]
    message_size: Option<u64>,
    /// `malote health` warns above so many messages [default: 1000]
    #[arg(long, value_name = "COUNT")]
    backlog_warning: Option<u64>,
}

impl SpecArgs {
    /// As the API has it.
    pub(super) fn spec(&self) -> Spec {
        let fixed = || self.session_ids.iter().map(|id| id.as_str().to_owned()).collect();
        let word = |value: &dyn Fn() -> Option<clap::builder::PossibleValue>| {
            value().map(|value| value.get_name().to_owned())
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
        }
    }

    /// Whether nothing was said.
    pub(super) fn is_empty(&self) -> bool {
        serde_json::to_string(&self.spec()).is_ok_and(|text| text == "{}")
    }
}

fn limit(text: &str) -> Result<Limit, String> {
    match text {
        "none" => Ok(Limit(None)),
        _ => {
            text.parse().map(|max| Limit(Some(max))).map_err(|_| "expected a number or none".into())
        }
    }
}

fn dead_letter(text: &str) -> Result<DeadLetterWord, String> {
    match (text, text.strip_prefix("queue:")) {
        ("own" | "drop", _) => Ok(DeadLetterWord::Word(text.to_owned())),
        (_, Some(name)) => {
            queue_name(name).map(|name| DeadLetterWord::Queue { queue: name.as_str().to_owned() })
        }
        _ => Err("expected own, drop or queue:NAME".to_owned()),
    }
}
