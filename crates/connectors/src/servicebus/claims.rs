//! Tokens for `$cbs`: one per entity, sent before its links are attached and renewed before it expires.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use malote_wire_amqp::types::{Map, Value};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::{Duration, Instant, sleep_until};

use super::config::{Config, Credential};
use super::connection::ClientConnection;
use super::error::{Error, Result};
use super::limits;
use super::request_links::RequestLinks;
use super::sas;
use crate::system::{self, millis};

const NODE: &str = "$cbs";
/// The pause after a failed renewal.
const RETRY_AFTER: Duration = Duration::from_secs(10);

/// The tokens of one connection.
pub(super) struct ClientClaims {
    enabled: bool,
    request_links: tokio::sync::Mutex<Option<Arc<RequestLinks>>>,
    /// When the token of each audience must be renewed; None if it cannot be renewed.
    audiences: Mutex<HashMap<String, Option<Instant>>>,
    changed: Arc<Notify>,
    renewing: Mutex<Option<AbortHandle>>,
}

impl ClientClaims {
    pub fn new(config: &Config) -> ClientClaims {
        ClientClaims {
            enabled: config.has_claims(),
            request_links: tokio::sync::Mutex::new(None),
            audiences: Mutex::default(),
            changed: Arc::new(Notify::new()),
            renewing: Mutex::new(None),
        }
    }

    /// Sends a token for an entity, unless a valid one was sent.
    pub async fn authorize(&self, connection: &Arc<ClientConnection>, address: &str) -> Result<()> {
        if !self.enabled {
            return Ok(());
        }
        let audience = connection.config.audience(address);
        {
            let audiences = self.audiences.lock();
            let fresh = |due: &Option<Instant>| due.is_none_or(|due| due > Instant::now());
            if audiences.get(&audience).is_some_and(fresh) {
                return Ok(());
            }
            if audiences.len() >= limits::AUDIENCES_MAX {
                return Err(Error::TooMany("entities"));
            }
        }
        self.put(connection, audience).await
    }

    async fn put(&self, connection: &Arc<ClientConnection>, audience: String) -> Result<()> {
        let config = &connection.config;
        let started = Instant::now();
        let (token, life) = match &config.credential {
            Credential::Key { name, key } => {
                let life = config.token_life;
                let expires_s = (system::now().0 + millis(life)).div_ceil(1000);
                (sas::sign(name, key, &audience, expires_s), Some(life))
            }
            Credential::Signature(token) => (token.clone(), None),
            Credential::Plain { .. } | Credential::Anonymous => return Ok(()),
        };
        let properties = Map::default()
            .with_string("operation", "put-token")
            .with_string("type", "servicebus.windows.net:sastoken")
            .with_string("name", audience.as_str());
        let request_links = self.request_links(connection).await?;
        let token = Value::from(token.as_str());
        let response = request_links.request(connection, properties, token, config.timeout).await?;
        let response = response.application_properties()?;
        let status = response.get("status-code").and_then(Value::as_i64).unwrap_or(0);
        if !(200..300).contains(&status) {
            let text = response.get("status-description").and_then(Value::as_str);
            let text = text.unwrap_or("the token was refused");
            let named = response.get("error-condition").and_then(Value::as_str);
            return Err(Error::from_status(status, named, text));
        }
        let due = life.map(|life| started + life / 5 * 4);
        self.audiences.lock().insert(audience, due);
        self.changed.notify_one();
        Ok(())
    }

    async fn request_links(&self, connection: &Arc<ClientConnection>) -> Result<Arc<RequestLinks>> {
        let mut slot = self.request_links.lock().await;
        if let Some(request_links) =
            slot.as_ref().filter(|request_links| !request_links.is_closed())
        {
            return Ok(request_links.clone());
        }
        let request_links = Arc::new(RequestLinks::open(connection, NODE).await?);
        *slot = Some(request_links.clone());
        Ok(request_links)
    }

    /// Renews tokens while the connection lives.
    pub fn start_renewal(&self, connection: &Arc<ClientConnection>) {
        if !self.enabled {
            return;
        }
        let task = tokio::spawn(renew(Arc::downgrade(connection), self.changed.clone()));
        *self.renewing.lock() = Some(task.abort_handle());
    }

    fn next_due(&self) -> Option<Instant> {
        self.audiences.lock().values().copied().flatten().min()
    }

    fn take_due(&self) -> Vec<String> {
        let now = Instant::now();
        let mut due = Vec::new();
        for (audience, at) in &mut *self.audiences.lock() {
            if at.is_some_and(|at| at <= now) {
                // If the renewal fails, it is repeated then.
                *at = Some(now + RETRY_AFTER);
                due.push(audience.clone());
            }
        }
        due
    }
}

impl Drop for ClientClaims {
    fn drop(&mut self) {
        if let Some(renewing) = self.renewing.lock().take() {
            renewing.abort();
        }
    }
}

async fn renew(connection: Weak<ClientConnection>, changed: Arc<Notify>) {
    loop {
        let Some(due) = connection.upgrade().map(|connection| connection.claims().next_due())
        else {
            return;
        };
        match due {
            Some(due) => {
                tokio::select! {
                    () = sleep_until(due) => {}
                    () = changed.notified() => continue,
                }
            }
            None => {
                changed.notified().await;
                continue;
            }
        }
        let Some(connection) = connection.upgrade().filter(|connection| !connection.is_closed())
        else {
            return;
        };
        for audience in connection.claims().take_due() {
            if let Err(error) = connection.claims().put(&connection, audience.clone()).await {
                tracing::warn!(%error, audience, "a token could not be renewed; retrying");
            }
        }
    }
}
