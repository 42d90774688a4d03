//! Sending. Concurrent calls share a transaction.
//!
//! A transaction locks the rows of its sessions, always in the same order, before it takes sequence numbers. So
//! within a session, sequence numbers grow in commit order. A message sent after another send was answered comes
//! later; concurrent sends come in any order, which then never changes. In a queue without sessions, the same holds
//! for one consumer.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use malote_model::{Address, Message, Refusal, Seq, SessionId, Sessions, When, limits};
use sha2::{Digest as _, Sha256};
use tokio::sync::{mpsc, oneshot};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::connection::{PgConnection, Sql};
use super::queues::PgQueue;
use super::{PgShared, error, message};
use crate::broker::{BrokerError, Sent};
use crate::system;

/// The most messages and bytes of one transaction.
const BATCH_MAX: usize = 4096;
const BATCH_BYTES: usize = 8 << 20;
/// Calls that may wait.
const CALLS_MAX: usize = 4096;
/// Attempts of a transaction that conflicts with another one.
const ATTEMPTS_MAX: usize = 5;

/// Inserts de-duplication keys and returns those that were not used within their window.
const INSERT_DEDUP_KEYS: Sql = Sql {
    text: "insert into malote.sent_before as k (queue, key, until)
        select w.queue, w.key, now() + w.span * interval '1 ms'
        from unnest($1::int4[], $2::bytea[], $3::int8[]) as w (queue, key, span)
        on conflict (queue, key) do update set until = excluded.until where k.until <= now()
        returning queue, key",
    types: &[Type::INT4_ARRAY, Type::BYTEA_ARRAY, Type::INT8_ARRAY],
};
/// Locks sessions in the order of the arrays, and makes empty ones ready. A row that does not match the condition is
/// locked as well.
pub(super) const LOCK_SESSIONS: Sql = Sql {
    text: "insert into malote.sessions as s (queue, id, turn, due)
        select w.queue, w.id, case when w.delay is null then (select nextval('malote.turns') << 16) + w.place end,
            now() + w.delay * interval '1 ms'
        from unnest($1::int4[], $2::bytea[], $3::int8[], $4::int8[]) as w (queue, id, place, delay)
        on conflict (queue, id) do update set turn = excluded.turn, due = excluded.due
        where s.lease is null and s.turn is null and s.due is null",
    types: &[Type::INT4_ARRAY, Type::BYTEA_ARRAY, Type::INT8_ARRAY, Type::INT8_ARRAY],
};
pub(super) const INSERT_MESSAGES: Sql = Sql {
    text: "insert into malote.messages (queue, session, lane, due, fresh, expires, meta, body)
        select w.queue, s.num, w.lane,
            coalesce(to_timestamp(w.at / 1000.0), now() + w.delay * interval '1 ms'), w.at is not null,
            case when w.at is null then now() + w.ttl * interval '1 ms' end, w.meta, w.body
        from unnest($1::int4[], $2::bytea[], $3::int2[], $4::int8[], $5::int8[], $6::int8[], $7::bytea[], $8::bytea[])
            with ordinality as w (queue, session, lane, delay, at, ttl, meta, body, n)
            left join malote.sessions s on s.queue = w.queue and s.id = w.session
        order by w.n returning seq, session",
    types: &[
        Type::INT4_ARRAY,
        Type::BYTEA_ARRAY,
        Type::INT2_ARRAY,
        Type::INT8_ARRAY,
        Type::INT8_ARRAY,
        Type::INT8_ARRAY,
        Type::BYTEA_ARRAY,
        Type::BYTEA_ARRAY,
    ],
};

pub(super) const STATEMENTS: &[&Sql] = &[&INSERT_DEDUP_KEYS, &LOCK_SESSIONS, &INSERT_MESSAGES];

/// A message as it is inserted.
pub(super) struct MessageRow {
    pub queue: Arc<PgQueue>,
    /// Only in a queue with sessions.
    pub session: Option<SessionId>,
    pub lane: i16,
    pub delay_ms: Option<i64>,
    /// Scheduled: appended at this time, as if it were sent then.
    pub at_ms: Option<i64>,
    pub ttl_ms: Option<i64>,
    pub key: Option<Vec<u8>>,
    pub meta: Vec<u8>,
    pub body: Bytes,
    pub message_id: String,
}

/// The messages of one call.
pub(super) struct SendCall {
    rows: Vec<MessageRow>,
    reply: oneshot::Sender<Result<Vec<Sent>, BrokerError>>,
}

