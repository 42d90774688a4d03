//! PostgreSQL, 13 or newer: a transaction on a connection of a pool, at READ COMMITTED.
//!
//! The row of the inbox is written first: a concurrent duplicate waits for it, then finds it, or takes its place if it
//! was rolled back. The row of the fence is locked the same way, so an old holder of a session commits before the new
//! one begins, or not at all.
//!
//! `pool.rs` has the connections, `relay.rs` publishes the outbox, `tables.sql` is what `install` runs.

mod pool;
mod relay;
mod saga;

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{RwLock, RwLockReadGuard};
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Config, GenericClient, NoTls, Row, Socket};

use self::pool::{Lent, Pool, connector};
use super::outgoing::NewRow;
use super::{Begun, Database, Effect, Outgoing, SLICE, Tx};
use crate::extract::FromDelivery;
use crate::incoming::{Incoming, Shared};
use crate::outcome::Failure;
use crate::saga::database::{Doing, Save};
use crate::{Error, Malote};

/// The client, in the version that is used here.
pub use tokio_postgres;

/// The tables, as [`Postgres::install`] makes them where they are missing. They are found by the `search_path`.
pub const TABLES: &str = include_str!("tables.sql");
pub use saga::SAGA_TABLES;

/// What a breaker knows the database by.
pub const DEPENDENCY: &str = "postgres";
/// As a saga calls it that is kept here.
const DATABASE: &str = "postgres";

/// Connections at once unless it is said otherwise: a transaction of a handler has one.
const CONNECTIONS: usize = 16;
/// How long a transaction may wait for its handler. A frozen process keeps its locks no longer, and whoever has its
/// session by now can go on: as long as an attempt may take by default.
const IDLE: Duration = Duration::from_secs(60);
/// Two that make the tables at once would collide.
const INSTALL_LOCK: i64 = 0x6d61_6c6f_7465_0001;

/// What a statement says about a message that was handled, or a session that somebody else has.
const FENCE: &str = "insert into malote_fence (consumer, key, epoch) values ($1, $2, $3)
    on conflict (consumer, key) do update set epoch = excluded.epoch, raised_at = excluded.raised_at
    where malote_fence.epoch <= excluded.epoch";
const INBOX: &str =
    "insert into malote_inbox (consumer, message_id) values ($1, $2) on conflict do nothing";
/// Writes a message and calls the relays, which hear of it when the transaction commits.
const OUTBOX: &str = "with row as (
        insert into malote_outbox (key, target, message_id, headers, body, not_before)
        values ($1, $2, coalesce($3, gen_random_uuid()::text), $4::json, $5,
                clock_timestamp() + $6 * interval '1 millisecond'))
    select pg_notify('malote_outbox', '')";
/// A slice of what is too old.
const OLD: [&str; 2] = [
    "delete from malote_inbox where (consumer, message_id) in (
        select consumer, message_id from malote_inbox
        where done_at < now() - $1 * interval '1 millisecond' limit $2 for update skip locked)",
    "delete from malote_fence where (consumer, key) in (
        select consumer, key from malote_fence
        where raised_at < now() - $1 * interval '1 millisecond' limit $2 for update skip locked)",
];

/// A database of yours. Clones are the same.
#[derive(Clone)]
pub struct Postgres {
    pool: Arc<Pool>,
    consumer: Option<Arc<str>>,
    idle: Duration,
    listens: bool,
}

impl Database for Postgres {
    type Open = Open;
}

impl Postgres {
    /// Reaches a database by its URL, `postgres://USER:PASSWORD@HOST:PORT/NAME`, without TLS.
    pub async fn connect(url: &str) -> Result<Self, Error> {
        let config = url.parse::<Config>().map_err(|error| wrong(&error))?;
        Self::connect_with(config, NoTls).await
    }

    /// The same with every setting, and with TLS of your choice.
    pub async fn connect_with<T>(config: Config, tls: T) -> Result<Self, Error>
    where
        T: MakeTlsConnect<Socket> + Clone + Send + Sync + 'static,
        T::Stream: Send + 'static,
        T::TlsConnect: Send,
        <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
    {
        let pool = Arc::new(Pool::new(connector(config, tls), CONNECTIONS));
        // A wrong URL is found now and not with the first message.
        pool.take().await?.0.give_back();
        Ok(Self { pool, consumer: None, idle: IDLE, listens: true })
    }

