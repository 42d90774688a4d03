//! Tables of the metrics of queues and topics, and pages with sums or with each object.

use std::convert::Infallible;

use bytes::Bytes;
use malote_engine::{QueueFacts, TopicFacts};
use malote_model::Timestamp;
use malote_wire_native::exposition::{Format, Kind, write_end, write_head, write_sample};

/// One metric of an object.
pub(super) struct Metric<T: 'static> {
    name: &'static str,
    kind: Kind,
    help: &'static str,
    /// The label that distinguishes several values.
    label: &'static str,
    /// How the values of several objects are combined.
    combine: fn(f64, f64) -> f64,
    values: &'static [(&'static str, Value<T>)],
}

type Value<T> = fn(&T, Timestamp) -> f64;

/// A kind of object with metrics.
pub(super) trait Object: Sized + 'static {
    /// The label with the name of the object.
    const LABEL: &'static str;
    const METRICS: &'static [Metric<Self>];
    fn name(&self) -> &str;
}

fn sum(a: f64, b: f64) -> f64 {
    a + b
}

const fn gauge<T>(
    name: &'static str,
    help: &'static str,
    label: &'static str,
    values: &'static [(&'static str, Value<T>)],
) -> Metric<T> {
    Metric { name, kind: Kind::Gauge, help, label, combine: sum, values }
}

const fn counter<T>(
    name: &'static str,
    help: &'static str,
    label: &'static str,
    values: &'static [(&'static str, Value<T>)],
) -> Metric<T> {
    Metric { name, kind: Kind::Counter, help, label, combine: sum, values }
}

impl Object for QueueFacts {
    const LABEL: &'static str = "queue";
    const METRICS: &'static [Metric<Self>] = &[
        gauge(
            "queue_messages",
            "Messages by state",
            "state",
            &[
                ("ready", |f, _| f.ready as f64),
                ("locked", |f, _| f.locked as f64),
                ("delayed", |f, _| f.delayed as f64),
                ("scheduled", |f, _| f.scheduled as f64),
                ("deferred", |f, _| f.deferred as f64),
                ("dead_letter", |f, _| f.dead_lettered as f64),
            ],
        ),
        gauge(
            "queue_sessions",
            "Sessions by state: active have work and no holder",
            "state",
            &[
                ("active", |f, _| f.sessions_ready as f64),
                ("locked", |f, _| f.sessions_held as f64),
                ("idle", |f, _| {
                    f.sessions.saturating_sub(f.sessions_held + f.sessions_ready) as f64
                }),
            ],
        ),
        gauge("queue_bytes", "Bytes of all messages, as sent", "", &[("", |f, _| f.bytes as f64)]),
        gauge(
            "queue_consumers",
            "Consumers attached or waiting",
            "",
            &[("", |f, _| f.consumers as f64)],
        ),
        Metric {
            combine: f64::max,
            ..gauge(
                "queue_oldest_message_age_seconds",
                "Age of the oldest ready message",
                "",
                &[("", |f, now| {
                    f.oldest_at.map_or(0.0, |at| now.0.saturating_sub(at.0) as f64 / 1000.0)
                })],
            )
        },
        counter("messages_published", "Messages put in", "", &[("", |f, _| f.totals.sent as f64)]),
        counter(
            "messages_delivered",
            "Messages handed to receivers",
            "",
            &[("", |f, _| f.totals.delivered as f64)],
        ),
        counter(
            "messages_redelivered",
            "Messages handed out that had been before",
            "",
            &[("", |f, _| f.totals.redelivered as f64)],
        ),
        counter(
            "messages_settled",
            "Leases ended, and messages expired, by outcome",
            "outcome",
            &[
                ("completed", |f, _| f.totals.completed as f64),
                ("abandoned", |f, _| f.totals.abandoned as f64),
                ("dead_lettered", |f, _| f.totals.dead_lettered as f64),
                ("deferred", |f, _| f.totals.deferred as f64),
                ("expired", |f, _| f.totals.expired as f64),
            ],
        ),
        counter(
            "lock_lost",
            "Leases and session holds that ran out or whose holder vanished",
            "kind",
            &[
                ("message", |f, _| f.totals.lost as f64),
                ("session", |f, _| f.totals.sessions_lost as f64),
            ],
        ),
    ];

    fn name(&self) -> &str {
        self.name.as_str()
    }
}

