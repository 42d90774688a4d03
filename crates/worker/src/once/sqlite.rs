//! SQLite: one writer, so a transaction begins with the write lock and nothing can come between.

use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rusqlite::{Connection, TransactionBehavior, params};
use tokio::sync::OwnedMutexGuard;

use super::outgoing::Headers;
use super::{Database, Effect, Outgoing, Tx};
use crate::extract::FromDelivery;
use crate::incoming::Incoming;
use crate::outcome::{Failure, Outcome};
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
    primary key (consumer, key)) without rowid;
create table if not exists malote_outbox (
    id integer primary key autoincrement, key text not null, target text not null, message_id text not null,
    headers text not null, body blob not null, error text);
create table if not exists malote_relay (name text primary key, holder text not null, until integer not null);
";

/// How long another process may keep the write lock.
const BUSY: Duration = Duration::from_secs(10);
/// Rows that the relay sends at once.
const BATCH: usize = 100;
/// How long a relay that vanished keeps others waiting.
const LEASE_MS: i64 = 10_000;
/// How often an outbox is looked at: writers in other processes cannot call.
const POLL: Duration = Duration::from_millis(200);
/// Inbox rows removed at once.
const SLICE: usize = 1000;

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

    /// Works on a connection of yours.
    pub fn over(connection: Connection) -> Result<Self, Error> {
        connection.busy_timeout(BUSY).map_err(wrong)?;
        connection.pragma_update(None, "journal_mode", "wal").map_err(wrong)?;
        // What was committed must survive power loss: the broker is told that it is done.
        connection.pragma_update(None, "synchronous", "full").map_err(wrong)?;
        connection.execute_batch(TABLES).map_err(wrong)?;
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

    /// Removes rows of the inbox that are older than `age`: longer than any message may take to come again, a week
    /// unless you know better. Tells how many.
    pub async fn clean_inbox(&self, age: Duration) -> Result<usize, Error> {
        let age_ms = i64::try_from(age.as_millis()).unwrap_or(i64::MAX);
        let mut all = 0;
        loop {
            let removed = self
                .run(move |db| {
                    db.execute(
                        "delete from malote_inbox where (consumer, message_id) in (
                            select consumer, message_id from malote_inbox
                            where done_at < unixepoch() * 1000 - ?1 limit ?2)",
                        params![age_ms, SLICE as i64],
                    )
                })
                .await?;
            all += removed;
            if removed < SLICE {
                return Ok(all);
            }
        }
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
        tokio::pin!(stop);
        let me = format!("{}-{:p}", std::process::id(), Arc::as_ptr(&self.writer));
        loop {
            let sent = match self.relay_once(malote, &me).await {
                Ok(sent) => sent,
                Err(Error::Broker(error)) if error.is_transient() => {
                    tracing::warn!(%error, "the outbox waits for the broker");
                    0
                }
                Err(error) => return Err(error),
            };
            // A full batch: there is more.
            let pause = if sent == BATCH { Duration::ZERO } else { POLL };
            tokio::select! {
                biased;
                () = &mut stop => return Ok(()),
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// One batch. How many left.
    async fn relay_once(&self, malote: &Malote, me: &str) -> Result<usize, Error> {
        let holder = me.to_owned();
        let rows = self.run(move |db| claim(db, &holder)).await?;
        if rows.is_empty() {
            return Ok(0);
        }
        let (sent, refused) = send(malote, rows).await?;
        let (count, holder) = (sent.len(), me.to_owned());
        self.run(move |db| forget(db, &holder, &sent, &refused)).await?;
        Ok(count)
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

/// A row of the outbox.
struct Row {
    id: i64,
    key: String,
    target: String,
    message_id: String,
    headers: String,
    body: Vec<u8>,
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
    // A key whose oldest row was refused waits, with all that stands behind it, and is tried last.
    let mut statement = tx.prepare_cached(
        "select id, key, target, message_id, headers, body from malote_outbox
         order by key in (select key from malote_outbox where error is not null), id limit ?1",
    )?;
    let rows = statement.query_map([BATCH as i64], |row| {
        Ok(Row {
            id: row.get(0)?,
            key: row.get(1)?,
            target: row.get(2)?,
            message_id: row.get(3)?,
            headers: row.get(4)?,
            body: row.get(5)?,
        })
    })?;
    let rows = rows.collect::<rusqlite::Result<Vec<Row>>>()?;
    drop(statement);
    tx.commit()?;
    Ok(rows)
}

type Refused = Vec<(i64, String)>;

/// All of them at once, or, if one is refused, one by one.
async fn send(malote: &Malote, rows: Vec<Row>) -> Result<(Vec<i64>, Refused), Error> {
    let mut good = Vec::with_capacity(rows.len());
    let mut refused: Refused = Vec::new();
    let mut held: Vec<String> = Vec::new();
    for row in rows {
        let headers = serde_json::from_str::<Headers>(&row.headers).map_err(|e| e.to_string());
        let message = headers.and_then(|h| h.message(&row.target, row.message_id, row.body));
        match message {
            Ok(message) => good.push((row.id, row.key, message)),
            Err(error) => {
                refused.push((row.id, error));
                held.push(row.key);
            }
        }
    }
    // What stands behind a row that cannot be read waits with it.
    good.retain(|(id, key, _)| {
        !held.iter().zip(&refused).any(|(of, (first, _))| of == key && first < id)
    });
    let all: Vec<_> = good.iter().map(|(_, _, message)| message.clone()).collect();
    match malote.send_all(all).await {
        Ok(_) => return Ok((good.into_iter().map(|(id, ..)| id).collect(), refused)),
        Err(Error::Broker(error)) if error.is_transient() => return Err(Error::Broker(error)),
        Err(_) => {}
    }
    let mut sent = Vec::new();
    for (id, key, message) in good {
        if held.contains(&key) {
            continue;
        }
        match malote.send_all(vec![message]).await {
            Ok(_) => sent.push(id),
            Err(Error::Broker(error)) if error.is_transient() => break,
            Err(error) => {
                tracing::error!(key, row = id, %error, "a message of the outbox is refused: its key waits");
                refused.push((id, error.to_string()));
                held.push(key);
            }
        }
    }
    Ok((sent, refused))
}

fn forget(db: &mut Connection, me: &str, sent: &[i64], refused: &Refused) -> rusqlite::Result<()> {
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
        for id in sent {
            delete.execute([id])?;
        }
        let mut note = tx.prepare_cached("update malote_outbox set error = ?2 where id = ?1")?;
        for (id, error) in refused {
            note.execute(params![id, error])?;
        }
    }
    tx.commit()
}

/// An open transaction.
pub struct Open {
    /// Taken when it is over.
    connection: Mutex<Option<OwnedMutexGuard<Connection>>>,
    sends: AtomicU32,
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
}

struct Ending(Arc<Open>);

impl FromDelivery for Tx<Sqlite> {
    async fn from_delivery(incoming: &Arc<Incoming>) -> Result<Self, Failure> {
        let Some(sqlite) = incoming.shared.get::<Sqlite>() else {
            return Err(Failure::retry("the worker has no Sqlite: give it one with Worker::state"));
        };
        let connection = sqlite.writer.clone().lock_owned().await;
        let open =
            Arc::new(Open { connection: Mutex::new(Some(connection)), sends: AtomicU32::new(0) });
        let consumer = sqlite.consumer.as_deref().unwrap_or(incoming.consumer()).to_owned();
        let (id, fence) = (incoming.origin_id().to_owned(), incoming.fence());
        let fence = fence.map(|(key, epoch)| (key.to_owned(), epoch));
        let beginning = open.clone();
        let begun = move || beginning.with(|db| begin(db, &consumer, &id, fence));
        match blocking(begun).await? {
            Begun::Fresh => {}
            Begun::Handled => return Err(Failure::already(Outcome::Done)),
            // Whoever has the session now does it.
            Begun::Fenced => return Err(Failure::already(Outcome::Release)),
        }
        incoming.begin(Arc::new(Ending(open.clone())))?;
        Ok(Self { open, incoming: incoming.clone() })
    }
}

enum Begun {
    Fresh,
    Handled,
    Fenced,
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
             on conflict (consumer, key) do update set epoch = excluded.epoch where epoch <= excluded.epoch",
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
        let nth = self.open.sends.fetch_add(1, Ordering::Relaxed);
        let origin = self.incoming.origin_id();
        let id = outgoing.message.message_id.clone().unwrap_or_else(|| format!("{origin}/{nth}"));
        let headers = serde_json::to_string(&Headers::of(&outgoing.message))
            .map_err(|error| Error::Encode(error.to_string()))?;
        self.run(move |db| {
            let key = outgoing.key();
            let body: &[u8] = &outgoing.message.body.bytes;
            db.prepare_cached(
                "insert into malote_outbox (key, target, message_id, headers, body) values (?1, ?2, ?3, ?4, ?5)",
            )?
            .execute(params![key, outgoing.queue, id, headers, body])
            .map(drop)
        })
        .await
    }
}
