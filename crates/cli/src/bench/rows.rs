//! The rows of the report: figures, goals, and the JSON for programs.

use std::time::Duration;

use malote_measure::{Latency, Row, thousands};
use serde_json::json;

use super::backlog::Backlog;
use super::engine::{Published, SessionCost};
use super::space::{Delayed, Drained, Written};

/// A rate, compared with that of the bare log.
pub(super) fn rate(
    what: String,
    messages: u64,
    elapsed: Duration,
    cpu: Duration,
    bare: f64,
) -> Row {
    let rate = messages as f64 / elapsed.as_secs_f64();
    let ratio = rate / bare;
    let cpu_ns = cpu.as_nanos() as f64 / messages.max(1) as f64;
    let json = json!({ "what": what, "per_s": rate, "bare_per_s": bare, "ratio": ratio, "cpu_ns": cpu_ns });
    Row {
        what,
        figure: format!("{}/s, {cpu_ns:.0} ns CPU each", thousands(rate)),
        beside: format!("bare log {}/s: {:.0} %", thousands(bare), ratio * 100.0),
        goal: "≥ 50 % of the bare log".into(),
        met: ratio >= 0.5,
        json,
    }
}

/// One request at a time. The disk was measured before and after it.
pub(super) fn one_in_flight(published: &Published, before: &Latency, after: &Latency) -> Row {
    let disk = |quantile| (before.micros(quantile) + after.micros(quantile)) / 2.0;
    let latency = &published.latency;
    let (p50, p99) = (latency.micros(0.5), latency.micros(0.99));
    Row {
        what: "one in flight, 100 B".into(),
        figure: format!("p50 {p50:.0} µs, p99 {p99:.0} µs, {:.0}/s", published.rate()),
        beside: format!("fdatasync p50 {:.0} µs, p99 {:.0} µs", disk(0.5), disk(0.99)),
        goal: "p50 ≤ fdatasync p50 + 100 µs".into(),
        met: p50 <= disk(0.5) + 100.0,
        json: json!({ "what": "one in flight", "p50_us": p50, "p99_us": p99, "fdatasync_p50_us": disk(0.5), "fdatasync_p99_us": disk(0.99) }),
    }
}

pub(super) fn publishers(count: usize, published: &Published) -> Row {
    let (p50, p99) = (published.latency.micros(0.5), published.latency.micros(0.99));
    let rate = published.rate();
    Row {
        what: format!("{count} synchronous publishers, 100 B"),
        figure: format!("{}/s, p50 {p50:.0} µs, p99 {p99:.0} µs", thousands(rate)),
        beside: format!("{:.1} µs CPU each", published.cpu_micros_each()),
        goal: "≥ 60k/s, p50 ≤ 1 ms (idle)".into(),
        met: rate >= 60_000.0,
        json: json!({ "what": format!("{count} publishers"), "per_s": rate, "p50_us": p50, "p99_us": p99 }),
    }
}

/// `one_session_cpu_ns` is the cost of an operation with one session.
pub(super) fn sessions(sessions: u64, cost: &SessionCost, one_session_cpu_ns: f64) -> Row {
    let ratio = cost.cpu_ns / one_session_cpu_ns;
    Row {
        what: format!("{sessions} sessions, {} messages of 100 B", cost.messages),
        figure: format!("{:.0} ns CPU per operation", cost.cpu_ns),
        beside: format!(
            "{:.0} ns in the background; send {:.0} ns, receive + complete {:.0} ns (wall clock)",
            cost.background_ns, cost.send_ns, cost.receive_ns
        ),
        goal: "within 20 % of one session".into(),
        met: (0.8..=1.2).contains(&ratio),
        json: json!({ "what": "sessions", "sessions": sessions, "cpu_ns": cost.cpu_ns, "background_ns": cost.background_ns, "ratio": ratio, "send_ns": cost.send_ns, "receive_ns": cost.receive_ns }),
    }
}

