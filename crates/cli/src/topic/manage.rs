//! Creating, deleting and showing topics.

use std::time::Duration;

use clap::ValueEnum;
use malote_model::TopicName;
use malote_wire_native::settings::DedupSetting;
use malote_wire_native::topic::{TopicInfo, TopicKindWord, TopicSettings};

use crate::api::Api;
use crate::args::topic_name;
use crate::ask::Yes;
use crate::output::{Facts, Output, Row};
use crate::watch::WatchArgs;
use crate::when::{self, count};

/// List topics
#[derive(clap::Args)]
pub(crate) struct Ls {
    #[command(flatten)]
    watch: WatchArgs,
}

impl Ls {
    pub(crate) async fn run(self, api: &Api, mut out: Output) -> anyhow::Result<()> {
        let show = async |out: &mut Output| {
            let topics = api.topics().await?;
            if topics.is_empty() {
                out.note("no topics; `malote topic create NAME` creates one");
            }
            out.list(&topics)
        };
        self.watch.run(&mut out, show).await
    }
}

/// Show a topic: its settings and totals
#[derive(clap::Args)]
pub(crate) struct Get {
    /// Name of the topic
    #[arg(value_parser = topic_name)]
    topic: TopicName,
}

impl Get {
    pub(crate) async fn run(self, api: &Api, mut out: Output) -> anyhow::Result<()> {
        out.one(&api.topic(&self.topic).await?)
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Kind {
    /// Rules with any filter
    Filter,
    /// Rules match the exact key
    Direct,
    /// Every queue gets every message
    Fanout,
    /// Rules match patterns of the words in the key
    Topic,
    /// Rules match properties
    Headers,
}

/// Create a topic
///
/// If the topic exists with the same settings, nothing changes. Other settings are refused.
#[derive(clap::Args)]
pub(crate) struct Create {
    /// Name of the topic
    #[arg(value_parser = topic_name)]
    topic: TopicName,
    /// Kind of rules
    #[arg(long, value_enum, default_value = "filter")]
    kind: Kind,
    /// Delete the topic with its last rule
    #[arg(long)]
    auto_delete: bool,
    /// Accept messages only from other topics and queues
    #[arg(long)]
    internal: bool,
    /// De-duplication window: ignore a message whose id was sent within this time
    #[arg(long, value_name = "TIME", value_parser = when::duration)]
    dedup: Option<Duration>,
    /// With --dedup: identify a message without an id by its body
    #[arg(long, requires = "dedup")]
    dedup_content: bool,
}

impl Create {
    pub(crate) async fn run(self, api: &Api, mut out: Output) -> anyhow::Result<()> {
        let kind = match self.kind {
            Kind::Filter => TopicKindWord::Filter,
            Kind::Direct => TopicKindWord::Direct,
            Kind::Fanout => TopicKindWord::Fanout,
            Kind::Topic => TopicKindWord::Topic,
            Kind::Headers => TopicKindWord::Headers,
        };
        let dedup = self.dedup.map(|window| DedupSetting {
            window_ms: when::ms(window),
            per_session: false,
            content: self.dedup_content,
        });
        let spec = TopicSettings {
            kind: Some(kind),
            auto_delete: Some(self.auto_delete),
            internal: Some(self.internal),
            dedup: dedup.map(Some),
            ..TopicSettings::default()
        };
        let (created, topic) = api.declare_topic(&self.topic, &spec).await?;
        let said = if created { "created" } else { "already exists with these settings" };
        out.changed(&topic, format_args!("topic `{}` {said}", topic.name))
    }
}

/// Delete a topic with its subscriptions and their messages
#[derive(clap::Args)]
pub(crate) struct Rm {
    /// Name of the topic
    #[arg(value_parser = topic_name)]
    topic: TopicName,
    #[command(flatten)]
    yes: Yes,
}

impl Rm {
    pub(crate) async fn run(self, api: &Api, out: Output) -> anyhow::Result<()> {
        let subscriptions = api.subscriptions(&self.topic).await?.len() as u64;
        self.yes.confirm(format_args!(
            "This deletes topic `{}` with {}.",
            self.topic,
            count(subscriptions, "subscription"),
        ))?;
        api.delete_topic(&self.topic).await?;
        out.removed("topic", &self.topic)
    }
}

fn kind(topic: &TopicInfo) -> &'static str {
    topic.spec.kind.map_or("filter", TopicKindWord::as_str)
}

impl Row for TopicInfo {
    const NOUN: &'static str = "topic";
    const HEAD: &'static [&'static str] =
        &["NAME", "KIND", "QUEUES", "RULES", "SCHEDULED", "COPIES"];

    fn row(&self) -> Vec<String> {
        vec![
            self.name.clone(),
            kind(self).to_owned(),
            self.queues.to_string(),
            self.rules.to_string(),
            self.scheduled.to_string(),
            self.totals.copies.to_string(),
        ]
    }

    fn name(&self) -> String {
        self.name.clone()
    }
}

impl Facts for TopicInfo {
    fn facts(&self) -> Vec<(&'static str, String)> {
        let flag = |value: Option<bool>| value.unwrap_or_default().to_string();
        let window = self.spec.dedup.flatten().map(|dedup| dedup.window_ms);
        vec![
            ("name", self.name.clone()),
            ("kind", kind(self).to_owned()),
            ("created", when::format_time(self.created_at)),
            ("queues", self.queues.to_string()),
            ("rules", self.rules.to_string()),
            ("scheduled", self.scheduled.to_string()),
            ("waiting", self.waiting.to_string()),
            ("copies made", self.totals.copies.to_string()),
            ("auto-delete", flag(self.spec.auto_delete)),
            ("internal", flag(self.spec.internal)),
            ("de-duplication", window.map_or_else(|| "none".to_owned(), when::format_ms)),
        ]
    }

    fn name(&self) -> String {
        self.name.clone()
    }
}
