//! Showing queues.

use malote_model::QueueName;
use malote_wire_native::queue::QueueInfo;
use malote_wire_native::settings::{
    DeadLetterSetting, DeadLetterWord, DedupSetting, DurabilityWord, KeyedTopicTarget,
    OnExpiryWord, OverflowWord, RetryOrderWord, SessionsSetting, SessionsWord, StatusWord,
};

use crate::api::Api;
use crate::args::queue_name;
use crate::output::{Facts, Output, Row};
use crate::watch::WatchArgs;
use crate::when;

/// List queues with their message counts
#[derive(clap::Args)]
pub(crate) struct Ls {
    #[command(flatten)]
    watch: WatchArgs,
}

impl Ls {
    pub(crate) async fn run(self, api: &Api, mut out: Output) -> anyhow::Result<()> {
        let show = async |out: &mut Output| {
            let queues = api.queues().await?;
            if queues.is_empty() {
                out.note("no queues; `malote queue create NAME` creates one");
            }
            out.list(&queues)
        };
        self.watch.run(&mut out, show).await
    }
}

/// Show a queue: its settings, message counts and totals
#[derive(clap::Args)]
pub(crate) struct Get {
    /// Name of the queue
    #[arg(value_parser = queue_name)]
    queue: QueueName,
    #[command(flatten)]
    watch: WatchArgs,
}

impl Get {
    pub(crate) async fn run(self, api: &Api, mut out: Output) -> anyhow::Result<()> {
        let show = async |out: &mut Output| out.one(&api.queue(&self.queue).await?);
        self.watch.run(&mut out, show).await
    }
}

/// A setting as text, or the text for a setting that is not set.
fn or<T>(value: Option<Option<T>>, none: &str, shown: impl Fn(T) -> String) -> String {
    value.flatten().map_or_else(|| none.to_owned(), shown)
}

impl Row for QueueInfo {
    const NOUN: &'static str = "queue";
    const HEAD: &'static [&'static str] =
        &["NAME", "READY", "LOCKED", "LATER", "DEFERRED", "DEAD", "SESSIONS", "OLDEST", "STATE"];

    fn row(&self) -> Vec<String> {
        let counts = &self.counts;
        let sessions = match &self.spec.sessions {
            Some(SessionsSetting::Word(SessionsWord::None)) => "-".to_owned(),
            _ => counts.sessions.to_string(),
        };
        let oldest = counts.oldest_at.map_or_else(|| "-".to_owned(), when::age);
        let state = if self.paused { "paused" } else { "open" };
        vec![
            self.name.clone(),
            counts.ready.to_string(),
            counts.locked.to_string(),
            (counts.delayed + counts.scheduled).to_string(),
            counts.deferred.to_string(),
            counts.dead_lettered.to_string(),
            sessions,
            oldest,
            state.to_owned(),
        ]
    }

    fn name(&self) -> String {
        self.name.clone()
    }

    fn totals(items: &[Self]) -> Option<String> {
        let sum = |count: fn(&Self) -> u64| when::grouped(items.iter().map(count).sum());
        Some(format!(
            "{}: {} ready, {} locked, {} dead",
            when::count(items.len() as u64, Self::NOUN),
            sum(|queue| queue.counts.ready),
            sum(|queue| queue.counts.locked),
            sum(|queue| queue.counts.dead_lettered),
        ))
    }
}

