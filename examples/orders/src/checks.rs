//! Checks the result: the applied orders and the dead letters.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use malote::once::sqlite::Sqlite;
use malote::{Delivery, Malote, QueueName, RetryHold, Value};
use tokio::sync::Mutex;

use crate::order::{Expected, Order, Plan, QUEUE};
use crate::worker::ATTEMPTS;

/// The property with the failed attempts of a message.
const HISTORY: &str = "malote-history";
/// The lock time for dead letters.
const LOCK: Duration = Duration::from_secs(60);

/// The results of all orders.
pub struct Results {
    db: Sqlite,
    shop: Malote,
    plan: Plan,
    dead: Arc<Mutex<Vec<Delivery>>>,
}

/// A row of the table `applied`.
struct Applied {
    id: String,
    customer: String,
    producer: String,
    number: u32,
    worker: u32,
}

impl Results {
    pub fn open(db: Sqlite, shop: Malote, plan: Plan) -> Self {
        Self { db, shop, plan, dead: Arc::default() }
    }

    /// The numbers of different orders that were applied and dead-lettered. A broker that cannot move a message in one
    /// step may have a dead letter twice.
    pub async fn progress(&self) -> anyhow::Result<(usize, usize)> {
        self.take_dead(Duration::from_millis(50)).await?;
        let count = "select count(distinct id) from applied";
        let applied: u32 = self.db.run(|db| db.query_row(count, [], |row| row.get(0))).await?;
        let dead = self.dead.lock().await;
        let dead: BTreeSet<_> = dead.iter().map(|one| &one.message.message_id).collect();
        Ok((applied as usize, dead.len()))
    }

    /// Whether every order is applied or dead-lettered.
    pub async fn are_complete(&self) -> anyhow::Result<bool> {
        let (applied, dead) = self.progress().await?;
        Ok(applied + dead >= self.plan.len())
    }

    /// Removes dead letters and keeps them for the checks.
    async fn take_dead(&self, wait: Duration) -> anyhow::Result<()> {
        let queue = QueueName::new(QUEUE)?.dead_letters();
        let source = self.shop.broker().open(&queue, LOCK).await?;
        let some = source.fetch(100, wait).await?;
        let settle = some.iter().map(|one| malote::Settle::complete(one.lease)).collect();
        self.shop.broker().settle(&queue, settle).await?;
        source.close().await?;
        self.dead.lock().await.extend(some);
        Ok(())
    }

    /// Prints the results of all checks. Returns whether they passed.
    pub async fn check(&self) -> anyhow::Result<bool> {
        self.take_dead(Duration::from_secs(1)).await?;
        let applied = self.applied().await?;
        let dead = self.dead.lock().await;
        let wanted: Vec<_> = self.plan.with(Expected::Applied).map(|(_, order)| order).collect();
        let poison: Vec<_> = self.plan.with(Expected::Poison).map(|(_, order)| order).collect();
        let crashing: Vec<_> = self.plan.with(Expected::Crashes).map(|(_, order)| order).collect();

        let mut report = CheckReport::default();
        let distinct: BTreeSet<_> = applied.iter().map(|row| row.id.as_str()).collect();
        let expected: BTreeSet<_> = wanted.iter().map(|order| order.id.as_str()).collect();
        report.check(
            "every order was applied exactly once",
            distinct == expected && applied.len() == wanted.len(),
            format!("{} of {} orders, {} rows", distinct.len(), expected.len(), applied.len()),
        );
        let (lines, kept) = in_order(&applied);
        report.check(
            "each customer's orders were applied in the order of sending",
            kept == lines,
            format!("{kept} of {lines} sequences of one customer and one producer"),
        );
        let (booked, due) = (self.booked().await?, due(&wanted));
        report.check(
            "the right amount was booked",
            booked == due,
            format!("{} of {} cents", booked.values().sum::<i64>(), due.values().sum::<i64>()),
        );
        let workers: BTreeSet<_> = applied.iter().map(|row| row.worker).collect();
        report.check(
            "the workers shared the work",
            workers.len() > 1,
            format!("{} processes", workers.len()),
        );
        let can = self.shop.broker().capabilities();
        let all = ATTEMPTS as usize;
        // If the worker itself delays retries, a killed worker loses the history of these attempts.
        let (history, least) = match (can.changes, can.retry_hold) {
            (true, RetryHold::Session) => (all..=all, "all"),
            (true, _) => (1..=all, "some"),
            (false, _) => (0..=0, "none"),
        };
        report.check(
            "orders that always fail are dead-lettered with their history",
            dead_letters(&dead, "MaxAttempts", &history) == ids(&poison),
            format!("{} orders, {least} of {all} attempts each", poison.len()),
        );
        report.check(
            "an order that crashes its worker is dead-lettered, and no other order with it",
            dead_letters(&dead, "WorkerLost", &(0..=0)) == ids(&crashing),
            format!("{} orders", crashing.len()),
        );
        report.check(
            "undecodable messages are dead-lettered at once",
            dead_letters(&dead, "Undecodable", &(0..=0))
                == self.plan.undecodable.iter().map(String::as_str).collect(),
            format!("{} messages", self.plan.undecodable.len()),
        );
        let accounted = poison.len() + crashing.len() + self.plan.undecodable.len();
        // A broker that cannot move a message in one step may have duplicates after a crash.
        let distinct: BTreeSet<_> = dead.iter().map(|one| &one.message.message_id).collect();
        let extra = if can.atomic_send { dead.len() - distinct.len() } else { 0 };
        report.check(
            "there are no other dead letters",
            distinct.len() + extra == accounted,
            format!("{} of {accounted}", distinct.len() + extra),
        );
        Ok(report.passed)
    }

