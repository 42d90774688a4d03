//! Calls about topics, subscriptions and rules, and requests with a reply.

use std::time::Duration;

use bytes::Bytes;
use hyper::Method;
use malote_model::{QueueName, TopicName};
use malote_wire_native::message::{MessageBatch, SentBatch, SentMessage};
use malote_wire_native::received::ReceivedMessage;
use malote_wire_native::rule::{NamedRule, RuleTest, RuleTestResult};
use malote_wire_native::settings::QueueSettings;
use malote_wire_native::topic::{
    BoundRule, RuleCursor, RuleList, SubscribeRequest, SubscriptionInfo, SubscriptionList,
    TopicInfo, TopicList, TopicSettings,
};

use super::path::Path;
use super::{Api, Result, json};

/// Rules per page.
const PAGE: usize = 1000;

/// The parameters of a request with a reply.
#[derive(Debug, Default)]
pub(crate) struct RequestOptions {
    /// Names and values of the query.
    pub query: Vec<(&'static str, String)>,
    /// How long to wait for the reply.
    pub wait_ms: u64,
}

impl Api {
    /// `GET /topics`
    pub(crate) async fn topics(&self) -> Result<Vec<TopicInfo>> {
        Ok(self.get::<TopicList>(Path::api().part("topics")).await?.topics)
    }

    /// `GET /topics/{topic}`
    pub(crate) async fn topic(&self, topic: &TopicName) -> Result<TopicInfo> {
        self.get(Path::topic(topic)).await
    }

    /// `PUT /topics/{topic}`. Returns whether it was created, and its settings.
    pub(crate) async fn declare_topic(
        &self,
        topic: &TopicName,
        spec: &TopicSettings,
    ) -> Result<(bool, TopicInfo)> {
        let response = self.client.call(Method::PUT, Path::topic(topic), json(spec), None).await?;
        Ok((response.status == 201, response.json()?))
    }

    /// `DELETE /topics/{topic}`
    pub(crate) async fn delete_topic(&self, topic: &TopicName) -> Result<()> {
        self.client.call(Method::DELETE, Path::topic(topic), None, None).await.map(drop)
    }

    /// `POST /topics/{topic}/messages/batch`
    pub(crate) async fn publish(
        &self,
        topic: &TopicName,
        batch: &MessageBatch,
    ) -> Result<Vec<SentMessage>> {
        let path = Path::topic(topic).part("messages").part("batch");
        Ok(self.post::<SentBatch>(path, batch).await?.messages)
    }

    /// `GET /topics/{topic}/subscriptions`
    pub(crate) async fn subscriptions(&self, topic: &TopicName) -> Result<Vec<SubscriptionInfo>> {
        let path = Path::topic(topic).part("subscriptions");
        Ok(self.get::<SubscriptionList>(path).await?.subscriptions)
    }

    /// `GET /topics/{topic}/subscriptions/{name}`
    pub(crate) async fn subscription(
        &self,
        topic: &TopicName,
        name: &str,
    ) -> Result<SubscriptionInfo> {
        self.get(Path::topic(topic).part("subscriptions").part(name)).await
    }

    /// `PUT /topics/{topic}/subscriptions/{name}`. Returns whether it was created, and its settings.
    pub(crate) async fn subscribe(
        &self,
        topic: &TopicName,
        name: &str,
        spec: QueueSettings,
        rules: Option<Vec<NamedRule>>,
    ) -> Result<(bool, SubscriptionInfo)> {
        let path = Path::topic(topic).part("subscriptions").part(name);
        let body = json(&SubscribeRequest { spec, rules });
        let response = self.client.call(Method::PUT, path, body, None).await?;
        Ok((response.status == 201, response.json()?))
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
    ) -> Result<Vec<BoundRule>> {
        let mut all = Vec::new();
        let mut after: Option<RuleCursor> = None;
        loop {
            let path = Path::topic(topic).part("rules").query("max", PAGE);
            let path = path
                .query_opt("queue", queue.map(QueueName::as_str))
                .query_opt("after_queue", after.as_ref().map(|next| &next.queue))
                .query_opt("after_topic", after.as_ref().and_then(|next| next.to_topic.as_ref()))
                .query_opt("after_rule", after.as_ref().map(|next| &next.rule));
            let page: RuleList = self.get(path).await?;
            all.extend(page.rules);
            after = page.next;
            if after.is_none() {
                return Ok(all);
            }
        }
    }

    /// `PUT /topics/{topic}/queues/{queue}/rules/{rule}`. Returns whether it was created.
    pub(crate) async fn bind(
        &self,
        topic: &TopicName,
        queue: &QueueName,
        rule: &NamedRule,
    ) -> Result<bool> {
        let path = Path::topic(topic).part("queues").part(queue.as_str());
        let path = path.part("rules").part(&rule.name);
        let body = rule.clone().body();
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
    pub(crate) async fn test_rule(&self, request: &RuleTest) -> Result<RuleTestResult> {
        self.post(Path::api().part("rules").part("test"), request).await
    }

    /// `POST /queues/{queue}/request`. Returns the reply.
    pub(crate) async fn request(
        &self,
        queue: &QueueName,
        options: &RequestOptions,
        content_type: &'static str,
        body: Bytes,
    ) -> Result<ReceivedMessage> {
        let path = Path::queue(queue).part("request").query("timeout-ms", options.wait_ms);
        let path = options.query.iter().fold(path, |path, (name, value)| path.query(name, value));
        let wait = Duration::from_millis(options.wait_ms);
        let body = Some((content_type, body));
        self.client.call_and_wait(Method::POST, path, body, None, wait).await?.json()
    }
}
