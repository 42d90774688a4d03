//! Reading a message back: its newest record and, under it, those that it lies over.

use std::io;
use std::panic::resume_unwind;
use std::sync::Arc;

use bytes::Bytes;
use malote_model::{Message, QueueName, Seq, Timestamp, limits};

use super::event::{
    KIND_DEFERRED, KIND_KEPT, KIND_MOVED, KIND_RETURNED, KIND_SENT, KIND_STATE, VERSION_MORE,
    get_kept, get_moved, get_over, get_sent,
};
use super::message::{get_message, put_head};
use super::read::{Reader, Truncated, slice_of};
use crate::event::{Kept, Why};
use crate::format::is_known;
use crate::journal::{Patience, Pos, Reading, Segments};

/// A message as it is stored now, with all that was laid over it.
#[derive(Clone, Debug, PartialEq)]
pub struct Stored {
    /// As sent, with later changes of its properties.
    pub message: Message,
    /// When it entered the queue that it is in.
    pub enqueued_at: Timestamp,
    /// When it was first sent, wherever it has been since.
    pub sent_at: Timestamp,
    /// Why it is a dead letter, if it is one.
    pub dead: Option<DeadLetter>,
    /// Every time that it became one, newest first; a topic or a queue may have taken it up again since.
    pub deaths: Vec<DeadLetter>,
    /// Its place in the queue that it was first sent to, if it left that as a dead letter, or for a queue or topic that
    /// it was forwarded to.
    pub first_seq: Option<Seq>,
    /// Records that were read: many when much was laid over it.
    pub depth: u32,
}

/// Why, whence and when a message became a dead letter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetter {
    /// A stable word.
    pub reason: String,
    /// A sentence.
    pub text: String,
    /// When.
    pub at: Timestamp,
    /// Out of which queue.
    pub from: QueueName,
    /// Its place there.
    pub from_seq: Seq,
    /// Grants before.
    pub receives: u32,
    /// Failed deliveries before.
    pub failed: u32,
}

/// A message that the disk holds no longer whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// Which file, where in it, and what is wrong there.
    pub text: String,
    /// Why it is a dead letter, as far as that can be read.
    pub dead: Option<Box<DeadLetter>>,
    /// Nothing is damaged: compaction moved it away, and its segment is used for something else.
    pub gone: bool,
}

impl Unreadable {
    fn new(error: &io::Error, dead: Option<Box<DeadLetter>>) -> Self {
        Self { text: error.to_string(), dead, gone: error.kind() == io::ErrorKind::NotFound }
    }
}

impl Stored {
    /// Reads the record at `pos` and those under it, however long it takes.
    pub fn read_now(segments: &Segments, pos: Pos) -> io::Result<Self> {
        Self::read(&mut segments.reading(false), pos, Patience::Blocking, &mut None)
    }

    /// Reads the record at `pos` and those under it. `dead` is told also if one under it cannot be read.
    pub(crate) fn read(
        reading: &mut Reading,
        pos: Pos,
        patience: Patience,
        dead: &mut Option<Box<DeadLetter>>,
    ) -> io::Result<Self> {
        let malformed = |pos: Pos| {
            let text = format!("journal position {pos}: the record is malformed");
            io::Error::new(io::ErrorKind::InvalidData, text)
        };
        *dead = None;
        let mut over = Vec::new();
        let (mut moved_at, mut key, mut message_id) = (None, None, None);
        let mut first_seq = None;
        let mut deaths = Vec::new();
        // The headers, once they are found; the body may stand further down.
        let mut found: Option<(Timestamp, Timestamp, Box<Message>)> = None;
        let mut next = pos;
        for depth in 1..=limits::CHANGES_CHAIN_MAX {
            let (kind, bytes) = reading.frame(next, patience)?;
            match Link::of(kind, &bytes).map_err(|_| malformed(next))? {
                Link::Over(from, properties) => {
                    over.push(properties);
                    next = from;
                }
                Link::Moved(moved) => {
                    next = moved.from;
                    if found.is_some() {
                        continue; // what happened to whose body it is
                    }
                    let newest = moved_at.is_none();
                    // The newest move tells where it is now; older ones are history.
                    moved_at.get_or_insert(moved.at);
                    key = key.or(moved.key);
                    message_id = message_id.or(moved.message_id);
                    // A schedule's first place serves to cancel it, and an inbox is nobody's queue.
                    if !matches!(moved.why, Why::Due | Why::Routed) {
                        first_seq = Some(Seq(moved.from_seq));
                    }
                    if let Why::Dead { reason, source, receives, failed, .. } = moved.why {
                        let death = DeadLetter {
                            reason: reason.word().to_owned(),
                            text: reason.text(),
                            at: moved.at,
                            from: source,
                            from_seq: Seq(moved.from_seq),
                            receives,
                            failed,
                        };
                        if newest {
                            *dead = Some(Box::new(death.clone()));
                        }
                        deaths.push(death);
                    }
                    over.push(moved.properties);
                }
                Link::Sent(at, mut message, body_at) => {
                    let body = message.body.bytes.clone();
                    if found.is_none() {
                        let over = std::mem::take(&mut over);
                        let lay = |properties| message.properties.lay_over(properties);
                        over.into_iter().rev().for_each(lay);
                        if key.is_some() {
                            message.key = key.take();
                        }
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
                    let dead = dead.take().map(|dead| *dead);
                    let message = *message;
                    return Ok(Self {
                        message,
                        enqueued_at,
                        sent_at,
                        dead,
                        deaths,
                        first_seq,
                        depth,
                    });
                }
                Link::Kept(kept, mut message) => {
                    if let Some((enqueued_at, sent_at, mut message_found)) = found {
                        // Only its body is wanted.
                        message_found.body.bytes = message.body.bytes;
                        let dead = dead.take().map(|dead| *dead);
                        let message = *message_found;
                        return Ok(Self {
                            message,
                            enqueued_at,
                            sent_at,
                            dead,
                            deaths,
                            first_seq,
                            depth,
                        });
                    }
                    let lay = |properties| message.properties.lay_over(properties);
                    over.into_iter().rev().for_each(lay);
                    if key.is_some() {
                        message.key = key.take();
                    }
                    if message_id.is_some() {
                        message.message_id = message_id.take();
                    }
                    let first_seq = kept.first_seq.map(Seq).or(first_seq);
                    let enqueued_at = moved_at.unwrap_or(kept.at);
                    let dead = match moved_at {
                        Some(_) => dead.take().map(|dead| *dead),
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
                        depth,
                    });
                }
            }
        }
        Err(malformed(next))
    }

