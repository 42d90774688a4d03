//! PostgreSQL 13 or newer: a transaction at READ COMMITTED, on a pooled connection.
//!
//! The inbox row is written first. A concurrent duplicate waits for that row. Then it finds the row, or takes its place
//! if the first transaction was rolled back. The fence row is locked in the same way. So an old holder of a session
//! commits before the new holder starts, or not at all.
//!
//! `connections.rs` has the connection pool, `relay.rs` publishes the outbox, and `install` runs `tables.sql`.

mod connections;
mod relay;
mod saga;

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{RwLock, RwLockReadGuard};
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Config, GenericClient, NoTls, Row, Socket};

use self::connections::{ConnectionPool, PooledConnection, connector};
use super::outbox_message::NewOutboxRow;
use super::{Database, HandlerTransaction, InboxCheck, OutboxMessage, SLICE, Tx};
use crate::extract::FromDelivery;
use crate::incoming::{Incoming, StateMap};
use crate::outcome::Failure;
use crate::saga::database::{DatabaseFuture, SagaUpdate};
use crate::text::with_causes;
use crate::{Error, Malote};

/// The client library, in the version that this crate uses.
pub use tokio_postgres;

/// The statements that [`Postgres::install`] runs for inbox and outbox. The tables are found by the `search_path`.
pub const TABLES: &str = include_str!("tables.sql");
pub use saga::SAGA_TABLES;

/// The name of this dependency for a [`crate::Breaker`].
pub const DEPENDENCY: &str = "postgres";
/// The kind of this database, for sagas.
const DATABASE: &str = "postgres";

/// The default number of connections. Each transaction uses one.
const CONNECTIONS: usize = 16;
/// The default limit for idle transactions, the same as the default time-out of an attempt. It releases the locks of a
/// frozen process.
const IDLE: Duration = Duration::from_secs(60);
/// The advisory lock for creating tables, because concurrent `create table if not exists` statements can fail.
const INSTALL_LOCK: i64 = 0x6d61_6c6f_7465_0001;

/// Changes no row if the session has a newer holder.
const FENCE: &str = "insert into malote_fence (consumer, key, epoch) values ($1, $2, $3)
    on conflict (consumer, key) do update set epoch = excluded.epoch, raised_at = excluded.raised_at
    where malote_fence.epoch <= excluded.epoch";
/// Changes no row if the message was handled before.
const INBOX: &str =
    "insert into malote_inbox (consumer, message_id) values ($1, $2) on conflict do nothing";
/// Writes a message and notifies the relays when the transaction commits.
const OUTBOX: &str = "with row as (
        insert into malote_outbox (key, target, message_id, headers, body, not_before)
        values ($1, $2, coalesce($3, gen_random_uuid()::text), $4::json, $5,
                clock_timestamp() + $6 * interval '1 millisecond'))
    select pg_notify('malote_outbox', '')";
/// Delete a limited number of old rows.
const OLD: [&str; 2] = [
    "delete from malote_inbox where (consumer, message_id) in (
        select consumer, message_id from malote_inbox
        where done_at < now() - $1 * interval '1 millisecond' limit $2 for update skip locked)",
    "delete from malote_fence where (consumer, key) in (
        select consumer, key from malote_fence
        where raised_at < now() - $1 * interval '1 millisecond' limit $2 for update skip locked)",
];

/// A connection pool for your PostgreSQL database. Clones share it.
#[derive(Clone)]
pub struct Postgres {
    pool: Arc<ConnectionPool>,
    consumer: Option<Arc<str>>,
    idle: Duration,
    listens: bool,
}

impl Database for Postgres {
    type Transaction = PostgresTransaction;
}

impl Postgres {
    /// Connects to a database by its URL, `postgres://USER:PASSWORD@HOST:PORT/NAME`, without TLS.
    pub async fn connect(url: &str) -> Result<Self, Error> {
        let config = url.parse::<Config>().map_err(|error| database_error(&error))?;
        Self::connect_with(config, NoTls).await
    }

    /// Connects with these settings and this TLS connector.
    pub async fn connect_with<T>(config: Config, tls: T) -> Result<Self, Error>
    where
        T: MakeTlsConnect<Socket> + Clone + Send + Sync + 'static,
        T::Stream: Send + 'static,
        T::TlsConnect: Send,
        <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
    {
        let pool = Arc::new(ConnectionPool::new(connector(config, tls), CONNECTIONS));
        // Report a wrong URL now, not with the first message.
        pool.take().await?.0.release();
        Ok(Self { pool, consumer: None, idle: IDLE, listens: true })
    }