impl Object for TopicFacts {
    const LABEL: &'static str = "topic";
    const METRICS: &'static [Metric<Self>] = &[
        counter(
            "topic_copies",
            "Copies that topics made for queues",
            "",
            &[("", |f, _| f.totals.copies as f64)],
        ),
        gauge("topic_rules", "Rules of topics", "", &[("", |f, _| f.rules as f64)]),
        gauge(
            "topic_messages",
            "Messages that topics have not routed yet: scheduled, or about to be",
            "state",
            &[("scheduled", |f, _| f.scheduled as f64), ("waiting", |f, _| f.waiting as f64)],
        ),
    ];

    fn name(&self) -> &str {
        self.name.as_str()
    }
}

impl<T> Metric<T> {
    fn sample(&self, out: &mut String, object: Option<(&str, &str)>, state: &str, value: f64) {
        let state = (self.label, state);
        let (both, one);
        let labels: &[(&str, &str)] = match (object, self.label) {
            (Some(object), "") => {
                one = [object];
                &one
            }
            (Some(object), _) => {
                both = [object, state];
                &both
            }
            (None, "") => &[],
            (None, _) => {
                one = [state];
                &one
            }
        };
        match self.kind {
            Kind::Counter => write_sample(out, &format!("{}_total", self.name), labels, value),
            _ => write_sample(out, self.name, labels, value),
        }
    }
}

/// All metrics of a kind of object, combined over all objects.
pub(super) struct Combined<T: Object> {
    values: Vec<Vec<f64>>,
    of: std::marker::PhantomData<T>,
}

impl<T: Object> Default for Combined<T> {
    fn default() -> Self {
        let values = T::METRICS.iter().map(|metric| vec![0.0; metric.values.len()]).collect();
        Self { values, of: std::marker::PhantomData }
    }
}

impl<T: Object> Combined<T> {
    pub(super) fn add(&mut self, object: &T, now: Timestamp) {
        for (metric, sums) in T::METRICS.iter().zip(&mut self.values) {
            for ((_, value), sum) in metric.values.iter().zip(sums) {
                *sum = (metric.combine)(*sum, value(object, now));
            }
        }
    }

    pub(super) fn write(&self, out: &mut String, format: Format) {
        for (metric, sums) in T::METRICS.iter().zip(&self.values) {
            write_head(out, format, metric.name, metric.kind, metric.help);
            for ((state, _), sum) in metric.values.iter().zip(sums) {
                metric.sample(out, None, state, *sum);
            }
        }
    }
}

/// Approximate size of a piece of a page.
const CHUNK_BYTES: usize = 64 << 10;

/// A page with each object, generated in pieces while it is read.
pub(super) struct PerObjectPage {
    pub format: Format,
    pub now: Timestamp,
    pub queues: Vec<QueueFacts>,
    pub topics: Vec<TopicFacts>,
    /// The rest of the page.
    pub rest: Option<String>,
    /// Position of the next sample of queues and of topics: metric and object.
    pub at: [(usize, usize); 2],
    /// Limits the number of concurrent pages.
    pub _permit: tokio::sync::OwnedSemaphorePermit,
}

/// Writes samples from a position on until the piece is full. Returns whether all are written.
fn fill<T: Object>(
    out: &mut String,
    format: Format,
    now: Timestamp,
    objects: &[T],
    (nth, object_nth): &mut (usize, usize),
) -> bool {
    while let Some(metric) = T::METRICS.get(*nth) {
        if *object_nth == 0 {
            write_head(out, format, metric.name, metric.kind, metric.help);
        }
        while let Some(object) = objects.get(*object_nth) {
            if out.len() >= CHUNK_BYTES {
                return false;
            }
            for (state, value) in metric.values {
                let name = (T::LABEL, object.name());
                metric.sample(out, Some(name), state, value(object, now));
            }
            *object_nth += 1;
        }
        (*nth, *object_nth) = (*nth + 1, 0);
    }
    true
}

impl Iterator for PerObjectPage {
    type Item = Result<Bytes, Infallible>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut out = String::with_capacity(CHUNK_BYTES + 1024);
        let (format, now, [queue_at, topic_at]) = (self.format, self.now, &mut self.at);
        let all = fill(&mut out, format, now, &self.queues, queue_at)
            && fill(&mut out, format, now, &self.topics, topic_at);
        if all {
            let rest = self.rest.take();
            if out.is_empty() && rest.is_none() {
                return None;
            }
            if let Some(rest) = rest {
                out.push_str(&rest);
                write_end(&mut out, format);
            }
        }
        Some(Ok(out.into()))
    }
}
