//! Copies live records out of nearly empty segments, batch by batch.
//!
//! The core of the last snapshot lists the live records (`core/relocate.rs`). Here they are read completely, on the
//! housekeeping thread. The serving core journals each copy, unless the original has changed meanwhile. A step depends
//! only on the disk, so the simulation can run it too.

use std::io;
use std::iter::Peekable;
use std::vec::IntoIter;

use bytes::Bytes;

use crate::codec::{read_whole, state_of};
use crate::core::{LiveRecord, RecordCopy, RecordOwner, Relocation};
use crate::event::{MessageRef, RelocatedMessage};
use crate::journal::{FrameReader, HEADER_BYTES, ReadMode, Segments};

/// Journal bytes of one batch, beyond its first record. Other requests are served between batches.
const BATCH_BYTES: usize = 256 << 10;

/// The maximum number of records copied after one snapshot; the rest waits for the next.
pub const LIVE_RECORDS_MAX: usize = 1 << 20;

/// The records to copy after one snapshot.
pub struct Compaction {
    records: Peekable<IntoIter<LiveRecord>>,
    /// A record that was read, but does not fit into its batch.
    left_over: Option<Relocation>,
    batch_bytes: usize,
    record_bytes_max: usize,
}

impl Compaction {
    /// Copies these records, which must be sorted by position.
    pub fn new(records: Vec<LiveRecord>, segment_bytes: u64) -> Self {
        let segment_bytes = usize::try_from(segment_bytes).unwrap_or(usize::MAX);
        Self {
            records: records.into_iter().peekable(),
            left_over: None,
            batch_bytes: BATCH_BYTES.min(segment_bytes / 4),
            record_bytes_max: segment_bytes.saturating_sub(2 * HEADER_BYTES),
        }
    }

    /// Reads the next batch; `None` when everything was copied.
    pub fn next_batch(&mut self, segments: &Segments) -> Option<Vec<Relocation>> {
        let mut reading = segments.reading(true);
        let (mut batch, mut bytes) = (Vec::new(), 0);
        while let Some(relocation) = self.next(&mut reading) {
            let room = relocation.room();
            if bytes > 0 && bytes + room > self.batch_bytes {
                self.left_over = Some(relocation);
                break;
            }
            bytes += room;
            batch.push(relocation);
        }
        (!batch.is_empty()).then_some(batch)
    }

    fn next(&mut self, reading: &mut FrameReader) -> Option<Relocation> {
        if let Some(left_over) = self.left_over.take() {
            return Some(left_over);
        }
        while let Some(record) = self.records.next() {
            match self.copy(reading, &record) {
                Ok(copy) => {
                    let relocation = Relocation { from: record.at, copy };
                    // Repeated changes may have made it larger than a segment: it stays where it is.
                    if relocation.room() <= self.record_bytes_max {
                        return Some(relocation);
                    }
                }
                // Its segment was recycled because nothing in it is live any more, or it is damaged and left as it is.
                Err(error) => tracing::debug!(pos = %record.at, %error, "not copied"),
            }
        }
        None
    }

    fn copy(&mut self, reading: &mut FrameReader, record: &LiveRecord) -> io::Result<RecordCopy> {
        match &record.of {
            RecordOwner::State(queue, session) => {
                let (kind, record) = reading.frame(record.at, ReadMode::Blocking)?;
                let state = state_of(kind, &record).ok_or(io::ErrorKind::InvalidData)?;
                Ok(RecordCopy::State(*queue, session.clone(), state))
            }
            RecordOwner::Message(message) => {
                let places = self.places(record, *message);
                let kept = read_whole(reading, record.at)?;
                Ok(RecordCopy::Message(Box::new(RelocatedMessage { places, ..detached(kept) })))
            }
        }
    }

    /// All messages that share one record. Its body is copied once.
    fn places(&mut self, first: &LiveRecord, message: MessageRef) -> Vec<MessageRef> {
        let mut places = vec![message];
        while let Some(next) = self.records.next_if(|next| next.at == first.at) {
            if let RecordOwner::Message(message) = next.of {
                places.push(message);
            }
        }
        places
    }
}

/// Copies small messages out of the larger read buffer, so that a batch does not keep many times its size in memory.
fn detached(kept: RelocatedMessage) -> RelocatedMessage {
    let own = |bytes: &Bytes| Bytes::copy_from_slice(bytes);
    RelocatedMessage { head: own(&kept.head), body: own(&kept.body), ..kept }
}
