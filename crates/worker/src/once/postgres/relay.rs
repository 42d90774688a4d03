//! Publishes an outbox in PostgreSQL, beside any number of others that do.
//!
//! A key is one relay's while it holds the key's advisory lock, which ends with its transaction, however that ends:
//!
//! ```text
//! begin → lock some keys → read their oldest rows → send → delete what the broker has on disk → commit
//! ```
//!
//! Rows are read after their key is locked: what another relay sent before is gone by then. Numbers of rows are given
//! before their transactions commit, so a row waits until no older transaction is open (`pg_snapshot_xmin`), and what
//! stands behind it in its key waits with it. Keys are taken in turn, so none waits for a busy one.

use std::time::Duration;

use tokio_postgres::Client;
use tokio_postgres::types::Type;

use super::super::relay::{BATCH, BATCH_BYTES, Outbox, Pass, Published, Row, publish};
use super::pool::{Connector, Link};
use super::{Value, is_away, wrong};
use crate::{Error, Malote};

/// How long one batch may take, the broker included: after that its keys are free for another relay.
const PASS_MAX: Duration = Duration::from_secs(30);

/// Delayed messages that are due become like others. They have an index of their own until then: however many wait,
/// nobody looks at them.
const DUE: &str = "update malote_outbox set since = not_before, not_before = null where id in (
        select id from malote_outbox where not_before <= clock_timestamp()
        order by not_before limit $1 for update skip locked)";

/// Keys after `$1`, in order, each found by one look into the index; those that nobody else has, up to `$2`.
const KEYS: &str = "with recursive keys (key) as (
        (select key from malote_outbox where not_before is null and key > $1 order by key limit 1)
        union all
        select (select next.key from malote_outbox next
                where next.not_before is null and next.key > keys.key order by next.key limit 1)
        from keys where keys.key is not null)
    select key, pg_try_advisory_xact_lock(hashtextextended(key, 7308604758838566757))
    from keys where key is not null limit $2";

/// The oldest rows of each of these keys, up to `$2` each and `$3` bytes in all.
const ROWS: &str = "with due as (
        select oldest.* from unnest($1) as wanted (key), lateral (
            select id, octet_length(body) as size from malote_outbox
            where not_before is null and key = wanted.key order by id limit $2) as oldest),
    sized as (select id, size, sum(size) over (order by id) as upto from due)
    select id, key, target, message_id, headers::text, body, error is not null,
           xid < pg_snapshot_xmin(pg_current_snapshot())
    from sized join malote_outbox using (id) where upto <= $3 or upto = size order by id";

const FORGET: &str = "delete from malote_outbox where id = any($1)";
const REFUSE: &str = "update malote_outbox set error = $2 where id = $1";

pub(super) struct Relay {
    connector: Connector,
    listens: bool,
    link: Option<Link>,
    /// The last key that was looked at; none at the beginning of a round through all keys.
    after: String,
    round: Round,
}

/// What a round through all keys has come to.
#[derive(Clone, Copy, Default)]
struct Round {
    /// Rows left.
    sent: bool,
    /// Rows wait until older transactions are over.
    early: bool,
}

impl Outbox for Relay {
    const POLL: Duration = Duration::from_secs(1);

    async fn pass(&mut self, malote: &Malote) -> Result<Pass, Error> {
        // Cut, whatever happens in between: locks of keys must not outlive a pass.
        let link = match self.link.take().filter(|link| !link.client.is_closed()) {
            Some(link) => link,
            None => match self.open().await {
                Ok(link) => link,
                Err(error) => return gone(error),
            },
        };
        let link = Cut(Some(link));
        let Some(client) = link.0.as_ref().map(|link| &link.client) else { return Ok(Pass::Idle) };
        let batch = batch(client, &mut self.after, malote);
        let batch = match tokio::time::timeout(PASS_MAX, batch).await {
            Ok(Ok(batch)) => batch,
            Ok(Err(Trouble::Malote(error))) => {
                if client.batch_execute("rollback").await.is_ok() {
                    self.link = link.keep();
                }
                return Err(error);
            }
            Ok(Err(Trouble::Database(error))) => return gone(error),
            Err(_) => {
                tracing::warn!(
                    "a batch of the outbox took longer than {PASS_MAX:?}: it is tried again"
                );
                return Ok(Pass::Idle);
            }
        };
        self.link = link.keep();
        self.round.sent |= batch.sent;
        self.round.early |= batch.early;
        if !self.after.is_empty() {
            return Ok(Pass::More);
        }
        // A round in which nothing left, because nothing can now, is not begun again at once.
        Ok(match std::mem::take(&mut self.round) {
            Round { sent: true, .. } => Pass::More,
            Round { early: true, .. } => Pass::Soon,
            _ => Pass::Idle,
        })
    }

