//! Connections to the server with their prepared statements, and reconnecting.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::task::AbortHandle;
use tokio::time::Instant;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{AsyncMessage, Client, Notification, Row, Statement};
use tokio_util::sync::CancellationToken;

use super::config::PgConfig;
use super::error;
use crate::broker::BrokerError;
use crate::retry_delay::RetryDelay;

/// Pauses after failed attempts to connect.
const RETRY_FIRST: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_secs(2);

/// A statement with the types of its parameters.
pub(super) struct Sql {
    pub text: &'static str,
    pub types: &'static [Type],
}

/// The values of a statement's parameters.
pub(super) type Params<'a> = &'a [&'a (dyn ToSql + Sync)];

/// Called for every notification.
pub(super) type NotificationHandler = Arc<dyn Fn(&Notification) + Send + Sync>;

/// The future of a query.
pub(super) type RowsFuture<'a> =
    Pin<Box<dyn Future<Output = Result<Vec<Row>, tokio_postgres::Error>> + Send + 'a>>;

/// Settings of every connection. Plans must not depend on how full the tables were at planning time, and every row
/// must be found through an index.
const SETTINGS: &str = "set plan_cache_mode = force_generic_plan; set enable_seqscan = off; set enable_bitmapscan = off; \
     set enable_hashjoin = off; set enable_mergejoin = off; set jit = off; \
     set idle_in_transaction_session_timeout = '60s'; set lock_timeout = 0; \
     set tcp_keepalives_idle = 5; set tcp_keepalives_interval = 2; set tcp_keepalives_count = 3";

/// Sends and settlements are on disk before they are answered, whatever the server's default is, and also on
/// synchronous standbys.
const DURABLE_COMMIT: &str = "select set_config('synchronous_commit', case when current_setting('synchronous_commit') = 'remote_apply' \
     then 'remote_apply' else 'on' end, false)";

/// For leases, which a crash of the server may lose: the messages are delivered again, and the old leases are invalid.
const ASYNC_COMMIT: &str = "set synchronous_commit = off";

/// An open connection.
pub(super) struct PgConnection {
    client: Client,
    statements: HashMap<&'static str, Statement>,
    /// Behind a connection pool, neither prepared statements nor settings survive a transaction.
    pooled: bool,
    closed: CancellationToken,
    driver: AbortHandle,
}

impl Drop for PgConnection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl PgConnection {
    pub(super) async fn open(
        config: &PgConfig,
        async_commit: bool,
        statements: &[&Sql],
        on_notification: Option<NotificationHandler>,
    ) -> Result<Self, tokio_postgres::Error> {
        let (client, mut connection) = config.postgres.connect(config.tls.clone()).await?;
        let closed = CancellationToken::new();
        let closed_guard = closed.clone().drop_guard();
        let driver = tokio::spawn(async move {
            let _closed = closed_guard;
            loop {
                match std::future::poll_fn(|context| connection.poll_message(context)).await {
                    Some(Ok(AsyncMessage::Notification(notification))) => {
                        if let Some(on_notification) = &on_notification {
                            on_notification(&notification);
                        }
                    }
                    Some(Ok(_)) => {}
                    // The next statement on this connection fails.
                    Some(Err(_)) | None => break,
                }
            }
        });
        let driver = driver.abort_handle();
        let pooled = config.pooled;
        let mut connection = Self { client, statements: HashMap::new(), pooled, closed, driver };
        if !pooled {
            connection.client.batch_execute(SETTINGS).await?;
            connection
                .client
                .batch_execute(if async_commit { ASYNC_COMMIT } else { DURABLE_COMMIT })
                .await?;
            for sql in statements {
                let statement = connection.client.prepare_typed(sql.text, sql.types).await?;
                connection.statements.insert(sql.text, statement);
            }
        }
        Ok(connection)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    /// Resolves when the connection ends.
    pub(super) async fn closed(&self) {
        self.closed.cancelled().await;
    }

    /// Runs a statement. Statements are sent in the order in which they are first polled, without waiting for each
    /// other.
    pub(super) fn query<'a>(&'a self, sql: &'a Sql, values: Params<'a>) -> RowsFuture<'a> {
        Box::pin(async move {
            if let Some(statement) = self.statements.get(sql.text) {
                return self.client.query(statement, values).await;
            }
            let typed: Vec<_> = values.iter().copied().zip(sql.types.iter().cloned()).collect();
            self.client.query_typed(sql.text, &typed).await
        })
    }

    /// Runs statements without parameters and rows.
    pub(super) async fn execute(&self, text: &str) -> Result<(), tokio_postgres::Error> {
        self.client.batch_execute(text).await
    }

    /// The statement that begins a durable transaction.
    pub(super) fn begin(&self) -> &'static str {
        if self.pooled {
            "begin isolation level read committed; set local synchronous_commit = on"
        } else {
            "begin isolation level read committed"
        }
    }
}

/// Connects when needed, and again after the connection broke.
pub(super) struct PgConnector {
    config: Arc<PgConfig>,
    async_commit: bool,
    statements: &'static [&'static Sql],
    state: Mutex<ConnectorState>,
}

struct ConnectorState {
    connection: Option<Arc<PgConnection>>,
    backoff: RetryDelay,
    /// The time of the next attempt, and the error of the last one.
    retry_at: Option<(Instant, BrokerError)>,
}

impl PgConnector {
    pub(super) fn new(
        config: &Arc<PgConfig>,
        async_commit: bool,
        statements: &'static [&'static Sql],
    ) -> Self {
        let backoff = RetryDelay::new(RETRY_FIRST, RETRY_MAX);
        let state = Mutex::new(ConnectorState { connection: None, backoff, retry_at: None });
        Self { config: config.clone(), async_commit, statements, state }
    }

    /// Returns the connection, and connects first if there is none. For a while after a failed attempt, returns the
    /// same error without another attempt.
    pub(super) async fn connection(&self) -> Result<Arc<PgConnection>, BrokerError> {
        let mut state = self.state.lock().await;
        if let Some(connection) =
            state.connection.as_ref().filter(|connection| !connection.is_closed())
        {
            return Ok(connection.clone());
        }
        state.connection = None;
        if let Some((retry_at, last_error)) = &state.retry_at
            && Instant::now() < *retry_at
        {
            return Err(last_error.clone());
        }
        match PgConnection::open(&self.config, self.async_commit, self.statements, None).await {
            Ok(connection) => {
                let connection = Arc::new(connection);
                (state.connection, state.retry_at) = (Some(connection.clone()), None);
                state.backoff.reset();
                Ok(connection)
            }
            Err(error) => {
                let error = BrokerError::from(error);
                state.retry_at = Some((Instant::now() + state.backoff.pause(), error.clone()));
                Err(error)
            }
        }
    }

    /// Runs one statement outside of a transaction.
    pub(super) async fn query(
        &self,
        sql: &Sql,
        values: Params<'_>,
    ) -> Result<Vec<Row>, BrokerError> {
        let connection = self.connection().await?;
        let rows = connection.query(sql, values).await;
        self.discard_if_broken(&connection, rows.as_ref().err()).await;
        Ok(rows?)
    }

    /// Stops using a connection that failed.
    pub(super) async fn discard_if_broken(
        &self,
        connection: &Arc<PgConnection>,
        error: Option<&tokio_postgres::Error>,
    ) {
        if error.is_some_and(error::is_disconnect) {
            let mut state = self.state.lock().await;
            if state.connection.as_ref().is_some_and(|current| Arc::ptr_eq(current, connection)) {
                state.connection = None;
            }
        }
    }
}
