//! SQLite. It has one writer, so each transaction starts with the write lock.

use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rusqlite::{Connection, OpenFlags, TransactionBehavior, params};
use tokio::sync::OwnedMutexGuard;

use super::outbox_message::NewOutboxRow;
use super::relay::{self, BATCH, BATCH_BYTES, OutboxRow, PassResult, PublishResult, Relay};
use super::{Database, HandlerTransaction, InboxCheck, OutboxMessage, SLICE, Tx};
use crate::clock::{millis, signed};
use crate::extract::FromDelivery;
use crate::incoming::{Incoming, StateMap};
use crate::outcome::Failure;
use crate::saga::database::{DatabaseFuture, SagaUpdate};
use crate::{Error, Malote};

/// The tables, created if they do not exist. An inbox row is one message of one consumer. The `id` of outbox rows is in
/// commit order, because SQLite has one writer.
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

/// The kind of this database, for sagas.
pub(crate) const DATABASE: &str = "sqlite";
/// How long to wait for the write lock of another process.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);
/// The time after which another relay takes over from one that died.
const TAKEOVER_MS: i64 = 10_000;
/// The poll interval of the relay. SQLite has no notifications between processes.
const POLL: Duration = Duration::from_millis(200);
/// Turns due delayed messages into normal ones. Until then they are only in their own index, so that their number does
/// not matter.
const MAKE_DUE: &str = "update malote_outbox set since = not_before, not_before = null where id in (
    select id from malote_outbox where not_before <= unixepoch('subsec') * 1000 order by not_before limit ?1)";
/// The oldest rows, up to `?1` rows and `?2` bytes. Rows of keys with a refused row come last.
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
/// Delete a limited number of old rows.
const OLD: [&str; 2] = [
    "delete from malote_inbox where (consumer, message_id) in (
        select consumer, message_id from malote_inbox where done_at < unixepoch() * 1000 - ?1 limit ?2)",
    "delete from malote_fence where (consumer, key) in (
        select consumer, key from malote_fence where raised_at < unixepoch() * 1000 - ?1 limit ?2)",
];

/// Your SQLite database. Clones share the connection.
#[derive(Clone)]
pub struct Sqlite {
    /// One transaction of this process at a time. SQLite has one writer, and this mutex is fair.
    writer: Arc<tokio::sync::Mutex<Connection>>,
    consumer: Option<Arc<str>>,
}

impl Database for Sqlite {
    type Transaction = SqliteTransaction;
}

impl Sqlite {
    /// Opens a file in WAL mode, and creates missing tables.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        Self::with_connection(Connection::open(path).map_err(database_error)?)
    }

    /// Opens a file to read sagas and other data. Creates and changes nothing.
    pub fn open_read_only(path: impl AsRef<Path>) -> Result<Self, Error> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags).map_err(database_error)?;
        connection.busy_timeout(BUSY_TIMEOUT).map_err(database_error)?;
        Ok(Self { writer: Arc::new(tokio::sync::Mutex::new(connection)), consumer: None })
    }

    /// Uses an open connection. Switches it to WAL mode, and creates missing tables.
    pub fn with_connection(connection: Connection) -> Result<Self, Error> {
        connection.busy_timeout(BUSY_TIMEOUT).map_err(database_error)?;
        connection.pragma_update(None, "journal_mode", "wal").map_err(database_error)?;
        // Commits must survive a power loss, because the message is completed afterwards.
        connection.pragma_update(None, "synchronous", "full").map_err(database_error)?;
        connection.execute_batch(TABLES).map_err(database_error)?;
        connection.execute_batch(crate::saga::sqlite::TABLES).map_err(database_error)?;
        Ok(Self { writer: Arc::new(tokio::sync::Mutex::new(connection)), consumer: None })
    }

    /// The name for which the inbox records messages (default: the name of the queue). If two kinds of workers must
    /// both handle every message, give each its own name.
    #[must_use]
    pub fn consumer(mut self, name: &str) -> Self {
        self.consumer = Some(name.into());
        self
    }

    /// Runs your statements on the connection, outside of a handler.
    pub async fn run<T: Send + 'static>(
        &self,
        what: impl FnOnce(&mut Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, Error> {
        let mut writer = self.writer.clone().lock_owned().await;
        blocking(move || what(&mut writer).map_err(database_error)).await
    }

    /// Deletes inbox rows older than `age`, and fence rows of sessions without messages for as long. Returns the number
    /// of deleted rows. [`super::INBOX_AGE`] is a good age.
    pub async fn clean_inbox(&self, age: Duration) -> Result<usize, Error> {
        let age_ms = signed(millis(age));
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

    /// Publishes the outbox until `stop` completes.
    ///
    /// Several relays can run, also in several processes; one works at a time. Messages of a session or, without a
    /// session, of a queue are published in commit order. A message that the broker refuses holds back its own key
    /// only; its row has the reason. After a crash a message may be sent again with the same id, so give the queue a
    /// de-duplication window.
    pub async fn relay_until(
        &self,
        malote: &Malote,
        stop: impl Future<Output = ()>,
    ) -> Result<(), Error> {
        let name = format!("{}-{:p}", std::process::id(), Arc::as_ptr(&self.writer));
        relay::run(SqliteRelay { db: self.clone(), name }, malote, stop).await
    }

    /// How long the oldest due message has waited in the outbox. `None` if there is none. Monitor this value: it grows
    /// when no relay runs, and when the broker refuses messages.
    pub async fn outbox_age(&self) -> Result<Option<Duration>, Error> {
        let age = "select unixepoch('subsec') * 1000 - min(since) from (
                select * from (select since from malote_outbox indexed by malote_outbox_ready
                               where not_before is null order by id limit 1)
                union all
                select min(not_before) from malote_outbox where not_before <= unixepoch('subsec') * 1000)";
        let age: Option<f64> = self.run(move |db| db.query_row(age, [], |row| row.get(0))).await?;
        Ok(age.map(|ms| Duration::from_secs_f64((ms / 1000.0).max(0.0))))
    }

    /// Sends a message in a transaction of your own, outside of a handler.
    pub fn send_in(transaction: &Connection, message: OutboxMessage) -> Result<(), Error> {
        write(transaction, message.row()?).map_err(database_error)
    }
}

