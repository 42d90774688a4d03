//! Making, removing and looking at topics.

use std::time::Duration;

use clap::ValueEnum;
use malote_model::TopicName;
use malote_wire_native::settings::DedupSetting;
use malote_wire_native::topic::{TopicInfo, TopicKindWord, TopicSettings};

use crate::api::Api;
use crate::args::topic_name;
use crate::ask::Yes;
use crate::output::{Facts, Output, Row};
use crate::when::{self, count};

/// List topics with what they do
#[derive(clap::Args)]
pub(crate) struct Ls {}

impl Ls {
    pub(crate) async fn run(self, api: &Api, mut out: Output) -> anyhow::Result<()> {
        let topics = api.topics().await?;
        if topics.is_empty() {
            out.note("no topics; `malote topic create NAME` makes one");
        }
        out.list(&topics)
    }
}

/// Show a topic: what it is, and what it has done
#[derive(clap::Args)]
pub(crate) struct Get {
    /// The topic
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
    /// Any filter
    Filter,
    /// The exact key
    Direct,
    /// Everything
    Fanout,
    /// Patterns over the words of the key
    Topic,
    /// Values of properties
    Headers,
}

/// Make a topic, or find it just as asked
#[derive(clap::Args)]
pub(crate) struct Create {
    /// The topic
    #[arg(value_parser = topic_name)]
    topic: TopicName,
    /// Which rules it takes
    #[arg(long, value_enum, default_value = "filter")]
    kind: Kind,
    /// The topic goes with its last rule
    #[arg(long)]
    auto_delete: bool,
    /// It takes messages from other topics and queues only
    #[arg(long)]
    internal: bool,
    /// How long a message that was sent before is known by its id
    #[arg(long, value_name = "TIME", value_parser = when::duration)]
    dedup: Option<Duration>,
    /// With --dedup: a message without an id is known by its body
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
            status: None,
        };
        let (created, topic) = api.declare_topic(&self.topic, &spec).await?;
        let said = if created { "created" } else { "was there already, just so" };
        out.changed(&topic, format_args!("topic `{}` {said}", topic.name))
    }
}

/// Remove a topic and its subscriptions with all they hold
#[derive(clap::Args)]
pub(crate) struct Rm {
    /// The topic
    #[arg(value_parser = topic_name)]
    topic: TopicName,
    #[command(flatten)]
    yes: Yes,
}

impl Rm {
    pub(crate) async fn run(self, api: &Api, out: Output) -> anyhow::Result<()> {
        let subscriptions = api.subscriptions(&self.topic).await?.len() as u64;
        self.yes.confirm(format_args!(
            "Topic `{}` has {}, which are gone with it.",
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
            ("created", when::shown(self.created_at)),
            ("queues", self.queues.to_string()),
            ("rules", self.rules.to_string()),
            ("scheduled", self.scheduled.to_string()),
            ("waiting", self.waiting.to_string()),
            ("copies made", self.totals.copies.to_string()),
            ("auto-delete", flag(self.spec.auto_delete)),
            ("internal", flag(self.spec.internal)),
            ("de-duplication", window.map_or_else(|| "none".to_owned(), when::shown_ms)),
        ]
    }

    fn name(&self) -> String {
        self.name.clone()
    }
}