    /// Makes the tables where they are missing. Or run [`TABLES`] and, for sagas, [`SAGA_TABLES`] with your own migrations.
    pub async fn install(&self) -> Result<(), Error> {
        let lent = self.pool.take().await?.0;
        let all = format!(
            "begin; select pg_advisory_xact_lock({INSTALL_LOCK}); {TABLES}; {SAGA_TABLES}; commit"
        );
        lent.client().batch_execute(&all).await.map_err(|error| wrong(&error))?;
        lent.give_back();
        Ok(())
    }

    /// The name under which messages count as handled; the queue's unless it is given. Two kinds of workers that each
    /// must see every message need two names.
    #[must_use]
    pub fn consumer(mut self, name: &str) -> Self {
        self.consumer = Some(name.into());
        self
    }

    /// Connections at once, 16 unless it is said: handlers beyond it wait for one.
    #[must_use]
    pub fn connections(mut self, connections: usize) -> Self {
        self.pool = Arc::new(Pool::new(self.pool.connector().clone(), connections.max(1)));
        self
    }

    /// How long a transaction may wait for its handler between two statements, a minute unless it is said. The
    /// database ends those of frozen processes, so that whoever has their sessions by now can go on.
    #[must_use]
    pub fn idle(mut self, idle: Duration) -> Self {
        self.idle = idle;
        self
    }

    /// The relay only looks once in a second and does not `listen`: for databases behind a pool that gives each
    /// transaction another connection.
    #[must_use]
    pub fn poll_only(mut self) -> Self {
        self.listens = false;
        self
    }

    /// Removes rows of the inbox that are older than `age` ([`super::INBOX_AGE`] unless you know better), and what is
    /// known about holders of sessions that had no message for as long. Tells how many.
    pub async fn clean_inbox(&self, age: Duration) -> Result<usize, Error> {
        let age_ms = age.as_millis() as f64;
        let lent = self.pool.take().await?.0;
        let mut all = 0;
        for old in OLD {
            loop {
                let values: [Value<'_>; 2] =
                    [(&age_ms, Type::FLOAT8), (&(SLICE as i64), Type::INT8)];
                let removed = lent.client().execute_typed(old, &values).await;
                let removed = removed.map_err(|error| wrong(&error))? as usize;
                all += removed;
                if removed < SLICE {
                    break;
                }
            }
        }
        lent.give_back();
        Ok(all)
    }

    /// Publishes what waits in the outbox until `stop` is over.
    ///
    /// Several may run, in several processes, and share the work: each key is one relay's at a time. Messages of one
    /// session, or else of one queue, leave in the order in which they were committed. One that a broker refuses holds
    /// back only its own key, with the reason in its row. A repeat after a crash has the same message id: give the
    /// queue a de-duplication window. A database that cannot be reached is tried again.
    pub async fn relay_until(
        &self,
        malote: &Malote,
        stop: impl Future<Output = ()>,
    ) -> Result<(), Error> {
        let relay = relay::Relay::new(self.pool.connector().clone(), self.listens);
        super::relay::run(relay, malote, stop).await
    }

    /// How long the oldest message that is due has waited in the outbox; none if none does. Raise an alarm on it: it
    /// grows when no relay runs, when a broker refuses, and while a long transaction holds the outbox back.
    pub async fn outbox_age(&self) -> Result<Option<Duration>, Error> {
        let age = "select extract(epoch from clock_timestamp() - least(
                (select since from malote_outbox where not_before is null order by id limit 1),
                (select min(not_before) from malote_outbox where not_before <= clock_timestamp())))::float8";
        let lent = self.pool.take().await?.0;
        let row = lent.client().query_typed_one(age, &[]).await.map_err(|error| wrong(&error))?;
        lent.give_back();
        let seconds: Option<f64> = row.try_get(0).map_err(|error| wrong(&error))?;
        Ok(seconds.map(|seconds| Duration::from_secs_f64(seconds.max(0.0))))
    }

    /// Sends a message with a transaction of your own, outside of any handler.
    pub async fn send_in(
        transaction: &impl GenericClient,
        outgoing: Outgoing,
    ) -> Result<(), Error> {
        write(transaction, outgoing.row()?).await
    }

    /// Opens a transaction and takes the rows of a message; a connection that the server closed meanwhile is nobody's
    /// fault.
    async fn begin(&self, incoming: &Incoming) -> Result<Lent, Failure> {
        let consumer = self.consumer.as_deref().unwrap_or(incoming.consumer());
        let (id, fence) = (incoming.inbox_id(), incoming.fence());
        if [consumer, &id, fence.map_or("", |fence| fence.0)].iter().any(|text| text.contains('\0'))
        {
            let text = "PostgreSQL cannot keep the id of a message or session with a zero byte";
            return Err(Failure::dead("ZeroByte", text));
        }
        loop {
            let taken = self.pool.take().await;
            let (lent, used) = taken.map_err(|error| Failure::of_dependency(DEPENDENCY, error))?;
            match begin(lent.client(), self.idle, consumer, &id, fence).await {
                Ok(Begun::Fresh) => return Ok(lent),
                Ok(begun) => {
                    if lent.client().batch_execute("rollback").await.is_ok() {
                        lent.give_back();
                    }
                    begun.go_on()?;
                }
                Err(error) if used && is_away(&error) => {}
                Err(error) => return Err(failure(&error)),
            }
        }
    }
}

