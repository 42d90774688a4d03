//! Workers of sagas on RabbitMQ. The test starts and stops the server.
#![allow(clippy::unwrap_used, clippy::expect_used)] // a test

#[path = "../worker/killed.rs"]
mod killed;

use killed::{BrokerAndDatabase, FaultyService, kill_at_every_point, saga};
use malote::once::sqlite::Sqlite;
use malote::{Malote, Worker};
use malote_services::RabbitMq;

/// The sagas are in a database, because sessions on RabbitMQ have no state. A worker that needs it is refused at start.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_killed_in_any_step_leaves_all_or_nothing() {
    let start = || RabbitMq::start(1).unwrap_or_else(|error| panic!("{error}"));
    let server = tokio::task::spawn_blocking(start).await.unwrap();
    let url = format!("{}?partitions=4", server.url(0));
    let malote = Malote::connect(&url).await.unwrap();
    let worker = Worker::of_saga(&malote, saga()).state(FaultyService::default());
    let refused = worker.start().await.map(drop).unwrap_err().to_string();
    assert!(refused.contains("RabbitMQ") && refused.contains("of_saga_in"), "{refused}");
    malote.close().await.unwrap();
    let db = Sqlite::with_connection(rusqlite::Connection::open_in_memory().unwrap()).unwrap();
    kill_at_every_point(&BrokerAndDatabase { url, db }).await;
}