    async fn called(&mut self) {
        match &self.link {
            Some(link) if self.listens => link.called.notified().await,
            _ => std::future::pending().await,
        }
    }
}

impl Relay {
    pub(super) fn new(connector: Connector, listens: bool) -> Self {
        Self { connector, listens, link: None, after: String::new(), round: Round::default() }
    }

    async fn open(&self) -> Result<Link, tokio_postgres::Error> {
        let link = (self.connector)().await?;
        if self.listens {
            link.client.batch_execute("listen malote_outbox").await?;
        }
        Ok(link)
    }
}

/// A connection that is cut unless it is kept.
struct Cut(Option<Link>);

impl Cut {
    fn keep(mut self) -> Option<Link> {
        self.0.take()
    }
}

impl Drop for Cut {
    fn drop(&mut self) {
        if let Some(link) = self.0.take() {
            link.cut();
        }
    }
}

enum Trouble {
    Database(tokio_postgres::Error),
    Malote(Error),
}

impl From<tokio_postgres::Error> for Trouble {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Database(error)
    }
}

/// A database that is away comes back; one that says no means it.
fn gone(error: tokio_postgres::Error) -> Result<Pass, Error> {
    let away = is_away(&error);
    let error = wrong(&error);
    if !away {
        return Err(error);
    }
    tracing::warn!(%error, "the outbox waits for its database");
    Ok(Pass::Idle)
}

/// One batch, in one transaction; what is due is its own, so that nobody waits for a broker because of it.
async fn batch(client: &Client, after: &mut String, malote: &Malote) -> Result<Round, Trouble> {
    let limit = BATCH as i64;
    client.execute_typed(DUE, &[(&limit, Type::INT8)]).await?;
    client.batch_execute("begin isolation level read committed").await?;
    let values: [Value<'_>; 2] = [(&*after, Type::TEXT), (&limit, Type::INT8)];
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
        return Ok(Round::default());
    }
    let each = (BATCH / keys.len()) as i64;
    let values: [Value<'_>; 3] =
        [(&keys, Type::TEXT_ARRAY), (&each, Type::INT8), (&BATCH_BYTES, Type::INT8)];
    let mut rows = Vec::new();
    let mut early: Vec<String> = Vec::new();
    for row in client.query_typed(ROWS, &values).await? {
        let key: String = row.try_get(1)?;
        if early.contains(&key) {
            continue;
        }
        if !row.try_get::<_, bool>(7)? {
            early.push(key);
            continue;
        }
        rows.push(Row {
            id: row.try_get(0)?,
            key,
            target: row.try_get(2)?,
            message_id: row.try_get(3)?,
            headers: row.try_get(4)?,
            body: row.try_get(5)?,
            refused: row.try_get(6)?,
        });
    }
    let published = publish(malote, rows).await.map_err(Trouble::Malote)?;
    forget(client, &published).await?;
    Ok(Round { sent: !published.sent.is_empty(), early: !early.is_empty() })
}

async fn forget(client: &Client, published: &Published) -> Result<(), tokio_postgres::Error> {
    if !published.sent.is_empty() {
        let values: [Value<'_>; 1] = [(&published.sent, Type::INT8_ARRAY)];
        client.execute_typed(FORGET, &values).await?;
    }
    for (id, error) in &published.refused {
        let error = error.replace('\0', "");
        client.execute_typed(REFUSE, &[(id, Type::INT8), (&error, Type::TEXT)]).await?;
    }
    client.batch_execute("commit").await
}
