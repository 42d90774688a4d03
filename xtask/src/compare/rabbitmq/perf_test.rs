//! Runs PerfTest and reads the summary at the end of its output.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

pub(super) struct PerfTest {
    classpath: String,
}

/// The averages of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Summary {
    pub sent_per_s: f64,
    pub received_per_s: f64,
    /// From publish to delivery.
    pub consumer: Latency,
    /// From publish to confirm.
    pub confirm: Latency,
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Latency {
    pub median_us: f64,
    pub p99_us: f64,
}

impl PerfTest {
    pub(super) fn new(classpath: String) -> PerfTest {
        PerfTest { classpath }
    }

    /// Runs it to its end.
    pub(super) fn run(&self, url: &str, common: &[String], more: &[&str]) -> Result<Summary> {
        let mut java = Command::new("java");
        java.args(["-cp", &self.classpath, "com.rabbitmq.perf.PerfTest", "--uri", url]);
        java.args(common).args(more).stderr(Stdio::inherit());
        let output = java.output().context("Java is needed (java)")?;
        let text = String::from_utf8_lossy(&output.stdout);
        if !output.status.success() {
            bail!("PerfTest failed ({}): {text}", output.status);
        }
        summary(&text).with_context(|| format!("PerfTest printed no summary: {text}"))
    }
}

/// Reads the last lines; latencies are missing where there are none.
fn summary(text: &str) -> Option<Summary> {
    let after = |label: &str| {
        let line = text.lines().rev().find(|line| line.contains(label))?;
        line.split_once(label).map(|(_, rest)| rest.trim())
    };
    let rate = |label: &str| after(label)?.split(' ').next()?.parse::<f64>().ok();
    let latency = |label: &str| {
        let values = after(label)?.strip_suffix("µs")?.trim();
        let values: Vec<f64> = values.split('/').filter_map(|value| value.parse().ok()).collect();
        let [_, median_us, _, _, p99_us] = values[..] else { return None };
        Some(Latency { median_us, p99_us })
    };
    Some(Summary {
        sent_per_s: rate("sending rate avg:")?,
        received_per_s: rate("receiving rate avg:")?,
        consumer: latency(", consumer latency min/median/75th/95th/99th ").unwrap_or_default(),
        confirm: latency(", confirm latency min/median/75th/95th/99th ").unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_is_read() {
        let text = "id: t, time 5.029 s, sent: 509 msg/s, confirmed: 476 msg/s, nacked: 0 msg/s, received: 469 msg/s, \
            min/median/75th/95th/99th consumer latency: 1/2/3/4/5 µs, confirm latency: 1/2/3/4/5 µs\n\
            test stopped (Reached time limit)\n\
            id: t, sending rate avg: 592 msg/s\n\
            id: t, receiving rate avg: 591 msg/s\n\
            id: t, consumer latency min/median/75th/95th/99th 340/75204/136321/266512/340082 µs\n\
            id: t, confirm latency min/median/75th/95th/99th 443/25426/62855/314923/459312 µs\n";
        let expected = Summary {
            sent_per_s: 592.0,
            received_per_s: 591.0,
            consumer: Latency { median_us: 75_204.0, p99_us: 340_082.0 },
            confirm: Latency { median_us: 25_426.0, p99_us: 459_312.0 },
        };
        assert_eq!(summary(text), Some(expected));
        assert_eq!(summary("id: t, sending rate avg: 592 msg/s"), None);
    }
}
