//! Workers on brokers of several servers, one of which dies under load: three nodes of RabbitMQ, one killed; PostgreSQL
//! with a standby that is promoted. The figures are in what they print.

use anyhow::Result;

use crate::steps::{Outcome, Step};
use crate::{cargo, postgres, rabbitmq};

pub(super) fn steps() -> Vec<Step> {
    vec![
        Step::new("RabbitMQ, a node killed", || tests(rabbitmq::found()?, "sqlite", "cluster")),
        Step::new("PostgreSQL, a standby", || {
            tests(postgres::found()?, "postgres", "cluster_postgres")
        }),
    ]
}

fn tests(skipped: Option<Outcome>, features: &str, name: &str) -> Result<Outcome> {
    if let Some(skipped) = skipped {
        return Ok(skipped);
    }
    let test = ["test", "--package", "malote", "--features", features, "--test", name];
    cargo::tests(&[&test[..], &["--", "--nocapture"]].concat())
}