impl SendCall {
    fn bytes(&self) -> usize {
        self.rows.iter().map(|row| row.body.len() + row.meta.len()).sum()
    }
}

pub(super) fn channel() -> (mpsc::Sender<SendCall>, mpsc::Receiver<SendCall>) {
    mpsc::channel(CALLS_MAX)
}

impl PgShared {
    pub(super) async fn send(
        &self,
        messages: Vec<(Address, Message)>,
    ) -> Result<Vec<Sent>, BrokerError> {
        if messages.is_empty() {
            return Ok(Vec::new());
        }
        if messages.len() > limits::SEND_BATCH_MAX {
            return Err(BrokerError::Refused {
                code: "too_many".into(),
                text: format!(
                    "one call may send {} messages: split the batch",
                    limits::SEND_BATCH_MAX
                ),
            });
        }
        let mut rows = Vec::with_capacity(messages.len());
        for (to, message) in messages {
            let Address::Queue(name) = to else {
                return Err(BrokerError::Unsupported {
                    broker: super::BROKER,
                    what: "topics",
                    fix: "send to a queue, or use embedded: or malote:",
                });
            };
            let queue = self.queue(&name).await?;
            rows.push(self.row(queue, message)?);
        }
        let (reply, answer) = oneshot::channel();
        self.send_calls.send(SendCall { rows, reply }).await.map_err(|_| BrokerError::Closed)?;
        answer.await.unwrap_or(Err(BrokerError::Closed))
    }

    fn row(&self, queue: Arc<PgQueue>, mut message: Message) -> Result<MessageRow, BrokerError> {
        if queue.id < 0 {
            let why = "is a set of dead letters: send to its queue instead";
            return Err(Refusal::BadName { name: queue.name.to_string(), why }.into());
        }
        let spec = &queue.spec;
        let session = if queue.has_sessions() { message.session.clone() } else { None };
        match (&spec.sessions, &session) {
            (Sessions::None, _) => {}
            (_, None) => return Err(Refusal::SessionRequired { queue: queue.name.clone() }.into()),
            (Sessions::Fixed(ids), Some(id)) if !ids.contains(id) => {
                return Err(unknown_session(&queue, id));
            }
            _ => {}
        }
        let key = queue.spec.dedup.and_then(|dedup| {
            let named = message.dedup_id.as_deref().or(message.message_id.as_deref());
            let mut key = match (named, dedup.content) {
                (Some(id), _) => [b"i", id.as_bytes()].concat(),
                (None, true) => [&b"c"[..], &Sha256::digest(&message.body.bytes)[..]].concat(),
                (None, false) => return None,
            };
            if let (true, Some(session)) = (dedup.per_session, &session) {
                key.push(0);
                key.extend(session.as_str().as_bytes());
            }
            Some(key)
        });
        let id = message.message_id.get_or_insert_with(system::time_ordered_id);
        let message_id = id.clone();
        message.origin_id.get_or_insert_with(|| message_id.clone());
        let (delay, at) = match message.when {
            When::Now => ((spec.delay_ms > 0).then_some(spec.delay_ms), None),
            When::Delay(ms) => ((ms > 0).then_some(ms), None),
            When::At(at) => (None, Some(at.0)),
        };
        if delay.is_some_and(|ms| ms > limits::DELAY_MS_MAX) {
            let text = format!(
                "the delay is longer than {} ms: choose a shorter one",
                limits::DELAY_MS_MAX
            );
            return Err(BrokerError::Refused { code: "bad_delay".into(), text });
        }
        let ttl = message.ttl_ms.into_iter().chain(spec.ttl_ms).min();
        let ms = |value: Option<u64>| {
            value.map(|ms| i64::try_from(ms.min(limits::DELAY_MS_MAX)).unwrap_or(i64::MAX))
        };
        let lane = -i16::from(message.priority.min(spec.priority_max));
        let body = std::mem::take(&mut message.body.bytes);
        let meta = message::encode(&mut message)?;
        let size_bytes = (body.len() + meta.len()) as u64;
        if size_bytes > spec.message_bytes_max {
            let size_bytes_max = spec.message_bytes_max;
            let queue = queue.name.clone();
            return Err(Refusal::MessageTooLarge { queue, size_bytes, size_bytes_max }.into());
        }
        let at_ms = at.map(|ms| i64::try_from(ms).unwrap_or(i64::MAX).min(AT_MS_MAX));
        let (delay_ms, ttl_ms) = (ms(delay), ms(ttl));
        Ok(MessageRow {
            queue,
            session,
            lane,
            delay_ms,
            at_ms,
            ttl_ms,
            key,
            meta,
            body,
            message_id,
        })
    }

