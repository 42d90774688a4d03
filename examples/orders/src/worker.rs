//! The worker: all the code that a shop writes.

use std::path::Path;
use std::time::Duration;

use malote::model::Dedup;
use malote::once::sqlite::Sqlite;
use malote::{Failure, Malote, Meta, QueueSpec, Retry, SessionOptions, Tx, Worker};

use crate::order::{Order, QUEUE};

/// How long a frozen worker keeps its sessions. A killed worker loses them when its connection is lost.
pub const LOCK: Duration = Duration::from_secs(4);
/// Attempts before an order is dead-lettered.
pub const ATTEMPTS: u32 = 3;

/// Applies an order. All writes, and the record that the message was handled, are one transaction. If the worker is
/// killed at any point, either all of it happened or nothing.
async fn apply(order: Order, meta: Meta, tx: Tx<Sqlite>) -> Result<(), Failure> {
    if order.crashes {
        std::process::abort(); // a bug that crashes the whole process
    }
    if order.cents == 0 {
        return Err(Failure::retry("an order must cost something"));
    }
    // The subject names the producer.
    let producer = meta.message().subject.clone().unwrap_or_default();
    tx.run(move |db| {
        db.execute(
            "insert into applied (id, customer, producer, number, worker) values (?1, ?2, ?3, ?4, ?5)",
            (&order.id, &order.customer, producer, order.number, std::process::id()),
        )?;
        // This statement does not detect repeated messages; the inbox of the transaction does.
        db.execute(
            "insert into customers (name, cents) values (?1, ?2)
             on conflict (name) do update set cents = cents + excluded.cents",
            (&order.customer, order.cents),
        )
    })
    .await?;
    Ok(())
}

/// Opens the database of the shop. Malote adds its own tables.
pub fn database(path: &Path) -> anyhow::Result<Sqlite> {
    let db = rusqlite::Connection::open(path)?;
    db.execute_batch(
        "create table if not exists applied (id text, customer text, producer text, number integer, worker integer);
         create table if not exists customers (name text primary key, cents integer);",
    )?;
    Ok(Sqlite::with_connection(db)?)
}

/// Creates the queue, if the broker supports it. Otherwise it must exist, with sessions.
pub async fn declare(malote: &Malote, dedup: Option<Dedup>) -> Result<(), malote::Error> {
    if !malote.broker().capabilities().declare {
        return Ok(());
    }
    // The worker counts attempts and lost workers itself, so the queue needs no limit.
    let sessions = malote::model::Sessions::Dynamic;
    let spec = QueueSpec { sessions, dedup, failed_max: None, ..QueueSpec::default() };
    malote.declare(QUEUE, spec).await
}

/// Works until SIGTERM.
pub async fn work(url: &str, db: &Path) -> anyhow::Result<()> {
    let malote = Malote::connect(url).await?;
    shop_worker(&malote, database(db)?).run_until_signal().await?;
    Ok(malote.close().await?)
}

/// The worker of the shop.
pub fn shop_worker(malote: &Malote, db: Sqlite) -> Worker {
    let can = malote.broker().capabilities();
    // If the broker cannot change properties, a killed worker counts as an attempt, so allow more of them.
    let attempts = if can.changes { ATTEMPTS } else { ATTEMPTS + 5 };
    let retry = match can.delay {
        true => Retry::fixed(Duration::from_millis(100), attempts),
        false => Retry::at_once(attempts),
    };
    Worker::new(malote, QUEUE)
        .handle(apply)
        .state(db)
        // Eight customers at a time. SQLite runs one transaction after the other, so a prefetch would not help.
        .with_sessions(SessionOptions { max: 8, prefetch: 1, ..SessionOptions::default() })
        .retry(retry)
        .lock(LOCK)
}
