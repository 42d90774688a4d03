//! The table, with the conditions without which no figure means anything.

use std::path::Path;
use std::time::Duration;

use crate::table::{Layout, write_list};
use serde_json::{Value, json};

use super::backlog::Backlog;
use super::bare::Probe;
use super::engine::SessionCost;
use super::measure::Latency;
use super::space::{Delayed, Drained, Written};

pub(crate) struct Report {
    conditions: Vec<(String, String)>,
    rows: Vec<Row>,
}

/// One measurement.
pub(crate) struct Row {
    what: String,
    figure: String,
    beside: String,
    goal: String,
    met: bool,
    json: Value,
}

impl Row {
    /// A rate beside the bare log's.
    pub(crate) fn rate(what: String, n: u64, elapsed: Duration, cpu: Duration, bare: f64) -> Self {
        let rate = n as f64 / elapsed.as_secs_f64();
        let ratio = rate / bare;
        let cpu_ns = cpu.as_nanos() as f64 / n.max(1) as f64;
        let json = json!({ "what": what, "per_s": rate, "bare_per_s": bare, "ratio": ratio, "cpu_ns": cpu_ns });
        Self {
            what,
            figure: format!("{}/s, {cpu_ns:.0} ns CPU each", thousands(rate)),
            beside: format!("bare log {}/s: {:.0} %", thousands(bare), ratio * 100.0),
            goal: "≥ 50 % of the bare log".into(),
            met: ratio >= 0.5,
            json,
        }
    }
}

fn thousands(n: f64) -> String {
    format!("{:.0}k", n / 1000.0)
}

/// What a server did for its clients.
pub(crate) struct Served {
    pub what: String,
    pub messages: u64,
    pub elapsed: Duration,
    /// Of each round of calls.
    pub latency: Latency,
    /// The server's.
    pub cpu: Option<Duration>,
    /// Messages a second.
    pub goal: Option<f64>,
}

/// What a worker did.
pub(crate) struct Worked {
    pub what: String,
    pub messages: u64,
    pub elapsed: Duration,
    /// Of the worker's process, with the engine in it if it is embedded.
    pub worker_cpu: Duration,
    /// Of the broker's process, if it is another one and known.
    pub server_cpu: Option<Duration>,
    /// From sent to begun, where messages come one after the other.
    pub latency: Option<Latency>,
    /// Messages a second.
    pub goal: Option<f64>,
}

impl Report {
    pub(crate) fn new(dir: &Path) -> Self {
        Self::with_load(dir, "in the same process")
    }

    /// Of a server and its client.
    pub(crate) fn served(dir: &Path) -> Self {
        Self::with_load(dir, "in a process of its own on the same cores")
    }

    /// Of a worker.
    pub(crate) fn worked(dir: &Path) -> Self {
        Self::with_load(dir, "is the worker; a server is a process of its own on the same cores")
    }

    fn with_load(dir: &Path, generator: &str) -> Self {
        let cores = std::thread::available_parallelism().map_or(0, |n| n.get());
        let load = super::load_average();
        let conditions = vec![
            ("cores".into(), format!("{cores}, load generator {generator}")),
            ("load before".into(), load),
            ("directory".into(), dir.parent().unwrap_or(dir).display().to_string()),
            ("durability".into(), "fsync before every answer".into()),
        ];
        Self { conditions, rows: Vec::new() }
    }

    pub(crate) fn disk(&mut self, probe: &Probe) {
        let Probe { latency } = probe;
        let text = format!(
            "4 KiB into zero-filled space, fdatasync p50 {:.0} µs, p99 {:.0} µs",
            latency.micros(0.5),
            latency.micros(0.99)
        );
        self.conditions.push(("disk".into(), text));
    }

    pub(crate) fn push(&mut self, row: Row) {
        self.rows.push(row);
    }

    pub(crate) fn one_in_flight(&mut self, latency: &Latency, before: &Probe, after: &Probe) {
        let disk = |q: f64| (before.latency.micros(q) + after.latency.micros(q)) / 2.0;
        let (p50, p99) = (latency.micros(0.5), latency.micros(0.99));
        self.push(Row {
            what: "one in flight, 100 B".into(),
            figure: format!("p50 {p50:.0} µs, p99 {p99:.0} µs, {:.0}/s", latency.rate()),
            beside: format!("fdatasync p50 {:.0} µs, p99 {:.0} µs", disk(0.5), disk(0.99)),
            goal: "p50 ≤ fdatasync p50 + 100 µs".into(),
            met: p50 <= disk(0.5) + 100.0,
            json: json!({ "what": "one in flight", "p50_us": p50, "p99_us": p99, "fdatasync_p50_us": disk(0.5), "fdatasync_p99_us": disk(0.99) }),
        });
    }