    /// Writes messages until the connector is dropped.
    pub(super) async fn write_sends(self: Arc<Self>, mut calls: mpsc::Receiver<SendCall>) {
        let mut carried_over: Option<SendCall> = None;
        loop {
            let first = match carried_over.take() {
                Some(call) => call,
                None => match calls.recv().await {
                    Some(call) => call,
                    None => return,
                },
            };
            let (mut count, mut bytes) = (first.rows.len(), first.bytes());
            let mut batch = vec![first];
            while let Ok(call) = calls.try_recv() {
                count += call.rows.len();
                bytes += call.bytes();
                if count > BATCH_MAX || bytes > BATCH_BYTES {
                    carried_over = Some(call);
                    break;
                }
                batch.push(call);
            }
            let (rows, replies): (Vec<_>, Vec<_>) =
                batch.into_iter().map(|call| (call.rows, call.reply)).unzip();
            let lengths: Vec<usize> = rows.iter().map(Vec::len).collect();
            let rows: Vec<MessageRow> = rows.into_iter().flatten().collect();
            let written = self.write(&rows).await;
            let mut sent = written.as_ref().ok().cloned().unwrap_or_default().into_iter();
            for (reply, length) in replies.into_iter().zip(lengths) {
                let answer = match &written {
                    Ok(_) => Ok(sent.by_ref().take(length).collect()),
                    Err(error) => Err(error.clone()),
                };
                let _ = reply.send(answer); // the caller gave up
            }
        }
    }

    async fn write(&self, rows: &[MessageRow]) -> Result<Vec<Sent>, BrokerError> {
        let mut attempts = 0;
        loop {
            let connection = self.sending.connection().await?;
            attempts += 1;
            match transaction(&connection, rows).await {
                Ok(written) => {
                    self.notify_arrivals(written.arrivals);
                    if let Some(delay) = rows.iter().filter_map(|row| row.delay_ms).min() {
                        self.due_in(delay);
                    }
                    return Ok(written.sent);
                }
                Err(error) => {
                    let _ = connection.execute("rollback").await; // a broken connection is rolled back by the server
                    self.sending.discard_if_broken(&connection, Some(&error)).await;
                    if !error::is_conflict(&error) || attempts == ATTEMPTS_MAX {
                        return Err(error.into());
                    }
                }
            }
        }
    }
}

/// The latest time that fits into a `timestamptz`.
const AT_MS_MAX: i64 = 200_000_000_000_000;

pub(super) fn unknown_session(queue: &PgQueue, session: &SessionId) -> BrokerError {
    BrokerError::Refused {
        code: "unknown_session".into(),
        text: format!(
            "queue `{}` has a fixed list of sessions, without `{session}`: use one of the listed sessions",
            queue.name
        ),
    }
}

struct SendResult {
    sent: Vec<Sent>,
    arrivals: Vec<(i32, Option<i64>)>,
}

async fn transaction(
    connection: &PgConnection,
    rows: &[MessageRow],
) -> Result<SendResult, tokio_postgres::Error> {
    let mut begun = false;
    let mut stored = vec![true; rows.len()];
    if rows.iter().any(|row| row.key.is_some()) {
        connection.execute(connection.begin()).await?;
        begun = true;
        stored = new_keys(connection, rows).await?;
    }
    let new: Vec<&MessageRow> =
        rows.iter().zip(&stored).filter(|(_, stored)| **stored).map(|(row, _)| row).collect();
    // Statements are sent in the order in which they are first polled.
    let begin = async { if begun { Ok(()) } else { connection.execute(connection.begin()).await } };
    let (started, locked, inserted, committed) = tokio::join!(
        biased;
        begin,
        lock_sessions(connection, &new),
        insert(connection, &new),
        connection.execute("commit"),
    );
    started?;
    locked?;
    let inserted = inserted?;
    committed?;
    let mut inserted = inserted.iter();
    let (mut sent, mut arrivals) = (Vec::with_capacity(rows.len()), Vec::new());
    for (row, stored) in rows.iter().zip(stored) {
        let mut seq = 0;
        if stored && let Some(rows) = inserted.next() {
            seq = rows.try_get::<_, i64>(0)?;
            arrivals.push((row.queue.id, rows.try_get(1)?));
        }
        let message_id = row.message_id.clone();
        sent.push(Sent { seq: Seq(seq.unsigned_abs()), message_id, duplicate: !stored });
    }
    Ok(SendResult { sent, arrivals })
}

