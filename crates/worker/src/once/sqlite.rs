//! SQLite: one writer, so a transaction begins with the write lock and nothing can come between.

use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rusqlite::{Connection, OpenFlags, TransactionBehavior, params};
use tokio::sync::OwnedMutexGuard;

use super::outgoing::NewRow;
use super::relay::{self, BATCH, BATCH_BYTES, Outbox, Pass, Published, Row};
use super::{Begun, Database, Effect, Outgoing, SLICE, Tx};
use crate::extract::FromDelivery;
use crate::incoming::{Incoming, Shared};
use crate::outcome::Failure;
use crate::saga::database::{Doing, Save};
use crate::{Error, Malote};

/// The tables, made where they are missing. A row of the inbox is one message of one consumer; `id` of the outbox is
/// the order in which transactions committed, because SQLite has one writer.
pub const TABLES: &str = "
create table if not exists malote_inbox (
    consumer text not null, message_id text not null,
    done_at integer not null default (unixepoch() * 1000),
    primary key (consumer, message_id)) without rowid;
create index if not exists malote_inbox_done_at on malote_inbox (done_at);
create table if not exists malote_fence (
    consumer text not null, key text not null, epoch integer not null,
    raised_at integer not null default (unixepoch() * 1000),
    primary key (consumer, key)) without rowid;
create table if not exists malote_outbox (
    id integer primary key autoincrement, key text not null, target text not null, message_id text not null,
    headers text not null, body blob not null, not_before integer,
    since integer not null default (unixepoch() * 1000), error text);
create index if not exists malote_outbox_ready on malote_outbox (id) where not_before is null;
create index if not exists malote_outbox_not_before on malote_outbox (not_before) where not_before is not null;
create index if not exists malote_outbox_error on malote_outbox (key) where error is not null;
create table if not exists malote_relay (name text primary key, holder text not null, until integer not null);
";

/// As a saga calls it that is kept here.
pub(crate) const DATABASE: &str = "sqlite";
/// How long another process may keep the write lock.
const BUSY: Duration = Duration::from_secs(10);
/// How long a relay that vanished keeps others waiting.
const LEASE_MS: i64 = 10_000;
/// How often an outbox is looked at: writers in other processes cannot call.
const POLL: Duration = Duration::from_millis(200);
/// Delayed messages that are due become like others. However many wait until then, nobody looks at them.
const DUE: &str = "update malote_outbox set since = not_before, not_before = null where id in (
    select id from malote_outbox where not_before <= unixepoch('subsec') * 1000 order by not_before limit ?1)";
/// The oldest rows, up to `?1` and `?2` bytes. A key whose oldest row was refused waits, with all that stands behind it,
/// and is tried last.
const OLDEST: &str = "with
    refused as materialized (select distinct key from malote_outbox where error is not null),
    ready as (select id, key, length(body) as size from malote_outbox indexed by malote_outbox_ready
              where not_before is null),
    batch as (
        select * from (select id, size, 0 as late from ready
                       where key not in (select key from refused) order by id limit ?1)
        union all
        select * from (select id, size, 1 as late from ready
                       where key in (select key from refused) order by id limit ?1)
        order by late, id limit ?1),
    sized as (select id, size, late, sum(size) over (order by late, id) as upto from batch)
    select id, key, target, message_id, headers, body, error is not null
    from sized join malote_outbox using (id) where upto <= ?2 or upto = size order by late, id";
/// A slice of what is too old.
const OLD: [&str; 2] = [
    "delete from malote_inbox where (consumer, message_id) in (
        select consumer, message_id from malote_inbox where done_at < unixepoch() * 1000 - ?1 limit ?2)",
    "delete from malote_fence where (consumer, key) in (
        select consumer, key from malote_fence where raised_at < unixepoch() * 1000 - ?1 limit ?2)",
];

/// A database file of yours. Clones are the same.
#[derive(Clone)]
pub struct Sqlite {
    /// One transaction of this process at a time: SQLite has one writer, and waiting here is fair.
    writer: Arc<tokio::sync::Mutex<Connection>>,
    consumer: Option<Arc<str>>,
}

