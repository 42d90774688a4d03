//! The contract of connectors on a real RabbitMQ, which the tests start on ports of its own and stop.
//!
//! Nobody's machine is changed for it: without RabbitMQ the step is skipped. CI installs Debian's package.

use anyhow::{Context, Result};
use malote_services::RabbitMq;

use crate::cargo::{self, FEATURES};
use crate::conformance::missing;
use crate::postgres::install;
use crate::steps::{Outcome, Step};

pub(crate) fn step() -> Step {
    Step::new("rabbitmq", tests)
}

fn tests() -> Result<Outcome> {
    if let Some(skipped) = found()? {
        return Ok(skipped);
    }
    cargo::tests(&["test", "--workspace", "--features", FEATURES, "--test", "rabbitmq"])
}

/// Installs it in CI; elsewhere its absence is the outcome.
pub(crate) fn found() -> Result<Option<Outcome>> {
    if let Err(why) = RabbitMq::find() {
        if std::env::var_os("CI").is_none() {
            return missing("RabbitMQ", &why.to_string()).map(Some);
        }
        install("rabbitmq-server").with_context(|| why.to_string())?;
    }
    Ok(None)
}
