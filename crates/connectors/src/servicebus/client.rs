//! The client of a namespace. It connects when needed and again after a loss.

use std::sync::Arc;
use std::time::Duration;

use super::config::Config;
use super::connection::ClientConnection;
use super::error::{ErrorKind, Result};
use super::limits;
use super::management::Management;
use super::receiver::{Receiver, ReceiverOptions, SessionChoice};
use super::sender::Sender;
use super::session::SessionReceiver;
use crate::retry_delay::RetryDelay;
use crate::system;

/// A client of one namespace. Clones share its connection.
///
/// After a loss, the next call reconnects, with growing pauses and at most [`Config::attempts`] attempts. Senders and
/// receivers of the lost connection fail with [`super::Error::Lost`]. Their owner must open new ones, because only
/// the owner knows whether pending operations may be repeated.
#[derive(Clone)]
pub struct Client {
    shared: Arc<ClientShared>,
}

struct ClientShared {
    config: Arc<Config>,
    /// Locked while connecting, so that concurrent calls share one connection.
    connection: tokio::sync::Mutex<Option<Arc<ClientConnection>>>,
}

impl Client {
    /// Connects. Fails after the last attempt.
    pub async fn connect(config: Config) -> Result<Client> {
        let client = Client::new(config);
        client.connection().await?;
        Ok(client)
    }

    /// A client that connects on first use.
    pub fn new(config: Config) -> Client {
        let shared =
            ClientShared { config: Arc::new(config), connection: tokio::sync::Mutex::new(None) };
        Client { shared: Arc::new(shared) }
    }

    /// The configuration that this client was made with.
    pub fn config(&self) -> &Config {
        &self.shared.config
    }

    /// Opens a sender for a queue or a topic.
    pub async fn sender(&self, entity: &str) -> Result<Sender> {
        Sender::open(&self.connection().await?, entity).await
    }

    /// Opens a receiver for a queue, a subscription (`topic/Subscriptions/name`) or dead letters
    /// (`…/$DeadLetterQueue`).
    pub async fn receiver(&self, entity: &str, options: ReceiverOptions) -> Result<Receiver> {
        let wait = self.shared.config.timeout;
        Receiver::open(&self.connection().await?, entity, options, None, wait).await
    }

    /// Accepts a session by id, with or without messages. Fails while another receiver holds it.
    pub async fn session(
        &self,
        entity: &str,
        id: &str,
        options: ReceiverOptions,
    ) -> Result<SessionReceiver> {
        let wait = self.shared.config.timeout;
        let choice = SessionChoice::Named(id);
        SessionReceiver::open(&self.connection().await?, entity, options, choice, wait).await
    }

    /// Accepts the next session with messages and without a holder. None if there is none within `wait`.
    pub async fn next_session(
        &self,
        entity: &str,
        options: ReceiverOptions,
        wait: Duration,
    ) -> Result<Option<SessionReceiver>> {
        let connection = self.connection().await?;
        let choice = SessionChoice::Next;
        match SessionReceiver::open(&connection, entity, options, choice, wait).await {
            Ok(session) => Ok(Some(session)),
            Err(error) if error.kind() == Some(ErrorKind::Timeout) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Opens the management node of an entity: peek, schedule, deferred messages.
    pub async fn management(&self, entity: &str) -> Result<Management> {
        Ok(Management::for_entity(self.connection().await?, entity))
    }

    /// Closes the connection. The next call opens a new one.
    pub async fn close(&self) {
        let connection = self.shared.connection.lock().await.take();
        if let Some(connection) = connection {
            connection.close().await;
        }
    }

    async fn connection(&self) -> Result<Arc<ClientConnection>> {
        let mut slot = self.shared.connection.lock().await;
        if let Some(connection) = slot.as_ref().filter(|connection| !connection.is_closed()) {
            return Ok(connection.clone());
        }
        let mut backoff = RetryDelay::new(limits::BACKOFF_FIRST, limits::BACKOFF_MAX);
        let mut left = self.shared.config.attempts.max(1);
        loop {
            let container = format!("malote-{:016x}", system::random_u64());
            let config = self.shared.config.clone();
            match ClientConnection::connect(config, container).await {
                Ok(connection) => {
                    *slot = Some(connection.clone());
                    return Ok(connection);
                }
                Err(error) => {
                    left -= 1;
                    if left == 0 || !error.is_transient() {
                        return Err(error);
                    }
                    tracing::debug!(%error, "connecting failed; retrying");
                }
            }
            // A random part, so that clients that lost the same server do not reconnect at the same time.
            let pause = backoff.pause();
            let spread = system::random_u64() % (pause.as_millis() as u64 / 2).max(1);
            tokio::time::sleep(pause - Duration::from_millis(spread)).await;
        }
    }
}
