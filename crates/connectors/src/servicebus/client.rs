//! A namespace: its connection, made when it is needed and made again when it was lost.

use std::sync::Arc;
use std::time::Duration;

use malote_engine::chance::Chance;

use super::config::Config;
use super::connection::Connection;
use super::error::{Kind, Result};
use super::limits;
use super::management::Management;
use super::receiver::{Receiver, ReceiverOptions, SessionWish};
use super::sender::Sender;
use super::session::SessionReceiver;

/// A client of one namespace. Clones share its connection.
///
/// A connection that was lost is made again when something new is asked for: with growing pauses, as often as
/// [`Config::attempts`] says. Senders and receivers of the lost connection are over ([`super::Error::Lost`]) and are opened
/// again by their owner: only the owner knows whether what was under way may be repeated.
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared>,
}

struct Shared {
    config: Arc<Config>,
    chance: Chance,
    /// Locked while connecting, so that those who come together make one connection.
    connection: tokio::sync::Mutex<Option<Arc<Connection>>>,
}

impl Client {
    /// Connects. An address that nobody answers is told after all attempts.
    pub async fn connect(config: Config) -> Result<Client> {
        let client = Client::new(config);
        client.connection().await?;
        Ok(client)
    }

    /// A client that connects when it is first used.
    pub fn new(config: Config) -> Client {
        let shared = Shared {
            config: Arc::new(config),
            chance: Chance::of_system(),
            connection: tokio::sync::Mutex::new(None),
        };
        Client { shared: Arc::new(shared) }
    }

    /// What it was made with.
    pub fn config(&self) -> &Config {
        &self.shared.config
    }

    /// Sends to a queue or a topic.
    pub async fn sender(&self, entity: &str) -> Result<Sender> {
        Sender::open(&self.connection().await?, entity).await
    }

    /// Receives from a queue, a subscription (`topic/Subscriptions/name`) or dead letters (`…/$DeadLetterQueue`).
    pub async fn receiver(&self, entity: &str, options: ReceiverOptions) -> Result<Receiver> {
        let wait = self.shared.config.timeout;
        Receiver::open(&self.connection().await?, entity, options, None, wait).await
    }

    /// Takes a session by its id, whether it has messages or not. Refused while another has it.
    pub async fn session(
        &self,
        entity: &str,
        id: &str,
        options: ReceiverOptions,
    ) -> Result<SessionReceiver> {
        let wait = self.shared.config.timeout;
        let wish = SessionWish::Named(id);
        SessionReceiver::open(&self.connection().await?, entity, options, wish, wait).await
    }

    /// Takes the next session that has messages and no holder; none if there is none before `wait` is over.
    pub async fn next_session(
        &self,
        entity: &str,
        options: ReceiverOptions,
        wait: Duration,
    ) -> Result<Option<SessionReceiver>> {
        let connection = self.connection().await?;
        let wish = SessionWish::Next;
        match SessionReceiver::open(&connection, entity, options, wish, wait).await {
            Ok(session) => Ok(Some(session)),
            Err(error) if error.kind() == Some(Kind::Timeout) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Requests about an entity: peek, schedule, deferred messages.
    pub async fn management(&self, entity: &str) -> Result<Management> {
        Ok(Management::of_entity(self.connection().await?, entity))
    }

    /// Closes the connection. What is used afterwards connects again.
    pub async fn close(&self) {
        let connection = self.shared.connection.lock().await.take();
        if let Some(connection) = connection {
            connection.close().await;
        }
    }

    async fn connection(&self) -> Result<Arc<Connection>> {
        let mut slot = self.shared.connection.lock().await;
        if let Some(connection) = slot.as_ref().filter(|connection| !connection.is_over()) {
            return Ok(connection.clone());
        }
        let mut pause = limits::BACKOFF_FIRST;
        let mut left = self.shared.config.attempts.max(1);
        loop {
            let container = format!("malote-{:016x}", self.shared.chance.draw());
            let config = self.shared.config.clone();
            match Connection::connect(config, container).await {
                Ok(connection) => {
                    *slot = Some(connection.clone());
                    return Ok(connection);
                }
                Err(error) => {
                    left -= 1;
                    if left == 0 || !error.is_passing() {
                        return Err(error);
                    }
                    tracing::debug!(%error, "the connection is tried again");
                }
            }
            // Clients that lost the same server do not come back in step.
            let spread = self.shared.chance.draw() % (pause.as_millis() as u64 / 2).max(1);
            tokio::time::sleep(pause - Duration::from_millis(spread)).await;
            pause = (pause * 2).min(limits::BACKOFF_MAX);
        }
    }
}
