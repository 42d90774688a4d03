//! `malote saga … --db`.

use std::time::Duration;

use malote::once::postgres::Postgres;
use malote::testing::TestBroker;
use malote::{Failure, Saga, SagaState, Worker};

use crate::common::local;

async fn charge(cents: u64) -> Result<u64, Failure> {
    if cents == 0 { Err(Failure::dead("NoTotal", "an order costs something")) } else { Ok(cents) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sagas_in_postgres_are_listed_and_shown() {
    let start = || malote_services::Postgres::start().unwrap_or_else(|why| panic!("{why}"));
    let server = tokio::task::spawn_blocking(start).await.unwrap();
    let (home, url) = (tempfile::tempdir().unwrap(), server.url("postgres"));
    let run = |line: &str| local(home.path(), &format!("{line} --db {url}"));
    // Reading creates no tables.
    let none = run("saga ls order");
    assert!(none.code == 3 && none.err.contains("no worker keeps sagas"), "{none}");
    let (broker, db) = (TestBroker::new().unwrap(), Postgres::connect(&url).await.unwrap());
    db.install().await.unwrap();
    for (id, cents) in [("free", 0_u64), ("paid", 900)] {
        broker.malote().start_saga("order", id, &cents).await.unwrap();
    }
    let saga = Saga::named("order").step("charge", charge);
    let worker = Worker::of_saga_in(broker.malote(), saga, &db).start().await.unwrap();
    let is_over = |(_, saga): &(String, SagaState)| saga.is_over();
    tokio::time::timeout(Duration::from_secs(60), async {
        while db.sagas("order", "", 9).await.unwrap().iter().filter(|s| is_over(s)).count() < 2 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await
    .unwrap();
    worker.stop();
    worker.ended().await.unwrap();
    assert_eq!(run("saga ls order -o name").out, "free\npaid\n");
    assert_eq!(run("saga ls order --status done -o name").out, "paid\n");
    assert!(run("saga show order free").out.contains("NoTotal: an order costs something"));
    assert_eq!(run("saga show order nobody").code, 3);
}