    /// Creates missing tables. To use your own migrations instead, run [`TABLES`] and, for sagas, [`SAGA_TABLES`].
    pub async fn install(&self) -> Result<(), Error> {
        let connection = self.pool.take().await?.0;
        let all = format!(
            "begin; select pg_advisory_xact_lock({INSTALL_LOCK}); {TABLES}; {SAGA_TABLES}; commit"
        );
        connection.client().batch_execute(&all).await.map_err(|error| database_error(&error))?;
        connection.release();
        Ok(())
    }

    /// The name for which the inbox records messages (default: the name of the queue). If two kinds of workers must
    /// both handle every message, give each its own name.
    #[must_use]
    pub fn consumer(mut self, name: &str) -> Self {
        self.consumer = Some(name.into());
        self
    }

    /// Maximum number of connections (default 16). Further handlers wait for one.
    #[must_use]
    pub fn connections(mut self, connections: usize) -> Self {
        self.pool =
            Arc::new(ConnectionPool::new(self.pool.connector().clone(), connections.max(1)));
        self
    }

    /// How long a transaction may be idle between two statements (default 60 s). After that the database ends it, so
    /// that a frozen process does not block the worker that holds its session now.
    #[must_use]
    pub fn idle(mut self, idle: Duration) -> Self {
        self.idle = idle;
        self
    }

    /// Makes the relay poll once a second instead of using `LISTEN`. Use it behind a connection pooler that gives each
    /// transaction another connection.
    #[must_use]
    pub fn poll_only(mut self) -> Self {
        self.listens = false;
        self
    }

    /// Deletes inbox rows older than `age`, and fence rows of sessions without messages for as long. Returns the number
    /// of deleted rows. [`super::INBOX_AGE`] is a good age.
    pub async fn clean_inbox(&self, age: Duration) -> Result<usize, Error> {
        let age_ms = age.as_millis() as f64;
        let connection = self.pool.take().await?.0;
        let mut all = 0;
        for old in OLD {
            loop {
                let values: [TypedParam<'_>; 2] =
                    [(&age_ms, Type::FLOAT8), (&(SLICE as i64), Type::INT8)];
                let removed = connection.client().execute_typed(old, &values).await;
                let removed = removed.map_err(|error| database_error(&error))? as usize;
                all += removed;
                if removed < SLICE {
                    break;
                }
            }
        }
        connection.release();
        Ok(all)
    }

    /// Publishes the outbox until `stop` completes.
    ///
    /// Several relays can run, also in several processes. They share the work; each key belongs to one relay at a time.
    /// Messages of a session or, without a session, of a queue are published in commit order. A message that the broker
    /// refuses holds back its own key only; its row has the reason. After a crash a message may be sent again with the
    /// same id, so give the queue a de-duplication window. While the database is unreachable, the relay retries.
    pub async fn relay_until(
        &self,
        malote: &Malote,
        stop: impl Future<Output = ()>,
    ) -> Result<(), Error> {
        let relay = relay::PostgresRelay::new(self.pool.connector().clone(), self.listens);
        super::relay::run(relay, malote, stop).await
    }

    /// How long the oldest due message has waited in the outbox. `None` if there is none. Monitor this value: it grows
    /// when no relay runs, when the broker refuses messages, and while a long transaction is open.
    pub async fn outbox_age(&self) -> Result<Option<Duration>, Error> {
        let age = "select extract(epoch from clock_timestamp() - least(
                (select since from malote_outbox where not_before is null order by id limit 1),
                (select min(not_before) from malote_outbox where not_before <= clock_timestamp())))::float8";
        let connection = self.pool.take().await?.0;
        let row = connection
            .client()
            .query_typed_one(age, &[])
            .await
            .map_err(|error| database_error(&error))?;
        connection.release();
        let seconds: Option<f64> = row.try_get(0).map_err(|error| database_error(&error))?;
        Ok(seconds.map(|seconds| Duration::from_secs_f64(seconds.max(0.0))))
    }

    /// Sends a message in a transaction of your own, outside of a handler.
    pub async fn send_in(
        transaction: &impl GenericClient,
        message: OutboxMessage,
    ) -> Result<(), Error> {
        write(transaction, message.row()?).await
    }

    /// Starts a transaction and writes the fence and inbox rows. If the server has closed an idle connection, it uses
    /// another one.
    async fn begin(&self, incoming: &Incoming) -> Result<PooledConnection, Failure> {
        let consumer = self.consumer.as_deref().unwrap_or(incoming.consumer());
        let (id, fence) = (incoming.inbox_id(), incoming.fence());
        if [consumer, &id, fence.map_or("", |fence| fence.0)].iter().any(|text| text.contains('\0'))
        {
            let text = "the id of the message or its session contains a zero byte, which PostgreSQL cannot store";
            return Err(Failure::dead("ZeroByte", text));
        }
        loop {
            let taken = self.pool.take().await;
            let (connection, used_before) =
                taken.map_err(|error| Failure::of_dependency(DEPENDENCY, error))?;
            match begin(connection.client(), self.idle, consumer, &id, fence).await {
                Ok(InboxCheck::New) => return Ok(connection),
                Ok(begun) => {
                    if connection.client().batch_execute("rollback").await.is_ok() {
                        connection.release();
                    }
                    begun.require_new()?;
                }
                Err(error) if used_before && is_transient(&error) => {}
                Err(error) => return Err(failure(&error)),
            }
        }
    }
}

