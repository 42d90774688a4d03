//! Reading many frames: neighbours share one read, and nobody's thread waits for a disk by surprise.

use std::io;
use std::sync::Arc;

use bytes::Bytes;

use super::Pos;
use super::frame::{self, FRAME_HEADER_BYTES};
use super::segment::{Segment, Segments};

/// What one read takes when more frames nearby are wanted.
const AHEAD_BYTES: usize = 128 << 10;
/// What one read takes otherwise: most frames are smaller than a page.
const ALONE_BYTES: usize = 4096;

/// Whether a read may wait for the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// Only what memory holds; otherwise the error is [`io::ErrorKind::WouldBlock`].
    None,
    /// As long as it takes.
    Blocking,
}

/// A reader that remembers what it read last. Bodies it gives are slices of that, without a copy.
pub struct Reading {
    segments: Segments,
    window: Option<Window>,
    ahead_bytes: usize,
}

struct Window {
    segment: Arc<Segment>,
    offset: u32,
    bytes: Bytes,
}

impl Reading {
    pub(super) fn new(segments: Segments, many: bool) -> Self {
        let ahead_bytes = if many { AHEAD_BYTES } else { ALONE_BYTES };
        Self { segments, window: None, ahead_bytes }
    }

    /// Reads and verifies the frame at `pos`: its kind and body.
    pub fn frame(&mut self, pos: Pos, patience: Patience) -> io::Result<(u8, Bytes)> {
        let here = self.window.as_ref().and_then(|window| window.rest(pos));
        let here = match here {
            Some(rest) if frame::announced_len(&rest, pos).is_some_and(|len| len <= rest.len()) => {
                rest
            }
            _ => self.fetch(pos, patience)?,
        };
        let window = self.window.as_ref().expect("fetching leaves a window");
        match frame::decode_frame(&here, pos, window.segment.salt) {
            Ok(frame) => {
                let (kind, len) = (frame.kind, frame.body.len());
                Ok((kind, here.slice(FRAME_HEADER_BYTES..FRAME_HEADER_BYTES + len)))
            }
            Err(error) => Err(super::segment::unreadable(pos, &window.segment.file.name(), &error)),
        }
    }

    /// Moves the window to `pos`, wide enough for the frame there.
    fn fetch(&mut self, pos: Pos, patience: Patience) -> io::Result<Bytes> {
        let segment = match self.window.take() {
            Some(window) if window.segment.generation == pos.generation() => window.segment,
            _ => self.segments.find(pos)?,
        };
        let room = (segment.file.limit() as usize).saturating_sub(pos.offset() as usize);
        let mut buf = vec![0; self.ahead_bytes.min(room)];
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
        let bytes = Bytes::from(buf);
        self.window = Some(Window { segment, offset: pos.offset(), bytes: bytes.clone() });
        Ok(bytes)
    }
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
