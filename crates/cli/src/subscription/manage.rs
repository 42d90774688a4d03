//! Creating, deleting and showing subscriptions.

use malote_model::TopicName;
use malote_wire_native::rule::NamedRule;
use malote_wire_native::topic::SubscriptionInfo;

use crate::api::Api;
use crate::args::topic_name;
use crate::ask::Yes;
use crate::output::{Facts, Output, Row};
use crate::queue::spec::SpecArgs;
use crate::rule::{FilterArgs, rule_line};
use crate::watch::WatchArgs;
use crate::when::count;

/// List the subscriptions of a topic with their message counts
#[derive(clap::Args)]
pub(crate) struct Ls {
    /// Name of the topic
    #[arg(value_parser = topic_name)]
    topic: TopicName,
    #[command(flatten)]
    watch: WatchArgs,
}

impl Ls {
    pub(crate) async fn run(self, api: &Api, mut out: Output) -> anyhow::Result<()> {
        let show = async |out: &mut Output| {
            let all = api.subscriptions(&self.topic).await?;
            if all.is_empty() {
                out.note("no subscriptions; `malote subscription create TOPIC NAME` creates one");
            }
            out.list(&all)
        };
        self.watch.run(&mut out, show).await
    }
}

/// Show a subscription: its queue and its rules
#[derive(clap::Args)]
pub(crate) struct Get {
    /// Name of the topic
    #[arg(value_parser = topic_name)]
    topic: TopicName,
    /// Name of the subscription
    name: String,
}

impl Get {
    pub(crate) async fn run(self, api: &Api, mut out: Output) -> anyhow::Result<()> {
        out.one(&api.subscription(&self.topic, &self.name).await?)
    }
}

/// Create a subscription
///
/// Without a filter it gets every message, if the kind of the topic allows such a rule. `malote subscription rule add`
/// adds more rules. If the subscription exists with the same settings, nothing changes.
#[derive(clap::Args)]
pub(crate) struct Create {
    /// Name of the topic
    #[arg(value_parser = topic_name)]
    topic: TopicName,
    /// Name of the subscription
    name: String,
    /// Name of the rule with the filter
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
        let said = if created { "created" } else { "already exists with these settings" };
        let name = subscription.queue.name.clone();
        out.changed(&subscription, format_args!("subscription `{name}` {said}"))
    }
}

/// Delete a subscription with all its messages and dead letters
#[derive(clap::Args)]
pub(crate) struct Rm {
    /// Name of the topic
    #[arg(value_parser = topic_name)]
    topic: TopicName,
    /// Name of the subscription
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
            "This deletes subscription `{}` with {} and {}.",
            queue.name,
            count(messages, "message"),
            count(counts.dead_lettered, "dead letter"),
        ))?;
        api.unsubscribe(&self.topic, &self.name).await?;
        out.removed("subscription", &queue.name)
    }
}

impl Row for SubscriptionInfo {
    const NOUN: &'static str = "subscription";
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
            facts.push(("rule", format!("{}: {}", rule.name, rule_line(rule))));
        }
        facts.extend(Facts::facts(&self.queue));
        facts
    }

    fn name(&self) -> String {
        self.name.clone()
    }
}
