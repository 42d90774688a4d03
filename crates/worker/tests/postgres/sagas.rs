//! Sagas in PostgreSQL: steps that write to it commit with them.

use std::time::Duration;

use malote::model::Sessions;
use malote::once::postgres::Postgres;
use malote::{Failure, Outgoing, Retry, Saga, SagaState, SagaStatus, Step, Tx, Worker};

use super::killed::{At, at_every_point};
use super::{RECEIPTS, World, database, until};

const INSERT: &str = "insert into charges (order_id) values ($1)";

/// Writes, and fails at its first attempt after that.
async fn charge(order: String, step: Step, tx: Tx<Postgres>) -> Result<String, Failure> {
    tx.execute(INSERT, &[&format!("{order} {}", step.name())]).await?;
    tx.send(Outgoing::text(RECEIPTS, format!("{order} {}", step.name()))).await?;
    if step.attempt() == 1 { Err(Failure::retry("after all")) } else { Ok(order) }
}

async fn undo(order: String, step: Step, tx: Tx<Postgres>) -> Result<(), Failure> {
    tx.execute(INSERT, &[&format!("{order} {} back", step.name())]).await?;
    Ok(())
}

/// Says no to one order.
async fn ship(order: String) -> Result<String, Failure> {
    if order == "piano" { Err(Failure::dead("TooHeavy", "nobody carries it")) } else { Ok(order) }
}

fn saga() -> Saga<String> {
    Saga::named("order")
        .retry(Retry::fixed(Duration::from_millis(20), 3))
        .step("charge", charge)
        .compensate(undo)
        .step("ship", ship)
}

async fn over(world: &World, id: &str) -> SagaState {
    let look = async || world.db.saga("order", id).await.unwrap();
    until(async || look().await.is_some_and(|saga| saga.is_over())).await;
    look().await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_its_messages_and_its_saga_are_one_transaction() {
    let world = World::new(Sessions::None, Sessions::None).await;
    let malote = world.broker.malote();
    // Two workers, and starts that come twice: in one transaction, and once more.
    let workers = [0, 1].map(|_| Worker::of_saga_in(malote, saga(), &world.db).start());
    let [first, second] = workers;
    let (first, second) = (first.await.unwrap(), second.await.unwrap());
    for id in ["book", "piano"] {
        let start = Outgoing::saga("order", id, &id).unwrap();
        Postgres::send_in(&world.sql, start).await.unwrap();
        malote.start_saga("order", id, &id).await.unwrap();
    }
    let (book, piano) = (over(&world, "book").await, over(&world, "piano").await);
    assert_eq!((book.status, book.steps[0].attempts), (SagaStatus::Done, 1));
    assert_eq!(piano.status, SagaStatus::Compensated);
    assert_eq!(piano.error.as_deref(), Some("ship: TooHeavy: nobody carries it"));
    let mut charges = world.charges().await;
    charges.sort();
    assert_eq!(charges, ["book charge", "piano charge", "piano charge back"]);
    // What waits in the outbox, receipts included, is published by the workers.
    world.until("select count(*) = 0 from malote_outbox").await;
    first.stop();
    second.stop();
    first.ended().await.unwrap();
    second.ended().await.unwrap();
    let mut receipts: Vec<String> =
        world.received(None).await.into_iter().map(|(_, text)| text).collect();
    receipts.sort();
    assert_eq!(receipts, ["book charge", "piano charge"]);
    let view = "select string_agg(step || ' ' || status, ', ' order by n) from malote_saga_step where id = 'piano'";
    assert_eq!(world.one::<String>(view).await, "charge compensated, ship failed");
    let all = world.db.sagas("order", "", 10).await.unwrap();
    assert_eq!(all.iter().map(|(id, _)| id.as_str()).collect::<Vec<_>>(), ["book", "piano"]);
    assert_eq!(world.db.sagas("order", "book", 10).await.unwrap().len(), 1);
    assert_eq!(world.db.clean_sagas(Duration::ZERO).await.unwrap(), 2);
}

/// The database of the sagas is the broker, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_killed_in_any_step_leaves_all_or_nothing() {
    let url = database().await;
    let db = Postgres::connect(&url).await.unwrap();
    db.install().await.unwrap();
    at_every_point(&At { url, db }).await;
}
