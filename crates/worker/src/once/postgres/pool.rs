//! Connections to the database: a bounded number, kept while they work.
//!
//! Pools of others keep the messages of their connections to themselves; a relay listens to them.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use tokio_postgres::{AsyncMessage, Client, Config, Socket};

use super::wrong;
use crate::Error;

/// How long a server may take to let us in, unless the URL says it.
const CONNECT_MAX: Duration = Duration::from_secs(10);

type Connecting = Pin<Box<dyn Future<Output = Result<Link, tokio_postgres::Error>> + Send>>;

/// Makes connections.
pub(super) type Connector = Arc<dyn Fn() -> Connecting + Send + Sync>;

/// A connection, and the task that drives it.
pub(super) struct Link {
    pub(super) client: Client,
    /// Told of every `notify` that it listens to, and of its end.
    pub(super) called: Arc<Notify>,
    driver: AbortHandle,
}

impl Link {
    /// Ends it at once, whatever it was doing: the server rolls back what was open.
    pub(super) fn cut(self) {
        self.driver.abort();
    }
}

/// How connections of these settings are made.
pub(super) fn connector<T>(mut config: Config, tls: T) -> Connector
where
    T: MakeTlsConnect<Socket> + Clone + Send + Sync + 'static,
    T::Stream: Send + 'static,
    T::TlsConnect: Send,
    <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
{
    if config.get_connect_timeout().is_none() {
        config.connect_timeout(CONNECT_MAX);
    }
    if config.get_application_name().is_none() {
        config.application_name("malote");
    }
    let config = Arc::new(config);
    Arc::new(move || {
        let (config, tls) = (config.clone(), tls.clone());
        Box::pin(async move {
            let (client, mut connection) = config.connect(tls).await?;
            let called = Arc::new(Notify::new());
            let tell = called.clone();
            let driver = tokio::spawn(async move {
                loop {
                    match std::future::poll_fn(|context| connection.poll_message(context)).await {
                        Some(Ok(AsyncMessage::Notification(_))) => tell.notify_one(),
                        Some(Ok(_)) => {}
                        // Whoever uses it is told by its next statement.
                        Some(Err(_)) | None => break,
                    }
                }
                tell.notify_one();
            });
            Ok(Link { client, called, driver: driver.abort_handle() })
        })
    })
}

/// Connections that nobody uses now, and room for more.
pub(super) struct Pool {
    connector: Connector,
    idle: Mutex<Vec<Link>>,
    room: Arc<Semaphore>,
}

impl Pool {
    pub(super) fn new(connector: Connector, connections: usize) -> Self {
        let room = Arc::new(Semaphore::new(connections));
        Self { connector, idle: Mutex::new(Vec::new()), room }
    }

    pub(super) fn connector(&self) -> &Connector {
        &self.connector
    }

    /// Waits for a connection that is free, or makes one while there is room. Tells whether it was used before: the
    /// server may have closed that without our knowing yet.
    pub(super) async fn take(self: &Arc<Self>) -> Result<(Lent, bool), Error> {
        let over = || Error::Database("the pool is closed".into());
        let room = self.room.clone().acquire_owned().await.map_err(|_| over())?;
        let kept = {
            let mut idle = self.idle.lock();
            loop {
                match idle.pop() {
                    Some(link) if link.client.is_closed() => {}
                    kept => break kept,
                }
            }
        };
        let used = kept.is_some();
        let link = match kept {
            Some(link) => link,
            None => (self.connector)().await.map_err(|error| wrong(&error))?,
        };
        Ok((Lent { link: Some(link), pool: self.clone(), _room: room }, used))
    }
}

/// A connection in use. Dropped, it is cut: whoever is done with it gives it back.
pub(super) struct Lent {
    link: Option<Link>,
    pool: Arc<Pool>,
    _room: OwnedSemaphorePermit,
}

impl Lent {
    pub(super) fn client(&self) -> &Client {
        &self.link.as_ref().expect("it is there until it is given back").client
    }

    /// Nothing is open on it.
    pub(super) fn give_back(mut self) {
        if let Some(link) = self.link.take()
            && !link.client.is_closed()
        {
            self.pool.idle.lock().push(link);
        }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(link) = self.link.take() {
            link.cut();
        }
    }
}
