//! Workers of sagas on a real RabbitMQ, which is started for these tests and gone with them.
#![allow(clippy::unwrap_used, clippy::expect_used)] // a test

#[path = "../worker/killed.rs"]
mod killed;

use killed::{At, Shared, at_every_point, saga};
use malote::once::sqlite::Sqlite;
use malote::{Malote, Worker};
use malote_services::RabbitMq;

/// Sagas are in a database: sessions of RabbitMQ have no state, which a worker that needs it is told at its start.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_killed_in_any_step_leaves_all_or_nothing() {
    let start = || RabbitMq::start(1).unwrap_or_else(|why| panic!("{why}"));
    let server = tokio::task::spawn_blocking(start).await.unwrap();
    let url = format!("{}?partitions=4", server.url(0));
    let malote = Malote::connect(&url).await.unwrap();
    let worker = Worker::of_saga(&malote, saga()).state(Shared::default());
    let refused = worker.start().await.map(drop).unwrap_err().to_string();
    assert!(refused.contains("RabbitMQ") && refused.contains("of_saga_in"), "{refused}");
    malote.close().await.unwrap();
    let db = Sqlite::over(rusqlite::Connection::open_in_memory().unwrap()).unwrap();
    at_every_point(&At { url, db }).await;
}
