//! The payment provider: an external system with its own database. It recognizes repeated calls by their idempotency
//! key and returns the same answer. It counts all calls.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use malote::once::sqlite::Sqlite;

/// A client of the provider.
#[derive(Clone)]
pub struct Provider {
    db: Sqlite,
    down: Arc<AtomicBool>,
    crashes_workers: bool,
}

/// The answer to a charge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receipt {
    pub number: i64,
    /// Number of calls with this key, including this one.
    pub calls: i64,
}

/// The provider did not answer.
#[derive(Debug, PartialEq, Eq)]
pub struct Unavailable(pub String);

impl std::fmt::Display for Unavailable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl Provider {
    pub fn at(path: &Path) -> anyhow::Result<Self> {
        let db = rusqlite::Connection::open(path)?;
        db.execute_batch(
            "create table if not exists charges (number integer primary key, key text unique, cents integer);
             create table if not exists calls (key text primary key, count integer);",
        )?;
        Ok(Self { db: Sqlite::with_connection(db)?, down: Arc::default(), crashes_workers: false })
    }

    /// Enables crashes and lost answers, for workers.
    pub fn that_crashes_workers(mut self) -> Self {
        self.crashes_workers = true;
        self
    }

    /// Charges once per key. The answer to the first call of some keys is lost.
    pub async fn charge(&self, key: &str, cents: i64) -> Result<Receipt, Unavailable> {
        let wrong = |error: malote::Error| Unavailable(error.to_string());
        if self.down.load(Ordering::SeqCst) {
            return Err(Unavailable("503".to_owned()));
        }
        let of = key.to_owned();
        let calls: i64 = self
            .db
            .run(move |db| {
                let more = "insert into calls (key, count) values (?1, 1)
                            on conflict (key) do update set count = count + 1 returning count";
                db.query_row(more, [of], |row| row.get(0))
            })
            .await
            .map_err(wrong)?;
        self.crash_worker(key, calls, 3); // before the charge
        let of = key.to_owned();
        let number = self
            .db
            .run(move |db| {
                db.execute(
                    "insert or ignore into charges (key, cents) values (?1, ?2)",
                    (&of, cents),
                )?;
                db.query_row("select number from charges where key = ?1", [of], |row| row.get(0))
            })
            .await
            .map_err(wrong)?;
        self.crash_worker(key, calls, 11); // after the charge, before the answer
        if self.crashes_workers && calls == 1 && nth(key) % 20 == 17 {
            return Err(Unavailable("the answer was lost after the charge".to_owned()));
        }
        Ok(Receipt { number, calls })
    }

    /// Ends the process at the first call of one in twenty keys.
    pub fn crash_worker(&self, key: &str, calls: i64, which: u32) {
        if self.crashes_workers && calls == 1 && nth(key) % 20 == which {
            std::process::abort();
        }
    }

    /// The numbers of charges, cents and calls.
    pub async fn totals(&self) -> anyhow::Result<(u32, i64, u32)> {
        let totals = self.db.run(|db| {
            let charged = "select count(*), coalesce(sum(cents), 0) from charges";
            let (charges, cents) =
                db.query_row(charged, [], |row| Ok((row.get(0)?, row.get(1)?)))?;
            let calls = "select coalesce(sum(count), 0) from calls";
            Ok((charges, cents, db.query_row(calls, [], |row| row.get(0))?))
        });
        Ok(totals.await?)
    }

    /// While the provider is down, calls fail.
    #[cfg(test)]
    pub fn set_down(&self, down: bool) {
        self.down.store(down, Ordering::SeqCst);
    }
}

/// The number in a key such as `payment-17`.
fn nth(key: &str) -> u32 {
    key.rsplit('-').next().and_then(|number| number.parse().ok()).unwrap_or_default()
}