/// A parameter with its type: so a statement takes one round trip, and needs no name that a pool could lose.
type Value<'a> = (&'a (dyn ToSql + Sync), Type);

/// All in one round trip. The fence comes first: holders of one session wait for each other there, whatever they handle.
async fn begin(
    client: &Client,
    idle: Duration,
    consumer: &str,
    id: &str,
    fence: Option<(&str, i64)>,
) -> Result<Begun, tokio_postgres::Error> {
    let idle_ms = idle.as_millis().min(i32::MAX as u128);
    let begin = format!(
        "begin isolation level read committed; set local idle_in_transaction_session_timeout = {idle_ms}"
    );
    let raise = async {
        let Some((key, epoch)) = fence else { return Ok(1) };
        let values: [Value<'_>; 3] =
            [(&consumer, Type::TEXT), (&key, Type::TEXT), (&epoch, Type::INT8)];
        client.execute_typed(FENCE, &values).await
    };
    let values: [Value<'_>; 2] = [(&consumer, Type::TEXT), (&id, Type::TEXT)];
    // Statements are sent in the order in which they are polled first.
    let (begun, raised, fresh) = tokio::join!(
        biased;
        client.batch_execute(&begin),
        raise,
        client.execute_typed(INBOX, &values),
    );
    begun?;
    Ok(match (raised?, fresh?) {
        (0, _) => Begun::Fenced,
        (_, 0) => Begun::Handled,
        _ => Begun::Fresh,
    })
}

async fn write(client: &impl GenericClient, row: NewRow) -> Result<(), Error> {
    let body: &[u8] = &row.body;
    let delay_ms = row.delay_ms.map(|ms| ms as f64);
    let values: [Value<'_>; 6] = [
        (&row.key, Type::TEXT),
        (&row.target, Type::TEXT),
        (&row.message_id, Type::TEXT),
        (&row.headers, Type::TEXT),
        (&body, Type::BYTEA),
        (&delay_ms, Type::FLOAT8),
    ];
    client.query_typed(OUTBOX, &values).await.map(drop).map_err(|error| wrong(&error))
}

/// What the server said, and not only that it said something.
fn wrong(error: &tokio_postgres::Error) -> Error {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    Error::Database(text)
}

/// Whether the same may work on another connection, or a little later. Classes of errors are their first two letters:
/// connections, conflicts, memory and disk, operators, the system.
fn is_away(error: &tokio_postgres::Error) -> bool {
    error.code().is_none_or(|code| {
        ["08", "40", "53", "57", "58"].iter().any(|class| code.code().starts_with(class))
    })
}

/// Why a message comes again: a database that is away is a dependency that failed, and its breaker counts it.
fn failure(error: &tokio_postgres::Error) -> Failure {
    let text = wrong(error);
    if is_away(error) { Failure::of_dependency(DEPENDENCY, text) } else { text.into() }
}

/// An open transaction. Dropped, its connection is cut, and the server rolls it back.
pub struct Open {
    /// Taken when it is over; statements under way keep it from that.
    lent: RwLock<Option<Lent>>,
}

impl Open {
    async fn client(&self) -> Result<RwLockReadGuard<'_, Client>, Error> {
        let lent = self.lent.read().await;
        let client = RwLockReadGuard::try_map(lent, |lent| lent.as_ref().map(Lent::client));
        client.map_err(|_| Error::Database("the transaction is over".into()))
    }

    /// Nobody but the worker ends it, and once.
    async fn end(&self, how: &str) -> Result<(), tokio_postgres::Error> {
        let lent = self.lent.write().await.take().expect("a transaction ends once");
        lent.client().batch_execute(how).await?;
        lent.give_back();
        Ok(())
    }
}

struct Ending(Arc<Open>);

impl Effect for Ending {
    fn commit(&self) -> Pin<Box<dyn Future<Output = Result<(), Failure>> + Send + '_>> {
        // Of a transaction in which a statement failed, a commit alone is a rollback and no error.
        Box::pin(
            async move { self.0.end("select 1; commit").await.map_err(|error| failure(&error)) },
        )
    }

    fn rollback(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(async move {
            if let Err(error) = self.0.end("rollback").await {
                let error = wrong(&error);
                tracing::warn!(%error, "a transaction was not rolled back by us: its connection is cut");
            }
        })
    }

    fn save(&self, row: Save) -> Doing<'_, bool> {
        Box::pin(async move {
            let client = self.0.client().await?;
            saga::save(&client, row).await
        })
    }
}

