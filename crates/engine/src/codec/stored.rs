//! Reading a stored message: its newest record, and the older records under it.

use std::io;
use std::panic::resume_unwind;
use std::sync::Arc;

use bytes::Bytes;
use malote_model::{Facts, Message, QueueName, Seq, SessionId, Timestamp, TopicName, limits};

use super::event::{
    KIND_DEFERRED, KIND_MOVED, KIND_RELOCATED, KIND_RETURNED, KIND_SENT, KIND_STATE, VERSION_MORE,
    get_overlay, get_relocated,
};
use super::message::{get_message, put_head};
use super::moved::get_moved;
use super::read::{Malformed, Reader, slice_of};
use super::sent::get_sent;
use crate::event::{MoveReason, RelocatedMessage, SentEvent};
use crate::format::is_known;
use crate::journal::{FrameReader, Pos, ReadMode, Segments};

/// A stored message, with all its overlays applied.
#[derive(Clone, Debug, PartialEq)]
pub struct Stored {
    /// The message as sent, with later property changes.
    pub message: Message,
    /// When it was added to its current queue.
    pub enqueued_at: Timestamp,
    /// When it was first sent.
    pub sent_at: Timestamp,
    /// Why it was dead-lettered, if it is a dead letter.
    pub dead: Option<DeadLetter>,
    /// All times that it was dead-lettered, newest first. It may have been routed or moved since.
    pub deaths: Vec<DeadLetter>,
    /// Its sequence number in the queue that it was first sent to, if it was dead-lettered or forwarded from there.
    pub first_seq: Option<Seq>,
    /// The dead-letter topic that last routed it.
    pub routed_by: Option<TopicName>,
    /// The number of records read; many if there are many overlays.
    pub depth: u32,
}

/// When and why a message was dead-lettered, and from which queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetter {
    /// A stable identifier.
    pub reason: String,
    /// The description given with the reason.
    pub text: String,
    pub at: Timestamp,
    pub from: QueueName,
    pub from_seq: Seq,
    /// How often the message was delivered before it was dead-lettered.
    pub receives: u32,
    /// Failed deliveries before.
    pub failed: u32,
    /// How often this happened. More than 1 only if entries of the same queue and reason were merged.
    pub count: u32,
    /// When it first happened.
    pub first_at: Timestamp,
    /// The dead-letter topic that had routed the message before; none if it was as its sender sent it.
    pub topic: Option<TopicName>,
    /// The routing keys that the message had before.
    pub keys: Vec<String>,
}

impl DeadLetter {
    /// An entry for one dead-lettering.
    pub fn once(reason: String, text: String, at: Timestamp, from: QueueName) -> Self {
        let (from_seq, receives, failed, count) = (Seq(0), 0, 0, 1);
        let (first_at, topic, keys) = (at, None, Vec::new());
        Self { reason, text, at, from, from_seq, receives, failed, count, first_at, topic, keys }
    }

    /// Merges entries of the same queue and reason, newest first. The merged entry has the place of the newest one, and
    /// the topic and keys of the oldest one.
    fn merge(deaths: Vec<Self>) -> Vec<Self> {
        let mut merged: Vec<Self> = Vec::new();
        for death in deaths {
            let same = |have: &&mut Self| have.from == death.from && have.reason == death.reason;
            match merged.iter_mut().find(same) {
                Some(have) => {
                    have.count = have.count.saturating_add(death.count);
                    have.first_at = have.first_at.min(death.first_at);
                    (have.topic, have.keys) = (death.topic, death.keys);
                }
                None => merged.push(death),
            }
        }
        merged
    }
}

/// A dead-lettering in the chain of a message's records.
struct DeathRecord {
    death: DeadLetter,
    to: Option<TopicName>,
    /// The new routing key.
    key: Option<String>,
}

