//! Prometheus. Message, session and job ids are never labels.
//!
//! Queue figures are read from the engine at scrape time; requests and connections are counted here. `/metrics`
//! sums over all queues and topics, because thousands of them times a dozen metrics break scrapes;
//! `/metrics/per-object` has the labels `queue` and `topic`. A caller sees those that it has any grant on.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64};

use axum::Json as Answer;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use malote_engine::journal::{SYNC_BUCKETS_S, SyncTimes};
use malote_engine::{QueueFacts, TopicFacts};
use malote_model::{Principal, Timestamp};
use prometheus_client::encoding::{EncodeLabelSet, EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;
use serde::Serialize;
use tokio::time::Instant;

use crate::Api;
use crate::extract::Caller;
use crate::problem::{Code, Problem};

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RequestLabels {
    protocol: &'static str,
    operation: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct AnswerLabels {
    protocol: &'static str,
    operation: &'static str,
    status: u16,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ProtocolLabels {
    protocol: &'static str,
}

type Duration = Family<RequestLabels, Histogram, fn() -> Histogram>;

/// From 0.5 ms, about what one sync takes, to the longest poll.
fn buckets() -> Histogram {
    Histogram::new([
        0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0,
    ])
}

/// What this front end counts.
#[derive(Debug)]
pub struct Metrics {
    durations: Duration,
    answers: Family<AnswerLabels, Counter>,
    connections: Family<ProtocolLabels, Gauge>,
}

impl Default for Metrics {
    fn default() -> Self {
        let durations = Duration::new_with_constructor(buckets as fn() -> Histogram);
        Self { durations, answers: Family::default(), connections: Family::default() }
    }
}

/// A request under way.
pub struct Watch<'a> {
    metrics: &'a Metrics,
    operation: &'static str,
    since: Instant,
}

impl Metrics {
    /// Starts to time a request.
    pub fn request(&self, operation: &'static str) -> Watch<'_> {
        Watch { metrics: self, operation, since: Instant::now() }
    }

    /// Counts a connection while the answer lives.
    pub fn connection(self: &Arc<Self>, protocol: &'static str) -> Open {
        self.connections.get_or_create(&ProtocolLabels { protocol }).inc();
        Open { metrics: self.clone(), protocol }
    }
}

impl Watch<'_> {
    /// The request was answered.
    pub fn done(self, status: u16) {
        let (protocol, operation) = ("http", self.operation);
        let seconds = self.since.elapsed().as_secs_f64();
        let labels = RequestLabels { protocol, operation };
        self.metrics.durations.get_or_create(&labels).observe(seconds);
        let labels = AnswerLabels { protocol, operation, status };
        self.metrics.answers.get_or_create(&labels).inc();
    }
}

/// A connection that is counted.
pub struct Open {
    metrics: Arc<Metrics>,
    protocol: &'static str,
}

impl Drop for Open {
    fn drop(&mut self) {
        let labels = ProtocolLabels { protocol: self.protocol };
        self.metrics.connections.get_or_create(&labels).dec();
    }
}

/// Sums over all queues.
pub async fn aggregated(
    State(api): State<Api>,
    Caller(caller): Caller,
) -> Result<Response, Problem> {
    scrape(&api, &caller, false).await
}

/// Every queue by itself.
pub async fn per_object(
    State(api): State<Api>,
    Caller(caller): Caller,
) -> Result<Response, Problem> {
    scrape(&api, &caller, true).await
}

async fn scrape(api: &Api, caller: &Principal, per_queue: bool) -> Result<Response, Problem> {
    let facts = visible(api, caller).await?;
    let mut registry = Registry::with_prefix("malote");
    register_queues(&mut registry, &facts, api.engine.now(), per_queue);
    register_topics(&mut registry, &visible_topics(api, caller).await?, per_queue);
    registry.register(
        "request_duration_seconds",
        "Time from a request's head to its answer",
        api.metrics.durations.clone(),
    );
    registry.register("requests", "Requests answered", api.metrics.answers.clone());
    registry.register("connections", "Connections open", api.metrics.connections.clone());
    register_journal(&mut registry, api);
    let version = vec![("version", env!("CARGO_PKG_VERSION"))];
    registry.register("build", "The version that runs", Info::new(version));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry)
        .map_err(|error| Problem::new(Code::Internal, error.to_string()))?;
    if !per_queue {
        // An empty set of labels is allowed and looks like a mistake.
        text = text.replace("{} ", " ");
    }
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    Ok(([(header::CONTENT_TYPE, kind)], text).into_response())
}

fn register_journal(registry: &mut Registry, api: &Api) {
    let journal = api.engine.journal();
    let disk = api.engine.disk();
    let gauge = |value: u64| ConstGauge::new(value as i64);
    registry.register(
        "wal_fsync_duration_seconds",
        "How long syncs of the journal took",
        Syncs::of(journal.syncs()),
    );
    registry.register(
        "wal_bytes",
        "Bytes written to the journal",
        ConstCounter::new(journal.written_bytes()),
    );
    registry.register(
        "wal_size_bytes",
        "Bytes of journal segments in use",
        gauge(disk.journal_bytes),
    );
    registry.register(
        "damaged_messages",
        "Messages that could not be read when they should have been delivered",
        ConstCounter::new(api.engine.damaged()),
    );
    registry.register(
        "wal_live_bytes",
        "Bytes of the journal that were live at the last snapshot",
        gauge(disk.live_bytes),
    );
    registry.register(
        "wal_spare_bytes",
        "Bytes of journal segments that wait to be used",
        gauge(disk.spare_bytes),
    );
    registry.register("snapshot_bytes", "Bytes of snapshots", gauge(disk.snapshot_bytes));
    let counter = ConstCounter::new;
    registry.register("wal_copied", "Records copied by compaction", counter(disk.copied));
    registry.register("wal_recycled", "Journal segments used again", counter(disk.recycled));
    registry.register(
        "wal_scrubbed_bytes",
        "Bytes of the journal read again and verified",
        counter(disk.scrubbed_bytes),
    );
    registry.register("wal_damaged", "Damaged parts of the journal", counter(disk.damaged));
    registry.register("disk_free_bytes", "Bytes free on the disk", gauge(disk.free_bytes));
    registry.register(
        "publish_allowed",
        "1 unless the disk is too full to send",
        gauge(disk.publish_allowed.into()),
    );
}

/// The journal's own histogram, in the exposition's words.
#[derive(Debug)]
struct Syncs {
    buckets: Vec<(f64, u64)>,
    sum_s: f64,
}

impl Syncs {
    fn of(times: &SyncTimes) -> Self {
        let bounds = SYNC_BUCKETS_S.into_iter().chain([f64::MAX]);
        Self { buckets: bounds.zip(times.counts()).collect(), sum_s: times.sum_s() }
    }
}

impl EncodeMetric for Syncs {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), std::fmt::Error> {
        let count = self.buckets.iter().map(|(_, n)| n).sum();
        encoder.encode_histogram::<NoLabelSet>(self.sum_s, count, &self.buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
}

async fn visible(api: &Api, caller: &Principal) -> Result<Vec<QueueFacts>, Problem> {
    let mut facts = api.engine.list().await?;
    facts.retain(|facts| api.allow_look(caller, &facts.name).is_ok());
    Ok(facts)
}

async fn visible_topics(api: &Api, caller: &Principal) -> Result<Vec<TopicFacts>, Problem> {
    let mut facts = api.engine.topics().await?;
    facts.retain(|facts| api.allow_look_at(caller, &facts.name.clone().into()).is_ok());
    Ok(facts)
}

fn register_topics(registry: &mut Registry, facts: &[TopicFacts], per_topic: bool) {
    let gauge = || Family::<Labels, Gauge<i64, AtomicI64>>::default();
    let copies = Family::<Labels, Counter<u64, AtomicU64>>::default();
    let (rules, messages) = (gauge(), gauge());
    for f in facts {
        let topic = || per_topic.then(|| ("topic", f.name.as_str().to_owned()));
        let plain: Labels = topic().into_iter().collect();
        copies.get_or_create(&plain).inc_by(f.totals.copies);
        rules.get_or_create(&plain).inc_by(f.rules as i64);
        for (state, count) in [("scheduled", f.scheduled), ("waiting", f.waiting)] {
            let labels: Labels = topic().into_iter().chain([("state", state.to_owned())]).collect();
            messages.get_or_create(&labels).inc_by(count as i64);
        }
    }
    registry.register("topic_copies", "Copies that topics made for queues", copies);
    registry.register("topic_rules", "Rules of topics", rules);
    registry.register(
        "topic_messages",
        "Messages that topics have not routed yet: scheduled, or about to be",
        messages,
    );
}

type Labels = Vec<(&'static str, String)>;

fn register_queues(registry: &mut Registry, facts: &[QueueFacts], now: Timestamp, per_queue: bool) {
    let labels = |facts: &QueueFacts, more: &[(&'static str, &str)]| -> Labels {
        let queue = per_queue.then(|| ("queue", facts.name.as_str().to_owned()));
        let more = more.iter().map(|(name, value)| (*name, (*value).to_owned()));
        queue.into_iter().chain(more).collect()
    };
    let gauge = || Family::<Labels, Gauge<i64, AtomicI64>>::default();
    let counter = || Family::<Labels, Counter<u64, AtomicU64>>::default();
    let (messages, sessions, bytes, consumers) = (gauge(), gauge(), gauge(), gauge());
    let oldest = Family::<Labels, Gauge<f64, AtomicU64>>::default();
    let (published, delivered, settled, redelivered, lost) =
        (counter(), counter(), counter(), counter(), counter());
    for f in facts {
        for (state, count) in [
            ("ready", f.ready),
            ("locked", f.locked),
            ("delayed", f.delayed),
            ("scheduled", f.scheduled),
            ("deferred", f.deferred),
            ("dead_letter", f.dead_lettered),
        ] {
            messages.get_or_create(&labels(f, &[("state", state)])).inc_by(count as i64);
        }
        let idle = f.sessions.saturating_sub(f.sessions_held + f.sessions_ready);
        for (state, count) in
            [("active", f.sessions_ready), ("locked", f.sessions_held), ("idle", idle)]
        {
            sessions.get_or_create(&labels(f, &[("state", state)])).inc_by(count as i64);
        }
        let plain = labels(f, &[]);
        bytes.get_or_create(&plain).inc_by(f.bytes as i64);
        consumers.get_or_create(&plain).inc_by(f.consumers as i64);
        // Over several queues: the oldest of all.
        let age = f.oldest_at.map_or(0.0, |at| now.0.saturating_sub(at.0) as f64 / 1000.0);
        let have = oldest.get_or_create(&plain).get();
        oldest.get_or_create(&plain).set(have.max(age));
        published.get_or_create(&plain).inc_by(f.totals.sent);
        delivered.get_or_create(&plain).inc_by(f.totals.delivered);
        redelivered.get_or_create(&plain).inc_by(f.totals.redelivered);
        for (outcome, count) in [
            ("completed", f.totals.completed),
            ("abandoned", f.totals.abandoned),
            ("dead_lettered", f.totals.dead_lettered),
            ("deferred", f.totals.deferred),
            ("expired", f.totals.expired),
        ] {
            settled.get_or_create(&labels(f, &[("outcome", outcome)])).inc_by(count);
        }
        for (kind, count) in [("message", f.totals.lost), ("session", f.totals.sessions_lost)] {
            lost.get_or_create(&labels(f, &[("kind", kind)])).inc_by(count);
        }
    }
    registry.register("queue_messages", "Messages by state", messages);
    registry.register(
        "queue_sessions",
        "Sessions by state: active have work and no holder",
        sessions,
    );
    registry.register("queue_bytes", "Bytes of all messages, as sent", bytes);
    registry.register("queue_consumers", "Consumers attached or waiting", consumers);
    registry.register(
        "queue_oldest_message_age_seconds",
        "Age of the oldest ready message",
        oldest,
    );
    registry.register("messages_published", "Messages put in", published);
    registry.register("messages_delivered", "Messages handed to receivers", delivered);
    registry.register(
        "messages_redelivered",
        "Messages handed out that had been before",
        redelivered,
    );
    registry.register(
        "messages_settled",
        "Leases ended, and messages expired, by outcome",
        settled,
    );
    registry.register(
        "lock_lost",
        "Leases and session holds that ran out or whose holder vanished",
        lost,
    );
}

/// A queue as dashboards of job queues know it.
#[derive(Debug, Serialize)]
pub struct QueueMetrics {
    queue: String,
    waiting: u64,
    active: u64,
    completed: u64,
    failed: u64,
    delayed: u64,
}

/// Every queue in five numbers.
pub async fn queues(
    State(api): State<Api>,
    Caller(caller): Caller,
) -> Result<Answer<Vec<QueueMetrics>>, Problem> {
    let of = |f: QueueFacts| QueueMetrics {
        queue: f.name.as_str().to_owned(),
        waiting: f.ready,
        active: f.locked,
        completed: f.totals.completed,
        failed: f.dead_lettered,
        delayed: f.delayed + f.scheduled,
    };
    Ok(Answer(visible(&api, &caller).await?.into_iter().map(of).collect()))
}