/// The relay of one process, identified by its name.
struct SqliteRelay {
    db: Sqlite,
    name: String,
}

impl Relay for SqliteRelay {
    const POLL: Duration = POLL;

    async fn pass(&mut self, malote: &Malote) -> Result<PassResult, Error> {
        let holder = self.name.clone();
        let rows = self.db.run(move |db| claim(db, &holder)).await?;
        if rows.is_empty() {
            return Ok(PassResult::Idle);
        }
        let (asked, holder) = (rows.len(), self.name.clone());
        let published = relay::publish(malote, rows).await?;
        let all = published.sent.len() == asked;
        self.db.run(move |db| record_published(db, &holder, &published)).await?;
        Ok(if all { PassResult::More } else { PassResult::Idle })
    }

    async fn notified(&mut self) {
        std::future::pending().await
    }
}

fn database_error(error: rusqlite::Error) -> Error {
    Error::Database(error.to_string())
}

async fn blocking<T: Send + 'static>(
    what: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let done = tokio::task::spawn_blocking(what).await;
    done.unwrap_or_else(|error| Err(Error::Database(error.to_string())))
}

/// The oldest rows, if no other relay works on the outbox.
fn claim(db: &mut Connection, relay: &str) -> rusqlite::Result<Vec<OutboxRow>> {
    let tx = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let claimed = tx.execute(
        "insert into malote_relay (name, holder, until) values ('outbox', ?1, unixepoch() * 1000 + ?2)
         on conflict (name) do update set holder = excluded.holder, until = excluded.until
         where holder = excluded.holder or until < unixepoch() * 1000",
        params![relay, TAKEOVER_MS],
    )?;
    if claimed == 0 {
        return Ok(Vec::new());
    }
    tx.prepare_cached(MAKE_DUE)?.execute([BATCH as i64])?;
    let mut statement = tx.prepare_cached(OLDEST)?;
    let rows = statement.query_map(params![BATCH as i64, BATCH_BYTES], |row| {
        Ok(OutboxRow {
            id: row.get(0)?,
            key: row.get(1)?,
            target: row.get(2)?,
            message_id: row.get(3)?,
            headers: row.get(4)?,
            body: row.get(5)?,
            refused: row.get(6)?,
        })
    })?;
    let rows = rows.collect::<rusqlite::Result<Vec<OutboxRow>>>()?;
    drop(statement);
    tx.commit()?;
    Ok(rows)
}

