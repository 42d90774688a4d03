//! ActiveMQ Artemis, by plain AMQP 1.0. Both have each message on disk before they answer.

use anyhow::Result;

use super::{JavaServer, ROUNDS, bench, table};
use crate::cargo;

/// In rate, or in processor time of the server for each message.
const GOAL: f64 = 2.0;

pub(super) fn run() -> Result<bool> {
    let other = JavaServer::start(&cargo::root().join("testing/compare/artemis"))?;
    let at = format!("127.0.0.1:{}", other.port);
    let pid = other.child.id().to_string();
    let dir = cargo::target();
    let dir = dir.to_string_lossy();
    let work = ["servicebus", "--plain", "--sessions", "1,4", "--seconds", "4", "--dir", &dir];
    let work = [work.as_slice(), &["--backlog", "100000"]].concat();
    let theirs = [work.as_slice(), &["--at", &at, "--pid", &pid]].concat();
    // Java is fast once it is warm: the first round is not counted.
    bench(&theirs)?;
    let (mut ours_all, mut theirs_all) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        ours_all.push(bench(&work)?);
        theirs_all.push(bench(&theirs)?);
    }
    Ok(table(&ours_all, &theirs_all, "Artemis", GOAL))
}
