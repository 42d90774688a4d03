//! Copies live records out of segments that are nearly empty, batch by batch.
//!
//! The snapshot's core said what lives there (`core/relocate.rs`); here it is read whole, on the thread that makes
//! snapshots. The serving core journals each copy unless the original changed meanwhile. A step is a function of what
//! is on disk, so the simulator drives it too.

use std::io;
use std::iter::Peekable;
use std::vec::IntoIter;

use bytes::Bytes;

use crate::codec::{read_whole, state_of};
use crate::core::{Copied, Relocation, Resident, Whose};
use crate::event::{Kept, MessageRef};
use crate::journal::{HEADER_BYTES, Patience, Reading, Segments};

/// Journal bytes of one batch, beyond its first record: serving goes on between batches.
const BATCH_BYTES: usize = 256 << 10;

/// Records looked at for one snapshot; the rest has to wait for the next.
pub const RESIDENTS_MAX: usize = 1 << 20;

/// What is to be copied after one snapshot.
pub struct Compaction {
    residents: Peekable<IntoIter<Resident>>,
    /// Read, but too large for the batch that it was read for.
    held: Option<Relocation>,
    batch_bytes: usize,
    record_bytes_max: usize,
}

impl Compaction {
    /// Copies these, which are in order, into a journal with segments of this size.
    pub fn new(residents: Vec<Resident>, segment_bytes: u64) -> Self {
        let segment_bytes = usize::try_from(segment_bytes).unwrap_or(usize::MAX);
        Self {
            residents: residents.into_iter().peekable(),
            held: None,
            batch_bytes: BATCH_BYTES.min(segment_bytes / 4),
            record_bytes_max: segment_bytes.saturating_sub(2 * HEADER_BYTES),
        }
    }

    /// Reads the next batch; none when all is done.
    pub fn next_batch(&mut self, segments: &Segments) -> Option<Vec<Relocation>> {
        let mut reading = segments.reading(true);
        let (mut batch, mut bytes) = (Vec::new(), 0);
        while let Some(relocation) = self.next(&mut reading) {
            let room = relocation.room();
            if bytes > 0 && bytes + room > self.batch_bytes {
                self.held = Some(relocation);
                break;
            }
            bytes += room;
            batch.push(relocation);
        }
        (!batch.is_empty()).then_some(batch)
    }

    fn next(&mut self, reading: &mut Reading) -> Option<Relocation> {
        if let Some(held) = self.held.take() {
            return Some(held);
        }
        while let Some(resident) = self.residents.next() {
            match self.copy(reading, &resident) {
                Ok(copy) => {
                    let relocation = Relocation { from: resident.at, copy };
                    // Changes laid over it again and again may have made it larger than a segment: it stays.
                    if relocation.room() <= self.record_bytes_max {
                        return Some(relocation);
                    }
                }
                // Its segment is gone because nothing in it lives any more, or it is damaged and stays as it is.
                Err(error) => tracing::debug!(pos = %resident.at, %error, "not copied"),
            }
        }
        None
    }

    fn copy(&mut self, reading: &mut Reading, resident: &Resident) -> io::Result<Copied> {
        match &resident.of {
            Whose::State(queue, session) => {
                let (kind, record) = reading.frame(resident.at, Patience::Blocking)?;
                let state = state_of(kind, &record).ok_or(io::ErrorKind::InvalidData)?;
                Ok(Copied::State(*queue, session.clone(), state))
            }
            Whose::Message(message) => {
                let places = self.places(resident, *message);
                let kept = read_whole(reading, resident.at)?;
                Ok(Copied::Message(Box::new(Kept { places, ..detached(kept) })))
            }
        }
    }

    /// All places that share one record: its body is copied once.
    fn places(&mut self, first: &Resident, message: MessageRef) -> Vec<MessageRef> {
        let mut places = vec![message];
        while let Some(next) = self.residents.next_if(|next| next.at == first.at) {
            if let Whose::Message(message) = next.of {
                places.push(message);
            }
        }
        places
    }
}

/// Small messages are cut out of what was read around them, so that a batch does not hold many times its size.
fn detached(kept: Kept) -> Kept {
    let own = |bytes: &Bytes| Bytes::copy_from_slice(bytes);
    Kept { head: own(&kept.head), body: own(&kept.body), ..kept }
}
