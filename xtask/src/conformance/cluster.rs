//! Brokers of several servers, one of which dies: three nodes of RabbitMQ, one killed; PostgreSQL with a standby that is
//! promoted. First the contract of connectors, with a fault inside every case, then workers under load. The figures are in
//! what they print.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use malote_services::RabbitMq;

use crate::steps::{Outcome, Step};
use crate::{cargo, postgres, rabbitmq};

pub(super) fn steps() -> Vec<Step> {
    vec![
        Step::new("contract, nodes killed", || contract(rabbitmq::found()?, "rabbitmq")),
        Step::new("contract, promotions", || contract(postgres::found()?, "postgres")),
        Step::new("RabbitMQ, a node killed", || tests(rabbitmq::found()?, "sqlite", "cluster")),
        Step::new("orders, a node killed", orders),
        Step::new("PostgreSQL, a standby", || {
            tests(postgres::found()?, "postgres", "cluster_postgres")
        }),
    ]
}

/// Every case of the contract, with faults inside.
fn contract(skipped: Option<Outcome>, broker: &str) -> Result<Outcome> {
    if let Some(skipped) = skipped {
        return Ok(skipped);
    }
    let test = ["test", "--package", "malote-connectors", "--test", "cluster"];
    cargo::tests(&[&test[..], &["--", "--nocapture", broker]].concat())
}

/// The example `orders` on three nodes: the one that everybody talks to dies, and so do two workers.
fn orders() -> Result<Outcome> {
    if let Some(skipped) = rabbitmq::found()? {
        return Ok(skipped);
    }
    cargo::run(&["build", "--package", "orders"])?;
    let mut nodes = RabbitMq::cluster(3).map_err(anyhow::Error::msg)?;
    let url = nodes.url_of_all(&[0, 1, 2], 0);
    let mut orders = Command::new(cargo::target().join("debug/orders"));
    orders.args(["--url", &url, "--orders", "3000", "--kills", "2", "--freezes", "0"]);
    let mut orders = orders.spawn().context("the example does not start")?;
    // Orders are under way by then; there are enough of them for far longer.
    std::thread::sleep(Duration::from_secs(8));
    ensure!(orders.try_wait()?.is_none(), "it was over before a node died");
    nodes.kill(0);
    println!("a node was killed");
    let status = orders.wait()?;
    ensure!(status.success(), "orders on a cluster: {status}");
    Ok(Outcome::one())
}

fn tests(skipped: Option<Outcome>, features: &str, name: &str) -> Result<Outcome> {
    if let Some(skipped) = skipped {
        return Ok(skipped);
    }
    let test = ["test", "--package", "malote", "--features", features, "--test", name];
    cargo::tests(&[&test[..], &["--", "--nocapture"]].concat())
}