impl Database for Sqlite {
    type Open = Open;
}

impl Sqlite {
    /// Opens a file, in WAL mode, and makes the tables where they are missing.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        Self::over(Connection::open(path).map_err(wrong)?)
    }

    /// Opens a file to look at what is there, sagas above all: it makes and changes nothing.
    pub fn look(path: impl AsRef<Path>) -> Result<Self, Error> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags).map_err(wrong)?;
        connection.busy_timeout(BUSY).map_err(wrong)?;
        Ok(Self { writer: Arc::new(tokio::sync::Mutex::new(connection)), consumer: None })
    }

    /// Works on a connection of yours.
    pub fn over(connection: Connection) -> Result<Self, Error> {
        connection.busy_timeout(BUSY).map_err(wrong)?;
        connection.pragma_update(None, "journal_mode", "wal").map_err(wrong)?;
        // What was committed must survive power loss: the broker is told that it is done.
        connection.pragma_update(None, "synchronous", "full").map_err(wrong)?;
        connection.execute_batch(TABLES).map_err(wrong)?;
        connection.execute_batch(crate::saga::sqlite::TABLES).map_err(wrong)?;
        Ok(Self { writer: Arc::new(tokio::sync::Mutex::new(connection)), consumer: None })
    }

    /// The name under which messages count as handled; the queue's unless it is given. Two kinds of workers that each
    /// must see every message need two names.
    #[must_use]
    pub fn consumer(mut self, name: &str) -> Self {
        self.consumer = Some(name.into());
        self
    }

    /// Runs something of yours on the connection, outside of any message.
    pub async fn run<T: Send + 'static>(
        &self,
        what: impl FnOnce(&mut Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, Error> {
        let mut writer = self.writer.clone().lock_owned().await;
        blocking(move || what(&mut writer).map_err(wrong)).await
    }

    /// Removes rows of the inbox that are older than `age` ([`super::INBOX_AGE`] unless you know better), and what is
    /// known about holders of sessions that had no message for as long. Tells how many.
    pub async fn clean_inbox(&self, age: Duration) -> Result<usize, Error> {
        let age_ms = i64::try_from(age.as_millis()).unwrap_or(i64::MAX);
        let mut all = 0;
        for old in OLD {
            loop {
                let slice =
                    move |db: &mut Connection| db.execute(old, params![age_ms, SLICE as i64]);
                let removed = self.run(slice).await?;
                all += removed;
                if removed < SLICE {
                    break;
                }
            }
        }
        Ok(all)
    }

    /// Publishes what waits in the outbox until `stop` is over.
    ///
    /// Several may run, in several processes: one works at a time. Messages of one session, or else of one queue, leave
    /// in the order in which they were committed. One that a broker refuses holds back only its own key, with the
    /// reason in its row. A repeat after a crash has the same message id: give the queue a de-duplication window.
    pub async fn relay_until(
        &self,
        malote: &Malote,
        stop: impl Future<Output = ()>,
    ) -> Result<(), Error> {
        let me = format!("{}-{:p}", std::process::id(), Arc::as_ptr(&self.writer));
        relay::run(Relay { db: self.clone(), me }, malote, stop).await
    }

    /// How long the oldest message that is due has waited in the outbox; none if none does. Raise an alarm on it: a
    /// relay that does not run is seen by nothing else.
    pub async fn outbox_age(&self) -> Result<Option<Duration>, Error> {
        let age = "select unixepoch('subsec') * 1000 - min(since) from (
                select * from (select since from malote_outbox indexed by malote_outbox_ready
                               where not_before is null order by id limit 1)
                union all
                select min(not_before) from malote_outbox where not_before <= unixepoch('subsec') * 1000)";
        let age: Option<f64> = self.run(move |db| db.query_row(age, [], |row| row.get(0))).await?;
        Ok(age.map(|ms| Duration::from_secs_f64((ms / 1000.0).max(0.0))))
    }

    /// Sends a message with a transaction of your own, outside of any handler.
    pub fn send_in(transaction: &Connection, outgoing: Outgoing) -> Result<(), Error> {
        write(transaction, outgoing.row()?).map_err(wrong)
    }
}