/// Completes the entries of dead-letterings, which come newest first: each has the topic and the keys before it. Gives
/// the message its current key.
fn lay_deaths(
    message: &mut Message,
    routed_by: &mut Option<TopicName>,
    records: Vec<DeathRecord>,
) -> Vec<DeadLetter> {
    let complete = |DeathRecord { mut death, to, key }: DeathRecord| {
        let keys = Facts::new(message, death.at).keys().map(str::to_owned).collect();
        death.keys = keys;
        death.topic = std::mem::replace(routed_by, to);
        if let Some(key) = key {
            message.key = Some(key);
            message.more_keys.clear();
        }
        death
    };
    let mut deaths: Vec<_> = records.into_iter().rev().map(complete).collect();
    deaths.reverse();
    deaths
}

/// A message that is damaged on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// The file, the position and the error.
    pub text: String,
    /// Why it was dead-lettered, if that is readable.
    pub dead: Option<Box<DeadLetter>>,
    /// The message is not damaged: compaction moved it, and its segment was recycled.
    pub gone: bool,
}

impl Unreadable {
    fn new(error: &io::Error, dead: Option<Box<DeadLetter>>) -> Self {
        Self { text: error.to_string(), dead, gone: error.kind() == io::ErrorKind::NotFound }
    }
}

impl Stored {
    /// Reads the record at `pos` and the older records under it. Blocks on the disk.
    pub fn read_now(segments: &Segments, pos: Pos) -> io::Result<Self> {
        Self::read(&mut segments.reading(false), pos, ReadMode::Blocking, &mut None)
    }

    /// Reads the record at `pos` and the older records under it. `dead` is set even if one of the older records is
    /// unreadable.
    pub(crate) fn read(
        reading: &mut FrameReader,
        pos: Pos,
        mode: ReadMode,
        dead: &mut Option<Box<DeadLetter>>,
    ) -> io::Result<Self> {
        let malformed = |pos: Pos| {
            let text = format!("journal position {pos}: the record is malformed");
            io::Error::new(io::ErrorKind::InvalidData, text)
        };
        *dead = None;
        let mut over = Vec::new();
        let (mut moved_at, mut message_id) = (None, None);
        // Queues with a source of session ids give a message another session than its sender did.
        let mut session = None;
        let mut routed_by = None;
        let mut first_seq = None;
        let (mut records, mut deaths) = (Vec::new(), Vec::new());
        // The headers, once they are found; the body may be in an older record.
        let mut found: Option<(Timestamp, Timestamp, Box<Message>)> = None;
        let mut next = pos;
        for depth in 1..=limits::CHANGES_CHAIN_MAX {
            let (kind, bytes) = reading.frame(next, mode)?;
            match ChainRecord::of(kind, &bytes).map_err(|_| malformed(next))? {
                ChainRecord::Overlay(from, properties) => {
                    over.push(properties);
                    next = from;
                }
                ChainRecord::Moved(moved) => {
                    next = moved.from;
                    if found.is_some() {
                        continue; // this is the history of a copy that shares the body
                    }
                    let newest = moved_at.is_none();
                    // The newest move says where the message is now; older ones are history.
                    moved_at.get_or_insert(moved.at);
                    message_id = message_id.or(moved.message_id);
                    session = session.or(moved.session);
                    // The first sequence number of a schedule is only for cancelling it, and an inbox is not visible to
                    // users.
                    if !matches!(moved.why, MoveReason::Due | MoveReason::Routed) {
                        first_seq = Some(Seq(moved.from_seq));
                    }
                    if let MoveReason::DeadLettered {
                        reason, source, receives, failed, to, ..
                    } = moved.why
                    {
                        let (word, text) = (reason.word().to_owned(), reason.text());
                        let mut death = DeadLetter::once(word, text, moved.at, source);
                        death.from_seq = Seq(moved.from_seq);
                        (death.receives, death.failed) = (receives, failed);
                        if newest {
                            *dead = Some(Box::new(death.clone()));
                        }
                        records.push(DeathRecord { death, to, key: moved.key });
                    }
                    over.push(moved.properties);
                }
                ChainRecord::Sent(SentRecord { at, session: given, body_at, mut message }) => {
                    let body = message.body.bytes.clone();
                    if found.is_none() {
                        message.session = session.take().or(given).or(message.session);
                        let over = std::mem::take(&mut over);
                        let lay = |properties| message.properties.lay_over(properties);
                        over.into_iter().rev().for_each(lay);
                        deaths =
                            lay_deaths(&mut message, &mut routed_by, std::mem::take(&mut records));
                        if message_id.is_some() {
                            message.message_id = message_id.take();
                        }
                        found = Some((moved_at.unwrap_or(at), at, message));
                    }
                    if let Some(body_at) = body_at {
                        next = body_at;
                        continue;
                    }
                    let Some((enqueued_at, sent_at, mut message)) = found else { break };
                    message.body.bytes = body;
                    let dead = dead.take().and_then(|_| deaths.first().cloned());
                    let message = *message;
                    return Ok(Self {
                        message,
                        enqueued_at,
                        sent_at,
                        dead,
                        deaths,
                        first_seq,
                        routed_by,
                        depth,
                    });
                }
                ChainRecord::Relocated(kept, mut message) => {
                    if let Some((enqueued_at, sent_at, mut message_found)) = found {
                        // Only its body is needed.
                        message_found.body.bytes = message.body.bytes;
                        let dead = dead.take().and_then(|_| deaths.first().cloned());
                        let message = *message_found;
                        return Ok(Self {
                            message,
                            enqueued_at,
                            sent_at,
                            dead,
                            deaths,
                            first_seq,
                            routed_by,
                            depth,
                        });
                    }
                    message.session = session.take().or(message.session);
                    let lay = |properties| message.properties.lay_over(properties);
                    over.into_iter().rev().for_each(lay);
                    routed_by = kept.routed_by;
                    deaths = lay_deaths(&mut message, &mut routed_by, records);
                    if message_id.is_some() {
                        message.message_id = message_id.take();
                    }
                    let first_seq = kept.first_seq.map(Seq).or(first_seq);
                    let enqueued_at = moved_at.unwrap_or(kept.at);
                    let dead = match moved_at {
                        Some(_) => dead.take().and_then(|_| deaths.first().cloned()),
                        None => kept.deaths.first().filter(|_| kept.dead).cloned(),
                    };
                    deaths.extend(kept.deaths);
                    let (message, sent_at) = (*message, kept.sent_at);
                    return Ok(Self {
                        message,
                        enqueued_at,
                        sent_at,
                        dead,
                        deaths,
                        first_seq,
                        routed_by,
                        depth,
                    });
                }
            }
        }
        Err(malformed(next))
    }