    async fn applied(&self) -> anyhow::Result<Vec<Applied>> {
        let rows = self.db.run(|db| {
            let all = "select id, customer, producer, number, worker from applied order by rowid";
            let mut all = db.prepare(all)?;
            let rows = all.query_map([], |row| {
                Ok(Applied {
                    id: row.get(0)?,
                    customer: row.get(1)?,
                    producer: row.get(2)?,
                    number: row.get(3)?,
                    worker: row.get(4)?,
                })
            })?;
            rows.collect()
        });
        Ok(rows.await?)
    }

    /// The booked cents of each customer.
    async fn booked(&self) -> anyhow::Result<BTreeMap<String, i64>> {
        let rows = self.db.run(|db| {
            let mut all = db.prepare("select name, cents from customers")?;
            let rows = all.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
            rows.collect()
        });
        Ok(rows.await?)
    }
}

/// The expected cents of each customer.
fn due(orders: &[&Order]) -> BTreeMap<String, i64> {
    let mut all = BTreeMap::new();
    for order in orders {
        *all.entry(order.customer.clone()).or_default() += order.cents;
    }
    all
}

/// The number of sequences of one customer and one producer, and how many of them are in order.
fn in_order(applied: &[Applied]) -> (usize, usize) {
    let mut lines: BTreeMap<(&str, &str), Vec<u32>> = BTreeMap::new();
    for row in applied {
        lines.entry((&row.customer, &row.producer)).or_default().push(row.number);
    }
    (lines.len(), lines.values().filter(|line| line.is_sorted_by(|a, b| a < b)).count())
}

fn ids<'a>(orders: &[&'a Order]) -> BTreeSet<&'a str> {
    orders.iter().map(|order| order.id.as_str()).collect()
}

/// Ids of dead letters with this reason and this number of recorded attempts.
fn dead_letters<'a>(
    dead: &'a [Delivery],
    reason: &str,
    attempts: &std::ops::RangeInclusive<usize>,
) -> BTreeSet<&'a str> {
    let recorded = |one: &Delivery| match one.message.properties.get(HISTORY) {
        Some(Value::List(all)) => all.len(),
        _ => 0,
    };
    let of = dead
        .iter()
        .filter(|one| one.dead.as_ref().is_some_and(|(dead_reason, _)| dead_reason == reason));
    of.filter(|one| attempts.contains(&recorded(one)))
        .filter_map(|one| one.message.message_id.as_deref())
        .collect()
}

/// Prints checks, and remembers whether all passed.
struct CheckReport {
    passed: bool,
}

impl Default for CheckReport {
    fn default() -> Self {
        Self { passed: true }
    }
}

impl CheckReport {
    fn check(&mut self, what: &str, holds: bool, figures: String) {
        println!("  {}  {what}: {figures}", if holds { "ok    " } else { "FAILED" });
        self.passed &= holds;
    }
}
