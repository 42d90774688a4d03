//! A worker on a broker of several nodes, one of which is killed while it works.

use anyhow::Result;

use crate::steps::Outcome;
use crate::{cargo, rabbitmq};

/// The figures are in what it prints.
pub(super) fn rabbitmq() -> Result<Outcome> {
    if let Some(skipped) = rabbitmq::found()? {
        return Ok(skipped);
    }
    let test = ["test", "--package", "malote", "--features", "sqlite", "--test", "cluster"];
    cargo::tests(&[test.as_slice(), &["--", "--nocapture"]].concat())
}