    pub(crate) fn publishers(&mut self, count: usize, latency: &Latency) {
        let (p50, p99) = (latency.micros(0.5), latency.micros(0.99));
        self.push(Row {
            what: format!("{count} synchronous publishers, 100 B"),
            figure: format!("{}/s, p50 {p50:.0} µs, p99 {p99:.0} µs", thousands(latency.rate())),
            beside: format!("{:.1} µs CPU each", latency.cpu_micros_each()),
            goal: "≥ 60k/s, p50 ≤ 1 ms (idle)".into(),
            met: latency.rate() >= 60_000.0,
            json: json!({ "what": format!("{count} publishers"), "per_s": latency.rate(), "p50_us": p50, "p99_us": p99 }),
        });
    }

    pub(crate) fn sessions(&mut self, sessions: u64, cost: &SessionCost, base: f64) {
        let ratio = cost.cpu_ns / base;
        self.push(Row {
            what: format!("{sessions} sessions, {} messages of 100 B", cost.messages),
            figure: format!("{:.0} ns CPU an operation", cost.cpu_ns),
            beside: format!(
                "{:.0} ns behind them; send {:.0} ns, receive + complete {:.0} ns (wall)",
                cost.behind_ns, cost.send_ns, cost.take_ns
            ),
            goal: "within 20 % of one session".into(),
            met: (0.8..=1.2).contains(&ratio),
            json: json!({ "what": "sessions", "sessions": sessions, "cpu_ns": cost.cpu_ns, "behind_ns": cost.behind_ns, "ratio": ratio, "send_ns": cost.send_ns, "take_ns": cost.take_ns }),
        });
    }

    /// With how long the HTTP API took to answer meanwhile, if it was asked.
    pub(crate) fn push_served(&mut self, served: Served, answers: Option<Latency>) {
        let Served { what, messages, elapsed, latency, cpu, goal } = served;
        let rate = messages as f64 / elapsed.as_secs_f64();
        let (p50_ms, p99_ms) = (latency.micros(0.5) / 1000.0, latency.micros(0.99) / 1000.0);
        let cpu_us = cpu.map(|cpu| cpu.as_micros() as f64 / messages.max(1) as f64);
        let mut figure = format!("{rate:.0}/s, p50 {p50_ms:.1} ms, p99 {p99_ms:.1} ms");
        if let Some(cpu_us) = cpu_us {
            figure.push_str(&format!(", {cpu_us:.1} µs CPU each"));
        }
        let api_p99_ms = answers.map(|answers| answers.micros(0.99) / 1000.0);
        let beside = api_p99_ms.map_or(String::new(), |ms| format!("HTTP API p99 {ms:.1} ms"));
        let mut goals: Vec<String> =
            goal.iter().map(|goal| format!("≥ {}/s", thousands(*goal))).collect();
        goals.extend(api_p99_ms.map(|_| "HTTP API p99 ≤ 50 ms".into()));
        let met = goal.is_none_or(|goal| rate >= goal) && api_p99_ms.is_none_or(|ms| ms <= 50.0);
        let json = json!({ "what": what, "per_s": rate, "p50_ms": p50_ms, "p99_ms": p99_ms, "cpu_us": cpu_us, "api_p99_ms": api_p99_ms });
        self.push(Row { what, figure, beside, goal: goals.join(", "), met, json });
    }

    /// Processor time is that of worker and broker together.
    pub(crate) fn push_worked(&mut self, worked: Worked) {
        let Worked { what, messages, elapsed, worker_cpu, server_cpu, latency, goal } = worked;
        let rate = messages as f64 / elapsed.as_secs_f64();
        let each = |cpu: Duration| cpu.as_nanos() as f64 / 1000.0 / messages.max(1) as f64;
        let (worker_us, server_us) = (each(worker_cpu), server_cpu.map(each));
        let cpu_us = worker_us + server_us.unwrap_or_default();
        let quantile = |q| latency.as_ref().map(|latency| latency.micros(q) / 1000.0);
        let (p50_ms, p99_ms) = (quantile(0.5), quantile(0.99));
        let figure = match (p50_ms, p99_ms) {
            (Some(p50), Some(p99)) => format!("p50 {p50:.2} ms, p99 {p99:.2} ms"),
            _ => format!("{rate:.0}/s"),
        };
        let split = server_us.map_or(String::new(), |server| {
            format!(" (worker {worker_us:.1}, server {server:.1})")
        });
        self.push(Row {
            what: what.clone(),
            figure,
            beside: format!("{cpu_us:.1} µs CPU each{split}"),
            goal: goal.map_or("reported".into(), |goal| format!("≥ {}/s", thousands(goal))),
            met: goal.is_none_or(|goal| rate >= goal),
            json: json!({ "what": what, "per_s": rate, "cpu_us": cpu_us, "worker_cpu_us": worker_us, "server_cpu_us": server_us, "p50_ms": p50_ms, "p99_ms": p99_ms }),
        });
    }