impl FromDelivery for Tx<Postgres> {
    async fn from_delivery(incoming: &Arc<Incoming>) -> Result<Self, Failure> {
        incoming.may_begin(DATABASE)?;
        let Some(postgres) = incoming.shared.get::<Postgres>() else {
            let text = "the worker has no Postgres: give it one with Worker::state";
            return Err(Failure::retry(text));
        };
        let lent = postgres.begin(incoming).await?;
        let open = Arc::new(Open { lent: RwLock::new(Some(lent)) });
        incoming.begin(Arc::new(Ending(open.clone())))?;
        Ok(Self::new(open, incoming.clone()))
    }

    fn missing(shared: &Shared) -> Option<&'static str> {
        shared.missing::<Postgres>()
    }
}

/// Statements inside of the transaction.
impl Tx<Postgres> {
    /// The connection itself, for all that has no method here. The transaction is the worker's to end.
    pub async fn client(&self) -> Result<RwLockReadGuard<'_, Client>, Error> {
        self.open.client().await
    }

    /// Runs a statement; tells how many rows it changed.
    pub async fn execute(&self, sql: &str, values: &[&(dyn ToSql + Sync)]) -> Result<u64, Error> {
        self.client().await?.execute(sql, values).await.map_err(|error| wrong(&error))
    }

    /// Runs a statement; its rows.
    pub async fn query(
        &self,
        sql: &str,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, Error> {
        self.client().await?.query(sql, values).await.map_err(|error| wrong(&error))
    }

    /// Runs a statement; its only row, if it has one.
    pub async fn query_opt(
        &self,
        sql: &str,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<Option<Row>, Error> {
        self.client().await?.query_opt(sql, values).await.map_err(|error| wrong(&error))
    }

    /// Runs a statement that has exactly one row.
    pub async fn query_one(&self, sql: &str, values: &[&(dyn ToSql + Sync)]) -> Result<Row, Error> {
        self.client().await?.query_one(sql, values).await.map_err(|error| wrong(&error))
    }

    /// Sends a message with the transaction: the relay publishes it once it is committed.
    pub async fn send(&self, outgoing: Outgoing) -> Result<(), Error> {
        let mut row = outgoing.row()?;
        row.message_id.get_or_insert_with(|| self.next_id());
        write(&*self.client().await?, row).await
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_guide_has_the_tables() {
        let guide = include_str!("../../../../../docs/guide/exactly-once.md");
        assert!(guide.contains(super::TABLES), "docs/guide/exactly-once.md shows other tables");
    }
}
