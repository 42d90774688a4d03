//! RabbitMQ with three nodes, one of which is killed.

use anyhow::Result;

use crate::steps::{Outcome, Step};
use crate::{cargo, rabbitmq};

pub(super) fn step() -> Step {
    Step::new("cluster of RabbitMQ", tests)
}

/// The figures are in what it prints.
fn tests() -> Result<Outcome> {
    if let Some(skipped) = rabbitmq::found()? {
        return Ok(skipped);
    }
    let test = ["test", "--package", "malote", "--features", "sqlite", "--test", "cluster"];
    cargo::tests(&[test.as_slice(), &["--", "--nocapture"]].concat())
}
