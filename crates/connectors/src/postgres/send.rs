//! Sending: what several callers send at the same time goes in one transaction.
//!
//! A transaction locks the rows of its sessions, in one order everywhere, and only then takes sequence numbers: within a
//! session numbers grow with commits. Who sends after another send was answered comes behind it; those who send at the
//! same time come in any order, and that order never changes. In a queue without sessions the same holds for what one
//! consumer sees.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use malote_engine::clock::Clock as _;
use malote_model::{Address, Message, Refusal, Seq, SessionId, Sessions, When, limits};
use sha2::{Digest as _, Sha256};
use tokio::sync::{mpsc, oneshot};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::link::{Link, Sql};
use super::queues::Queue;
use super::{Shared, error, message};
use crate::broker::{BrokerError, Sent};

/// Messages of one transaction, and their bytes: what waits at the same time goes together up to that.
const BATCH_MAX: usize = 4096;
const BATCH_BYTES: usize = 8 << 20;
/// Calls that wait.
const CALLS_MAX: usize = 4096;
/// How often a transaction that met another one is tried again.
const TRIES: usize = 5;

/// Which keys were not sent within their window; those are noted.
const NEW_KEYS: Sql = Sql {
    text: "insert into malote.sent_before as k (queue, key, until)
        select w.queue, w.key, now() + w.span * interval '1 ms'
        from unnest($1::int4[], $2::bytea[], $3::int8[]) as w (queue, key, span)
        on conflict (queue, key) do update set until = excluded.until where k.until <= now()
        returning queue, key",
    types: &[Type::INT4_ARRAY, Type::BYTEA_ARRAY, Type::INT8_ARRAY],
};
/// Locks sessions, in the order of the arrays, and puts those that were empty into the line. A row whose condition is
/// false is locked as well.
pub(super) const LOCK_SESSIONS: Sql = Sql {
    text: "insert into malote.sessions as s (queue, id, turn, due)
        select w.queue, w.id, case when w.delay is null then (select nextval('malote.turns') << 16) + w.place end,
            now() + w.delay * interval '1 ms'
        from unnest($1::int4[], $2::bytea[], $3::int8[], $4::int8[]) as w (queue, id, place, delay)
        on conflict (queue, id) do update set turn = excluded.turn, due = excluded.due
        where s.lease is null and s.turn is null and s.due is null",
    types: &[Type::INT4_ARRAY, Type::BYTEA_ARRAY, Type::INT8_ARRAY, Type::INT8_ARRAY],
};
pub(super) const INSERT: Sql = Sql {
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

pub(super) const STATEMENTS: &[&Sql] = &[&NEW_KEYS, &LOCK_SESSIONS, &INSERT];

/// A message as it is written.
pub(super) struct NewRow {
    pub queue: Arc<Queue>,
    /// Of a queue with sessions.
    pub session: Option<SessionId>,
    pub lane: i16,
    pub delay_ms: Option<i64>,
    /// Appended then, as if it were sent then.
    pub at_ms: Option<i64>,
    pub ttl_ms: Option<i64>,
    pub key: Option<Vec<u8>>,
    pub meta: Vec<u8>,
    pub body: Bytes,
    pub message_id: String,
}

/// What one caller sends.
pub(super) struct Call {
    rows: Vec<NewRow>,
    reply: oneshot::Sender<Result<Vec<Sent>, BrokerError>>,
}

impl Call {
    fn bytes(&self) -> usize {
        self.rows.iter().map(|row| row.body.len() + row.meta.len()).sum()
    }
}

pub(super) fn channel() -> (mpsc::Sender<Call>, mpsc::Receiver<Call>) {
    mpsc::channel(CALLS_MAX)
}

impl Shared {
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
                text: format!("one send has at most {} messages", limits::SEND_BATCH_MAX),
            });
        }
        let mut rows = Vec::with_capacity(messages.len());
        for (to, message) in messages {
            let Address::Queue(name) = to else {
                return Err(BrokerError::Unsupported {
                    broker: super::NAME,
                    what: "topics",
                    fix: "send to a queue, or use embedded: or malote:",
                });
            };
            let queue = self.queue(&name).await?;
            rows.push(self.row(queue, message)?);
        }
        let (reply, answer) = oneshot::channel();
        self.sends.send(Call { rows, reply }).await.map_err(|_| BrokerError::Closed)?;
        answer.await.unwrap_or(Err(BrokerError::Closed))
    }

    fn row(&self, queue: Arc<Queue>, mut message: Message) -> Result<NewRow, BrokerError> {
        if queue.id < 0 {
            let why = "is a set of dead letters: nobody sends to it";
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
        let id = message
            .message_id
            .get_or_insert_with(|| self.chance.uuid_v7(self.clock.now()).to_string());
        let message_id = id.clone();
        message.origin_id.get_or_insert_with(|| message_id.clone());
        let (delay, at) = match message.when {
            When::Now => ((spec.delay_ms > 0).then_some(spec.delay_ms), None),
            When::Delay(ms) => ((ms > 0).then_some(ms), None),
            When::At(at) => (None, Some(at.0)),
        };
        if delay.is_some_and(|ms| ms > limits::DELAY_MS_MAX) {
            let text = format!("a delay is at most {} ms", limits::DELAY_MS_MAX);
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
        let at_ms = at.map(|ms| i64::try_from(ms).unwrap_or(i64::MAX).min(FAR_MS));
        let (delay_ms, ttl_ms) = (ms(delay), ms(ttl));
        Ok(NewRow { queue, session, lane, delay_ms, at_ms, ttl_ms, key, meta, body, message_id })
    }

    /// Writes what callers send until nobody can send any more.
    pub(super) async fn write_sends(self: Arc<Self>, mut calls: mpsc::Receiver<Call>) {
        let mut ahead: Option<Call> = None;
        loop {
            let first = match ahead.take() {
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
                    ahead = Some(call);
                    break;
                }
                batch.push(call);
            }
            let (rows, replies): (Vec<_>, Vec<_>) =
                batch.into_iter().map(|call| (call.rows, call.reply)).unzip();
            let lengths: Vec<usize> = rows.iter().map(Vec::len).collect();
            let rows: Vec<NewRow> = rows.into_iter().flatten().collect();
            let written = self.write(&rows).await;
            let mut sent = written.as_ref().ok().cloned().unwrap_or_default().into_iter();
            for (reply, length) in replies.into_iter().zip(lengths) {
                let answer = match &written {
                    Ok(_) => Ok(sent.by_ref().take(length).collect()),
                    Err(error) => Err(error.clone()),
                };
                let _ = reply.send(answer); // whoever asked may be gone
            }
        }
    }

    async fn write(&self, rows: &[NewRow]) -> Result<Vec<Sent>, BrokerError> {
        let mut tries = 0;
        loop {
            let link = self.sending.link().await?;
            tries += 1;
            match transaction(&link, rows).await {
                Ok(written) => {
                    self.ring(written.rung);
                    if let Some(delay) = rows.iter().filter_map(|row| row.delay_ms).min() {
                        self.due_in(delay);
                    }
                    return Ok(written.sent);
                }
                Err(wrong) => {
                    let _ = link.run("rollback").await; // a connection that is gone has rolled back
                    self.sending.note(&link, Some(&wrong)).await;
                    if !error::is_conflict(&wrong) || tries == TRIES {
                        return Err(wrong.into());
                    }
                }
            }
        }
    }
}

