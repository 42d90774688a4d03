//! Publishes an outbox in any database: in batches and in order per key. A refused message holds back its own key only.

use std::collections::HashSet;
use std::time::Duration;

use malote_model::{Address, Message};

use super::outbox_message::OutboxHeaders;
#[cfg(feature = "postgres")]
use crate::clock::DoublingPause;
use crate::{Error, Malote};

/// Maximum number of rows in a batch, and of their bytes. The first row may be larger.
pub(super) const BATCH: usize = 100;
pub(super) const BATCH_BYTES: i64 = 1 << 20;

/// Publishes the outbox of a database.
pub(super) trait Relay {
    /// How often to look for rows without a notification.
    const POLL: Duration;

    /// Publishes a batch.
    fn pass(&mut self, malote: &Malote) -> impl Future<Output = Result<PassResult, Error>> + Send;

    /// Waits for a notification of a writer. Never returns if the database has none.
    fn notified(&mut self) -> impl Future<Output = ()> + Send;
}

/// What to do after a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PassResult {
    /// Continue at once: there may be more rows.
    More,
    /// Continue soon: rows wait for older transactions to end.
    #[cfg(feature = "postgres")]
    Soon,
    /// Wait: there are no rows to publish.
    Idle,
}

/// The first pause before a pass that continues soon.
#[cfg(feature = "postgres")]
const SOON: Duration = Duration::from_millis(20);

/// Publishes until `stop` completes.
pub(super) async fn run<R: Relay>(
    mut relay: R,
    malote: &Malote,
    stop: impl Future<Output = ()>,
) -> Result<(), Error> {
    tokio::pin!(stop);
    #[cfg(feature = "postgres")]
    let mut soon = DoublingPause::new(SOON, R::POLL / 2);
    loop {
        let pass = match relay.pass(malote).await {
            Ok(pass) => pass,
            Err(Error::Broker(error)) if error.is_transient() => {
                tracing::warn!(%error, "the broker does not answer; the outbox waits");
                PassResult::Idle
            }
            Err(error) => return Err(error),
        };
        let pause = match pass {
            PassResult::More => Duration::ZERO,
            #[cfg(feature = "postgres")]
            PassResult::Soon => soon.next(),
            PassResult::Idle => R::POLL,
        };
        #[cfg(feature = "postgres")]
        if pass != PassResult::Soon {
            soon.reset();
        }
        tokio::select! {
            biased;
            () = &mut stop => return Ok(()),
            () = relay.notified() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// A row of an outbox.
pub(super) struct OutboxRow {
    pub(super) id: i64,
    pub(super) key: String,
    pub(super) target: String,
    pub(super) message_id: String,
    pub(super) headers: String,
    pub(super) body: Vec<u8>,
    /// The broker has refused this row before.
    pub(super) refused: bool,
}

impl OutboxRow {
    /// The message and its address, or an error text if the row is invalid.
    fn message(&mut self) -> Result<(Address, Message), String> {
        let headers: OutboxHeaders =
            serde_json::from_str(&self.headers).map_err(|error| error.to_string())?;
        let (id, body) = (std::mem::take(&mut self.message_id), std::mem::take(&mut self.body));
        headers.message(&self.target, id, body)
    }
}

/// The result of publishing rows.
#[derive(Default)]
pub(super) struct PublishResult {
    pub(super) sent: Vec<i64>,
    /// Refused rows with the reason. Later rows of their keys were not sent.
    pub(super) refused: Vec<(i64, String)>,
    blocked_keys: HashSet<String>,
}

impl PublishResult {
    /// Records a refusal, and logs it if it is the first one of this row.
    fn refuse(&mut self, id: i64, key: String, error: String, refused_before: bool) {
        if !refused_before {
            tracing::error!(
                key,
                row = id,
                error,
                "the broker refused a message of the outbox; later messages of its key wait"
            );
        }
        self.refused.push((id, error));
        self.blocked_keys.insert(key);
    }
}

/// Sends rows, oldest first, in one call. If the broker refuses, it sends them one by one. Keys with a row that was
/// refused before are always sent one by one, so that they do not slow down the others.
pub(super) async fn publish(malote: &Malote, rows: Vec<OutboxRow>) -> Result<PublishResult, Error> {
    let mut published = PublishResult::default();
    let (mut batch, mut one_by_one, mut suspect_keys) = (Vec::new(), Vec::new(), HashSet::new());
    for mut row in rows {
        if published.blocked_keys.contains(&row.key) {
            continue;
        }
        if row.refused {
            suspect_keys.insert(row.key.clone());
        }
        match row.message() {
            Ok(message) if suspect_keys.contains(&row.key) => {
                one_by_one.push((row.id, row.key, row.refused, message));
            }
            Ok(message) => batch.push((row.id, row.key, false, message)),
            Err(error) => published.refuse(row.id, row.key, error, row.refused),
        }
    }
    if !batch.is_empty() {
        let all: Vec<_> = batch.iter().map(|(.., message)| message.clone()).collect();
        match malote.send_all(all).await {
            Ok(_) => published.sent.extend(batch.iter().map(|(id, ..)| id)),
            Err(Error::Broker(error)) if error.is_transient() => return Err(Error::Broker(error)),
            Err(_) => one_by_one.append(&mut batch),
        }
    }
    for (id, key, refused_before, message) in one_by_one {
        if published.blocked_keys.contains(&key) {
            continue;
        }
        match malote.send_all(vec![message]).await {
            Ok(_) => published.sent.push(id),
            Err(Error::Broker(error)) if error.is_transient() => break,
            Err(error) => published.refuse(id, key, error.to_string(), refused_before),
        }
    }
    Ok(published)
}