    pub(crate) fn backlog(&mut self, sessions: bool, backlog: &Backlog) {
        let Backlog { messages, bytes_each, ready, publish: (empty, full) } = backlog;
        let (bytes_max, ready_s_max, how) =
            if sessions { (24.0, 15.0, "ten a session") } else { (8.0, 5.0, "plain") };
        let (ready_s, ratio) = (ready.as_secs_f64(), full / empty);
        self.push(Row {
            what: format!("backlog of {messages}, {how}"),
            figure: format!("{bytes_each:.1} B resident each; ready {ready_s:.1} s after kill -9"),
            beside: format!(
                "publish {}/s, on an empty queue {}/s: {:.0} %",
                thousands(*full),
                thousands(*empty),
                ratio * 100.0
            ),
            goal: format!("≤ {bytes_max:.0} B, ≤ {ready_s_max:.0} s, ≥ 80 % of the empty queue"),
            met: *bytes_each <= bytes_max && ready_s <= ready_s_max && ratio >= 0.8,
            json: json!({ "what": "backlog", "sessions": sessions, "messages": messages, "bytes_each": bytes_each, "ready_s": ready_s, "publish_per_s": full, "publish_empty_per_s": empty }),
        });
    }

    pub(crate) fn delayed(&mut self, delayed: &Delayed) {
        let Delayed { messages, send_ns, due_ns, bytes_each } = delayed;
        self.push(Row {
            what: format!("{messages} delayed messages"),
            figure: format!("{send_ns:.0} ns CPU to send, {due_ns:.0} ns to become ready, each"),
            beside: format!("{bytes_each:.0} B resident each"),
            goal: "reported".into(),
            met: true,
            json: json!({ "what": "delayed", "messages": messages, "send_ns": send_ns, "due_ns": due_ns, "bytes_each": bytes_each }),
        });
    }

    pub(crate) fn rules(&mut self, kind: &str, rules: usize, few: f64, many: f64, scanned: bool) {
        let ratio = many / few;
        self.push(Row {
            what: format!("publish to a topic, {rules} rules, {kind}"),
            figure: format!("{many:.0} ns CPU each"),
            beside: format!("with 100 rules {few:.0} ns: {ratio:.2} ×"),
            goal: if scanned { "reported".into() } else { "flat".into() },
            met: scanned || ratio <= 1.5,
            json: json!({ "what": "rules", "kind": kind, "rules": rules, "cpu_ns": many, "cpu_ns_100": few }),
        });
    }

    pub(crate) fn drained(&mut self, drained: &Drained) {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let bound = 2 * drained.live_bytes + (256 << 20);
        self.push(Row {
            what: "disk after a drain".into(),
            figure: format!("{:.0} MiB", mib(drained.disk_bytes)),
            beside: format!("{:.0} MiB are live", mib(drained.live_bytes)),
            goal: format!("≤ 2 × live + 256 MiB = {:.0} MiB", mib(bound)),
            met: drained.disk_bytes <= bound,
            json: json!({ "what": "disk after drain", "disk_bytes": drained.disk_bytes, "live_bytes": drained.live_bytes }),
        });
    }

    pub(crate) fn written(&mut self, written: &Written) {
        let Written { messages, payload_bytes, device_bytes } = written;
        let allowed = payload_bytes + 64 * messages;
        let ratio = device_bytes.map(|bytes| bytes as f64 / allowed.max(1) as f64);
        let shown = |ratio: f64| format!("{ratio:.2} × (payload + 64 B a message)");
        self.push(Row {
            what: format!("bytes written, {messages} messages of 1 KiB in and out"),
            figure: ratio.map_or("the device does not count".into(), shown),
            beside: "from the device's counters; neighbours on the device count too".into(),
            goal: "≤ 1.3 ×".into(),
            met: ratio.is_some_and(|ratio| ratio <= 1.3),
            json: json!({ "what": "written", "messages": messages, "payload_bytes": payload_bytes, "device_bytes": device_bytes }),
        });
    }

    pub(crate) fn print(self, json: bool) -> anyhow::Result<()> {
        if json {
            let conditions: serde_json::Map<_, _> =
                self.conditions.into_iter().map(|(k, v)| (k, Value::String(v))).collect();
            let rows: Vec<_> = self.rows.into_iter().map(|row| row.json).collect();
            println!(
                "{}",
                serde_json::to_string_pretty(
                    &json!({ "conditions": conditions, "results": rows })
                )?
            );
            return Ok(());
        }
        for (name, text) in &self.conditions {
            println!("{name:12} {text}");
        }
        println!();
        let rows = self.rows.into_iter().map(|row| {
            let met = if row.met { "met" } else { "not met" };
            vec![row.what, row.figure, row.beside, row.goal, met.to_owned()]
        });
        // Cells are long: nothing is cut, and the terminal breaks lines.
        let layout = Layout { width: None, colour: false };
        let head = ["MEASURED", "MALOTE", "BESIDE IT", "GOAL", "RESULT"];
        write_list(&mut std::io::stdout(), layout, &head, rows.collect(), false)?;
        Ok(())
    }
}