    /// Reads the messages at `positions`, in order. Reads from the page cache at once, and the rest on a blocking
    /// thread. Returns fewer results only if the process is ending.
    pub(crate) async fn load(
        segments: &Segments,
        positions: Vec<Pos>,
    ) -> Vec<Result<Self, Unreadable>> {
        let positions: Arc<[Pos]> = positions.into();
        let mut reading = segments.reading_of(positions.clone());
        let mut all = Vec::with_capacity(positions.len());
        for (n, &pos) in positions.iter().enumerate() {
            let mut dead = None;
            reading.seek(n);
            match Self::read(&mut reading, pos, ReadMode::CacheOnly, &mut dead) {
                // The page cache may contain a part of a frame: only the blocking read decides whether the record is
                // damaged.
                Err(_) => {
                    let rest = positions.clone();
                    let mut waiting = move || {
                        let each = rest.iter().enumerate().skip(n).map(|(n, &pos)| {
                            let mut dead = None;
                            reading.seek(n);
                            Self::read(&mut reading, pos, ReadMode::Blocking, &mut dead)
                                .map_err(|error| Unreadable::new(&error, dead))
                        });
                        each.collect::<Vec<_>>()
                    };
                    // Without a runtime, the caller's thread blocks on the disk.
                    let Ok(runtime) = tokio::runtime::Handle::try_current() else {
                        all.extend(waiting());
                        return all;
                    };
                    match runtime.spawn_blocking(waiting).await {
                        Ok(rest) => all.extend(rest),
                        // Continue the panic in the caller: its grants are then returned.
                        Err(error) if error.is_panic() => resume_unwind(error.into_panic()),
                        Err(_) => {}
                    }
                    return all;
                }
                Ok(stored) => all.push(Ok(stored)),
            }
        }
        all
    }
}

