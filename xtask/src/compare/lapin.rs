//! A plain lapin consumer on RabbitMQ, compared with a Malote worker with sessions: the same server, quorum queues,
//! and one acknowledgement per message on both sides.

use std::process::{Command, Stdio};

use anyhow::{Result, bail};
use malote_services::RabbitMq;
use serde_json::Value;

use super::{ROUNDS, bench, median, results};
use crate::cargo;

/// Share of lapin's rate to reach.
const GOAL: f64 = 0.8;
const MESSAGES: &str = "50000";
/// Concurrent handlers of the worker.
const SLOTS: &str = "100";
/// Unacknowledged messages on both sides: 16 partitions with 128 messages each.
const PREFETCH: &str = "2048";

pub(super) fn run() -> Result<bool> {
    let server = match RabbitMq::start(1) {
        Ok(server) => server,
        Err(why) => bail!("{why}"),
    };
    let example = ["--package", "malote-connectors", "--example", "plain_lapin"];
    cargo::run(&[["build", "--release"].as_slice(), &example].concat())?;
    let (url, pid) = (server.url(0), server.pid(0).to_string());
    let plain = || {
        let mut command = Command::new(cargo::target().join("release/examples/plain_lapin"));
        results(command.args([&url, MESSAGES, PREFETCH]).stderr(Stdio::inherit()))
    };
    let dir = cargo::target();
    let dir = dir.to_string_lossy();
    let work = ["worker", "--messages", MESSAGES, "--slots", SLOTS, "--only", "sessions"];
    let ours = [work.as_slice(), &["--url", &url, "--pid", &pid, "--dir", &dir]].concat();
    let (mut ours_all, mut theirs_all) = (Vec::new(), Vec::new());
    // The first round is not counted: servers are faster once they have warmed up.
    for counts in std::iter::once(false).chain([true; ROUNDS]) {
        let (we, they) = (bench(&ours)?, plain()?);
        if counts {
            ours_all.push(we);
            theirs_all.push(they);
        }
    }
    Ok(report_rates(&ours_all, &theirs_all))
}

fn report_rates(ours: &[Vec<Value>], theirs: &[Vec<Value>]) -> bool {
    let rate = |rounds: &[Vec<Value>]| {
        median(rounds.iter().flatten().filter_map(|row| row["per_s"].as_f64()).collect())
    };
    let (we, they) = (rate(ours), rate(theirs));
    let ratio = we / they;
    let met = ratio >= GOAL;
    println!("{:30} {we:9.0} messages/s", format!("worker with sessions, {SLOTS} slots"));
    println!("{:30} {they:9.0} messages/s", "plain lapin consumer");
    println!("ratio {ratio:.2}, goal {GOAL}: {}", if met { "met" } else { "not met" });
    met
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_goal_is_a_share_of_the_other_rate() {
        let rows = |per_s: f64| vec![vec![json!({ "what": "x", "per_s": per_s })]];
        assert!(report_rates(&rows(80.0), &rows(100.0)));
        assert!(!report_rates(&rows(79.0), &rows(100.0)));
        assert!(!report_rates(&rows(79.0), &[]), "a goal is not met without a comparison");
    }
}
