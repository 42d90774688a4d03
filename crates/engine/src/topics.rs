//! Operations on topics.

use std::collections::BTreeMap;

use malote_model::{Address, QueueName, QueueSpec, Rule, TopicName, TopicSpec, limits};

use crate::command::{Binding, Command, Reply};
use crate::facts::TopicFacts;
use crate::handle::{Engine, EngineError};

impl Engine {
    /// Creates a topic, or checks that it exists with these settings. Returns whether it was created.
    pub async fn declare_topic(
        &self,
        name: TopicName,
        spec: TopicSpec,
    ) -> Result<bool, EngineError> {
        self.declared(Command::DeclareTopic { name, spec: Box::new(spec) }).await
    }

    /// Replaces the settings of a topic. Its kind cannot be changed.
    pub async fn update_topic(&self, name: TopicName, spec: TopicSpec) -> Result<(), EngineError> {
        self.ask(Command::UpdateTopic { name, spec: Box::new(spec) }).await.map(drop)
    }

    /// Deletes a topic and its subscriptions. Other bound queues stay.
    pub async fn delete_topic(&self, name: TopicName) -> Result<(), EngineError> {
        self.ask(Command::DeleteTopic { name }).await.map(drop)
    }

    /// Replaces the labels of a topic.
    pub async fn label_topic(
        &self,
        name: TopicName,
        labels: BTreeMap<String, String>,
    ) -> Result<(), EngineError> {
        self.ask(Command::LabelTopic { name, labels }).await.map(drop)
    }

    /// Creates a subscription with its rules, or checks that it exists with these settings; then its rules stay
    /// unchanged. Without rules, it gets all messages if the topic's kind has such a default, and otherwise none.
    pub async fn subscribe(
        &self,
        name: QueueName,
        spec: QueueSpec,
        rules: Option<Vec<Rule>>,
    ) -> Result<bool, EngineError> {
        self.declared(Command::Subscribe { name, spec: Box::new(spec), rules }).await
    }

    /// Adds a rule for a queue or another topic. Returns whether it is new. A different rule with the same name is refused.
    pub async fn bind(
        &self,
        topic: TopicName,
        target: impl Into<Address>,
        rule: Rule,
    ) -> Result<bool, EngineError> {
        let (target, rule) = (target.into(), Box::new(rule));
        self.declared(Command::Bind { topic, target, rule }).await
    }

    /// Replaces the rule of the same name atomically.
    pub async fn rebind(
        &self,
        topic: TopicName,
        target: impl Into<Address>,
        rule: Rule,
    ) -> Result<(), EngineError> {
        let (target, rule) = (target.into(), Box::new(rule));
        self.ask(Command::Rebind { topic, target, rule }).await.map(drop)
    }

    /// Removes a rule.
    pub async fn unbind(
        &self,
        topic: TopicName,
        target: impl Into<Address>,
        rule: String,
    ) -> Result<(), EngineError> {
        self.ask(Command::Unbind { topic, target: target.into(), rule }).await.map(drop)
    }

    /// Describes one topic.
    pub async fn topic(&self, name: TopicName) -> Result<TopicFacts, EngineError> {
        match self.ask(Command::DescribeTopic { name }).await? {
            Reply::Topics(mut facts) if facts.len() == 1 => Ok(facts.remove(0)),
            other => unreachable!("the core answered {other:?}"),
        }
    }

    /// Lists all topics by name, page by page as [`Engine::list`] does.
    pub async fn topics(&self) -> Result<Vec<TopicFacts>, EngineError> {
        let mut all = Vec::new();
        loop {
            let after = all.last().map(|last: &TopicFacts| last.name.clone());
            let page = self.topics_page(after).await?;
            let is_last = page.len() < limits::LIST_MAX;
            all.extend(page);
            if is_last {
                return Ok(all);
            }
        }
    }

    /// The next [`limits::LIST_MAX`] topics by name, after a given one. A shorter page is the last one.
    pub async fn topics_page(
        &self,
        after: Option<TopicName>,
    ) -> Result<Vec<TopicFacts>, EngineError> {
        match self.ask(Command::ListTopics { after, max: limits::LIST_MAX }).await? {
            Reply::Topics(facts) => Ok(facts),
            other => unreachable!("the core answered {other:?}"),
        }
    }

    /// Lists rules of a topic, or of one target of it, by target and name, after a given one.
    pub async fn rules(
        &self,
        topic: TopicName,
        target: Option<Address>,
        after: Option<(Address, String)>,
        max: usize,
    ) -> Result<Vec<Binding>, EngineError> {
        match self.ask(Command::Rules { topic, target, after, max }).await? {
            Reply::Rules(rules) => Ok(rules),
            other => unreachable!("the core answered {other:?}"),
        }
    }

    async fn declared(&self, command: Command) -> Result<bool, EngineError> {
        match self.ask(command).await? {
            Reply::Declared { created } => Ok(created),
            other => unreachable!("the core answered {other:?}"),
        }
    }
}