pub(super) fn backlog(with_sessions: bool, backlog: &Backlog) -> Row {
    let Backlog { messages, bytes_each, ready, publish_empty, publish_full } = backlog;
    let (bytes_max, ready_s_max, kind) = match with_sessions {
        true => (24.0, 15.0, "ten messages per session"),
        false => (8.0, 5.0, "no sessions"),
    };
    let (ready_s, ratio) = (ready.as_secs_f64(), publish_full / publish_empty);
    Row {
        what: format!("backlog of {messages}, {kind}"),
        figure: format!("{bytes_each:.1} B resident each; ready {ready_s:.1} s after kill -9"),
        beside: format!(
            "publish {}/s, on an empty queue {}/s: {:.0} %",
            thousands(*publish_full),
            thousands(*publish_empty),
            ratio * 100.0
        ),
        goal: format!("≤ {bytes_max:.0} B, ≤ {ready_s_max:.0} s, ≥ 80 % of the empty queue"),
        met: *bytes_each <= bytes_max && ready_s <= ready_s_max && ratio >= 0.8,
        json: json!({ "what": "backlog", "sessions": with_sessions, "messages": messages, "bytes_each": bytes_each, "ready_s": ready_s, "publish_per_s": publish_full, "publish_empty_per_s": publish_empty }),
    }
}

pub(super) fn delayed(delayed: &Delayed) -> Row {
    let Delayed { messages, send_ns, due_ns, bytes_each } = delayed;
    Row {
        what: format!("{messages} delayed messages"),
        figure: format!("{send_ns:.0} ns CPU to send, {due_ns:.0} ns to become ready, each"),
        beside: format!("{bytes_each:.0} B resident each"),
        goal: "reported".into(),
        met: true,
        json: json!({ "what": "delayed", "messages": messages, "send_ns": send_ns, "due_ns": due_ns, "bytes_each": bytes_each }),
    }
}

/// CPU time of a publish with many rules, compared with 100 rules. Rules that are tried one by one have no goal.
pub(super) fn rules(
    kind: &str,
    rules: usize,
    few_cpu_ns: f64,
    many_cpu_ns: f64,
    tried_one_by_one: bool,
) -> Row {
    let ratio = many_cpu_ns / few_cpu_ns;
    Row {
        what: format!("publish to a topic, {rules} rules, {kind}"),
        figure: format!("{many_cpu_ns:.0} ns CPU each"),
        beside: format!("with 100 rules {few_cpu_ns:.0} ns: {ratio:.2} ×"),
        goal: if tried_one_by_one { "reported".into() } else { "constant".into() },
        met: tried_one_by_one || ratio <= 1.5,
        json: json!({ "what": "rules", "kind": kind, "rules": rules, "cpu_ns": many_cpu_ns, "cpu_ns_100": few_cpu_ns }),
    }
}

pub(super) fn drained(drained: &Drained) -> Row {
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let bound = drained.bytes_max();
    Row {
        what: "disk after a drain".into(),
        figure: format!("{:.0} MiB", mib(drained.disk_bytes)),
        beside: format!("{:.0} MiB are live", mib(drained.live_bytes)),
        goal: format!("≤ 2 × live + 256 MiB = {:.0} MiB", mib(bound)),
        met: drained.disk_bytes <= bound,
        json: json!({ "what": "disk after drain", "disk_bytes": drained.disk_bytes, "live_bytes": drained.live_bytes }),
    }
}

pub(super) fn written(written: &Written) -> Row {
    let Written { messages, payload_bytes, device_bytes } = written;
    let reference = payload_bytes + 64 * messages;
    let ratio = device_bytes.map(|bytes| bytes as f64 / reference.max(1) as f64);
    let figure = |ratio: f64| format!("{ratio:.2} × (payload + 64 B per message)");
    Row {
        what: format!("bytes written, {messages} messages of 1 KiB in and out"),
        figure: ratio.map_or("the device has no counters".into(), figure),
        beside: "counters of the device, which include other programs".into(),
        goal: "≤ 1.3 ×".into(),
        met: ratio.is_some_and(|ratio| ratio <= 1.3),
        json: json!({ "what": "written", "messages": messages, "payload_bytes": payload_bytes, "device_bytes": device_bytes }),
    }
}
