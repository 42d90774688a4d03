//! Tests the connectors on a real RabbitMQ, which they start on free ports and stop.
//!
//! Without RabbitMQ the step is skipped; only CI installs it, from Debian's package.

use anyhow::{Context, Result};
use malote_services::RabbitMq;

use crate::cargo::{self, FEATURES};
use crate::conformance::skip_or_fail;
use crate::postgres::install;
use crate::steps::{Outcome, Step};

pub(crate) fn step() -> Step {
    Step::new("rabbitmq", tests)
}

fn tests() -> Result<Outcome> {
    if let Some(skipped) = skip_if_missing()? {
        return Ok(skipped);
    }
    cargo::tests(&["test", "--workspace", "--features", FEATURES, "--test", "rabbitmq"])
}

/// Returns a skipped outcome if RabbitMQ is missing. In CI it is installed instead.
pub(crate) fn skip_if_missing() -> Result<Option<Outcome>> {
    if let Err(why) = RabbitMq::find() {
        if std::env::var_os("CI").is_none() {
            return skip_or_fail("RabbitMQ", &why.to_string()).map(Some);
        }
        install("rabbitmq-server").with_context(|| why.to_string())?;
    }
    Ok(None)
}
