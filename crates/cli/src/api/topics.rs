//! Topics, subscriptions, rules and requests: words and calls.

use std::time::Duration;

use bytes::Bytes;
use hyper::Method;
use malote_model::{QueueName, TopicName};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::path::Path;
use super::words::{Batch, NewMessage, Queue, Received, SentAll, SentOne};
use super::{Api, Result, json};

/// Rules in one page.
const PAGE: usize = 1000;

/// A topic and all about it.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Topic {
    /// Its name.
    pub name: String,
    /// When it was made.
    pub created_at: u64,
    /// What it is.
    pub spec: Map<String, Value>,
    /// Queues with rules.
    pub queues: u64,
    /// Rules of all of them.
    pub rules: u64,
    /// Messages to be routed later.
    pub scheduled: u64,
    /// Messages about to be routed.
    pub waiting: u64,
    /// What it has done.
    pub totals: TopicTotals,
}

impl Topic {
    /// Which rules it takes.
    pub(crate) fn kind(&self) -> &str {
        self.spec.get("kind").and_then(Value::as_str).unwrap_or("filter")
    }
}

/// What a topic has done.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct TopicTotals {
    /// Copies made.
    pub copies: u64,
}

#[derive(Deserialize)]
struct Topics {
    topics: Vec<Topic>,
}

/// A filter under a name, and what it does to copies.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub(crate) struct NamedRule {
    /// Its name.
    pub name: String,
    /// Which messages.
    #[serde(default = "all")]
    pub filter: Value,
    /// What is done to the copy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action: Option<Value>,
}

fn all() -> Value {
    "all".into()
}

/// A rule and the queue that it leads to.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Bound {
    /// Which queue.
    pub queue: String,
    /// Which messages.
    #[serde(flatten)]
    pub rule: NamedRule,
}

#[derive(Deserialize)]
struct Rules {
    rules: Vec<Bound>,
    next: Option<Next>,
}

#[derive(Deserialize)]
struct Next {
    queue: String,
    rule: String,
}

/// A subscription and its queue.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Subscription {
    /// Of which topic.
    pub topic: String,
    /// Its name there.
    pub name: String,
    /// Where its messages wait.
    pub queue: Queue,
    /// What it takes, when it is shown alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rules: Option<Vec<NamedRule>>,
}

#[derive(Deserialize)]
struct Subscriptions {
    subscriptions: Vec<Subscription>,
}

/// A rule to try, and on what.
#[derive(Debug, Serialize)]
pub(crate) struct RuleTest {
    /// Which messages.
    pub filter: Value,
    /// What is done to the copy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub action: Option<Value>,
    /// Whether this is one of them.
    pub message: NewMessage,
}

/// What came of trying.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct RuleTested {
    /// Whether it is.
    pub matches: bool,
    /// The copy, if it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<Received>,
}

/// A rule without its name, which stands in the path.
#[derive(Serialize)]
struct RuleBody<'a> {
    filter: &'a Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    action: Option<&'a Value>,
}

/// A subscription as asked.
#[derive(Serialize)]
struct Subscribe<'a, S> {
    spec: &'a S,
    #[serde(skip_serializing_if = "Option::is_none")]
    rules: Option<&'a [NamedRule]>,
}

/// What a request says besides its body.
#[derive(Debug, Default)]
pub(crate) struct Ask {
    /// Names and values of the query.
    pub query: Vec<(&'static str, String)>,
    /// How long to wait for the answer.
    pub wait_ms: u64,
}

impl Api {
    /// `GET /topics`
    pub(crate) async fn topics(&self) -> Result<Vec<Topic>> {
        Ok(self.get::<Topics>(Path::api().part("topics")).await?.topics)
    }

    /// `GET /topics/{topic}`
    pub(crate) async fn topic(&self, topic: &TopicName) -> Result<Topic> {
        self.get(Path::topic(topic)).await
    }

    /// `PUT /topics/{topic}`: whether it was made, and what it is.
    pub(crate) async fn declare_topic(
        &self,
        topic: &TopicName,
        spec: &Map<String, Value>,
    ) -> Result<(bool, Topic)> {
        let answer = self.client.call(Method::PUT, Path::topic(topic), json(spec), None).await?;
        Ok((answer.status == 201, answer.json()?))
    }

    /// `DELETE /topics/{topic}`
    pub(crate) async fn delete_topic(&self, topic: &TopicName) -> Result<()> {
        self.client.call(Method::DELETE, Path::topic(topic), None, None).await.map(drop)
    }

    /// `POST /topics/{topic}/messages/batch`
    pub(crate) async fn publish(
        &self,
        topic: &TopicName,
        batch: &Batch<'_>,
    ) -> Result<Vec<SentOne>> {
        let path = Path::topic(topic).part("messages").part("batch");
        Ok(self.post::<SentAll>(path, batch).await?.messages)
    }