/// A parameter with its type. With types, a statement takes one round trip and needs no prepared statement, which a
/// connection pooler could lose.
type TypedParam<'a> = (&'a (dyn ToSql + Sync), Type);

/// Sends all statements in one round trip. The fence comes first, so that holders of the same session wait for each
/// other, whatever messages they handle.
async fn begin(
    client: &Client,
    idle: Duration,
    consumer: &str,
    id: &str,
    fence: Option<(&str, i64)>,
) -> Result<InboxCheck, tokio_postgres::Error> {
    let idle_ms = idle.as_millis().min(i32::MAX as u128);
    let begin = format!(
        "begin isolation level read committed; set local idle_in_transaction_session_timeout = {idle_ms}"
    );
    let raise = async {
        let Some((key, epoch)) = fence else { return Ok(1) };
        let values: [TypedParam<'_>; 3] =
            [(&consumer, Type::TEXT), (&key, Type::TEXT), (&epoch, Type::INT8)];
        client.execute_typed(FENCE, &values).await
    };
    let values: [TypedParam<'_>; 2] = [(&consumer, Type::TEXT), (&id, Type::TEXT)];
    // The client sends statements in the order of their first poll.
    let (begun, raised, fresh) = tokio::join!(
        biased;
        client.batch_execute(&begin),
        raise,
        client.execute_typed(INBOX, &values),
    );
    begun?;
    Ok(match (raised?, fresh?) {
        (0, _) => InboxCheck::Fenced,
        (_, 0) => InboxCheck::Handled,
        _ => InboxCheck::New,
    })
}

async fn write(client: &impl GenericClient, row: NewOutboxRow) -> Result<(), Error> {
    let body: &[u8] = &row.body;
    let delay_ms = row.delay_ms.map(|ms| ms as f64);
    let values: [TypedParam<'_>; 6] = [
        (&row.key, Type::TEXT),
        (&row.target, Type::TEXT),
        (&row.message_id, Type::TEXT),
        (&row.headers, Type::TEXT),
        (&body, Type::BYTEA),
        (&delay_ms, Type::FLOAT8),
    ];
    client.query_typed(OUTBOX, &values).await.map(drop).map_err(|error| database_error(&error))
}

/// The message of the server is a cause of the error.
fn database_error(error: &tokio_postgres::Error) -> Error {
    Error::Database(with_causes(error))
}

/// Whether the call may succeed on another connection or later. The classes of SQLSTATE are: connection exceptions,
/// transaction rollback, insufficient resources, operator intervention and system errors.
fn is_transient(error: &tokio_postgres::Error) -> bool {
    error.code().is_none_or(|code| {
        ["08", "40", "53", "57", "58"].iter().any(|class| code.code().starts_with(class))
    })
}

/// The failure of a handler. A breaker counts it if the database is unavailable.
fn failure(error: &tokio_postgres::Error) -> Failure {
    let text = database_error(error);
    if is_transient(error) { Failure::of_dependency(DEPENDENCY, text) } else { text.into() }
}

/// An open transaction. Dropping it closes the connection, and the server rolls back.
pub struct PostgresTransaction {
    /// None after the end of the transaction. Running statements hold the read lock.
    connection: RwLock<Option<PooledConnection>>,
}

impl PostgresTransaction {
    async fn client(&self) -> Result<RwLockReadGuard<'_, Client>, Error> {
        let connection = self.connection.read().await;
        let client = RwLockReadGuard::try_map(connection, |connection| {
            connection.as_ref().map(PooledConnection::client)
        });
        client.map_err(|_| Error::Database("the transaction has ended".into()))
    }

    /// Only the worker calls this, and only once.
    async fn end(&self, statement: &str) -> Result<(), tokio_postgres::Error> {
        let connection = self.connection.write().await.take().expect("a transaction ends once");
        connection.client().batch_execute(statement).await?;
        connection.release();
        Ok(())
    }
}

struct OpenPostgresTransaction(Arc<PostgresTransaction>);

impl HandlerTransaction for OpenPostgresTransaction {
    fn commit(&self) -> Pin<Box<dyn Future<Output = Result<(), Failure>> + Send + '_>> {
        // After a failed statement, `commit` alone would roll back without an error.
        Box::pin(
            async move { self.0.end("select 1; commit").await.map_err(|error| failure(&error)) },
        )
    }

    fn rollback(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(async move {
            if let Err(error) = self.0.end("rollback").await {
                let error = database_error(&error);
                tracing::warn!(%error, "cannot roll back a transaction; its connection is closed instead");
            }
        })
    }

    fn save(&self, update: SagaUpdate) -> DatabaseFuture<'_, bool> {
        Box::pin(async move {
            let client = self.0.client().await?;
            saga::save(&client, update).await
        })
    }
}

