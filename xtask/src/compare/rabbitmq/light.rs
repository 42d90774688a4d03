//! Both brokers with the light client of `malote-bench amqp`, so that the client is not what is measured.

use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::super::{bench, bench_binary, median};
use super::{Broker, Scale};
use crate::cargo;

/// Our rate, divided by RabbitMQ's.
const RATE_GOAL: f64 = 5.0;
/// RabbitMQ's CPU time for each message, divided by ours.
const CPU_GOAL: f64 = 8.0;
/// What a confirm may take longer than a sync of the disk, at a fixed rate.
const CONFIRM_MS_MAX: f64 = 2.0;

/// Compares both brokers in turns and prints the table. Returns whether the goals are met. Quorum queues are reported.
pub(super) fn compare(brokers: &[Broker; 2], scale: &Scale) -> Result<bool> {
    let (dir, backlog) = (cargo::target(), (scale.drained * 2).to_string());
    let dir = dir.to_string_lossy();
    let mut classic: [Vec<Vec<Value>>; 2] = Default::default();
    let mut quorum: [Vec<Vec<Value>>; 2] = Default::default();
    // Both are faster once they are warm: the first round is not counted.
    for counts in std::iter::once(false).chain(vec![true; scale.rounds]) {
        for (index, broker) in brokers.iter().enumerate() {
            let pid = broker.pid.to_string();
            let common = ["amqp", "--url", &broker.url, "--pid", &pid, "--dir", &dir];
            let more = ["--seconds", scale.seconds, "--backlog", &backlog];
            let few = ["--quorum", "--queues", "1", "--bytes", "100"];
            let rows = bench(&[common.as_slice(), &more].concat())?;
            let quorum_rows = bench(&[common.as_slice(), &more, &few].concat())?;
            if counts {
                classic[index].push(rows);
                quorum[index].push(quorum_rows);
            }
        }
    }
    println!("light client, classic queues:");
    let met = report(&classic);
    println!("light client, quorum queues (reported):");
    report(&quorum);
    Ok(met)
}

/// Publishes messages that stay.
pub(super) fn fill(broker: &Broker, count: u64) -> Result<()> {
    let dir = cargo::target();
    let mut command = Command::new(bench_binary());
    command.args(["amqp", "--url", &broker.url, "--fill", &count.to_string(), "--dir"]).arg(dir);
    let status = command.status().context("cannot start malote-bench")?;
    if !status.success() {
        bail!("{command:?} failed: {status}");
    }
    Ok(())
}

fn report(rounds: &[Vec<Vec<Value>>; 2]) -> bool {
    let figure = |rounds: &[Vec<Value>], row: usize, key: &str| {
        median(rounds.iter().filter_map(|round| round.get(row)?[key].as_f64()).collect())
    };
    let (mut rates_met, mut cpus_met, mut p99_met) = (true, true, true);
    println!(
        "{:42} {:>10} {:>10} {:>7} {:>9} {:>9} {:>7} {:>9} {:>9}",
        "", "Malote/s", "RabbitMQ/s", "ratio", "µs each", "µs each", "ratio", "p99 ms", "p99 ms"
    );
    let first = rounds[0].first().map(Vec::as_slice).unwrap_or_default();
    let mut confirm_ms = f64::NAN;
    for (row, one) in first.iter().enumerate() {
        let what = one["what"].as_str().unwrap_or_default();
        let both = |key: &str| [0, 1].map(|index| figure(&rounds[index], row, key));
        let ([rate, other], [cpu, other_cpu]) = (both("per_s"), both("cpu_us"));
        let [p99, other_p99] = both("p99_ms");
        let (rates, cpus) = (rate / other, other_cpu / cpu);
        println!(
            "{what:42} {rate:10.0} {other:10.0} {rates:6.1}x {cpu:9.1} {other_cpu:9.1} {cpus:6.1}x {p99:9.1} {other_p99:9.1}"
        );
        if what.starts_with("fdatasync") {
            p99_met = confirm_ms <= p99 + CONFIRM_MS_MAX;
        } else if what.starts_with("publish at") {
            confirm_ms = p99;
        } else {
            rates_met &= rates >= RATE_GOAL;
            cpus_met &= cpus >= CPU_GOAL;
        }
    }
    let word = |met: bool| if met { "met" } else { "not met" };
    println!("goal: {RATE_GOAL}x in rate, in every row: {}", word(rates_met));
    println!("goal: {CPU_GOAL}x in CPU time, in every row: {}", word(cpus_met));
    println!("goal: p99 of a confirm at most fdatasync + {CONFIRM_MS_MAX} ms: {}", word(p99_met));
    rates_met && cpus_met && p99_met && !first.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn rounds(per_s: f64, cpu_us: f64, p99_ms: f64, sync_ms: f64) -> Vec<Vec<Value>> {
        vec![vec![
            json!({ "what": "publish, 100 B, queue", "per_s": per_s, "cpu_us": cpu_us, "p99_ms": 1.0 }),
            json!({ "what": "publish at 1000/s, 100 B, queue", "per_s": 1000.0, "cpu_us": 1.0, "p99_ms": p99_ms }),
            json!({ "what": "fdatasync of 4 KiB", "per_s": 1.0, "p99_ms": sync_ms }),
        ]]
    }

    #[test]
    fn all_goals_must_be_met() {
        let theirs = || rounds(100.0, 80.0, 9.0, 1.0);
        assert!(report(&[rounds(500.0, 10.0, 3.0, 1.0), theirs()]));
        assert!(!report(&[rounds(499.0, 10.0, 3.0, 1.0), theirs()]), "too slow");
        assert!(!report(&[rounds(500.0, 11.0, 3.0, 1.0), theirs()]), "too much CPU time");
        assert!(!report(&[rounds(500.0, 10.0, 3.1, 1.0), theirs()]), "too late");
        assert!(!report(&[Vec::new(), theirs()]), "a goal is not met without a comparison");
    }
}
