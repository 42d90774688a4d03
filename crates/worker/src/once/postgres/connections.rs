//! A bounded pool of connections to PostgreSQL.
//!
//! A pool of its own, because other pools do not pass on notifications, which the relay needs.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use tokio_postgres::{AsyncMessage, Client, Config, Socket};

use super::database_error;
use crate::Error;

/// The default connect time-out.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

type Connecting = Pin<Box<dyn Future<Output = Result<PgConnection, tokio_postgres::Error>> + Send>>;

pub(super) type Connector = Arc<dyn Fn() -> Connecting + Send + Sync>;

/// A connection and the task that drives it.
pub(super) struct PgConnection {
    pub(super) client: Client,
    /// Notified when a `NOTIFY` arrives and when the connection ends.
    pub(super) notify: Arc<Notify>,
    driver: AbortHandle,
}

impl PgConnection {
    /// Closes the connection at once. The server rolls back an open transaction.
    pub(super) fn close_now(self) {
        self.driver.abort();
    }
}

/// A function that opens connections with these settings.
pub(super) fn connector<T>(mut config: Config, tls: T) -> Connector
where
    T: MakeTlsConnect<Socket> + Clone + Send + Sync + 'static,
    T::Stream: Send + 'static,
    T::TlsConnect: Send,
    <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
{
    if config.get_connect_timeout().is_none() {
        config.connect_timeout(CONNECT_TIMEOUT);
    }
    if config.get_application_name().is_none() {
        config.application_name("malote");
    }
    let config = Arc::new(config);
    Arc::new(move || {
        let (config, tls) = (config.clone(), tls.clone());
        Box::pin(async move {
            let (client, mut connection) = config.connect(tls).await?;
            let notify = Arc::new(Notify::new());
            let notify_user = notify.clone();
            let driver = tokio::spawn(async move {
                loop {
                    match std::future::poll_fn(|context| connection.poll_message(context)).await {
                        Some(Ok(AsyncMessage::Notification(_))) => notify_user.notify_one(),
                        Some(Ok(_)) => {}
                        // The next statement reports the error.
                        Some(Err(_)) | None => break,
                    }
                }
                notify_user.notify_one();
            });
            Ok(PgConnection { client, notify, driver: driver.abort_handle() })
        })
    })
}

/// Idle connections, and permits for connections in use.
pub(super) struct ConnectionPool {
    connector: Connector,
    idle: Mutex<Vec<PgConnection>>,
    permits: Arc<Semaphore>,
}

impl ConnectionPool {
    pub(super) fn new(connector: Connector, connections: usize) -> Self {
        let permits = Arc::new(Semaphore::new(connections));
        Self { connector, idle: Mutex::new(Vec::new()), permits }
    }

    pub(super) fn connector(&self) -> &Connector {
        &self.connector
    }

    /// Waits for a permit, and takes an idle connection or opens one. Also returns whether the connection was used
    /// before: the server may have closed it in the meantime.
    pub(super) async fn take(self: &Arc<Self>) -> Result<(PooledConnection, bool), Error> {
        let closed = || Error::Database("the connection pool is closed".into());
        let permit = self.permits.clone().acquire_owned().await.map_err(|_| closed())?;
        let idle = {
            let mut idle = self.idle.lock();
            loop {
                match idle.pop() {
                    Some(connection) if connection.client.is_closed() => {}
                    connection => break connection,
                }
            }
        };
        let used_before = idle.is_some();
        let connection = match idle {
            Some(connection) => connection,
            None => (self.connector)().await.map_err(|error| database_error(&error))?,
        };
        Ok((
            PooledConnection { connection: Some(connection), pool: self.clone(), _permit: permit },
            used_before,
        ))
    }
}

/// A connection in use. Dropping it closes the connection; `release` returns it to the pool.
pub(super) struct PooledConnection {
    connection: Option<PgConnection>,
    pool: Arc<ConnectionPool>,
    _permit: OwnedSemaphorePermit,
}

impl PooledConnection {
    pub(super) fn client(&self) -> &Client {
        &self.connection.as_ref().expect("the connection is present until `release`").client
    }

    /// Returns the connection to the pool. No transaction must be open.
    pub(super) fn release(mut self) {
        if let Some(connection) = self.connection.take()
            && !connection.client.is_closed()
        {
            self.pool.idle.lock().push(connection);
        }
    }
}

impl Drop for PooledConnection {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take() {
            connection.close_now();
        }
    }
}
