//! PostgreSQL with a standby: the primary crashes, the standby is promoted.

use anyhow::Result;

use crate::cargo;
use crate::postgres::found;
use crate::steps::{Outcome, Step};

pub(super) fn step() -> Step {
    Step::new("postgres with a standby", tests)
}

fn tests() -> Result<Outcome> {
    if let Some(skipped) = found()? {
        return Ok(skipped);
    }
    let test =
        ["test", "--package", "malote", "--features", "postgres", "--test", "cluster_postgres"];
    // What it prints is what it counted.
    cargo::tests(&[&test[..], &["--", "--nocapture"]].concat())
}
