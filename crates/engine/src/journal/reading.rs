//! Reading frames: neighbours share one read, and the caller decides whether a read may block.

use std::io;
use std::sync::Arc;

use bytes::Bytes;

use super::Pos;
use super::frame::{self, FRAME_HEADER_BYTES};
use super::segment::{Segment, Segments};

/// The size of a read if more frames nearby are wanted.
const AHEAD_BYTES: usize = 128 << 10;
/// The size of a read otherwise: most frames are smaller than a page.
const ALONE_BYTES: usize = 4096;
/// Frames further apart are read separately: reading the gap would cost more than another read, and would stay in
/// memory with both. This is typical for messages of one session among many.
const APART_BYTES: usize = 8192;

/// Whether a read may block on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadMode {
    /// Read only from the page cache. An error means that this was not enough; it says nothing about the record.
    CacheOnly,
    Blocking,
}

/// Reads frames and keeps the last read. Bodies are slices of it, without a copy.
pub struct FrameReader {
    segments: Segments,
    window: Option<ReadWindow>,
    /// The last read of a record that is not in the list: bodies under overlays.
    aside: Option<ReadWindow>,
    wanted: ReadAhead,
    /// The end of the last frame: its segment's generation and the offset.
    end: Option<(u64, usize)>,
}

/// How much to read ahead.
enum ReadAhead {
    /// This many bytes.
    Bytes(usize),
    /// As far as these positions are close together, beginning at this index.
    Positions(Arc<[Pos]>, usize),
}

struct ReadWindow {
    segment: Arc<Segment>,
    offset: u32,
    bytes: Bytes,
}

impl FrameReader {
    pub(super) fn new(segments: Segments, many: bool) -> Self {
        let ahead_bytes = if many { AHEAD_BYTES } else { ALONE_BYTES };
        let wanted = ReadAhead::Bytes(ahead_bytes);
        Self { segments, window: None, aside: None, wanted, end: None }
    }

    pub(super) fn of(segments: Segments, positions: Arc<[Pos]>) -> Self {
        let wanted = ReadAhead::Positions(positions, 0);
        Self { segments, window: None, aside: None, wanted, end: None }
    }

    /// Sets the index of the next position to be read.
    pub(crate) fn seek(&mut self, nth: usize) {
        if let ReadAhead::Positions(_, at) = &mut self.wanted {
            *at = nth;
        }
    }

    /// Reads and verifies the frame at `pos`. Returns its kind and body.
    pub fn frame(&mut self, pos: Pos, mode: ReadMode) -> io::Result<(u8, Bytes)> {
        let whole = |window: &ReadWindow| {
            let rest = window.rest(pos)?;
            let len = frame::announced_len(&rest, pos)?;
            (len <= rest.len()).then(|| (rest, window.segment.clone()))
        };
        let known = [&self.window, &self.aside].into_iter().flatten().find_map(whole);
        let (here, segment) = match known {
            Some(here) => here,
            None => self.fetch(pos, mode)?,
        };
        match frame::decode_frame(&here, pos, segment.salt) {
            Ok(frame) => {
                let (kind, len) = (frame.kind, frame.body.len());
                self.end =
                    Some((pos.generation(), pos.offset() as usize + FRAME_HEADER_BYTES + len));
                Ok((kind, here.slice(FRAME_HEADER_BYTES..FRAME_HEADER_BYTES + len)))
            }
            Err(error) => Err(super::segment::unreadable(pos, &segment.file.name(), &error)),
        }
    }

