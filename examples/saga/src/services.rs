//! Stock, bank, carrier and mail: external systems with their own database. They recognize repeated calls by their key.
//! They crash workers before and after an effect, lose answers, and refuse some calls.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;

use malote::Failure;
use malote::once::sqlite::Sqlite;

/// A client of the systems.
#[derive(Clone)]
pub struct Services {
    db: Sqlite,
    crashes_workers: bool,
}

/// The sums of all effects.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Totals {
    pub reserved: i64,
    pub freed: i64,
    pub charged_cents: i64,
    pub refunded_cents: i64,
    pub shipped: i64,
    pub thanked: i64,
    pub calls: i64,
}

/// Selects one in `one_in` keys for a fault, always the same ones.
fn chosen(key: &str, what: &str, one_in: u64) -> bool {
    let mut hasher = DefaultHasher::new();
    (key, what).hash(&mut hasher);
    hasher.finish().is_multiple_of(one_in)
}

impl Services {
    pub fn at(path: &Path) -> anyhow::Result<Self> {
        let db = rusqlite::Connection::open(path)?;
        db.execute_batch(
            "create table if not exists done (number integer primary key, key text unique, what text, cents integer);
             create table if not exists calls (key text primary key, count integer);",
        )?;
        Ok(Self { db: Sqlite::with_connection(db)?, crashes_workers: false })
    }

    /// Enables crashes and lost answers, for workers.
    pub fn that_crash_workers(mut self) -> Self {
        self.crashes_workers = true;
        self
    }

    pub async fn reserve(&self, key: &str, item: &str) -> Result<i64, Failure> {
        if item == "sold out" {
            return Err(Failure::dead("SoldOut", "the item is sold out"));
        }
        self.once(key, "reserved", 0).await
    }

    pub async fn free(&self, reservation: &str) -> Result<(), Failure> {
        self.undo(reservation, "freed").await
    }

    pub async fn charge(&self, key: &str, cents: i64) -> Result<i64, Failure> {
        if cents > 5000 {
            return Err(Failure::dead("Declined", "the amount exceeds the limit of the card"));
        }
        self.once(key, "charged", cents).await
    }

    pub async fn refund(&self, charge: &str) -> Result<(), Failure> {
        self.undo(charge, "refunded").await
    }

    pub async fn ship(&self, key: &str, item: &str) -> Result<i64, Failure> {
        if item == "piano" {
            return Err(Failure::dead("TooHeavy", "the parcel is too heavy"));
        }
        self.once(key, "shipped", 0).await
    }

    pub async fn thank(&self, key: &str) -> Result<i64, Failure> {
        self.once(key, "thanked", 0).await
    }

    /// Has the effect once per key, with faults before and after it.
    async fn once(&self, key: &str, what: &'static str, cents: i64) -> Result<i64, Failure> {
        let first = self.count(key).await? == 1;
        self.crash_worker(first, key, "before");
        let of = key.to_owned();
        let number = self.db.run(move |db| {
            let insert = "insert or ignore into done (key, what, cents) values (?1, ?2, ?3)";
            db.execute(insert, (&of, what, cents))?;
            db.query_row("select number from done where key = ?1", [of], |row| row.get(0))
        });
        let number = number.await?;
        self.crash_worker(first, key, "after");
        if first && chosen(key, "lost", 7) {
            return Err(Failure::retry("the answer was lost after the effect"));
        }
        Ok(number)
    }

    /// Undoes the effect of a key, if there was one.
    async fn undo(&self, of: &str, what: &'static str) -> Result<(), Failure> {
        let key = format!("{of}/{what}");
        let first = self.count(&key).await? == 1;
        self.crash_worker(first, &key, "before");
        let (undo_key, undone) = (key.clone(), of.to_owned());
        let insert_undo = self.db.run(move |db| {
            let insert = "insert or ignore into done (key, what, cents)
                          select ?1, ?2, cents from done where key = ?3";
            db.execute(insert, (undo_key, what, undone))
        });
        insert_undo.await?;
        self.crash_worker(first, &key, "after");
        Ok(())
    }

    async fn count(&self, key: &str) -> Result<i64, Failure> {
        let of = key.to_owned();
        let count = self.db.run(move |db| {
            let more = "insert into calls (key, count) values (?1, 1)
                        on conflict (key) do update set count = count + 1 returning count";
            db.query_row(more, [of], |row| row.get(0))
        });
        Ok(count.await?)
    }

    /// Ends the process without cleaning up, like SIGKILL.
    fn crash_worker(&self, first: bool, key: &str, when: &str) {
        if self.crashes_workers && first && chosen(key, when, 20) {
            std::process::abort();
        }
    }

    pub async fn totals(&self) -> anyhow::Result<Totals> {
        let totals = self.db.run(|db| {
            let mut totals = Totals::default();
            let sums = "select what, count(*), sum(cents) from done group by what";
            let mut rows = db.prepare(sums)?;
            let rows = rows.query_map([], |row| {
                Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?, row.get::<_, i64>(2)?))
            })?;
            for row in rows {
                let (what, count, cents) = row?;
                match what.as_str() {
                    "reserved" => totals.reserved = count,
                    "freed" => totals.freed = count,
                    "charged" => totals.charged_cents = cents,
                    "refunded" => totals.refunded_cents = cents,
                    "shipped" => totals.shipped = count,
                    _ => totals.thanked = count,
                }
            }
            let calls = "select coalesce(sum(count), 0) from calls";
            totals.calls = db.query_row(calls, [], |row| row.get(0))?;
            Ok(totals)
        });
        Ok(totals.await?)
    }
}
