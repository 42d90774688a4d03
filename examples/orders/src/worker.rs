//! A worker of the shop: this file is what you would write.

use std::path::Path;
use std::time::Duration;

use malote::model::Dedup;
use malote::once::sqlite::Sqlite;
use malote::{Failure, Malote, Meta, QueueSpec, Retry, Sessions, Tx, Worker};

use crate::order::{Order, QUEUE};

/// How long a worker that does not answer keeps its customers. One that was killed loses them as soon as its
/// connection is gone.
pub const LOCK: Duration = Duration::from_secs(4);
/// Attempts before an order is given up.
pub const ATTEMPTS: u32 = 3;

/// Applies an order. All that it writes is one transaction with the row that says "this message was handled": if the
/// worker is killed at any point, either everything has happened or nothing.
async fn apply(order: Order, meta: Meta, tx: Tx<Sqlite>) -> Result<(), Failure> {
    if order.crashes {
        std::process::abort(); // a bug that takes the whole process with it
    }
    if order.cents == 0 {
        return Err(Failure::retry("an order must cost something"));
    }
    // Who sent it is in its headers: the same handler serves all three.
    let producer = meta.message().subject.clone().unwrap_or_default();
    tx.run(move |db| {
        db.execute(
            "insert into applied (id, customer, producer, number, worker) values (?1, ?2, ?3, ?4, ?5)",
            (&order.id, &order.customer, producer, order.number, std::process::id()),
        )?;
        // Twice would be wrong: nothing in this statement knows of repeats.
        db.execute(
            "insert into customers (name, cents) values (?1, ?2)
             on conflict (name) do update set cents = cents + excluded.cents",
            (&order.customer, order.cents),
        )
    })
    .await?;
    Ok(())
}

/// Opens the shop's database. Its own tables have nothing to do with Malote; those of the inbox are made beside them.
pub fn database(path: &Path) -> anyhow::Result<Sqlite> {
    let db = rusqlite::Connection::open(path)?;
    db.execute_batch(
        "create table if not exists applied (id text, customer text, producer text, number integer, worker integer);
         create table if not exists customers (name text primary key, cents integer);",
    )?;
    Ok(Sqlite::over(db)?)
}

/// Makes the queue, where the broker lets us; else it must be there, with sessions.
pub async fn declare(malote: &Malote, dedup: Option<Dedup>) -> Result<(), malote::Error> {
    if !malote.broker().capabilities().declare {
        return Ok(());
    }
    // The worker counts attempts and lost workers itself: the queue need not give up earlier.
    let sessions = malote::model::Sessions::Dynamic;
    let spec = QueueSpec { sessions, dedup, failed_max: None, ..QueueSpec::default() };
    malote.declare(QUEUE, spec).await
}

/// Works until SIGTERM.
pub async fn work(url: &str, db: &Path) -> anyhow::Result<()> {
    let malote = Malote::connect(url).await?;
    of(&malote, database(db)?).run_until_signal().await?;
    Ok(malote.close().await?)
}

/// A worker on a broker and the shop's database.
pub fn of(malote: &Malote, db: Sqlite) -> Worker {
    let can = malote.broker().capabilities();
    // Where nothing can be written on a message, a killed worker counts as an attempt: good orders need some to spare.
    let attempts = if can.changes { ATTEMPTS } else { ATTEMPTS + 5 };
    let retry = match can.delay {
        true => Retry::fixed(Duration::from_millis(100), attempts),
        false => Retry::at_once(attempts),
    };
    Worker::new(malote, QUEUE)
        .handle(apply)
        .state(db)
        // Eight customers at a time. SQLite writes one transaction after the other: to fetch ahead would only keep
        // messages from other workers.
        .with_sessions(Sessions { max: 8, prefetch: 1, ..Sessions::default() })
        .retry(retry)
        .lock(LOCK)
}
