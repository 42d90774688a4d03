//! Brokers with several servers, while one of them fails: a RabbitMQ cluster of three nodes, one of which is killed,
//! and PostgreSQL with a standby that is promoted. First the connector contract with a fault in every case, then
//! workers under load. They print their figures.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use malote_services::RabbitMq;

use crate::steps::{Outcome, Step};
use crate::{cargo, postgres, rabbitmq};

pub(super) fn steps() -> Vec<Step> {
    vec![
        Step::new("contract, nodes killed", || contract(rabbitmq::skip_if_missing()?, "rabbitmq")),
        Step::new("contract, promotions", || contract(postgres::skip_if_missing()?, "postgres")),
        Step::new("RabbitMQ, a node killed", || {
            tests(rabbitmq::skip_if_missing()?, "sqlite", "cluster")
        }),
        Step::new("orders, a node killed", orders),
        Step::new("PostgreSQL, a standby", || {
            tests(postgres::skip_if_missing()?, "postgres", "cluster_postgres")
        }),
    ]
}

/// Runs every case of the connector contract with faults.
fn contract(skipped: Option<Outcome>, broker: &str) -> Result<Outcome> {
    if let Some(skipped) = skipped {
        return Ok(skipped);
    }
    let test = ["test", "--package", "malote-connectors", "--test", "cluster"];
    cargo::tests(&[&test[..], &["--", "--nocapture", broker]].concat())
}

/// The example `orders` on three nodes. The node that all clients use is killed, and so are two workers.
fn orders() -> Result<Outcome> {
    if let Some(skipped) = rabbitmq::skip_if_missing()? {
        return Ok(skipped);
    }
    cargo::run(&["build", "--package", "orders"])?;
    let mut nodes = RabbitMq::cluster(3).map_err(anyhow::Error::msg)?;
    let url = nodes.url_of_all(&[0, 1, 2], 0);
    let mut orders = Command::new(cargo::target().join("debug/orders"));
    orders.args(["--url", &url, "--orders", "3000", "--kills", "2", "--freezes", "0"]);
    let mut orders = orders.spawn().context("cannot start the example")?;
    // Orders are in flight by now, and there are enough of them for much longer.
    std::thread::sleep(Duration::from_secs(8));
    ensure!(orders.try_wait()?.is_none(), "the example ended before a node was killed");
    nodes.kill(0);
    println!("a node was killed");
    let status = orders.wait()?;
    ensure!(status.success(), "orders on a cluster failed: {status}");
    Ok(Outcome::one())
}

fn tests(skipped: Option<Outcome>, features: &str, name: &str) -> Result<Outcome> {
    if let Some(skipped) = skipped {
        return Ok(skipped);
    }
    let test = ["test", "--package", "malote", "--features", features, "--test", name];
    cargo::tests(&[&test[..], &["--", "--nocapture"]].concat())
}
