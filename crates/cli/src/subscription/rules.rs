//! Rules of subscriptions.

use clap::Subcommand;
use malote_model::{QueueName, TopicName};
use malote_wire_native::rule::NamedRule;
use malote_wire_native::topic::BoundRule;

use crate::api::Api;
use crate::args::topic_name;
use crate::output::{Output, Row};
use crate::rule::{FilterArgs, rule_line};

/// List, add and delete rules
#[derive(clap::Args)]
pub(crate) struct Rules {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    #[command(visible_alias = "list")]
    Ls(Ls),
    Add(Add),
    #[command(visible_alias = "delete")]
    Rm(Rm),
}

#[derive(clap::Args)]
struct Of {
    /// Name of the topic
    #[arg(value_parser = topic_name)]
    topic: TopicName,
    /// Name of the subscription
    subscription: String,
}

impl Of {
    fn queue(&self) -> anyhow::Result<QueueName> {
        Ok(QueueName::subscription(&self.topic, &self.subscription)?)
    }
}

/// List rules
#[derive(clap::Args)]
struct Ls {
    #[command(flatten)]
    of: Of,
}

/// Add a rule; a different rule with the same name is refused
#[derive(clap::Args)]
struct Add {
    #[command(flatten)]
    of: Of,
    /// Name of the rule
    rule: String,
    #[command(flatten)]
    filter: FilterArgs,
}

/// Delete a rule
#[derive(clap::Args)]
struct Rm {
    #[command(flatten)]
    of: Of,
    /// Name of the rule
    rule: String,
}

impl Rules {
    pub(crate) async fn run(self, api: &Api, mut out: Output) -> anyhow::Result<()> {
        match self.verb {
            Verb::Ls(Ls { of }) => {
                let rules = api.rules(&of.topic, Some(&of.queue()?)).await?;
                if rules.is_empty() {
                    out.note("no rules: the subscription gets no messages");
                }
                out.list(&rules)
            }
            Verb::Add(Add { of, rule, filter }) => {
                let (filter, action) = filter.rule()?;
                let rule = NamedRule { name: rule, filter, action };
                let new = api.bind(&of.topic, &of.queue()?, &rule).await?;
                let said = if new { "added" } else { "already exists" };
                out.note(format_args!("rule `{}` {said}", rule.name));
                Ok(())
            }
            Verb::Rm(Rm { of, rule }) => {
                api.unbind(&of.topic, &of.queue()?, &rule).await?;
                out.removed("rule", &rule)
            }
        }
    }
}

impl Row for BoundRule {
    const NOUN: &'static str = "rule";
    const HEAD: &'static [&'static str] = &["RULE", "QUEUE", "FILTER"];

    fn row(&self) -> Vec<String> {
        let target = self.to_topic.as_ref().unwrap_or(&self.queue);
        vec![self.rule.name.clone(), target.clone(), rule_line(&self.rule)]
    }

    fn name(&self) -> String {
        self.rule.name.clone()
    }
}
