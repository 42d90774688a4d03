//! Scrubbing: reads sealed segments again and again, slowly, and verifies every frame, so that damage on disk is found
//! while there is still a backup.
//!
//! Data in the page cache is verified there; the point is to read the rest from the disk.

use std::io;
use std::sync::Arc;

use super::frame::{self, decode_frame};
use super::report::Damage;
use super::scan::{Lookahead, ScanStep, Scanner};
use super::segment::{Segment, Segments};
use super::{HEADER_BYTES, Marks, Pos};
use crate::disk::Disk;

/// The size of a read, unless a frame is larger.
const PIECE_BYTES: usize = 1 << 20;

/// Verifies the sealed segments in turn.
pub struct Scrubber {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) segments: Segments,
    pub(super) marks: Arc<Marks>,
    pub(super) at: Pos,
}

/// The result of [`Scrubber::step`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scrubbed {
    pub bytes: u64,
    /// A damaged part; its segment is quarantined.
    pub damage: Option<Damage>,
    /// All sealed segments were verified; the next step starts again.
    pub round: bool,
}

impl Scrubber {
    /// Verifies about 1 MiB. After an I/O error, the next step continues after the segment.
    pub fn step(&mut self) -> io::Result<Scrubbed> {
        let mut done = Scrubbed { bytes: 0, damage: None, round: false };
        let Some(segment) = self.next_segment() else {
            self.at = Pos::ZERO;
            done.round = true;
            return Ok(done);
        };
        if self.at.generation() != segment.generation {
            self.at = Pos::new(segment.generation, HEADER_BYTES as u32);
        }
        let stopped = self.verify_piece(&segment, &mut done);
        if !matches!(stopped, Ok(false)) {
            self.at = Pos::new(segment.generation + 1, 0);
        }
        // A frame is not intact: find out whether it is damage or only the end.
        if stopped? && let Some(damage) = damage_in(&segment, self.end_of(&segment))? {
            segment.quarantine();
            segment.mark_quarantine(&*self.disk)?;
            done.damage = Some(damage);
        }
        Ok(done)
    }

    /// The current or next segment: sealed, durable, and not known to be damaged.
    fn next_segment(&self) -> Option<Arc<Segment>> {
        let durable = self.marks.durable();
        let usable = |segment: &Arc<Segment>| {
            segment.generation >= self.at.generation()
                && !segment.is_quarantined()
                && segment.end().is_some_and(|end| end <= durable)
        };
        self.segments.all().into_iter().find(usable)
    }

    fn end_of(&self, segment: &Segment) -> u32 {
        segment.end().map_or(segment.file.limit(), Pos::offset)
    }

    /// Verifies frames from the current position. Returns true if one is not intact.
    fn verify_piece(&mut self, segment: &Segment, done: &mut Scrubbed) -> io::Result<bool> {
        let end = self.end_of(segment) as usize;
        let rest = end.saturating_sub(self.at.offset() as usize);
        let mut bytes = self.read(segment, PIECE_BYTES.min(rest), done)?;
        if let Some(len) = frame::announced_len(&bytes, self.at)
            && len > bytes.len()
            && len <= rest
        {
            bytes = self.read(segment, len, done)?;
        }
        // The file ends before its frames do: it was cut while the server runs.
        if bytes.is_empty() && rest > 0 {
            return Ok(true);
        }
        let mut offset = 0;
        while offset < bytes.len() {
            let here = &bytes[offset..];
            match decode_frame(here, self.at, segment.salt) {
                Ok(frame) => {
                    offset += frame.len_bytes();
                    self.at = self.at.plus(frame.len_bytes() as u32);
                }
                // The frame continues after this piece: read it again from its beginning.
                Err(_) if offset > 0 && bytes.len() < rest && cut_off(here, self.at) => break,
                Err(_) => return Ok(true),
            }
        }
        if self.at.offset() as usize >= end {
            self.at = Pos::new(segment.generation + 1, 0);
        }
        Ok(false)
    }

    fn read(&self, segment: &Segment, len: usize, done: &mut Scrubbed) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        let got = segment.file.file.read_at(&mut bytes, self.at.offset().into())?;
        bytes.truncate(got);
        done.bytes += got as u64;
        Ok(bytes)
    }
}

/// Whether a frame may begin here that continues after these bytes.
fn cut_off(here: &[u8], at: Pos) -> bool {
    here.len() < frame::FRAME_HEADER_BYTES
        || frame::announced_len(here, at).is_some_and(|len| len > here.len())
}

/// Reads a whole segment and finds the first damaged part.
pub(super) fn damage_in(segment: &Segment, end: u32) -> io::Result<Option<Damage>> {
    let mut bytes = Vec::new();
    segment.read_all(end, &mut bytes)?;
    Ok(first_damage(segment, &bytes, end).err())
}

/// Returns where a segment's frames end, or what is damaged. The end of an old segment is unknown if its successor was
/// recycled. Then a bad frame is damage only if a later mark shows that it was durable.
pub(super) fn first_damage(segment: &Segment, bytes: &[u8], end: u32) -> Result<u32, Damage> {
    let mut scan = Scanner::new(bytes, segment, HEADER_BYTES as u32, end);
    loop {
        match scan.next() {
            ScanStep::Group => {}
            ScanStep::End => return Ok(end),
            ScanStep::Broken => {
                let from = scan.pos();
                let mut ahead = Lookahead::default();
                ahead.look(bytes, segment, from.offset(), end);
                // The end is unknown. What follows was torn, and given up by an earlier recovery.
                if end == segment.file.limit() && ahead.durable <= from {
                    return Ok(from.offset());
                }
                scan.skip_damage();
                return Err(Damage { file: segment.file.name(), from, to: scan.pos() });
            }
        }
    }
}