enum ChainRecord {
    Overlay(Pos, malote_model::Properties),
    Moved(Box<crate::event::MovedEvent>),
    Sent(SentRecord),
    Relocated(Box<RelocatedMessage>, Box<Message>),
}

/// The record of a new message.
struct SentRecord {
    at: Timestamp,
    /// The session in queues with sessions.
    session: Option<SessionId>,
    /// The record with the body, if another one has it.
    body_at: Option<Pos>,
    message: Box<Message>,
}

/// Reads a complete copy of a message, for compaction. The caller fills in its positions.
pub(crate) fn read_whole(reading: &mut FrameReader, pos: Pos) -> io::Result<RelocatedMessage> {
    let mut stored = Stored::read(reading, pos, ReadMode::Blocking, &mut None)?;
    // A message may be dead-lettered again and again for years.
    if stored.deaths.len() > limits::DEATHS_MAX {
        stored.deaths = DeadLetter::merge(stored.deaths);
        stored.deaths.truncate(limits::DEATHS_MAX);
    }
    let mut head = Vec::with_capacity(256);
    put_head(&mut head, &stored.message, false)
        .map_err(|refusal| io::Error::new(io::ErrorKind::InvalidData, refusal.to_string()))?;
    Ok(RelocatedMessage {
        places: Vec::new(),
        at: stored.enqueued_at,
        sent_at: stored.sent_at,
        dead: stored.dead.is_some(),
        deaths: stored.deaths,
        first_seq: stored.first_seq.map(|seq| seq.0),
        routed_by: stored.routed_by,
        head: head.into(),
        body: stored.message.body.bytes,
    })
}

impl ChainRecord {
    fn of(kind: u8, bytes: &Bytes) -> Result<Self, Malformed> {
        let mut r = Reader::new(bytes);
        let version = r.u8()?;
        if !is_known(kind, version) {
            return Err(Malformed);
        }
        match kind {
            KIND_SENT => {
                let sent = get_sent(&mut r, version)?;
                let message = Box::new(get_message(bytes, r.rest())?);
                let SentEvent { at, session, body_at, .. } = sent;
                Ok(Self::Sent(SentRecord { at, session, body_at, message }))
            }
            KIND_RETURNED | KIND_DEFERRED => {
                r.queue()?;
                r.var()?;
                let over = get_overlay(&mut r)?.ok_or(Malformed)?;
                Ok(Self::Overlay(over.from, over.properties))
            }
            KIND_RELOCATED => {
                let kept = Box::new(get_relocated(&mut r, version)?);
                Ok(Self::Relocated(kept, Box::new(get_message(bytes, r.rest())?)))
            }
            KIND_MOVED => Ok(Self::Moved(Box::new(get_moved(&mut r, version)?))),
            _ => Err(Malformed),
        }
    }
}

/// Reads the session state at `pos`; `None` if the record is not one.
pub fn read_state(segments: &Segments, pos: Pos) -> io::Result<Option<Bytes>> {
    let (kind, bytes) = segments.reading(false).frame(pos, ReadMode::Blocking)?;
    Ok(state_of(kind, &bytes))
}

/// The state in a `State` record.
pub(crate) fn state_of(kind: u8, bytes: &Bytes) -> Option<Bytes> {
    let mut r = Reader::new(bytes);
    let version = r.u8().ok()?;
    let usable = kind == KIND_STATE && is_known(kind, version);
    r.queue().ok()?;
    r.str().ok()?;
    if version == VERSION_MORE {
        r.time().ok()?;
    }
    (usable && r.bool().ok()?).then(|| slice_of(bytes, r.rest()))
}