impl FromDelivery for Tx<Postgres> {
    async fn from_delivery(incoming: &Arc<Incoming>) -> Result<Self, Failure> {
        incoming.check_database(DATABASE)?;
        let Some(postgres) = incoming.states.get::<Postgres>() else {
            let text = "the worker has no value of type Postgres: add one with `Worker::state`";
            return Err(Failure::retry(text));
        };
        let connection = postgres.begin(incoming).await?;
        let open = Arc::new(PostgresTransaction { connection: RwLock::new(Some(connection)) });
        incoming.set_transaction(Arc::new(OpenPostgresTransaction(open.clone())))?;
        Ok(Self::new(open, incoming.clone()))
    }

    fn missing(states: &StateMap) -> Option<&'static str> {
        states.missing::<Postgres>()
    }
}

/// Statements in the transaction.
impl Tx<Postgres> {
    /// The connection, for statements that have no method here. Do not commit or roll back; the worker does that.
    pub async fn client(&self) -> Result<RwLockReadGuard<'_, Client>, Error> {
        self.transaction.client().await
    }

    /// Runs a statement and returns the number of changed rows.
    pub async fn execute(&self, sql: &str, values: &[&(dyn ToSql + Sync)]) -> Result<u64, Error> {
        self.client().await?.execute(sql, values).await.map_err(|error| database_error(&error))
    }

    /// Runs a statement and returns its rows.
    pub async fn query(
        &self,
        sql: &str,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, Error> {
        self.client().await?.query(sql, values).await.map_err(|error| database_error(&error))
    }

    /// Runs a statement and returns its row, if it has one.
    pub async fn query_opt(
        &self,
        sql: &str,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<Option<Row>, Error> {
        self.client().await?.query_opt(sql, values).await.map_err(|error| database_error(&error))
    }

    /// Runs a statement and returns its only row.
    pub async fn query_one(&self, sql: &str, values: &[&(dyn ToSql + Sync)]) -> Result<Row, Error> {
        self.client().await?.query_one(sql, values).await.map_err(|error| database_error(&error))
    }

    /// Sends a message in the transaction. The relay publishes it after the commit.
    pub async fn send(&self, message: OutboxMessage) -> Result<(), Error> {
        let mut row = message.row()?;
        row.message_id.get_or_insert_with(|| self.next_id());
        write(&*self.client().await?, row).await
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_guide_shows_the_tables() {
        let guide = include_str!("../../../../../docs/guide/exactly-once.md");
        assert!(guide.contains(super::TABLES), "docs/guide/exactly-once.md shows other tables");
    }
}
