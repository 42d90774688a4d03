//! graphile-worker and pg-boss, compared with a Malote worker on `postgres://`, on one server that syncs every
//! commit.

use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use malote_services::Postgres;
use serde_json::Value;

use super::{ROUNDS, bench, median, results};
use crate::{cargo, conformance};

/// Number of jobs, and of messages.
const JOBS: &str = "50000";
/// Concurrency: theirs, and Malote's slots.
const CONCURRENCY: &str = "50,100";
/// Factor of the faster one's rate to reach.
const GOAL: f64 = 2.0;
const OTHERS: [&str; 2] = ["graphile-worker", "pg-boss"];

pub(super) fn run() -> Result<bool> {
    let source = cargo::root().join("testing/compare/pgboss");
    let home = cargo::target().join("compare/pgboss");
    conformance::npm(&source, &home).context("npm is needed")?;
    let server = Postgres::start_durable().map_err(|why| anyhow::anyhow!("{why}"))?;
    let url = server.url("postgres");
    let theirs = || {
        let mut node = Command::new("node");
        node.arg(source.join("main.mjs")).arg(&home).args([&url, JOBS, CONCURRENCY]);
        results(node.stderr(Stdio::inherit()))
    };
    let ours =
        ["worker", "--url", &url, "--messages", JOBS, "--slots", CONCURRENCY, "--only", "plain"];
    // The first round is not counted: JavaScript is compiled while it runs, and the tables are created.
    theirs()?;
    let (mut ours_all, mut theirs_all) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        ours_all.push(bench(&ours)?);
        theirs_all.push(theirs()?);
    }
    Ok(table(&ours_all, &theirs_all))
}

/// Prints one line per concurrency. Returns whether every line reaches the goal.
fn table(ours: &[Vec<Value>], theirs: &[Vec<Value>]) -> bool {
    let of = |rounds: &[Vec<Value>], what: &str, key: &str| {
        let rows = rounds.iter().flatten().filter(|row| row["what"] == what);
        median(rows.filter_map(|row| row[key].as_f64()).collect())
    };
    let [first, second] = OTHERS;
    println!(
        "{:14} {:>10} {first:>16} {second:>10} {:>7} {:>6}",
        "messages/s", "Malote", "ratio", "goal"
    );
    let mut met = true;
    for concurrency in CONCURRENCY.split(',') {
        let rate = of(ours, &format!("other broker, plain, {concurrency} slots"), "per_s");
        let others =
            OTHERS.map(|name| of(theirs, &format!("{name}, {concurrency} at once"), "per_s"));
        // A missing measurement is NaN, which does not reach the goal.
        let ratio = others
            .iter()
            .map(|other| rate / other)
            .fold(f64::INFINITY, |a, b| if b < a || b.is_nan() { b } else { a });
        met &= ratio >= GOAL;
        let [a, b] = others;
        println!(
            "{:14} {rate:10.0} {a:16.0} {b:10.0} {ratio:6.1}x {GOAL:5.0}x",
            format!("{concurrency} at once")
        );
    }
    println!("goal: {}", if met { "met" } else { "not met" });
    met
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_goal_applies_to_the_faster_one_and_needs_both_measurements() {
        let row = |what: String, per_s: f64| json!({ "what": what, "per_s": per_s });
        let ours = |rate: f64| {
            vec![[50, 100].map(|n| row(format!("other broker, plain, {n} slots"), rate)).to_vec()]
        };
        let of =
            |name: &str, rate: f64| [50, 100].map(|n| row(format!("{name}, {n} at once"), rate));
        let theirs = vec![[of("graphile-worker", 10.0), of("pg-boss", 5.0)].concat()];
        assert!(table(&ours(20.0), &theirs));
        assert!(!table(&ours(19.0), &theirs));
        assert!(!table(&ours(20.0), &[of("graphile-worker", 10.0).to_vec()]));
    }
}