impl Facts for QueueInfo {
    fn facts(&self) -> Vec<(&'static str, String)> {
        let Self { spec, counts, totals, .. } = self;
        let limit = |limit: Option<Option<u64>>| or(limit, "no limit", |max| max.to_string());
        let time = |ms: Option<Option<u64>>| or(ms, "none", when::format_ms);
        let dedup = |DedupSetting { window_ms, per_session, content }: DedupSetting| {
            let of = if per_session { ", per session" } else { "" };
            let by = if content { ", by content" } else { "" };
            format!("{}{of}{by}", when::format_ms(window_ms))
        };
        let sessions = match &spec.sessions {
            Some(SessionsSetting::Fixed(ids)) => format!("{} fixed: {}", ids.len(), ids.join(", ")),
            Some(SessionsSetting::Word(word)) => word.to_string(),
            None => "none".to_owned(),
        };
        let dead_letter = match &spec.dead_letter {
            Some(DeadLetterSetting::Queue(to)) => format!("to queue {}", to.queue),
            Some(DeadLetterSetting::Topic(KeyedTopicTarget { topic, key: None })) => {
                format!("to topic {topic}")
            }
            Some(DeadLetterSetting::Topic(KeyedTopicTarget { topic, key: Some(key) })) => {
                format!("to topic {topic} as {key}")
            }
            Some(DeadLetterSetting::Word(DeadLetterWord::Drop)) => "drop".to_owned(),
            Some(DeadLetterSetting::Word(DeadLetterWord::Own)) | None => "own".to_owned(),
        };
        let none = || "none".to_owned();
        let to = |max: u8| format!("0 to {max}");
        let word = |word: Option<&str>| word.unwrap_or_default().to_owned();
        let held = format!(
            "{} ready, {} locked, {} delayed, {} scheduled, {} deferred, {} dead",
            counts.ready,
            counts.locked,
            counts.delayed,
            counts.scheduled,
            counts.deferred,
            counts.dead_lettered,
        );
        let seen = format!(
            "{} sent, {} delivered, {} redelivered, {} completed, {} abandoned, {} dead-lettered, {} expired, {} lost",
            totals.sent,
            totals.delivered,
            totals.redelivered,
            totals.completed,
            totals.abandoned,
            totals.dead_lettered,
            totals.expired,
            totals.lost,
        );
        vec![
            ("name", self.name.clone()),
            ("state", if self.paused { "paused" } else { "open" }.to_owned()),
            ("created", when::format_time(self.created_at)),
            ("messages", held),
            ("bytes", when::bytes(counts.bytes)),
            ("oldest", counts.oldest_at.map_or_else(|| "-".to_owned(), when::format_time)),
            ("consumers", counts.consumers.to_string()),
            ("sessions", sessions),
            (
                "",
                format!(
                    "{} known, {} held, {} ready",
                    counts.sessions, counts.sessions_held, counts.sessions_ready
                ),
            ),
            ("totals", seen),
            ("lock", when::format_ms(spec.lock_ms.unwrap_or_default())),
            ("failed max", limit(spec.failed_max.map(|max| max.map(u64::from)))),
            ("receives max", limit(spec.receives_max.map(|max| max.map(u64::from)))),
            ("dead letters", dead_letter),
            ("durability", word(spec.durability.map(DurabilityWord::as_str))),
            ("retry", word(spec.retry.map(RetryOrderWord::as_str))),
            ("delay", when::format_ms(spec.delay_ms.unwrap_or_default())),
            ("message size", when::bytes(spec.message_bytes_max.unwrap_or_default())),
            ("backlog warning", spec.backlog_warning.unwrap_or_default().to_string()),
            ("time to live", time(spec.ttl_ms)),
            ("on expiry", word(spec.on_expiry.map(OnExpiryWord::as_str))),
            ("priorities", spec.priority_max.filter(|max| *max > 0).map_or_else(none, to)),
            ("de-duplication", or(spec.dedup, "none", dedup)),
            ("length max", limit(spec.length_max)),
            ("bytes max", or(spec.bytes_max, "no limit", when::bytes)),
            ("overflow", word(spec.overflow.map(OverflowWord::as_str))),
            ("fair", spec.fair.unwrap_or_default().to_string()),
            ("auto-delete", spec.auto_delete.unwrap_or_default().to_string()),
            ("idle max", time(spec.idle_ms_max)),
            ("exclusive", spec.exclusive.unwrap_or_default().to_string()),
            ("forward to", or(spec.forward_to.clone(), "none", |to| to.to_string())),
            ("status", word(spec.status.map(StatusWord::as_str))),
        ]
    }

    fn name(&self) -> String {
        self.name.clone()
    }
}