    /// Moves the window to `pos`, wide enough for its frame.
    fn fetch(&mut self, pos: Pos, mode: ReadMode) -> io::Result<(Bytes, Arc<Segment>)> {
        let (bytes, window) = match &self.wanted {
            ReadAhead::Bytes(bytes) => (*bytes, &mut self.window),
            ReadAhead::Positions(all, at) if all.get(*at) == Some(&pos) => {
                // Large adjacent frames are far apart only because of their own size.
                let beside = self.end.is_some_and(|(generation, end)| {
                    let apart = (pos.offset() as usize).checked_sub(end);
                    let near = apart.is_some_and(|apart| apart <= APART_BYTES);
                    near && generation == pos.generation()
                });
                let apart_max = if beside { AHEAD_BYTES } else { APART_BYTES };
                (read_size(&all[*at..], apart_max), &mut self.window)
            }
            ReadAhead::Positions(..) => (ALONE_BYTES, &mut self.aside),
        };
        let segment = match window.take() {
            Some(window) if window.segment.generation == pos.generation() => window.segment,
            _ => self.segments.find(pos)?,
        };
        let room = (segment.file.limit() as usize).saturating_sub(pos.offset() as usize);
        let mut buf = vec![0; bytes.min(room)];
        let named = |error: io::Error| {
            let (kind, file) = (error.kind(), segment.file.name());
            io::Error::new(kind, format!("journal position {pos} in {file}: {error}"))
        };
        let got = read(&segment, &mut buf, pos.offset(), mode).map_err(named)?;
        buf.truncate(got);
        let whole = frame::announced_len(&buf, pos).unwrap_or(0).min(room);
        if whole > buf.len() {
            let had = buf.len();
            buf.resize(whole, 0);
            let got =
                read(&segment, &mut buf[had..], pos.offset() + had as u32, mode).map_err(named)?;
            buf.truncate(had + got);
        }
        let (bytes, offset) = (Bytes::from(buf), pos.offset());
        *window = Some(ReadWindow { segment: segment.clone(), offset, bytes: bytes.clone() });
        Ok((bytes, segment))
    }
}

/// How much to read for the first position and those close behind it.
fn read_size(positions: &[Pos], apart_max: usize) -> usize {
    let Some(first) = positions.first() else { return ALONE_BYTES };
    let mut last = *first;
    for &next in &positions[1..] {
        let apart = next.offset().checked_sub(last.offset());
        let near = apart.is_some_and(|apart| apart as usize <= apart_max);
        if next.generation() != first.generation() || !near {
            break;
        }
        last = next;
        if (last.offset() - first.offset()) as usize >= AHEAD_BYTES {
            break;
        }
    }
    ((last.offset() - first.offset()) as usize + ALONE_BYTES).min(AHEAD_BYTES)
}

impl ReadWindow {
    /// The part of the window from `pos` on.
    fn rest(&self, pos: Pos) -> Option<Bytes> {
        let at = pos.offset().checked_sub(self.offset)? as usize;
        let here = self.segment.generation == pos.generation()
            && at + FRAME_HEADER_BYTES <= self.bytes.len();
        here.then(|| self.bytes.slice(at..))
    }
}

fn read(segment: &Segment, buf: &mut [u8], offset: u32, mode: ReadMode) -> io::Result<usize> {
    match mode {
        ReadMode::CacheOnly => segment.file.file.read_cached_at(buf, offset.into()),
        ReadMode::Blocking => segment.file.file.read_at(buf, offset.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(offsets: &[u32]) -> usize {
        let all: Vec<Pos> = offsets.iter().map(|&offset| Pos::new(1, offset)).collect();
        read_size(&all, APART_BYTES)
    }

    #[test]
    fn adjacent_records_are_read_together() {
        assert_eq!(of(&[4096]), ALONE_BYTES);
        assert_eq!(of(&[4096, 4400, 4700]), 604 + ALONE_BYTES);
        // One session of a thousand.
        assert_eq!(of(&[4096, 334_096, 664_096]), ALONE_BYTES);
        assert_eq!(of(&[4096, 4400, 334_096]), 304 + ALONE_BYTES);
        // An older record is somewhere else.
        assert_eq!(of(&[8192, 4096]), ALONE_BYTES);
        let many: Vec<u32> = (0..10_000).map(|n| 4096 + n * 300).collect();
        assert_eq!(of(&many), AHEAD_BYTES);
        assert_eq!(read_size(&[Pos::new(1, 4096), Pos::new(2, 4100)], AHEAD_BYTES), ALONE_BYTES);
        assert_eq!(read_size(&[], APART_BYTES), ALONE_BYTES);
    }
}
