//! Workers on brokers of several servers, one of which dies under load: three nodes of RabbitMQ, one killed; PostgreSQL
//! with a standby that is promoted. The figures are in what they print.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use malote_services::{Postgres, RabbitMq};

use crate::steps::{Outcome, Step};
use crate::{cargo, postgres, rabbitmq};

pub(super) fn steps() -> Vec<Step> {
    vec![
        Step::new("RabbitMQ, a node killed", || tests(rabbitmq::found()?, "sqlite", "cluster")),
        Step::new("orders, a node killed", orders),
        Step::new("PostgreSQL, a standby", || {
            tests(postgres::found()?, "postgres", "cluster_postgres")
        }),
        Step::new("orders on PostgreSQL", orders_on_postgres),
    ]
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

/// The same program on the other broker, with all its trouble.
fn orders_on_postgres() -> Result<Outcome> {
    if let Some(skipped) = postgres::found()? {
        return Ok(skipped);
    }
    let server = Postgres::start().map_err(anyhow::Error::msg)?;
    cargo::run(&["run", "--package", "orders", "--", "--url", &server.url("postgres")])?;
    Ok(Outcome::one())
}

fn tests(skipped: Option<Outcome>, features: &str, name: &str) -> Result<Outcome> {
    if let Some(skipped) = skipped {
        return Ok(skipped);
    }
    let test = ["test", "--package", "malote", "--features", features, "--test", name];
    cargo::tests(&[&test[..], &["--", "--nocapture"]].concat())
}
