//! What a front end asks of topics.

use std::collections::BTreeMap;

use malote_model::{QueueName, QueueSpec, Rule, TopicName, TopicSpec, limits};

use crate::command::{Binding, Command, Reply, TopicFacts};
use crate::handle::{Engine, EngineError};

impl Engine {
    /// Makes the topic, or finds it just as asked. Tells whether it is new.
    pub async fn declare_topic(
        &self,
        name: TopicName,
        spec: TopicSpec,
    ) -> Result<bool, EngineError> {
        self.declared(Command::DeclareTopic { name, spec: Box::new(spec) }).await
    }

    /// Replaces the properties of a topic; its kind is fixed.
    pub async fn update_topic(&self, name: TopicName, spec: TopicSpec) -> Result<(), EngineError> {
        self.ask(Command::UpdateTopic { name, spec: Box::new(spec) }).await.map(drop)
    }

    /// Removes a topic and its subscriptions. Queues that were only bound stay.
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

    /// Makes a subscription and its rules, or finds it just as asked: then its rules stay what they are. Without rules
    /// it takes everything, where its topic's kind has such a rule, and else nothing.
    pub async fn subscribe(
        &self,
        name: QueueName,
        spec: QueueSpec,
        rules: Option<Vec<Rule>>,
    ) -> Result<bool, EngineError> {
        self.declared(Command::Subscribe { name, spec: Box::new(spec), rules }).await
    }

    /// Adds a rule for a queue. Tells whether it is new; another of the same name is refused.
    pub async fn bind(
        &self,
        topic: TopicName,
        queue: QueueName,
        rule: Rule,
    ) -> Result<bool, EngineError> {
        self.declared(Command::Bind { topic, queue, rule: Box::new(rule) }).await
    }

    /// Puts a rule in the place of the one of that name, with no moment between them.
    pub async fn rebind(
        &self,
        topic: TopicName,
        queue: QueueName,
        rule: Rule,
    ) -> Result<(), EngineError> {
        self.ask(Command::Rebind { topic, queue, rule: Box::new(rule) }).await.map(drop)
    }

    /// Takes a rule away.
    pub async fn unbind(
        &self,
        topic: TopicName,
        queue: QueueName,
        rule: String,
    ) -> Result<(), EngineError> {
        self.ask(Command::Unbind { topic, queue, rule }).await.map(drop)
    }

    /// Facts about one topic.
    pub async fn topic(&self, name: TopicName) -> Result<TopicFacts, EngineError> {
        match self.ask(Command::DescribeTopic { name }).await? {
            Reply::Topics(mut facts) if facts.len() == 1 => Ok(facts.remove(0)),
            other => unreachable!("the core answered {other:?}"),
        }
    }

    /// Facts about every topic, by name, asked for a page at a time as [`Engine::list`] does.
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

    /// The next [`limits::LIST_MAX`] topics by name, from after one. A page with fewer is the last.
    pub async fn topics_page(
        &self,
        after: Option<TopicName>,
    ) -> Result<Vec<TopicFacts>, EngineError> {
        match self.ask(Command::ListTopics { after, max: limits::LIST_MAX }).await? {
            Reply::Topics(facts) => Ok(facts),
            other => unreachable!("the core answered {other:?}"),
        }
    }

    /// Rules of a topic, or of one queue on it, by queue and name, from after one.
    pub async fn rules(
        &self,
        topic: TopicName,
        queue: Option<QueueName>,
        after: Option<(QueueName, String)>,
        max: usize,
    ) -> Result<Vec<Binding>, EngineError> {
        match self.ask(Command::Rules { topic, queue, after, max }).await? {
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
