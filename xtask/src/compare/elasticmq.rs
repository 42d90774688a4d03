//! ElasticMQ, over the SQS protocol. It keeps messages in memory; Malote writes each to disk before it answers.

use anyhow::Result;

use super::{JavaServer, ROUNDS, bench, table};
use crate::cargo;

/// Factor to reach, in rate or in CPU time of the server per message.
const GOAL: f64 = 5.0;

pub(super) fn run() -> Result<bool> {
    let other = JavaServer::start(&cargo::root().join("testing/compare/elasticmq"))?;
    let at = format!("127.0.0.1:{}", other.port);
    let pid = other.child.id().to_string();
    let dir = cargo::target();
    let dir = dir.to_string_lossy();
    let work = ["sqs", "--connections", "16", "--seconds", "4", "--dir", &dir];
    let theirs = [work.as_slice(), &["--at", &at, "--pid", &pid]].concat();
    // The first round is not counted: Java is slow until it has warmed up.
    bench(&theirs)?;
    let (mut ours_all, mut theirs_all) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        ours_all.push(bench(&work)?);
        theirs_all.push(bench(&theirs)?);
    }
    Ok(table(&ours_all, &theirs_all, "ElasticMQ", GOAL))
}
