//! The books: what was applied, what is dead, and whether both are as they should be.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use malote::once::sqlite::Sqlite;
use malote::{Delivery, Malote, QueueName, RetryHold, Value};
use tokio::sync::Mutex;

use crate::order::{Fate, Order, Plan, QUEUE};
use crate::worker::ATTEMPTS;

/// The property that a worker writes on a message that failed: each attempt with time, worker and error.
const HISTORY: &str = "malote-history";
/// How long a dead letter is locked while it is looked at.
const LOCK: Duration = Duration::from_secs(60);

/// What became of orders.
pub struct Books {
    db: Sqlite,
    shop: Malote,
    plan: Plan,
    dead: Arc<Mutex<Vec<Delivery>>>,
}

/// A row of the shop's table, in the order in which transactions committed.
struct Applied {
    id: String,
    customer: String,
    producer: String,
    number: u32,
    worker: u32,
}

impl Books {
    pub fn open(db: Sqlite, shop: Malote, plan: Plan) -> Self {
        Self { db, shop, plan, dead: Arc::default() }
    }

    /// How many different orders were applied, and how many are dead. A broker that cannot move a message in one step may
    /// have a dead letter twice.
    pub async fn progress(&self) -> anyhow::Result<(usize, usize)> {
        self.take_dead(Duration::from_millis(50)).await?;
        let count = "select count(distinct id) from applied";
        let applied: u32 = self.db.run(|db| db.query_row(count, [], |row| row.get(0))).await?;
        let dead = self.dead.lock().await;
        let dead: BTreeSet<_> = dead.iter().map(|one| &one.message.message_id).collect();
        Ok((applied as usize, dead.len()))
    }

    /// Whether every order is applied or dead.
    pub async fn are_complete(&self) -> anyhow::Result<bool> {
        let (applied, dead) = self.progress().await?;
        Ok(applied + dead >= self.plan.len())
    }

    /// Takes dead letters, with reason, error and history, as an operator would.
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

    /// Prints what was checked. Whether all is right.
    pub async fn check(&self) -> anyhow::Result<bool> {
        self.take_dead(Duration::from_secs(1)).await?;
        let applied = self.applied().await?;
        let dead = self.dead.lock().await;
        let wanted: Vec<_> = self.plan.with(Fate::Applied).map(|(_, order)| order).collect();
        let poison: Vec<_> = self.plan.with(Fate::Poison).map(|(_, order)| order).collect();
        let crashing: Vec<_> = self.plan.with(Fate::Crashes).map(|(_, order)| order).collect();

        let mut report = Report::default();
        let distinct: BTreeSet<_> = applied.iter().map(|row| row.id.as_str()).collect();
        let expected: BTreeSet<_> = wanted.iter().map(|order| order.id.as_str()).collect();
        report.line(
            "every order was applied exactly once",
            distinct == expected && applied.len() == wanted.len(),
            format!("{} of {}, {} times in all", distinct.len(), expected.len(), applied.len()),
        );
        let (lines, kept) = in_order(&applied);
        report.line(
            "each customer's orders were applied in the order of sending",
            kept == lines,
            format!("{kept} of {lines} lines of one customer and one producer"),
        );
        let (booked, due) = (self.booked().await?, due(&wanted));
        report.line(
            "no cent too many and none too few",
            booked == due,
            format!("{} of {} cents", booked.values().sum::<i64>(), due.values().sum::<i64>()),
        );
        let workers: BTreeSet<_> = applied.iter().map(|row| row.worker).collect();
        report.line(
            "the work was shared",
            workers.len() > 1,
            format!("{} processes", workers.len()),
        );
        let can = self.shop.broker().capabilities();
        let all = ATTEMPTS as usize;
        // Where a retry is a worker's own affair, one that is lost takes what it knew of attempts with it.
        let (history, least) = match (can.changes, can.retry_hold) {
            (true, RetryHold::Session) => (all..=all, "all"),
            (true, _) => (1..=all, "some"),
            (false, _) => (0..=0, "none"),
        };
        report.line(
            "poison orders are dead letters, with the history of their attempts",
            died(&dead, "MaxAttempts", &history) == ids(&poison),
            format!("{} orders, {least} of {all} attempts each", poison.len()),
        );
        report.line(
            "an order that ends its worker is a dead letter, and took no other order with it",
            died(&dead, "WorkerLost", &(0..=0)) == ids(&crashing),
            format!("{} orders", crashing.len()),
        );
        report.line(
            "what nobody can read is a dead letter at once",
            died(&dead, "Undecodable", &(0..=0))
                == self.plan.torn.iter().map(String::as_str).collect(),
            format!("{} messages", self.plan.torn.len()),
        );
        let accounted = poison.len() + crashing.len() + self.plan.torn.len();
        // A broker that cannot move a message in one step has some in both places after a crash.
        let distinct: BTreeSet<_> = dead.iter().map(|one| &one.message.message_id).collect();
        let extra = if can.atomic_send { dead.len() - distinct.len() } else { 0 };
        report.line(
            "there are no other dead letters",
            distinct.len() + extra == accounted,
            format!("{} of {accounted}", distinct.len() + extra),
        );
        Ok(report.right)
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

    /// What the shop's own table says of each customer.
    async fn booked(&self) -> anyhow::Result<BTreeMap<String, i64>> {
        let rows = self.db.run(|db| {
            let mut all = db.prepare("select name, cents from customers")?;
            let rows = all.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
            rows.collect()
        });
        Ok(rows.await?)
    }
}

/// What it should say.
fn due(orders: &[&Order]) -> BTreeMap<String, i64> {
    let mut all = BTreeMap::new();
    for order in orders {
        *all.entry(order.customer.clone()).or_default() += order.cents;
    }
    all
}

/// Lines of one customer and one producer, and how many of them only ever count up.
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

/// Ids of those that died for this reason and tell of so many attempts.
fn died<'a>(
    dead: &'a [Delivery],
    reason: &str,
    attempts: &std::ops::RangeInclusive<usize>,
) -> BTreeSet<&'a str> {
    let told = |one: &Delivery| match one.message.properties.get(HISTORY) {
        Some(Value::List(all)) => all.len(),
        _ => 0,
    };
    let of = dead.iter().filter(|one| one.dead.as_ref().is_some_and(|(why, _)| why == reason));
    of.filter(|one| attempts.contains(&told(one)))
        .filter_map(|one| one.message.message_id.as_deref())
        .collect()
}

/// What was checked, line by line.
struct Report {
    right: bool,
}

impl Default for Report {
    fn default() -> Self {
        Self { right: true }
    }
}

impl Report {
    fn line(&mut self, what: &str, right: bool, figures: String) {
        println!("  {}  {what}: {figures}", if right { "ok   " } else { "WRONG" });
        self.right &= right;
    }
}
