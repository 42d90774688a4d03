//! Sagas in PostgreSQL.

use std::time::Duration;

use malote::model::Sessions;
use malote::once::postgres::Postgres;
use malote::{Failure, OutboxMessage, Retry, Saga, SagaState, SagaStatus, Step, Tx, Worker};

use super::killed::{BrokerAndDatabase, kill_at_every_point};
use super::{Fixture, RECEIPTS, database, until};

const INSERT: &str = "insert into charges (order_id) values ($1)";

/// Writes a row, and fails at the first attempt.
async fn charge(order: String, step: Step, tx: Tx<Postgres>) -> Result<String, Failure> {
    tx.execute(INSERT, &[&format!("{order} {}", step.name())]).await?;
    tx.send(OutboxMessage::text(RECEIPTS, format!("{order} {}", step.name()))).await?;
    if step.attempt() == 1 { Err(Failure::retry("the first attempt fails")) } else { Ok(order) }
}

async fn undo(order: String, step: Step, tx: Tx<Postgres>) -> Result<(), Failure> {
    tx.execute(INSERT, &[&format!("{order} {} back", step.name())]).await?;
    Ok(())
}

/// Refuses one order.
async fn ship(order: String) -> Result<String, Failure> {
    if order == "piano" {
        Err(Failure::dead("TooHeavy", "the parcel is too heavy"))
    } else {
        Ok(order)
    }
}

fn saga() -> Saga<String> {
    Saga::named("order")
        .retry(Retry::fixed(Duration::from_millis(20), 3))
        .step("charge", charge)
        .compensate(undo)
        .step("ship", ship)
}

async fn wait_for_end(fixture: &Fixture, id: &str) -> SagaState {
    let look = async || fixture.db.saga("order", id).await.unwrap();
    until(async || look().await.is_some_and(|saga| saga.is_over())).await;
    look().await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_commits_its_writes_its_messages_and_its_saga_together() {
    let fixture = Fixture::new(Sessions::None, Sessions::None).await;
    let malote = fixture.broker.malote();
    // Two workers. Each saga is started twice: once in a transaction.
    let workers = [0, 1].map(|_| Worker::of_saga_in(malote, saga(), &fixture.db).start());
    let [first, second] = workers;
    let (first, second) = (first.await.unwrap(), second.await.unwrap());
    for id in ["book", "piano"] {
        let start = OutboxMessage::saga("order", id, &id).unwrap();
        Postgres::send_in(&fixture.sql, start).await.unwrap();
        malote.start_saga("order", id, &id).await.unwrap();
    }
    let (book, piano) =
        (wait_for_end(&fixture, "book").await, wait_for_end(&fixture, "piano").await);
    assert_eq!((book.status, book.steps[0].attempts), (SagaStatus::Done, 1));
    assert_eq!(piano.status, SagaStatus::Compensated);
    assert_eq!(piano.error.as_deref(), Some("ship: TooHeavy: the parcel is too heavy"));
    let mut charges = fixture.charges().await;
    charges.sort();
    assert_eq!(charges, ["book charge", "piano charge", "piano charge back"]);
    // The workers publish the outbox, including the receipts.
    fixture.until("select count(*) = 0 from malote_outbox").await;
    first.stop();
    second.stop();
    first.ended().await.unwrap();
    second.ended().await.unwrap();
    let mut receipts: Vec<String> =
        fixture.received(None).await.into_iter().map(|(_, text)| text).collect();
    receipts.sort();
    assert_eq!(receipts, ["book charge", "piano charge"]);
    let view = "select string_agg(step || ' ' || status, ', ' order by n) from malote_saga_step where id = 'piano'";
    assert_eq!(fixture.one::<String>(view).await, "charge compensated, ship failed");
    let all = fixture.db.sagas("order", "", 10).await.unwrap();
    assert_eq!(all.iter().map(|(id, _)| id.as_str()).collect::<Vec<_>>(), ["book", "piano"]);
    assert_eq!(fixture.db.sagas("order", "book", 10).await.unwrap().len(), 1);
    assert_eq!(fixture.db.clean_sagas(Duration::ZERO).await.unwrap(), 2);
}

/// The database is also the broker.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_killed_in_any_step_leaves_all_or_nothing() {
    let url = database().await;
    let db = Postgres::connect(&url).await.unwrap();
    db.install().await.unwrap();
    kill_at_every_point(&BrokerAndDatabase { url, db }).await;
}