/// A process that publishes.
struct Relay {
    db: Sqlite,
    me: String,
}

impl Outbox for Relay {
    const POLL: Duration = POLL;

    async fn pass(&mut self, malote: &Malote) -> Result<Pass, Error> {
        let holder = self.me.clone();
        let rows = self.db.run(move |db| claim(db, &holder)).await?;
        if rows.is_empty() {
            return Ok(Pass::Idle);
        }
        let (asked, holder) = (rows.len(), self.me.clone());
        let published = relay::publish(malote, rows).await?;
        let all = published.sent.len() == asked;
        self.db.run(move |db| forget(db, &holder, &published)).await?;
        Ok(if all { Pass::More } else { Pass::Idle })
    }

    async fn called(&mut self) {
        std::future::pending().await
    }
}

fn wrong(error: rusqlite::Error) -> Error {
    Error::Database(error.to_string())
}

async fn blocking<T: Send + 'static>(
    what: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let done = tokio::task::spawn_blocking(what).await;
    done.unwrap_or_else(|error| Err(Error::Database(error.to_string())))
}

/// The oldest rows, if the outbox is ours to work on or nobody's.
fn claim(db: &mut Connection, me: &str) -> rusqlite::Result<Vec<Row>> {
    let tx = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let ours = tx.execute(
        "insert into malote_relay (name, holder, until) values ('outbox', ?1, unixepoch() * 1000 + ?2)
         on conflict (name) do update set holder = excluded.holder, until = excluded.until
         where holder = excluded.holder or until < unixepoch() * 1000",
        params![me, LEASE_MS],
    )?;
    if ours == 0 {
        return Ok(Vec::new());
    }
    tx.prepare_cached(DUE)?.execute([BATCH as i64])?;
    let mut statement = tx.prepare_cached(OLDEST)?;
    let rows = statement.query_map(params![BATCH as i64, BATCH_BYTES], |row| {
        Ok(Row {
            id: row.get(0)?,
            key: row.get(1)?,
            target: row.get(2)?,
            message_id: row.get(3)?,
            headers: row.get(4)?,
            body: row.get(5)?,
            refused: row.get(6)?,
        })
    })?;
    let rows = rows.collect::<rusqlite::Result<Vec<Row>>>()?;
    drop(statement);
    tx.commit()?;
    Ok(rows)
}

fn forget(db: &mut Connection, me: &str, published: &Published) -> rusqlite::Result<()> {
    let tx = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let ours: i64 = tx.query_row(
        "select count(*) from malote_relay where name = 'outbox' and holder = ?1",
        [me],
        |row| row.get(0),
    )?;
    // Somebody else took over: it sends the rest, and what we sent once more, under the same ids.
    if ours == 0 {
        return Ok(());
    }
    {
        let mut delete = tx.prepare_cached("delete from malote_outbox where id = ?1")?;
        for id in &published.sent {
            delete.execute([id])?;
        }
        let mut note = tx.prepare_cached("update malote_outbox set error = ?2 where id = ?1")?;
        for (id, error) in &published.refused {
            note.execute(params![id, error])?;
        }
    }
    tx.commit()
}

/// An open transaction.
pub struct Open {
    /// Taken when it is over.
    connection: Mutex<Option<OwnedMutexGuard<Connection>>>,
}

impl Open {
    fn with<T>(&self, what: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T, Error> {
        let connection = self.connection.lock();
        let over = || Error::Database("the transaction is over".into());
        what(connection.as_ref().ok_or_else(over)?).map_err(wrong)
    }

    fn end(&self, how: &'static str) -> Result<(), Error> {
        self.with(|db| db.execute_batch(how))?;
        *self.connection.lock() = None;
        Ok(())
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.get_mut().take() {
            // A handler that was dropped: nothing of it happened. One that cannot even be rolled back fails the next.
            let _ = connection.execute_batch("rollback");
        }
    }
}

impl Effect for Ending {
    fn commit(&self) -> Pin<Box<dyn Future<Output = Result<(), Failure>> + Send + '_>> {
        let open = self.0.clone();
        Box::pin(async move { Ok(blocking(move || open.end("commit")).await?) })
    }

