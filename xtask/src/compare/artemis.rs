//! ActiveMQ Artemis, over plain AMQP 1.0. Both servers write each message to disk before they answer.

use anyhow::Result;

use super::{JavaServer, Malote, ROUNDS, bench, table};
use crate::cargo;

/// Factor to reach, in rate or in CPU time of the server per message.
const GOAL: f64 = 2.0;

pub(super) fn run() -> Result<bool> {
    let other = JavaServer::start(&cargo::root().join("testing/compare/artemis"))?;
    let malote = Malote::start()?;
    let dir = cargo::target();
    let dir = dir.to_string_lossy();
    let round = |port: u16, pid: u32| {
        let (at, pid) = (format!("127.0.0.1:{port}"), pid.to_string());
        let work = ["servicebus", "--plain", "--sessions", "1,4", "--seconds", "4", "--dir", &dir];
        bench(&[work.as_slice(), &["--backlog", "100000", "--at", &at, "--pid", &pid]].concat())
    };
    let (mut ours_all, mut theirs_all) = (Vec::new(), Vec::new());
    // The first round is not counted: both servers are faster once Java has warmed up and files can be reused.
    for counts in std::iter::once(false).chain([true; ROUNDS]) {
        let ours = round(malote.port, malote.child.id())?;
        let theirs = round(other.port, other.child.id())?;
        if counts {
            ours_all.push(ours);
            theirs_all.push(theirs);
        }
    }
    Ok(table(&ours_all, &theirs_all, "Artemis", GOAL))
}
