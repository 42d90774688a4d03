//! `$cbs`: tokens, one for each entity, put before its links and again before they expire.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use malote_engine::clock::{Clock as _, SystemClock};
use malote_model::Timestamp;
use malote_wire_amqp::types::{Map, Value};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::{Duration, Instant, sleep_until};

use super::config::{Config, Credential};
use super::connection::Connection;
use super::desk::Desk;
use super::error::{Error, Result};
use super::limits;
use super::sas;

const NODE: &str = "$cbs";
/// A renewal that failed is tried again so soon.
const AGAIN: Duration = Duration::from_secs(10);

/// The tokens of one connection.
pub(super) struct Claims {
    enabled: bool,
    clock: SystemClock,
    desk: tokio::sync::Mutex<Option<Arc<Desk>>>,
    /// When the token of each audience is to be renewed; never, if it cannot be.
    audiences: Mutex<HashMap<String, Option<Instant>>>,
    changed: Arc<Notify>,
    renewing: Mutex<Option<AbortHandle>>,
}

impl Claims {
    pub fn new(config: &Config) -> Claims {
        Claims {
            enabled: config.has_claims(),
            clock: SystemClock::starting_at(Timestamp(0)),
            desk: tokio::sync::Mutex::new(None),
            audiences: Mutex::default(),
            changed: Arc::new(Notify::new()),
            renewing: Mutex::new(None),
        }
    }

    /// Puts a token for an entity, unless a good one was put.
    pub async fn authorize(&self, connection: &Arc<Connection>, address: &str) -> Result<()> {
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

    async fn put(&self, connection: &Arc<Connection>, audience: String) -> Result<()> {
        let config = &connection.config;
        let begun = Instant::now();
        let (token, life) = match &config.credential {
            Credential::Key { name, key } => {
                let life = config.token_life;
                let expires_s = (self.clock.now().0 + life.as_millis() as u64).div_ceil(1000);
                (sas::sign(name, key, &audience, expires_s), Some(life))
            }
            Credential::Signature(token) => (token.clone(), None),
            Credential::Plain { .. } | Credential::Anonymous => return Ok(()),
        };
        let properties = Map::default()
            .with_string("operation", "put-token")
            .with_string("type", "servicebus.windows.net:sastoken")
            .with_string("name", audience.as_str());
        let desk = self.desk(connection).await?;
        let token = Value::from(token.as_str());
        let answer = desk.ask(connection, properties, token, config.timeout).await?;
        let answer = answer.application_properties()?;
        let status = answer.get("status-code").and_then(Value::as_i64).unwrap_or(0);
        if !(200..300).contains(&status) {
            let text = answer.get("status-description").and_then(Value::as_str);
            let text = text.unwrap_or("the token was not taken");
            let named = answer.get("error-condition").and_then(Value::as_str);
            return Err(Error::of_status(status, named, text));
        }
        let due = life.map(|life| begun + life / 5 * 4);
        self.audiences.lock().insert(audience, due);
        self.changed.notify_one();
        Ok(())
    }

    async fn desk(&self, connection: &Arc<Connection>) -> Result<Arc<Desk>> {
        let mut slot = self.desk.lock().await;
        if let Some(desk) = slot.as_ref().filter(|desk| !desk.is_over()) {
            return Ok(desk.clone());
        }
        let desk = Arc::new(Desk::open(connection, NODE).await?);
        *slot = Some(desk.clone());
        Ok(desk)
    }

    /// Renews tokens for as long as the connection is there.
    pub fn keep_fresh(&self, connection: &Arc<Connection>) {
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
                // Should it fail, it is tried again.
                *at = Some(now + AGAIN);
                due.push(audience.clone());
            }
        }
        due
    }
}

impl Drop for Claims {
    fn drop(&mut self) {
        if let Some(renewing) = self.renewing.lock().take() {
            renewing.abort();
        }
    }
}

async fn renew(connection: Weak<Connection>, changed: Arc<Notify>) {
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
        let Some(connection) = connection.upgrade().filter(|connection| !connection.is_over())
        else {
            return;
        };
        for audience in connection.claims().take_due() {
            if let Err(error) = connection.claims().put(&connection, audience.clone()).await {
                tracing::warn!(%error, audience, "a token could not be renewed");
            }
        }
    }
}
