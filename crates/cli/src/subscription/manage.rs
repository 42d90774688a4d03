//! Making, removing and looking at subscriptions.

use malote_model::TopicName;
use malote_wire_native::rule::NamedRule;
use malote_wire_native::topic::SubscriptionInfo;

use crate::api::Api;
use crate::args::topic_name;
use crate::ask::Yes;
use crate::output::{Facts, Output, Row};
use crate::queue::spec::SpecArgs;
use crate::rule::{FilterArgs, shown};
use crate::when::count;

/// List the subscriptions of a topic with what they hold
#[derive(clap::Args)]
pub(crate) struct Ls {
    /// The topic
    #[arg(value_parser = topic_name)]
    topic: TopicName,
}

impl Ls {
    pub(crate) async fn run(self, api: &Api, mut out: Output) -> anyhow::Result<()> {
        let all = api.subscriptions(&self.topic).await?;
        if all.is_empty() {
            out.note("no subscriptions; `malote subscription create TOPIC NAME` makes one");
        }
        out.list(&all)
    }
}

/// Show a subscription: its queue and its rules
#[derive(clap::Args)]
pub(crate) struct Get {
    /// The topic
    #[arg(value_parser = topic_name)]
    topic: TopicName,
    /// The subscription
    name: String,
}

impl Get {
    pub(crate) async fn run(self, api: &Api, mut out: Output) -> anyhow::Result<()> {
        out.one(&api.subscription(&self.topic, &self.name).await?)
    }
}

/// Make a subscription, or find it just as asked
///
/// Without a filter it takes everything, where its topic's kind has such a rule. More rules: `malote subscription rule add`.
#[derive(clap::Args)]
pub(crate) struct Create {
    /// The topic
    #[arg(value_parser = topic_name)]
    topic: TopicName,
    /// The subscription
    name: String,
    /// The name of the rule that the filter makes
    #[arg(long, value_name = "NAME", default_value = "$Default")]
    rule: String,
    #[command(flatten)]
    filter: FilterArgs,
    #[command(flatten)]
    spec: SpecArgs,
}

impl Create {
    pub(crate) async fn run(self, api: &Api, mut out: Output) -> anyhow::Result<()> {
        let rules = self.filter.given().then(|| -> anyhow::Result<_> {
            let (filter, action) = self.filter.rule()?;
            Ok(vec![NamedRule { name: self.rule, filter, action }])
        });
        let rules = rules.transpose()?;
        let spec = self.spec.spec();
        let (created, subscription) = api.subscribe(&self.topic, &self.name, spec, rules).await?;
        let said = if created { "created" } else { "was there already, just so" };
        let name = subscription.queue.name.clone();
        out.changed(&subscription, format_args!("subscription `{name}` {said}"))
    }
}

/// Remove a subscription with all it holds, dead letters too
#[derive(clap::Args)]
pub(crate) struct Rm {
    /// The topic
    #[arg(value_parser = topic_name)]
    topic: TopicName,
    /// The subscription
    name: String,
    #[command(flatten)]
    yes: Yes,
}

impl Rm {
    pub(crate) async fn run(self, api: &Api, out: Output) -> anyhow::Result<()> {
        let queue = api.subscription(&self.topic, &self.name).await?.queue;
        let counts = &queue.counts;
        let messages =
            counts.ready + counts.locked + counts.delayed + counts.scheduled + counts.deferred;
        self.yes.confirm(format_args!(
            "Subscription `{}` has {} and {}, which are gone with it.",
            queue.name,
            count(messages, "message"),
            count(counts.dead_lettered, "dead letter"),
        ))?;
        api.unsubscribe(&self.topic, &self.name).await?;
        out.removed("subscription", &queue.name)
    }
}

impl Row for SubscriptionInfo {
    const HEAD: &'static [&'static str] = &["NAME", "READY", "LOCKED", "DEAD", "QUEUE"];

    fn row(&self) -> Vec<String> {
        let counts = &self.queue.counts;
        vec![
            self.name.clone(),
            counts.ready.to_string(),
            counts.locked.to_string(),
            counts.dead_lettered.to_string(),
            self.queue.name.clone(),
        ]
    }

    fn name(&self) -> String {
        self.name.clone()
    }
}

impl Facts for SubscriptionInfo {
    fn facts(&self) -> Vec<(&'static str, String)> {
        let mut facts = vec![("topic", self.topic.clone()), ("subscription", self.name.clone())];
        for rule in self.rules.iter().flatten() {
            facts.push(("rule", format!("{}: {}", rule.name, shown(rule))));
        }
        facts.extend(Facts::facts(&self.queue));
        facts
    }

    fn name(&self) -> String {
        self.name.clone()
    }
}