/// Which rows are not duplicates, neither of stored messages nor within this batch.
async fn new_keys(
    connection: &PgConnection,
    rows: &[MessageRow],
) -> Result<Vec<bool>, tokio_postgres::Error> {
    // All processes lock keys in the same order.
    let mut keys: BTreeMap<(i32, &[u8]), i64> = BTreeMap::new();
    for row in rows {
        if let (Some(key), Some(dedup)) = (&row.key, row.queue.spec.dedup) {
            let window = i64::try_from(dedup.window_ms).unwrap_or(i64::MAX);
            keys.insert((row.queue.id, key), window);
        }
    }
    let queues: Vec<i32> = keys.keys().map(|key| key.0).collect();
    let texts: Vec<&[u8]> = keys.keys().map(|key| key.1).collect();
    let windows: Vec<i64> = keys.values().copied().collect();
    let inserted = connection.query(&INSERT_DEDUP_KEYS, &[&queues, &texts, &windows]).await?;
    let mut new: HashSet<(i32, Vec<u8>)> = HashSet::with_capacity(inserted.len());
    for row in inserted {
        new.insert((row.try_get(0)?, row.try_get(1)?));
    }
    let first = |row: &MessageRow| match &row.key {
        None => true,
        Some(key) => new.remove(&(row.queue.id, key.clone())),
    };
    Ok(rows.iter().map(first).collect())
}

/// The position of a session's first message in the batch, and that message's delay.
type SessionTurn = (i64, Option<i64>);

async fn lock_sessions(
    connection: &PgConnection,
    rows: &[&MessageRow],
) -> Result<(), tokio_postgres::Error> {
    // All processes lock sessions in the same order. Their turns follow the order in the batch.
    let mut sessions: BTreeMap<(i32, &[u8]), SessionTurn> = BTreeMap::new();
    for (place, row) in rows.iter().enumerate() {
        if let (Some(session), None) = (&row.session, row.at_ms) {
            let place = i64::try_from(place).unwrap_or(i64::MAX);
            let entry = sessions.entry((row.queue.id, session.as_str().as_bytes()));
            entry.or_insert((place, row.delay_ms));
        }
    }
    if sessions.is_empty() {
        return Ok(());
    }
    let queues: Vec<i32> = sessions.keys().map(|key| key.0).collect();
    let ids: Vec<&[u8]> = sessions.keys().map(|key| key.1).collect();
    let places: Vec<i64> = sessions.values().map(|value| value.0).collect();
    let delays: Vec<Option<i64>> = sessions.values().map(|value| value.1).collect();
    connection.query(&LOCK_SESSIONS, &[&queues, &ids, &places, &delays]).await.map(drop)
}

async fn insert(
    connection: &PgConnection,
    rows: &[&MessageRow],
) -> Result<Vec<Row>, tokio_postgres::Error> {
    if rows.is_empty() {
        return Ok(Vec::new());
    }
    let queues: Vec<i32> = rows.iter().map(|row| row.queue.id).collect();
    // A scheduled message has no session yet, and so no position in it.
    let session = |row: &&MessageRow| {
        row.session
            .as_ref()
            .filter(|_| row.at_ms.is_none())
            .map(|id| id.as_str().as_bytes().to_vec())
    };
    let sessions: Vec<Option<Vec<u8>>> = rows.iter().map(session).collect();
    let lanes: Vec<i16> = rows.iter().map(|row| row.lane).collect();
    let delays: Vec<Option<i64>> = rows.iter().map(|row| row.delay_ms).collect();
    let ats: Vec<Option<i64>> = rows.iter().map(|row| row.at_ms).collect();
    let ttls: Vec<Option<i64>> = rows.iter().map(|row| row.ttl_ms).collect();
    let metas: Vec<&[u8]> = rows.iter().map(|row| &row.meta[..]).collect();
    let bodies: Vec<&[u8]> = rows.iter().map(|row| &row.body[..]).collect();
    connection
        .query(
            &INSERT_MESSAGES,
            &[&queues, &sessions, &lanes, &delays, &ats, &ttls, &metas, &bodies],
        )
        .await
}

/// Appends scheduled messages that are due, in an open transaction.
pub(super) async fn append(
    connection: &PgConnection,
    rows: &[MessageRow],
) -> Result<(), tokio_postgres::Error> {
    let rows: Vec<&MessageRow> = rows.iter().collect();
    lock_sessions(connection, &rows).await?;
    insert(connection, &rows).await.map(drop)
}