    /// Reads those at `positions`, in order. What memory holds is read at once; for the rest a thread that may wait
    /// is asked. Fewer than asked for only when the process is ending.
    pub(crate) async fn load(
        segments: &Segments,
        positions: Vec<Pos>,
    ) -> Vec<Result<Self, Unreadable>> {
        let positions: Arc<[Pos]> = positions.into();
        let mut reading = segments.reading_of(positions.clone());
        let mut all = Vec::with_capacity(positions.len());
        for (n, &pos) in positions.iter().enumerate() {
            let mut dead = None;
            reading.turn_to(n);
            match Self::read(&mut reading, pos, Patience::None, &mut dead) {
                // Memory may hold the half of a frame, too: that a record is damaged is for the patient read to say.
                Err(_) => {
                    let rest = positions.clone();
                    let mut waiting = move || {
                        let each = rest.iter().enumerate().skip(n).map(|(n, &pos)| {
                            let mut dead = None;
                            reading.turn_to(n);
                            Self::read(&mut reading, pos, Patience::Blocking, &mut dead)
                                .map_err(|error| Unreadable::new(&error, dead))
                        });
                        each.collect::<Vec<_>>()
                    };
                    // Without a runtime the caller's own thread waits for the disk.
                    let Ok(runtime) = tokio::runtime::Handle::try_current() else {
                        all.extend(waiting());
                        return all;
                    };
                    match runtime.spawn_blocking(waiting).await {
                        Ok(rest) => all.extend(rest),
                        // The caller's own panic, then: what it was granted comes back.
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

enum Link {
    Over(Pos, malote_model::Properties),
    Moved(Box<crate::event::Moved>),
    Sent(Timestamp, Box<Message>, Option<Pos>),
    Kept(Box<Kept>, Box<Message>),
}

/// A message as compaction copies it: all that its records say, in one. Its places are for the caller to fill in.
pub(crate) fn read_whole(reading: &mut Reading, pos: Pos) -> io::Result<Kept> {
    let mut stored = Stored::read(reading, pos, Patience::Blocking, &mut None)?;
    // A message may go round for years; what it died of long ago is of no use to anybody.
    stored.deaths.truncate(limits::DEATHS_MAX);
    let mut head = Vec::with_capacity(256);
    put_head(&mut head, &stored.message, false)
        .map_err(|refusal| io::Error::new(io::ErrorKind::InvalidData, refusal.to_string()))?;
    Ok(Kept {
        places: Vec::new(),
        at: stored.enqueued_at,
        sent_at: stored.sent_at,
        dead: stored.dead.is_some(),
        deaths: stored.deaths,
        first_seq: stored.first_seq.map(|seq| seq.0),
        head: head.into(),
        body: stored.message.body.bytes,
    })
}

impl Link {
    fn of(kind: u8, bytes: &Bytes) -> Result<Self, Truncated> {
        let mut r = Reader::new(bytes);
        let version = r.u8()?;
        if !is_known(kind, version) {
            return Err(Truncated);
        }
        match kind {
            KIND_SENT => {
                let sent = get_sent(&mut r, version)?;
                let message = Box::new(get_message(bytes, r.rest())?);
                Ok(Self::Sent(sent.at, message, sent.body_at))
            }
            KIND_RETURNED | KIND_DEFERRED => {
                r.queue()?;
                r.var()?;
                let over = get_over(&mut r)?.ok_or(Truncated)?;
                Ok(Self::Over(over.from, over.properties))
            }
            KIND_KEPT => {
                let kept = Box::new(get_kept(&mut r, version)?);
                Ok(Self::Kept(kept, Box::new(get_message(bytes, r.rest())?)))
            }
            KIND_MOVED => Ok(Self::Moved(Box::new(get_moved(&mut r, version)?))),
            _ => Err(Truncated),
        }
    }
}

/// The session state stored at `pos`; none if that is not one.
pub fn read_state(segments: &Segments, pos: Pos) -> io::Result<Option<Bytes>> {
    let (kind, bytes) = segments.reading(false).frame(pos, Patience::Blocking)?;
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