fn record_published(
    db: &mut Connection,
    relay: &str,
    published: &PublishResult,
) -> rusqlite::Result<()> {
    let tx = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let claimed: i64 = tx.query_row(
        "select count(*) from malote_relay where name = 'outbox' and holder = ?1",
        [relay],
        |row| row.get(0),
    )?;
    // Another relay took over. It sends all rows again, with the same ids.
    if claimed == 0 {
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
pub struct SqliteTransaction {
    /// None after the end of the transaction.
    connection: Mutex<Option<OwnedMutexGuard<Connection>>>,
}

impl SqliteTransaction {
    fn with<T>(&self, what: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T, Error> {
        let connection = self.connection.lock();
        let ended = || Error::Database("the transaction has ended".into());
        what(connection.as_ref().ok_or_else(ended)?).map_err(database_error)
    }

    fn end(&self, statement: &'static str) -> Result<(), Error> {
        self.with(|db| db.execute_batch(statement))?;
        *self.connection.lock() = None;
        Ok(())
    }
}

impl Drop for SqliteTransaction {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.get_mut().take() {
            // The handler was dropped. If the rollback fails, the next transaction reports an error.
            let _ = connection.execute_batch("rollback");
        }
    }
}

impl HandlerTransaction for OpenSqliteTransaction {
    fn commit(&self) -> Pin<Box<dyn Future<Output = Result<(), Failure>> + Send + '_>> {
        let transaction = self.0.clone();
        Box::pin(async move { Ok(blocking(move || transaction.end("commit")).await?) })
    }

    fn rollback(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        let transaction = self.0.clone();
        Box::pin(async move {
            if let Err(error) = blocking(move || transaction.end("rollback")).await {
                tracing::warn!(%error, "cannot roll back a transaction");
            }
        })
    }

    fn save(&self, save: SagaUpdate) -> DatabaseFuture<'_, bool> {
        let transaction = self.0.clone();
        Box::pin(async move {
            blocking(move || transaction.with(|db| Ok(crate::saga::sqlite::save(db, save)))?).await
        })
    }
}

struct OpenSqliteTransaction(Arc<SqliteTransaction>);

impl FromDelivery for Tx<Sqlite> {
    async fn from_delivery(incoming: &Arc<Incoming>) -> Result<Self, Failure> {
        incoming.check_database(DATABASE)?;
        let Some(sqlite) = incoming.states.get::<Sqlite>() else {
            let text = "the worker has no value of type Sqlite: add one with `Worker::state`";
            return Err(Failure::retry(text));
        };
        let connection = sqlite.writer.clone().lock_owned().await;
        let open = Arc::new(SqliteTransaction { connection: Mutex::new(Some(connection)) });
        let consumer = sqlite.consumer.as_deref().unwrap_or(incoming.consumer()).to_owned();
        let (id, fence) = (incoming.inbox_id().into_owned(), incoming.fence());
        let fence = fence.map(|(key, epoch)| (key.to_owned(), epoch));
        let beginning = open.clone();
        let begun = move || beginning.with(|db| begin(db, &consumer, &id, fence));
        blocking(begun).await?.require_new()?;
        incoming.set_transaction(Arc::new(OpenSqliteTransaction(open.clone())))?;
        Ok(Self::new(open, incoming.clone()))
    }

    fn missing(states: &StateMap) -> Option<&'static str> {
        states.missing::<Sqlite>()
    }
}

/// Takes the write lock and writes the fence and inbox rows. A concurrent duplicate waits, and then finds the inbox
/// row.
fn begin(
    db: &Connection,
    consumer: &str,
    id: &str,
    fence: Option<(String, i64)>,
) -> rusqlite::Result<InboxCheck> {
    db.execute_batch("begin immediate")?;
    if let Some((key, epoch)) = fence {
        let raised = db.prepare_cached(
            "insert into malote_fence (consumer, key, epoch) values (?1, ?2, ?3)
             on conflict (consumer, key) do update set epoch = excluded.epoch, raised_at = excluded.raised_at
             where epoch <= excluded.epoch",
        )?.execute(params![consumer, key, epoch])?;
        if raised == 0 {
            return Ok(InboxCheck::Fenced);
        }
    }
    let row =
        "insert into malote_inbox (consumer, message_id) values (?1, ?2) on conflict do nothing";
    let fresh = db.prepare_cached(row)?.execute(params![consumer, id])?;
    Ok(if fresh == 1 { InboxCheck::New } else { InboxCheck::Handled })
}

impl Tx<Sqlite> {
    /// Runs your statements in the transaction, on a thread that may block.
    pub async fn run<T: Send + 'static>(
        &self,
        what: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, Error> {
        let transaction = self.transaction.clone();
        blocking(move || transaction.with(what)).await
    }

    /// Sends a message in the transaction. The relay publishes it after the commit.
    pub async fn send(&self, message: OutboxMessage) -> Result<(), Error> {
        let mut row = message.row()?;
        row.message_id.get_or_insert_with(|| self.next_id());
        self.run(move |db| write(db, row)).await
    }
}

pub(crate) fn write(db: &Connection, row: NewOutboxRow) -> rusqlite::Result<()> {
    let NewOutboxRow { key, target, message_id, headers, body, delay_ms } = row;
    let body: &[u8] = &body;
    db.prepare_cached(
        "insert into malote_outbox (key, target, message_id, headers, body, not_before)
         values (?1, ?2, coalesce(?3, lower(hex(randomblob(16)))), ?4, ?5, unixepoch('subsec') * 1000 + ?6)",
    )?
    .execute(params![key, target, message_id, headers, body, delay_ms])
    .map(drop)
}
