//! Reading a message back: its newest record and, under it, those that it lies over.

use std::io;

use bytes::Bytes;
use malote_model::{Message, Properties, QueueName, Seq, Timestamp, limits};

use super::event::{
    KIND_DEFERRED, KIND_KEPT, KIND_MOVED, KIND_RETURNED, KIND_SENT, KIND_STATE, VERSION, get_kept,
    get_moved, get_over, get_sent,
};
use super::message::{get_message, put_head};
use super::read::{Reader, Truncated, slice_of};
use crate::event::{Kept, Why};
use crate::journal::{Patience, Pos, Reading, Segments};

/// A message as it is stored now, with all that was laid over it.
#[derive(Clone, Debug, PartialEq)]
pub struct Stored {
    /// As sent, with later changes of its properties.
    pub message: Message,
    /// When it entered the queue that it is in.
    pub enqueued_at: Timestamp,
    /// Why it is a dead letter, if it is one.
    pub dead: Option<DeadLetter>,
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

impl Stored {
    /// Reads the record at `pos` and those under it, however long it takes.
    pub fn read_now(segments: &Segments, pos: Pos) -> io::Result<Self> {
        Self::read(&mut segments.reading(false), pos, Patience::Blocking)
    }

    /// Reads the record at `pos` and those under it.
    pub(crate) fn read(reading: &mut Reading, pos: Pos, patience: Patience) -> io::Result<Self> {
        let Chain { at, dead, over, record, message_at } = Chain::read(reading, pos, patience)?;
        let mut message = get_message(&record, &record[message_at..]).map_err(malformed)?;
        over.into_iter().rev().for_each(|properties| message.properties.lay_over(properties));
        Ok(Self { message, enqueued_at: at, dead })
    }

    /// Reads those at `positions`, in order. What memory holds is read at once; for the rest a thread that may wait
    /// is asked.
    pub(crate) async fn load(segments: &Segments, positions: Vec<Pos>) -> Vec<io::Result<Self>> {
        let mut reading = segments.reading(positions.len() > 1);
        let mut all = Vec::with_capacity(positions.len());
        for (n, &pos) in positions.iter().enumerate() {
            match Self::read(&mut reading, pos, Patience::None) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let rest = positions[n..].to_vec();
                    let waiting = move || {
                        let each = rest
                            .into_iter()
                            .map(|pos| Self::read(&mut reading, pos, Patience::Blocking));
                        each.collect::<Vec<_>>()
                    };
                    match tokio::task::spawn_blocking(waiting).await {
                        Ok(rest) => all.extend(rest),
                        Err(stopping) => all.push(Err(io::Error::other(stopping))),
                    }
                    return all;
                }
                read => all.push(read),
            }
        }
        all
    }
}

fn malformed(_: Truncated) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "a record is malformed")
}

/// What a message's records say, from the newest down to the one that holds it whole.
struct Chain {
    at: Timestamp,
    dead: Option<DeadLetter>,
    /// Changed properties, the newest first.
    over: Vec<Properties>,
    /// The record that holds the message, and where in it.
    record: Bytes,
    message_at: usize,
}

impl Chain {
    fn read(reading: &mut Reading, pos: Pos, patience: Patience) -> io::Result<Self> {
        let mut over = Vec::new();
        // Where and why it moved last; older moves are history.
        let mut moved: Option<(Timestamp, Option<DeadLetter>)> = None;
        let mut next = pos;
        for _ in 0..=limits::CHANGES_CHAIN_MAX {
            let (kind, record) = reading.frame(next, patience)?;
            match Link::of(kind, &record).map_err(malformed)? {
                Link::Over(from, properties) => {
                    over.push(properties);
                    next = from;
                }
                Link::Moved(link) => {
                    next = link.from;
                    let (at, from_seq) = (link.at, Seq(link.from_seq));
                    let dead = match link.why {
                        Why::Dead { reason, source, receives, failed } => {
                            let (word, text) = (reason.word().to_owned(), reason.text());
                            Some(DeadLetter {
                                reason: word,
                                text,
                                at,
                                from: source,
                                from_seq,
                                receives,
                                failed,
                            })
                        }
                        Why::Due | Why::Redriven => None,
                    };
                    moved.get_or_insert((at, dead));
                    over.push(link.properties);
                }
                Link::Whole { at, dead, message_at } => {
                    let (at, dead) = moved.unwrap_or((at, dead));
                    return Ok(Self { at, dead, over, record, message_at });
                }
            }
        }
        Err(malformed(Truncated))
    }
}

/// A message as compaction copies it: all that its records say, in one.
pub(crate) fn read_whole(reading: &mut Reading, pos: Pos) -> io::Result<Kept> {
    let Chain { at, dead, over, record, message_at } =
        Chain::read(reading, pos, Patience::Blocking)?;
    let places = Vec::new();
    if over.iter().all(|properties| properties.is_empty()) {
        // As it was written, to the byte.
        return Ok(Kept { places, at, dead, head: record.slice(message_at..), body: Bytes::new() });
    }
    let mut message = get_message(&record, &record[message_at..]).map_err(malformed)?;
    over.into_iter().rev().for_each(|properties| message.properties.lay_over(properties));
    let mut head = Vec::with_capacity(256);
    put_head(&mut head, &message).map_err(|_| malformed(Truncated))?;
    Ok(Kept { places, at, dead, head: head.into(), body: message.body.bytes })
}

enum Link {
    Over(Pos, Properties),
    Moved(crate::event::Moved),
    Whole { at: Timestamp, dead: Option<DeadLetter>, message_at: usize },
}

impl Link {
    fn of(kind: u8, bytes: &Bytes) -> Result<Self, Truncated> {
        let mut r = Reader::new(bytes);
        if r.u8()? != VERSION {
            return Err(Truncated);
        }
        match kind {
            KIND_SENT => {
                let at = get_sent(&mut r)?.at;
                let message_at = bytes.len() - r.rest().len();
                Ok(Self::Whole { at, dead: None, message_at })
            }
            KIND_KEPT => {
                let Kept { at, dead, .. } = get_kept(&mut r)?;
                let message_at = bytes.len() - r.rest().len();
                Ok(Self::Whole { at, dead, message_at })
            }
            KIND_RETURNED | KIND_DEFERRED => {
                r.queue()?;
                r.var()?;
                let over = get_over(&mut r)?.ok_or(Truncated)?;
                Ok(Self::Over(over.from, over.properties))
            }
            KIND_MOVED => Ok(Self::Moved(get_moved(&mut r)?)),
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
    let usable = kind == KIND_STATE && r.u8().ok()? == VERSION;
    r.queue().ok()?;
    r.str().ok()?;
    (usable && r.bool().ok()?).then(|| slice_of(bytes, r.rest()))
}
