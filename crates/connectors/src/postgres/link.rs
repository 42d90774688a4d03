//! A connection to the server, its prepared statements, and how it comes back.

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

use super::config::Config;
use super::error;
use crate::broker::BrokerError;

/// The first pause after a failed attempt to connect; it doubles up to the last.
const PAUSE_FIRST: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// A statement with the types of its parameters.
pub(super) struct Sql {
    pub text: &'static str,
    pub types: &'static [Type],
}

/// The values of its parameters.
pub(super) type Values<'a> = &'a [&'a (dyn ToSql + Sync)];

/// Told of every notification.
pub(super) type Hears = Arc<dyn Fn(&Notification) + Send + Sync>;

/// Statements under way on a connection.
pub(super) type Rows<'a> =
    Pin<Box<dyn Future<Output = Result<Vec<Row>, tokio_postgres::Error>> + Send + 'a>>;

/// What is set on each connection: plans must not depend on how full tables were when they were made, and every row is
/// found by an index.
const SETTINGS: &str = "set plan_cache_mode = force_generic_plan; set enable_seqscan = off; set enable_bitmapscan = off; \
     set enable_hashjoin = off; set enable_mergejoin = off; set jit = off; \
     set idle_in_transaction_session_timeout = '60s'; set lock_timeout = 0; \
     set tcp_keepalives_idle = 5; set tcp_keepalives_interval = 2; set tcp_keepalives_count = 3";

/// An answer of a send or a settlement is on disk, whatever the server's default is; a standby that the server waits for
/// has it, too.
const DURABLE: &str = "select set_config('synchronous_commit', case when current_setting('synchronous_commit') = 'remote_apply' \
     then 'remote_apply' else 'on' end, false)";

/// What a crash of the server may forget: who has what. It is handed out again, and the old lease is worth nothing.
const LAZY: &str = "set synchronous_commit = off";

/// A connection.
pub(super) struct Link {
    client: Client,
    statements: HashMap<&'static str, Statement>,
    /// Behind a pool of connections nothing survives a transaction: no names of statements, no settings.
    pooled: bool,
    closed: CancellationToken,
    driver: AbortHandle,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Link {
    pub(super) async fn open(
        config: &Config,
        lazy: bool,
        statements: &[&Sql],
        hears: Option<Hears>,
    ) -> Result<Self, tokio_postgres::Error> {
        let (client, mut connection) = config.postgres.connect(config.tls.clone()).await?;
        let closed = CancellationToken::new();
        let over = closed.clone().drop_guard();
        let driver = tokio::spawn(async move {
            let _over = over;
            loop {
                match std::future::poll_fn(|context| connection.poll_message(context)).await {
                    Some(Ok(AsyncMessage::Notification(notification))) => {
                        if let Some(hears) = &hears {
                            hears(&notification);
                        }
                    }
                    Some(Ok(_)) => {}
                    // Whoever uses it is told by its next statement.
                    Some(Err(_)) | None => break,
                }
            }
        });
        let driver = driver.abort_handle();
        let pooled = config.pooled;
        let mut link = Self { client, statements: HashMap::new(), pooled, closed, driver };
        if !pooled {
            link.client.batch_execute(SETTINGS).await?;
            link.client.batch_execute(if lazy { LAZY } else { DURABLE }).await?;
            for sql in statements {
                let statement = link.client.prepare_typed(sql.text, sql.types).await?;
                link.statements.insert(sql.text, statement);
            }
        }
        Ok(link)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    /// Ends when the connection does.
    pub(super) async fn closed(&self) {
        self.closed.cancelled().await;
    }

    /// The rows of a statement. Statements are sent in the order in which they are polled first, and need not wait for
    /// each other.
    pub(super) fn rows<'a>(&'a self, sql: &'a Sql, values: Values<'a>) -> Rows<'a> {
        Box::pin(async move {
            if let Some(statement) = self.statements.get(sql.text) {
                return self.client.query(statement, values).await;
            }
            let typed: Vec<_> = values.iter().copied().zip(sql.types.iter().cloned()).collect();
            self.client.query_typed(sql.text, &typed).await
        })
    }

    /// Runs what has no parameters and no rows.
    pub(super) async fn run(&self, text: &str) -> Result<(), tokio_postgres::Error> {
        self.client.batch_execute(text).await
    }

    /// How a transaction begins whose answer must be on disk.
    pub(super) fn begin(&self) -> &'static str {
        if self.pooled {
            "begin isolation level read committed; set local synchronous_commit = on"
        } else {
            "begin isolation level read committed"
        }
    }
}

/// A connection that is made when it is needed, and made again when it broke.
pub(super) struct Line {
    config: Arc<Config>,
    lazy: bool,
    statements: &'static [&'static Sql],
    state: Mutex<State>,
}

struct State {
    link: Option<Arc<Link>>,
    pause: Duration,
    /// Not before that it is tried again, and why it failed.
    until: Option<(Instant, BrokerError)>,
}

impl Line {
    pub(super) fn new(
        config: &Arc<Config>,
        lazy: bool,
        statements: &'static [&'static Sql],
    ) -> Self {
        let state = Mutex::new(State { link: None, pause: PAUSE_FIRST, until: None });
        Self { config: config.clone(), lazy, statements, state }
    }

    /// The connection. While the server is away, calls are told so at once and do not queue up.
    pub(super) async fn link(&self) -> Result<Arc<Link>, BrokerError> {
        let mut state = self.state.lock().await;
        if let Some(link) = state.link.as_ref().filter(|link| !link.is_closed()) {
            return Ok(link.clone());
        }
        state.link = None;
        if let Some((until, why)) = &state.until
            && Instant::now() < *until
        {
            return Err(why.clone());
        }
        match Link::open(&self.config, self.lazy, self.statements, None).await {
            Ok(link) => {
                let link = Arc::new(link);
                (state.link, state.pause, state.until) = (Some(link.clone()), PAUSE_FIRST, None);
                Ok(link)
            }
            Err(error) => {
                let error = BrokerError::from(error);
                state.until = Some((Instant::now() + state.pause, error.clone()));
                state.pause = (state.pause * 2).min(PAUSE_MAX);
                Err(error)
            }
        }
    }

    /// One statement outside of any transaction.
    pub(super) async fn rows(
        &self,
        sql: &Sql,
        values: Values<'_>,
    ) -> Result<Vec<Row>, BrokerError> {
        let link = self.link().await?;
        let rows = link.rows(sql, values).await;
        self.note(&link, rows.as_ref().err()).await;
        Ok(rows?)
    }

    /// A connection that failed is not used again.
    pub(super) async fn note(&self, link: &Arc<Link>, error: Option<&tokio_postgres::Error>) {
        if error.is_some_and(error::is_away) {
            let mut state = self.state.lock().await;
            if state.link.as_ref().is_some_and(|kept| Arc::ptr_eq(kept, link)) {
                state.link = None;
            }
        }
    }
}
