//! `malote saga`: sagas of workers, on a server or in a database.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)] // a test

mod common;

use std::time::Duration;

use common::{Server, local};
use malote::once::sqlite::Sqlite;
use malote::testing::TestBroker;
use malote::{Failure, Malote, Retry, Saga, SagaState, Worker};

#[derive(serde::Serialize, serde::Deserialize)]
struct Order {
    cents: u64,
}

async fn reserve(order: Order) -> Result<Order, Failure> {
    Ok(order)
}

async fn free(_order: Order) {}

async fn charge(order: Order) -> Result<Order, Failure> {
    match order.cents {
        0 => Err(Failure::dead("NoTotal", "an order costs something")),
        1 => Err(Failure::retry("the bank does not answer")),
        _ => Ok(order),
    }
}

fn saga() -> Saga<Order> {
    let later = Retry::fixed(Duration::from_secs(3600), 9);
    Saga::named("order")
        .step("reserve", reserve)
        .compensate(free)
        .step("charge", charge)
        .retry(later)
        .pivot()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sagas_are_listed_and_shown() {
    let server = Server::start();
    let malote = Malote::connect(&server.url.replace("http://", "malote://")).await.unwrap();
    for (id, cents) in [("free", 0), ("stuck", 1), ("paid", 900)] {
        malote.start_saga("order", id, &Order { cents }).await.unwrap();
    }
    let worker = Worker::of_saga(&malote, saga()).start().await.unwrap();
    // A saga that failed permanently still has to be compensated.
    let settled = async || {
        let all = malote.sagas("order", 0, 10).await.unwrap().sagas;
        let is_settled = |(id, saga): &(String, SagaState)| match id.as_str() {
            "stuck" => saga.steps[1].attempts == 1,
            _ => saga.swept,
        };
        all.iter().filter(|saga| is_settled(saga)).count() == 3
    };
    tokio::time::timeout(Duration::from_secs(60), async {
        while !settled().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await
    .unwrap();
    worker.stop();
    worker.ended().await.unwrap();
    let all = server.ok("saga ls order");
    for (id, words) in [
        ("free", ["compensated", "charge: NoTotal: an order costs something"]),
        ("stuck", ["running", "the bank does not answer"]),
        ("paid", ["done", "-"]),
    ] {
        let line = all.lines().find(|line| line.starts_with(id)).unwrap_or_else(|| panic!("{all}"));
        assert!(words.iter().all(|word| line.contains(word)), "{line}");
    }
    assert_eq!(server.ok("saga ls order --status running -o name").trim(), "stuck");
    let one = server.ok("saga show order stuck");
    assert!(one.contains("charge: waiting, 1 failed attempts, the bank does not answer (pivot)"));
    assert!(one.contains(r#"{"cents":1}"#), "{one}");
    let json: serde_json::Value =
        serde_json::from_str(&server.ok("saga show order free -o json")).unwrap();
    assert_eq!(json["steps"][0]["status"], "compensated");
    let none = server.run("saga show order nobody");
    assert_eq!(none.code, 3, "{none}");
    for line in ["saga ls refund", "saga show refund nobody"] {
        let none = server.run(line);
        assert!(none.code == 3 && none.err.contains("no saga `refund` was ever started"), "{none}");
        assert!(!none.err.contains("queue"), "{none}");
    }
    malote.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sagas_in_a_database_are_listed_and_shown() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("shop.db");
    let (broker, db) = (TestBroker::new().unwrap(), Sqlite::open(&file).unwrap());
    let ids = [("free", 0), ("paid", 900), ("stuck", 1)];
    for (id, cents) in ids {
        broker.malote().start_saga("order", id, &Order { cents }).await.unwrap();
    }
    let worker = Worker::of_saga_in(broker.malote(), saga(), &db).start().await.unwrap();
    let is_settled = |saga: &SagaState| saga.is_over() || saga.steps[1].attempts == 1;
    tokio::time::timeout(Duration::from_secs(60), async {
        while db.sagas("order", "", 9).await.unwrap().iter().filter(|s| is_settled(&s.1)).count()
            < ids.len()
        {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await
    .unwrap();
    let run = |line: &str| local(home.path(), &format!("{line} --db sqlite:{}", file.display()));
    // While the worker runs, and after its end.
    let all = run("saga ls order");
    for (id, words) in [
        ("free", ["compensated", "charge: NoTotal: an order costs something"]),
        ("paid", ["done", "-"]),
        ("stuck", ["running", "the bank does not answer"]),
    ] {
        let line = all.out.lines().find(|line| line.starts_with(id));
        let line = line.unwrap_or_else(|| panic!("{all}"));
        assert!(words.iter().all(|word| line.contains(word)), "{line}");
    }
    worker.stop();
    worker.ended().await.unwrap();
    drop(db);
    let page = run("saga ls order --max 1 -o name");
    assert_eq!(page.out.trim(), "free");
    assert!(page.err.contains("--after 'free'"), "{page}");
    assert_eq!(run("saga ls order --after free -o name").out, "paid\nstuck\n");
    assert_eq!(run("saga ls order --status running -o name").out.trim(), "stuck");
    assert_eq!(run("saga ls nothing -o name").out, "");
    let one = run("saga show order stuck").out;
    assert!(one.contains("charge: waiting, 1 failed attempts, the bank does not answer (pivot)"));
    assert!(one.contains(r#"{"cents":1}"#), "{one}");
    let json: serde_json::Value =
        serde_json::from_str(&run("saga show order free -o json").out).unwrap();
    assert_eq!(json["steps"][0]["status"], "compensated");
    assert_eq!(run("saga show order nobody").code, 3);
    let empty = home.path().join("empty.db");
    std::fs::write(&empty, "").unwrap();
    let none = local(home.path(), &format!("saga ls order --db sqlite:{}", empty.display()));
    assert!(none.code == 3 && none.err.contains("no worker keeps sagas"), "{none}");
    // Reading creates no tables.
    let missing = home.path().join("missing.db");
    let none = local(home.path(), &format!("saga ls order --db sqlite:{}", missing.display()));
    assert_eq!(none.code, 1, "{none}");
    assert!(!missing.exists());
    assert_eq!(local(home.path(), "saga ls order --db mysql://shop").code, 2);
}
