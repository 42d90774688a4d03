//! How an outbox is published, whatever database it is in: in batches, in order per key, refusals kept apart.

use std::collections::HashSet;
use std::time::Duration;

use malote_model::{Address, Message};

use super::outgoing::Headers;
use crate::{Error, Malote};

/// Rows that are sent at once, and their bytes; the first row goes whatever its size.
pub(super) const BATCH: usize = 100;
pub(super) const BATCH_BYTES: i64 = 1 << 20;

/// An outbox that can be published.
pub(super) trait Outbox {
    /// How often it is looked at when nobody calls.
    const POLL: Duration;

    /// Publishes a batch.
    fn pass(&mut self, malote: &Malote) -> impl Future<Output = Result<Pass, Error>> + Send;

    /// Waits until a writer calls; for ever where writers cannot.
    fn called(&mut self) -> impl Future<Output = ()> + Send;
}

/// What a pass found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pass {
    /// There may be more.
    More,
    /// Something waits, and not for long.
    #[cfg(feature = "postgres")]
    Soon,
    /// Nothing to do.
    Idle,
}

/// When to look again for what waits and not for long: later each time.
#[cfg(feature = "postgres")]
const SOON: Duration = Duration::from_millis(20);

/// Publishes until `stop` is over.
pub(super) async fn run<O: Outbox>(
    mut outbox: O,
    malote: &Malote,
    stop: impl Future<Output = ()>,
) -> Result<(), Error> {
    tokio::pin!(stop);
    #[cfg(feature = "postgres")]
    let mut soon = SOON;
    loop {
        let pass = match outbox.pass(malote).await {
            Ok(pass) => pass,
            Err(Error::Broker(error)) if error.is_transient() => {
                tracing::warn!(%error, "the outbox waits for the broker");
                Pass::Idle
            }
            Err(error) => return Err(error),
        };
        let pause = match pass {
            Pass::More => Duration::ZERO,
            #[cfg(feature = "postgres")]
            Pass::Soon => {
                soon = (soon * 2).min(O::POLL);
                soon / 2
            }
            Pass::Idle => O::POLL,
        };
        #[cfg(feature = "postgres")]
        if pass != Pass::Soon {
            soon = SOON;
        }
        tokio::select! {
            biased;
            () = &mut stop => return Ok(()),
            () = outbox.called() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// A row of an outbox.
pub(super) struct Row {
    pub(super) id: i64,
    pub(super) key: String,
    pub(super) target: String,
    pub(super) message_id: String,
    pub(super) headers: String,
    pub(super) body: Vec<u8>,
    /// It was refused before.
    pub(super) refused: bool,
}

impl Row {
    /// Its message and where it goes; what is wrong with it otherwise.
    fn message(&mut self) -> Result<(Address, Message), String> {
        let headers: Headers =
            serde_json::from_str(&self.headers).map_err(|error| error.to_string())?;
        let (id, body) = (std::mem::take(&mut self.message_id), std::mem::take(&mut self.body));
        headers.message(&self.target, id, body)
    }
}

/// What became of rows.
#[derive(Default)]
pub(super) struct Published {
    pub(super) sent: Vec<i64>,
    /// Each with the reason. What stands behind them in their keys was not sent.
    pub(super) refused: Vec<(i64, String)>,
    held: HashSet<String>,
}

impl Published {
    /// Notes a refusal, aloud the first time.
    fn refuse(&mut self, id: i64, key: String, error: String, again: bool) {
        if !again {
            tracing::error!(
                key,
                row = id,
                error,
                "a message of the outbox is refused: its key waits"
            );
        }
        self.refused.push((id, error));
        self.held.insert(key);
    }
}

/// Sends rows, oldest first: all at once, or, if one of them is refused, one by one. Keys of which a row was refused
/// before are sent by themselves, so that they do not slow down the others.
pub(super) async fn publish(malote: &Malote, rows: Vec<Row>) -> Result<Published, Error> {
    let mut published = Published::default();
    let (mut batch, mut apart, mut wary) = (Vec::new(), Vec::new(), HashSet::new());
    for mut row in rows {
        if published.held.contains(&row.key) {
            continue;
        }
        if row.refused {
            wary.insert(row.key.clone());
        }
        match row.message() {
            Ok(message) if wary.contains(&row.key) => {
                apart.push((row.id, row.key, row.refused, message));
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
            Err(_) => apart.append(&mut batch),
        }
    }
    for (id, key, again, message) in apart {
        if published.held.contains(&key) {
            continue;
        }
        match malote.send_all(vec![message]).await {
            Ok(_) => published.sent.push(id),
            Err(Error::Broker(error)) if error.is_transient() => break,
            Err(error) => published.refuse(id, key, error.to_string(), again),
        }
    }
    Ok(published)
}
