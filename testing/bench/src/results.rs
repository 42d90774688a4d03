//! The results of a measurement, and their rows in the report.

use std::time::Duration;

use malote_measure::{Latency, Row, thousands};
use serde_json::json;

/// The largest acceptable p99 latency of the HTTP API under load.
const API_P99_MS_MAX: f64 = 50.0;

/// What a server handled.
pub(crate) struct ServerResult {
    pub what: String,
    pub messages: u64,
    pub elapsed: Duration,
    /// Of a call, or of a group of calls that belong together.
    pub latency: Latency,
    /// CPU time of the server, if its process is known.
    pub cpu: Option<Duration>,
    /// Messages per second.
    pub goal: Option<f64>,
    /// Latency of the HTTP API during the measurement.
    pub api_latency: Option<Latency>,
}

impl From<ServerResult> for Row {
    fn from(result: ServerResult) -> Self {
        let ServerResult { what, messages, elapsed, latency, cpu, goal, api_latency } = result;
        let rate = messages as f64 / elapsed.as_secs_f64();
        let (p50_ms, p99_ms) = (latency.millis(0.5), latency.millis(0.99));
        let cpu_us = cpu.map(|cpu| cpu.as_micros() as f64 / messages.max(1) as f64);
        let mut figure = format!("{rate:.0}/s, p50 {p50_ms:.1} ms, p99 {p99_ms:.1} ms");
        if let Some(cpu_us) = cpu_us {
            figure.push_str(&format!(", {cpu_us:.1} µs CPU each"));
        }
        let api_p99_ms = api_latency.map(|latency| latency.millis(0.99));
        let beside = api_p99_ms.map_or(String::new(), |ms| format!("HTTP API p99 {ms:.1} ms"));
        let mut goals: Vec<String> =
            goal.iter().map(|goal| format!("≥ {}/s", thousands(*goal))).collect();
        goals.extend(api_p99_ms.map(|_| format!("HTTP API p99 ≤ {API_P99_MS_MAX:.0} ms")));
        let met = goal.is_none_or(|goal| rate >= goal)
            && api_p99_ms.is_none_or(|ms| ms <= API_P99_MS_MAX);
        let json = json!({ "what": what, "per_s": rate, "p50_ms": p50_ms, "p99_ms": p99_ms, "cpu_us": cpu_us, "api_p99_ms": api_p99_ms });
        Row { what, figure, beside, goal: goals.join(", "), met, json }
    }
}

/// What a worker handled.
pub(crate) struct WorkerResult {
    pub what: String,
    pub messages: u64,
    pub elapsed: Duration,
    /// CPU time of the worker's process, which includes the engine if that is embedded.
    pub worker_cpu: Duration,
    /// CPU time of the broker's process, if it is another process and known.
    pub server_cpu: Option<Duration>,
    /// From send to the start of the handler, if messages are sent at a fixed rate.
    pub latency: Option<Latency>,
    /// Messages per second.
    pub goal: Option<f64>,
}

impl From<WorkerResult> for Row {
    /// CPU time is that of worker and broker together.
    fn from(result: WorkerResult) -> Self {
        let WorkerResult { what, messages, elapsed, worker_cpu, server_cpu, latency, goal } =
            result;
        let rate = messages as f64 / elapsed.as_secs_f64();
        let each_us = |cpu: Duration| cpu.as_nanos() as f64 / 1000.0 / messages.max(1) as f64;
        let (worker_us, server_us) = (each_us(worker_cpu), server_cpu.map(each_us));
        let cpu_us = worker_us + server_us.unwrap_or_default();
        let quantile = |q| latency.as_ref().map(|latency| latency.millis(q));
        let (p50_ms, p99_ms) = (quantile(0.5), quantile(0.99));
        let figure = match (p50_ms, p99_ms) {
            (Some(p50), Some(p99)) => format!("p50 {p50:.2} ms, p99 {p99:.2} ms"),
            _ => format!("{rate:.0}/s"),
        };
        let split = server_us.map_or(String::new(), |server| {
            format!(" (worker {worker_us:.1}, server {server:.1})")
        });
        let json = json!({ "what": what, "per_s": rate, "cpu_us": cpu_us, "worker_cpu_us": worker_us, "server_cpu_us": server_us, "p50_ms": p50_ms, "p99_ms": p99_ms });
        Row {
            what,
            figure,
            beside: format!("{cpu_us:.1} µs CPU each{split}"),
            goal: goal.map_or("reported".into(), |goal| format!("≥ {}/s", thousands(goal))),
            met: goal.is_none_or(|goal| rate >= goal),
            json,
        }
    }
}
