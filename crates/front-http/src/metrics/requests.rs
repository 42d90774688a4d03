//! Counters of requests and connections.

use std::collections::BTreeMap;
use std::sync::Arc;

use malote_wire_native::exposition::{Kind, Page};
use parking_lot::Mutex;
use tokio::time::Instant;

/// From 0.5 ms, about the time of a sync, to the longest poll.
const BUCKETS_S: [f64; 15] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0];

/// The counters of this front end. Their number is bounded by the routes and statuses.
#[derive(Debug, Default)]
pub struct RequestMetrics {
    requests: Mutex<BTreeMap<&'static str, Requests>>,
    connections: Mutex<BTreeMap<&'static str, u64>>,
}

/// The requests of one operation.
#[derive(Clone, Debug, Default)]
struct Requests {
    counts: [u64; BUCKETS_S.len() + 1],
    sum_s: f64,
    by_status: BTreeMap<u16, u64>,
}

/// A request in progress.
pub struct RequestTimer<'a> {
    metrics: &'a RequestMetrics,
    operation: &'static str,
    since: Instant,
}

impl RequestMetrics {
    /// Starts the timer of a request.
    pub fn request(&self, operation: &'static str) -> RequestTimer<'_> {
        RequestTimer { metrics: self, operation, since: Instant::now() }
    }

    /// Counts a connection until the result is dropped.
    pub fn connection(self: &Arc<Self>, protocol: &'static str) -> OpenConnection {
        *self.connections.lock().entry(protocol).or_default() += 1;
        OpenConnection { metrics: self.clone(), protocol }
    }

    /// Open connections by protocol.
    pub(crate) fn open_connections(&self) -> BTreeMap<&'static str, u64> {
        self.connections.lock().clone()
    }

    /// Adds the counters to a page.
    pub(super) fn write(&self, page: &mut Page) {
        let requests = self.requests.lock().clone();
        let help = "Time from a request's head to its answer";
        page.head("request_duration_seconds", Kind::Histogram, help);
        for (operation, Requests { counts, sum_s, .. }) in &requests {
            let labels = [("protocol", "http"), ("operation", operation)];
            page.histogram(&labels, &BUCKETS_S, counts, *sum_s);
        }
        page.head("requests", Kind::Counter, "Requests answered");
        for (operation, Requests { by_status, .. }) in &requests {
            for (status, count) in by_status {
                let status = status.to_string();
                let labels =
                    [("protocol", "http"), ("operation", operation), ("status", status.as_str())];
                page.sample(&labels, count);
            }
        }
        page.head("connections", Kind::Gauge, "Connections open");
        for (protocol, count) in &*self.connections.lock() {
            page.sample(&[("protocol", protocol)], count);
        }
    }
}

impl RequestTimer<'_> {
    /// Records the answer.
    pub fn done(self, status: u16) {
        let seconds = self.since.elapsed().as_secs_f64();
        let bucket = BUCKETS_S.partition_point(|end| *end < seconds);
        let mut all = self.metrics.requests.lock();
        let requests = all.entry(self.operation).or_default();
        requests.counts[bucket] += 1;
        requests.sum_s += seconds;
        *requests.by_status.entry(status).or_default() += 1;
    }
}

/// A counted connection.
pub struct OpenConnection {
    metrics: Arc<RequestMetrics>,
    protocol: &'static str,
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        let mut connections = self.metrics.connections.lock();
        if let Some(count) = connections.get_mut(self.protocol) {
            *count = count.saturating_sub(1);
        }
    }
}