    /// `GET /topics/{topic}/subscriptions`
    pub(crate) async fn subscriptions(&self, topic: &TopicName) -> Result<Vec<Subscription>> {
        let path = Path::topic(topic).part("subscriptions");
        Ok(self.get::<Subscriptions>(path).await?.subscriptions)
    }

    /// `GET /topics/{topic}/subscriptions/{name}`
    pub(crate) async fn subscription(&self, topic: &TopicName, name: &str) -> Result<Subscription> {
        self.get(Path::topic(topic).part("subscriptions").part(name)).await
    }

    /// `PUT /topics/{topic}/subscriptions/{name}`: whether it was made, and what it is.
    pub(crate) async fn subscribe(
        &self,
        topic: &TopicName,
        name: &str,
        spec: &impl Serialize,
        rules: Option<&[NamedRule]>,
    ) -> Result<(bool, Subscription)> {
        let path = Path::topic(topic).part("subscriptions").part(name);
        let body = json(&Subscribe { spec, rules });
        let answer = self.client.call(Method::PUT, path, body, None).await?;
        Ok((answer.status == 201, answer.json()?))
    }

    /// `DELETE /topics/{topic}/subscriptions/{name}`
    pub(crate) async fn unsubscribe(&self, topic: &TopicName, name: &str) -> Result<()> {
        let path = Path::topic(topic).part("subscriptions").part(name);
        self.client.call(Method::DELETE, path, None, None).await.map(drop)
    }

    /// `GET /topics/{topic}/rules`, page by page.
    pub(crate) async fn rules(
        &self,
        topic: &TopicName,
        queue: Option<&QueueName>,
    ) -> Result<Vec<Bound>> {
        let mut all = Vec::new();
        let mut after: Option<Next> = None;
        loop {
            let path = Path::topic(topic).part("rules").query("max", PAGE);
            let path = path
                .query_opt("queue", queue.map(QueueName::as_str))
                .query_opt("after_queue", after.as_ref().map(|next| &next.queue))
                .query_opt("after_rule", after.as_ref().map(|next| &next.rule));
            let page: Rules = self.get(path).await?;
            all.extend(page.rules);
            after = page.next;
            if after.is_none() {
                return Ok(all);
            }
        }
    }

    /// `PUT /topics/{topic}/queues/{queue}/rules/{rule}`: whether it is new.
    pub(crate) async fn bind(
        &self,
        topic: &TopicName,
        queue: &QueueName,
        rule: &NamedRule,
    ) -> Result<bool> {
        let path = Path::topic(topic).part("queues").part(queue.as_str());
        let path = path.part("rules").part(&rule.name);
        let body = RuleBody { filter: &rule.filter, action: rule.action.as_ref() };
        Ok(self.client.call(Method::PUT, path, json(&body), None).await?.status == 201)
    }

    /// `DELETE /topics/{topic}/queues/{queue}/rules/{rule}`
    pub(crate) async fn unbind(
        &self,
        topic: &TopicName,
        queue: &QueueName,
        rule: &str,
    ) -> Result<()> {
        let path = Path::topic(topic).part("queues").part(queue.as_str()).part("rules").part(rule);
        self.client.call(Method::DELETE, path, None, None).await.map(drop)
    }

    /// `POST /rules/test`
    pub(crate) async fn test_rule(&self, asked: &RuleTest) -> Result<RuleTested> {
        self.post(Path::api().part("rules").part("test"), asked).await
    }

    /// `POST /queues/{queue}/request`: the answer.
    pub(crate) async fn request(
        &self,
        queue: &QueueName,
        ask: &Ask,
        content_type: &'static str,
        body: Bytes,
    ) -> Result<Received> {
        let path = Path::queue(queue).part("request").query("timeout-ms", ask.wait_ms);
        let path = ask.query.iter().fold(path, |path, (name, value)| path.query(name, value));
        let patience = Duration::from_millis(ask.wait_ms);
        let body = Some((content_type, body));
        self.client.call_patiently(Method::POST, path, body, None, patience).await?.json()
    }

    /// `PUT /queues/{queue}` with a specification from a file.
    pub(crate) async fn declare_as(
        &self,
        queue: &QueueName,
        spec: &Map<String, Value>,
    ) -> Result<()> {
        self.client.call(Method::PUT, Path::queue(queue), json(spec), None).await.map(drop)
    }

    /// `PATCH /queues/{queue}` with fields from a file.
    pub(crate) async fn change(&self, queue: &QueueName, spec: &Map<String, Value>) -> Result<()> {
        self.client.call(Method::PATCH, Path::queue(queue), json(spec), None).await.map(drop)
    }

    /// `GET /queues`, the specifications as they are written.
    pub(crate) async fn specs(&self) -> Result<Vec<(String, Map<String, Value>)>> {
        #[derive(Deserialize)]
        struct Queues {
            queues: Vec<Named>,
        }
        #[derive(Deserialize)]
        struct Named {
            name: String,
            spec: Map<String, Value>,
        }
        let all: Queues = self.get(Path::api().part("queues")).await?;
        Ok(all.queues.into_iter().map(|queue| (queue.name, queue.spec)).collect())
    }
}