    fn rollback(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        let open = self.0.clone();
        Box::pin(async move {
            if let Err(error) = blocking(move || open.end("rollback")).await {
                tracing::warn!(%error, "a transaction was not rolled back");
            }
        })
    }

    fn save(&self, save: Save) -> Doing<'_, bool> {
        let open = self.0.clone();
        Box::pin(async move {
            blocking(move || open.with(|db| Ok(crate::saga::sqlite::save(db, save)))?).await
        })
    }
}

struct Ending(Arc<Open>);

impl FromDelivery for Tx<Sqlite> {
    async fn from_delivery(incoming: &Arc<Incoming>) -> Result<Self, Failure> {
        incoming.may_begin(DATABASE)?;
        let Some(sqlite) = incoming.shared.get::<Sqlite>() else {
            return Err(Failure::retry("the worker has no Sqlite: give it one with Worker::state"));
        };
        let connection = sqlite.writer.clone().lock_owned().await;
        let open = Arc::new(Open { connection: Mutex::new(Some(connection)) });
        let consumer = sqlite.consumer.as_deref().unwrap_or(incoming.consumer()).to_owned();
        let (id, fence) = (incoming.inbox_id().into_owned(), incoming.fence());
        let fence = fence.map(|(key, epoch)| (key.to_owned(), epoch));
        let beginning = open.clone();
        let begun = move || beginning.with(|db| begin(db, &consumer, &id, fence));
        blocking(begun).await?.go_on()?;
        incoming.begin(Arc::new(Ending(open.clone())))?;
        Ok(Self::new(open, incoming.clone()))
    }

    fn missing(shared: &Shared) -> Option<&'static str> {
        shared.missing::<Sqlite>()
    }
}

/// Takes the write lock, then the row of the inbox: a duplicate waits for the first and finds its row.
fn begin(
    db: &Connection,
    consumer: &str,
    id: &str,
    fence: Option<(String, i64)>,
) -> rusqlite::Result<Begun> {
    db.execute_batch("begin immediate")?;
    if let Some((key, epoch)) = fence {
        let raised = db.prepare_cached(
            "insert into malote_fence (consumer, key, epoch) values (?1, ?2, ?3)
             on conflict (consumer, key) do update set epoch = excluded.epoch, raised_at = excluded.raised_at
             where epoch <= excluded.epoch",
        )?.execute(params![consumer, key, epoch])?;
        if raised == 0 {
            return Ok(Begun::Fenced);
        }
    }
    let row =
        "insert into malote_inbox (consumer, message_id) values (?1, ?2) on conflict do nothing";
    let fresh = db.prepare_cached(row)?.execute(params![consumer, id])?;
    Ok(if fresh == 1 { Begun::Fresh } else { Begun::Handled })
}

impl Tx<Sqlite> {
    /// Runs statements of yours inside of the transaction, on a thread that may wait.
    pub async fn run<T: Send + 'static>(
        &self,
        what: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, Error> {
        let open = self.open.clone();
        blocking(move || open.with(what)).await
    }

    /// Sends a message with the transaction: the relay publishes it once it is committed.
    pub async fn send(&self, outgoing: Outgoing) -> Result<(), Error> {
        let mut row = outgoing.row()?;
        row.message_id.get_or_insert_with(|| self.next_id());
        self.run(move |db| write(db, row)).await
    }
}

pub(crate) fn write(db: &Connection, row: NewRow) -> rusqlite::Result<()> {
    let NewRow { key, target, message_id, headers, body, delay_ms } = row;
    let body: &[u8] = &body;
    db.prepare_cached(
        "insert into malote_outbox (key, target, message_id, headers, body, not_before)
         values (?1, ?2, coalesce(?3, lower(hex(randomblob(16)))), ?4, ?5, unixepoch('subsec') * 1000 + ?6)",
    )?
    .execute(params![key, target, message_id, headers, body, delay_ms])
    .map(drop)
}
