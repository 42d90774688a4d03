//! Counters of queues, and rates from the history of the last hour.
//!
//! Malote counts deliveries and completions of a queue, whatever protocol made them. It cannot tell `basic.get` from
//! `basic.consume`, so those counters are left out.

use malote_engine::{History, QueueFacts, QueueSample, Totals};
use serde_json::{Map, Value, json};

/// Changes per second, from the last two samples of a queue.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Rates {
    pub publish: f64,
    pub deliver: f64,
    pub ack: f64,
    ready: f64,
    unacked: f64,
}

impl Rates {
    /// None for a queue without samples: it is new, or has no history.
    pub fn of(facts: &QueueFacts, history: &History) -> Option<Self> {
        let (before, last) = history.recent(&facts.name)?;
        let mut rates = Self { publish: last.in_per_s, ack: last.out_per_s, ..Self::default() };
        if let Some(before) = before {
            let seconds = last.at.0.saturating_sub(before.at.0) as f64 / 1000.0;
            let rate = |change: f64| if seconds > 0.0 { change / seconds } else { 0.0 };
            let change =
                |count: fn(&QueueSample) -> u64| count(&last) as f64 - count(&before) as f64;
            rates.deliver = rate(last.delivered as f64);
            rates.ready = rate(change(|sample| sample.ready));
            rates.unacked = rate(change(|sample| sample.locked));
        }
        Some(rates)
    }

    pub fn add(&mut self, other: &Self) {
        self.publish += other.publish;
        self.deliver += other.deliver;
        self.ack += other.ack;
        self.ready += other.ready;
        self.unacked += other.unacked;
    }
}

fn detail(rate: f64) -> Value {
    // Two digits, as in RabbitMQ.
    json!({ "rate": (rate * 100.0).round() / 100.0 })
}

/// Messages that RabbitMQ would count as ready: delayed ones too, because they are in the queue.
fn waiting(facts: &QueueFacts) -> u64 {
    facts.ready + facts.delayed
}

/// The fields `messages…` and `consumers`.
pub(super) fn queue_counts(queue: &mut Map<String, Value>, facts: &QueueFacts, history: &History) {
    let (ready, unacked) = (waiting(facts), facts.locked);
    let counts = [
        ("messages", ready + unacked),
        ("messages_ready", ready),
        ("messages_unacknowledged", unacked),
        ("message_bytes", facts.bytes),
        ("consumers", facts.consumers),
    ];
    for (name, count) in counts {
        queue.insert(name.into(), count.into());
    }
    if let Some(rates) = Rates::of(facts, history) {
        queue.extend(count_details(&rates));
    }
    let oldest = facts.oldest_at.map_or(Value::Null, |at| (at.0 / 1000).into());
    queue.insert("head_message_timestamp".into(), oldest);
}

fn count_details(rates: &Rates) -> [(String, Value); 3] {
    [
        ("messages_details".into(), detail(rates.ready + rates.unacked)),
        ("messages_ready_details".into(), detail(rates.ready)),
        ("messages_unacknowledged_details".into(), detail(rates.unacked)),
    ]
}

/// The field `message_stats`.
pub(super) fn queue_stats(facts: &QueueFacts, history: &History) -> Value {
    message_stats(&facts.totals, Rates::of(facts, history).as_ref())
}

fn message_stats(totals: &Totals, rates: Option<&Rates>) -> Value {
    let mut stats = Map::new();
    let counts = [
        ("publish", totals.sent, rates.map(|rates| rates.publish)),
        ("deliver_get", totals.delivered, rates.map(|rates| rates.deliver)),
        ("ack", totals.completed, rates.map(|rates| rates.ack)),
        ("redeliver", totals.redelivered, None),
    ];
    for (name, count, rate) in counts {
        stats.insert(name.into(), count.into());
        if let Some(rate) = rate {
            stats.insert(format!("{name}_details"), detail(rate));
        }
    }
    Value::Object(stats)
}

/// The sum of many queues.
#[derive(Default)]
pub(super) struct Sum {
    pub queues: u64,
    ready: u64,
    unacked: u64,
    totals: Totals,
    rates: Rates,
}

impl Sum {
    pub fn add(&mut self, facts: &QueueFacts, history: &History) {
        self.queues += 1;
        self.ready += waiting(facts);
        self.unacked += facts.locked;
        let Totals { sent, delivered, completed, redelivered, .. } = facts.totals;
        self.totals.sent += sent;
        self.totals.delivered += delivered;
        self.totals.completed += completed;
        self.totals.redelivered += redelivered;
        if let Some(rates) = Rates::of(facts, history) {
            self.rates.add(&rates);
        }
    }

    /// The fields `queue_totals` and `message_stats`.
    pub fn fields(&self) -> (Value, Value) {
        let mut totals = Map::new();
        totals.insert("messages".into(), (self.ready + self.unacked).into());
        totals.insert("messages_ready".into(), self.ready.into());
        totals.insert("messages_unacknowledged".into(), self.unacked.into());
        totals.extend(count_details(&self.rates));
        (Value::Object(totals), message_stats(&self.totals, Some(&self.rates)))
    }
}
