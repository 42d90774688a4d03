//! Reading many frames: neighbours share one read, and nobody's thread waits for a disk by surprise.

use std::io;
use std::sync::Arc;

use bytes::Bytes;

use super::Pos;
use super::frame::{self, FRAME_HEADER_BYTES};
use super::segment::{Segment, Segments};

/// What one read takes at most when more frames nearby are wanted.
const AHEAD_BYTES: usize = 128 << 10;
/// What one read takes otherwise: most frames are smaller than a page.
const ALONE_BYTES: usize = 4096;
/// Two frames further apart are read by themselves: what lies between would cost more than another read, and be kept in
/// memory as long as either of them. So it is with the messages of one session among those of many.
const APART_BYTES: usize = 8192;

/// Whether a read may wait for the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// Only what memory holds. An error tells that this was not enough, and nothing about the record.
    None,
    /// As long as it takes.
    Blocking,
}

/// A reader that remembers what it read last. Bodies it gives are slices of that, without a copy.
pub struct Reading {
    segments: Segments,
    window: Option<Window>,
    /// What was read last of records that are not among those asked for: bodies that others lie over.
    aside: Option<Window>,
    wanted: Wanted,
    /// Where the last frame ended: its segment's generation and the byte.
    end: Option<(u64, usize)>,
}

/// What is read ahead.
enum Wanted {
    /// So many bytes, of whatever comes.
    Bytes(usize),
    /// As far as these stand close together, beginning with the one of this number.
    These(Arc<[Pos]>, usize),
}

struct Window {
    segment: Arc<Segment>,
    offset: u32,
    bytes: Bytes,
}

impl Reading {
    pub(super) fn new(segments: Segments, many: bool) -> Self {
        let ahead_bytes = if many { AHEAD_BYTES } else { ALONE_BYTES };
        let wanted = Wanted::Bytes(ahead_bytes);
        Self { segments, window: None, aside: None, wanted, end: None }
    }

    pub(super) fn of(segments: Segments, positions: Arc<[Pos]>) -> Self {
        let wanted = Wanted::These(positions, 0);
        Self { segments, window: None, aside: None, wanted, end: None }
    }

    /// The next to be read is the one of this number.
    pub(crate) fn turn_to(&mut self, nth: usize) {
        if let Wanted::These(_, at) = &mut self.wanted {
            *at = nth;
        }
    }

    /// Reads and verifies the frame at `pos`: its kind and body.
    pub fn frame(&mut self, pos: Pos, patience: Patience) -> io::Result<(u8, Bytes)> {
        let whole = |window: &Window| {
            let rest = window.rest(pos)?;
            let len = frame::announced_len(&rest, pos)?;
            (len <= rest.len()).then(|| (rest, window.segment.clone()))
        };
        let known = [&self.window, &self.aside].into_iter().flatten().find_map(whole);
        let (here, segment) = match known {
            Some(here) => here,
            None => self.fetch(pos, patience)?,
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

    /// Moves a window to `pos`, wide enough for the frame there.
    fn fetch(&mut self, pos: Pos, patience: Patience) -> io::Result<(Bytes, Arc<Segment>)> {
        let (bytes, window) = match &self.wanted {
            Wanted::Bytes(bytes) => (*bytes, &mut self.window),
            Wanted::These(all, at) if all.get(*at) == Some(&pos) => {
                // Large ones that stand side by side are far apart only by their own size.
                let beside = self.end.is_some_and(|(generation, end)| {
                    let apart = (pos.offset() as usize).checked_sub(end);
                    let near = apart.is_some_and(|apart| apart <= APART_BYTES);
                    near && generation == pos.generation()
                });
                let apart_max = if beside { AHEAD_BYTES } else { APART_BYTES };
                (together(&all[*at..], apart_max), &mut self.window)
            }
            Wanted::These(..) => (ALONE_BYTES, &mut self.aside),
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
        let got = read(&segment, &mut buf, pos.offset(), patience).map_err(named)?;
        buf.truncate(got);
        let whole = frame::announced_len(&buf, pos).unwrap_or(0).min(room);
        if whole > buf.len() {
            let had = buf.len();
            buf.resize(whole, 0);
            let got = read(&segment, &mut buf[had..], pos.offset() + had as u32, patience)
                .map_err(named)?;
            buf.truncate(had + got);
        }
        let (bytes, offset) = (Bytes::from(buf), pos.offset());
        *window = Some(Window { segment: segment.clone(), offset, bytes: bytes.clone() });
        Ok((bytes, segment))
    }
}

/// How much to read for the first of these and for those that stand close behind it, each at most so far from the last.
fn together(positions: &[Pos], apart_max: usize) -> usize {
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

impl Window {
    /// What of the window begins at `pos`.
    fn rest(&self, pos: Pos) -> Option<Bytes> {
        let at = pos.offset().checked_sub(self.offset)? as usize;
        let here = self.segment.generation == pos.generation()
            && at + FRAME_HEADER_BYTES <= self.bytes.len();
        here.then(|| self.bytes.slice(at..))
    }
}

fn read(segment: &Segment, buf: &mut [u8], offset: u32, patience: Patience) -> io::Result<usize> {
    match patience {
        Patience::None => segment.file.file.read_cached_at(buf, offset.into()),
        Patience::Blocking => segment.file.file.read_at(buf, offset.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(offsets: &[u32]) -> usize {
        let all: Vec<Pos> = offsets.iter().map(|&offset| Pos::new(1, offset)).collect();
        together(&all, APART_BYTES)
    }

    #[test]
    fn neighbours_are_read_together_and_others_alone() {
        assert_eq!(of(&[4096]), ALONE_BYTES);
        assert_eq!(of(&[4096, 4400, 4700]), 604 + ALONE_BYTES);
        // One session of a thousand.
        assert_eq!(of(&[4096, 334_096, 664_096]), ALONE_BYTES);
        assert_eq!(of(&[4096, 4400, 334_096]), 304 + ALONE_BYTES);
        // Back to an older record: that is somewhere else.
        assert_eq!(of(&[8192, 4096]), ALONE_BYTES);
        let many: Vec<u32> = (0..10_000).map(|n| 4096 + n * 300).collect();
        assert_eq!(of(&many), AHEAD_BYTES);
        assert_eq!(together(&[Pos::new(1, 4096), Pos::new(2, 4100)], AHEAD_BYTES), ALONE_BYTES);
        assert_eq!(together(&[], APART_BYTES), ALONE_BYTES);
    }
}