/// Far enough for a timestamp of the database.
const FAR_MS: i64 = 200_000_000_000_000;

pub(super) fn unknown_session(queue: &Queue, session: &SessionId) -> BrokerError {
    BrokerError::Refused {
        code: "unknown_session".into(),
        text: format!("queue `{}` has a fixed list of sessions, without `{session}`", queue.name),
    }
}

struct Written {
    sent: Vec<Sent>,
    rung: Vec<(i32, Option<i64>)>,
}

async fn transaction(link: &Link, rows: &[NewRow]) -> Result<Written, tokio_postgres::Error> {
    let mut begun = false;
    let mut stored = vec![true; rows.len()];
    if rows.iter().any(|row| row.key.is_some()) {
        link.run(link.begin()).await?;
        begun = true;
        stored = new_keys(link, rows).await?;
    }
    let new: Vec<&NewRow> =
        rows.iter().zip(&stored).filter(|(_, stored)| **stored).map(|(row, _)| row).collect();
    // Statements are sent in the order in which they are polled first.
    let begin = async { if begun { Ok(()) } else { link.run(link.begin()).await } };
    let (started, locked, inserted, committed) = tokio::join!(
        biased;
        begin,
        lock_sessions(link, &new),
        insert(link, &new),
        link.run("commit"),
    );
    started?;
    locked?;
    let inserted = inserted?;
    committed?;
    let mut inserted = inserted.iter();
    let (mut sent, mut rung) = (Vec::with_capacity(rows.len()), Vec::new());
    for (row, stored) in rows.iter().zip(stored) {
        let mut seq = 0;
        if stored && let Some(told) = inserted.next() {
            seq = told.try_get::<_, i64>(0)?;
            rung.push((row.queue.id, told.try_get(1)?));
        }
        let message_id = row.message_id.clone();
        sent.push(Sent { seq: Seq(seq.unsigned_abs()), message_id, duplicate: !stored });
    }
    Ok(Written { sent, rung })
}

/// Which rows were not sent before: neither to the database nor in this batch.
async fn new_keys(link: &Link, rows: &[NewRow]) -> Result<Vec<bool>, tokio_postgres::Error> {
    // One order of locking for everybody.
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
    let told = link.rows(&NEW_KEYS, &[&queues, &texts, &windows]).await?;
    let mut new: HashSet<(i32, Vec<u8>)> = HashSet::with_capacity(told.len());
    for row in told {
        new.insert((row.try_get(0)?, row.try_get(1)?));
    }
    let first = |row: &NewRow| match &row.key {
        None => true,
        Some(key) => new.remove(&(row.queue.id, key.clone())),
    };
    Ok(rows.iter().map(first).collect())
}

/// A session's place in the batch, and the delay of its first message.
type Place = (i64, Option<i64>);

async fn lock_sessions(link: &Link, rows: &[&NewRow]) -> Result<(), tokio_postgres::Error> {
    // One order of locking for everybody; places in the line as they stand in the batch.
    let mut sessions: BTreeMap<(i32, &[u8]), Place> = BTreeMap::new();
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
    link.rows(&LOCK_SESSIONS, &[&queues, &ids, &places, &delays]).await.map(drop)
}

async fn insert(link: &Link, rows: &[&NewRow]) -> Result<Vec<Row>, tokio_postgres::Error> {
    if rows.is_empty() {
        return Ok(Vec::new());
    }
    let queues: Vec<i32> = rows.iter().map(|row| row.queue.id).collect();
    // What is sent for later has no place before.
    let session = |row: &&NewRow| {
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
    link.rows(&INSERT, &[&queues, &sessions, &lanes, &delays, &ats, &ttls, &metas, &bodies]).await
}

/// Appends what was sent for now, in a transaction that is open.
pub(super) async fn append(link: &Link, rows: &[NewRow]) -> Result<(), tokio_postgres::Error> {
    let rows: Vec<&NewRow> = rows.iter().collect();
    lock_sessions(link, &rows).await?;
    insert(link, &rows).await.map(drop)
}
