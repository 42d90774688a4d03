//! Publishes an outbox in PostgreSQL. Several relays share the work.
//!
//! A relay owns a key while it holds the key's advisory lock. The lock ends with the transaction of the relay:
//!
//! ```text
//! begin → lock some keys → read their oldest rows → send → delete the sent rows → commit
//! ```
//!
//! Rows are read after their key is locked, so that rows sent by another relay are deleted by then. Row ids are
//! assigned before a transaction commits. Therefore a row, and the later rows of its key, wait until no older
//! transaction is open (`pg_snapshot_xmin`). Keys are taken in turn, so that a busy key does not delay the others.

use std::time::Duration;

use tokio_postgres::Client;
use tokio_postgres::types::Type;

use super::super::relay::{
    BATCH, BATCH_BYTES, OutboxRow, PassResult, PublishResult, Relay, publish,
};
use super::connections::{Connector, PgConnection};
use super::{TypedParam, database_error, is_transient};
use crate::{Error, Malote};

/// The time-out of one batch, including the broker. After it, another relay can lock the keys.
const PASS_TIMEOUT: Duration = Duration::from_secs(30);

/// Turns due delayed messages into normal ones. Until then they are only in their own index, so that their number does
/// not matter.
const MAKE_DUE: &str =
    "update malote_outbox set since = not_before, not_before = null where id in (
        select id from malote_outbox where not_before <= clock_timestamp()
        order by not_before limit $1 for update skip locked)";

/// Up to `$2` keys after `$1`, each found by one index lookup, and whether this relay could lock it.
const KEYS: &str = "with recursive keys (key) as (
        (select key from malote_outbox where not_before is null and key > $1 order by key limit 1)
        union all
        select (select next.key from malote_outbox next
                where next.not_before is null and next.key > keys.key order by next.key limit 1)
        from keys where keys.key is not null)
    select key, pg_try_advisory_xact_lock(hashtextextended(key, 7308604758838566757))
    from keys where key is not null limit $2";

/// The oldest rows of these keys, up to `$2` of each key and `$3` bytes in all.
const ROWS: &str = "with due as (
        select oldest.* from unnest($1) as wanted (key), lateral (
            select id, octet_length(body) as size from malote_outbox
            where not_before is null and key = wanted.key order by id limit $2) as oldest),
    sized as (select id, size, sum(size) over (order by id) as upto from due)
    select id, key, target, message_id, headers::text, body, error is not null,
           xid < pg_snapshot_xmin(pg_current_snapshot())
    from sized join malote_outbox using (id) where upto <= $3 or upto = size order by id";

const DELETE_SENT: &str = "delete from malote_outbox where id = any($1)";
const SET_ERROR: &str = "update malote_outbox set error = $2 where id = $1";

pub(super) struct PostgresRelay {
    connector: Connector,
    listens: bool,
    connection: Option<PgConnection>,
    /// The last key of the batch before; empty at the start of a round through all keys.
    after: String,
    round: RoundResult,
}

/// The result of a batch or of a round through all keys.
#[derive(Clone, Copy, Default)]
struct RoundResult {
    /// Rows were sent.
    sent: bool,
    /// Rows wait for older transactions to end.
    waiting: bool,
}

impl Relay for PostgresRelay {
    const POLL: Duration = Duration::from_secs(1);

    async fn pass(&mut self, malote: &Malote) -> Result<PassResult, Error> {
        // The connection is closed unless the pass ends normally, because the locks must not outlive the pass.
        let connection =
            match self.connection.take().filter(|connection| !connection.client.is_closed()) {
                Some(connection) => connection,
                None => match self.open().await {
                    Ok(connection) => connection,
                    Err(error) => return retry_later_or_fail(error),
                },
            };
        let connection = CloseOnDrop(Some(connection));
        let Some(client) = connection.0.as_ref().map(|connection| &connection.client) else {
            return Ok(PassResult::Idle);
        };
        let batch = batch(client, &mut self.after, malote);
        let batch = match tokio::time::timeout(PASS_TIMEOUT, batch).await {
            Ok(Ok(batch)) => batch,
            Ok(Err(BatchError::Malote(error))) => {
                if client.batch_execute("rollback").await.is_ok() {
                    self.connection = connection.keep();
                }
                return Err(error);
            }
            Ok(Err(BatchError::Database(error))) => return retry_later_or_fail(error),
            Err(_) => {
                tracing::warn!(
                    "publishing a batch of the outbox took longer than {PASS_TIMEOUT:?}; retrying"
                );
                return Ok(PassResult::Idle);
            }
        };
        self.connection = connection.keep();
        self.round.sent |= batch.sent;
        self.round.waiting |= batch.waiting;
        if !self.after.is_empty() {
            return Ok(PassResult::More);
        }
        // After a round in which no row could be sent, wait before the next one.
        Ok(match std::mem::take(&mut self.round) {
            RoundResult { sent: true, .. } => PassResult::More,
            RoundResult { waiting: true, .. } => PassResult::Soon,
            _ => PassResult::Idle,
        })
    }

    async fn notified(&mut self) {
        match &self.connection {
            Some(connection) if self.listens => connection.notify.notified().await,
            _ => std::future::pending().await,
        }
    }
}

impl PostgresRelay {
    pub(super) fn new(connector: Connector, listens: bool) -> Self {
        Self {
            connector,
            listens,
            connection: None,
            after: String::new(),
            round: RoundResult::default(),
        }
    }

    async fn open(&self) -> Result<PgConnection, tokio_postgres::Error> {
        let connection = (self.connector)().await?;
        if self.listens {
            connection.client.batch_execute("listen malote_outbox").await?;
        }
        Ok(connection)
    }
}

/// Closes a connection unless `keep` is called.
struct CloseOnDrop(Option<PgConnection>);

impl CloseOnDrop {
    fn keep(mut self) -> Option<PgConnection> {
        self.0.take()
    }
}

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        if let Some(connection) = self.0.take() {
            connection.close_now();
        }
    }
}

enum BatchError {
    Database(tokio_postgres::Error),
    Malote(Error),
}

impl From<tokio_postgres::Error> for BatchError {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Database(error)
    }
}

/// Retries if the database is unavailable. Other errors end the relay.
fn retry_later_or_fail(error: tokio_postgres::Error) -> Result<PassResult, Error> {
    let away = is_transient(&error);
    let error = database_error(&error);
    if !away {
        return Err(error);
    }
    tracing::warn!(%error, "the database is unavailable; the outbox waits");
    Ok(PassResult::Idle)
}

/// Publishes one batch in one transaction. Delayed messages are made due in a transaction before it, so that these row
/// locks do not wait for the broker.
async fn batch(
    client: &Client,
    after: &mut String,
    malote: &Malote,
) -> Result<RoundResult, BatchError> {
    let limit = BATCH as i64;
    client.execute_typed(MAKE_DUE, &[(&limit, Type::INT8)]).await?;
    client.batch_execute("begin isolation level read committed").await?;
    let values: [TypedParam<'_>; 2] = [(&*after, Type::TEXT), (&limit, Type::INT8)];
    let looked = client.query_typed(KEYS, &values).await?;
    *after = match looked.last() {
        Some(row) if looked.len() == BATCH => row.try_get(0)?,
        _ => String::new(),
    };
    let mut keys: Vec<String> = Vec::with_capacity(looked.len());
    for row in looked {
        if row.try_get(1)? {
            keys.push(row.try_get(0)?);
        }
    }
    if keys.is_empty() {
        client.batch_execute("rollback").await?;
        return Ok(RoundResult::default());
    }
    let each = (BATCH / keys.len()) as i64;
    let values: [TypedParam<'_>; 3] =
        [(&keys, Type::TEXT_ARRAY), (&each, Type::INT8), (&BATCH_BYTES, Type::INT8)];
    let mut rows = Vec::new();
    let mut waiting: Vec<String> = Vec::new();
    for row in client.query_typed(ROWS, &values).await? {
        let key: String = row.try_get(1)?;
        if waiting.contains(&key) {
            continue;
        }
        if !row.try_get::<_, bool>(7)? {
            waiting.push(key);
            continue;
        }
        rows.push(OutboxRow {
            id: row.try_get(0)?,
            key,
            target: row.try_get(2)?,
            message_id: row.try_get(3)?,
            headers: row.try_get(4)?,
            body: row.try_get(5)?,
            refused: row.try_get(6)?,
        });
    }
    let published = publish(malote, rows).await.map_err(BatchError::Malote)?;
    record_published(client, &published).await?;
    Ok(RoundResult { sent: !published.sent.is_empty(), waiting: !waiting.is_empty() })
}

async fn record_published(
    client: &Client,
    published: &PublishResult,
) -> Result<(), tokio_postgres::Error> {
    if !published.sent.is_empty() {
        let values: [TypedParam<'_>; 1] = [(&published.sent, Type::INT8_ARRAY)];
        client.execute_typed(DELETE_SENT, &values).await?;
    }
    for (id, error) in &published.refused {
        let error = error.replace('\0', "");
        client.execute_typed(SET_ERROR, &[(id, Type::INT8), (&error, Type::TEXT)]).await?;
    }
    client.batch_execute("commit").await
}
