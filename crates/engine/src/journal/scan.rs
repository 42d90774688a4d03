//! Scans the groups of one segment in memory. It tells complete groups from broken ones, and finds the next group after
//! damage. Whether a broken group is a torn tail or damage is decided by the caller, who knows what was durable.

use std::io;
use std::ops::Range;

use super::Pos;
use super::frame::{
    FLAG_CONT, FLAG_MORE, FrameError, KIND_MARK, decode_frame, find_frame, mark_of,
};
use super::segment::Segment;

pub(super) struct ScannedFrame {
    pub(super) pos: Pos,
    pub(super) kind: u8,
    body: Range<usize>,
}

/// What is at the scanner's position.
pub(super) enum ScanStep {
    /// A complete group, in [`Scanner::group`].
    Group,
    /// A group that is not intact.
    Broken,
    /// The end of the written groups.
    End,
}

pub(super) struct Scanner<'a> {
    bytes: &'a [u8],
    /// The offset of `bytes` in the segment.
    base: usize,
    generation: u64,
    salt: u32,
    at: usize,
    end: usize,
    group: Vec<ScannedFrame>,
    /// After `Broken`: the first position without an intact frame.
    bad: usize,
    mark: Option<Pos>,
}

impl<'a> Scanner<'a> {
    /// Scans from offset `at` to `end`; `bytes` is the segment from its first byte.
    pub(super) fn new(bytes: &'a [u8], segment: &Segment, at: u32, end: u32) -> Self {
        let (generation, salt) = (segment.generation, segment.salt);
        let (base, at, end) = (0, at as usize, end as usize);
        Scanner { bytes, base, generation, salt, at, end, group: Vec::new(), bad: 0, mark: None }
    }

    /// Scans a piece of a segment that begins at `at`, for complete groups only.
    fn of_piece(bytes: &'a [u8], segment: &Segment, at: u32) -> Self {
        let end = at + bytes.len() as u32;
        Scanner { base: at as usize, ..Self::new(bytes, segment, at, end) }
    }

    /// After [`ScanStep::Broken`] in a piece: whether only the end of the piece is missing.
    fn is_cut(&self) -> bool {
        let rest = self.bytes.get(self.bad - self.base..).unwrap_or(&[]);
        decode_frame(rest, self.pos_of(self.bad), self.salt) == Err(FrameError::Short)
    }

    /// The position of the next group.
    pub(super) fn pos(&self) -> Pos {
        self.pos_of(self.at)
    }

    fn pos_of(&self, at: usize) -> Pos {
        Pos::new(self.generation, at as u32)
    }

    /// The frames of the current group; empty if it was a mark.
    pub(super) fn group(&self) -> impl Iterator<Item = (Pos, u8, &'a [u8])> + '_ {
        self.group.iter().map(|placed| (placed.pos, placed.kind, &self.bytes[placed.body.clone()]))
    }

    /// The durable position, if the current group is a mark.
    pub(super) fn mark(&self) -> Option<Pos> {
        self.mark
    }

    pub(super) fn next(&mut self) -> ScanStep {
        self.group.clear();
        self.mark = None;
        if self.at >= self.end {
            return ScanStep::End;
        }
        let mut at = self.at;
        loop {
            let stop = (self.end - self.base).min(self.bytes.len());
            let rest = self.bytes.get(at - self.base..stop).unwrap_or(&[]);
            let frame = match decode_frame(rest, self.pos_of(at), self.salt) {
                // A group without its first or last frames is broken, too.
                Ok(frame) if (frame.flags & FLAG_CONT != 0) == (at != self.at) => frame,
                _ => {
                    self.bad = at;
                    return ScanStep::Broken;
                }
            };
            let end = at - self.base + frame.len_bytes();
            let body = end - frame.body.len()..end;
            if frame.kind == KIND_MARK {
                self.mark = mark_of(&frame);
            } else {
                self.group.push(ScannedFrame { pos: self.pos_of(at), kind: frame.kind, body });
            }
            at += frame.len_bytes();
            if frame.flags & FLAG_MORE == 0 {
                self.at = at;
                return ScanStep::Group;
            }
            if at >= self.end {
                self.bad = at;
                return ScanStep::Broken;
            }
        }
    }

    /// After [`ScanStep::Broken`]: goes to the next group after the damage. Returns false if there is none; then the
    /// scanner is at the end.
    pub(super) fn skip_damage(&mut self) -> bool {
        let mut from = self.bad;
        // A group that is cut short by the start of another one: that one is intact.
        while let Some(at) = find_frame(self.bytes, self.generation, self.salt, from, self.end) {
            let frame = decode_frame(
                &self.bytes[at..self.end.min(self.bytes.len())],
                self.pos_of(at),
                self.salt,
            );
            let Ok(frame) = frame else { break };
            if frame.flags & FLAG_CONT == 0 && at > self.at {
                self.at = at;
                return true;
            }
            from = at + frame.len_bytes();
        }
        self.at = self.end;
        false
    }
}

/// The size of a read of [`walk`], unless a group is longer.
const PIECE_BYTES: u32 = 1 << 20;

/// Calls `each` for the complete groups of a segment from `from` on. Reads piece by piece, so that it needs memory for
/// a piece, not for the segment. Returns where it stopped: at `end`, or at an incomplete group.
pub(super) fn walk(
    segment: &Segment,
    from: u32,
    end: u32,
    piece: &mut Vec<u8>,
    take: &mut dyn FnMut(&Scanner<'_>),
) -> io::Result<u32> {
    let (mut at, mut bytes) = (from, PIECE_BYTES);
    while at < end {
        segment.read_some(at, bytes.min(end - at), piece)?;
        let mut scan = Scanner::of_piece(piece, segment, at);
        let cut = loop {
            match scan.next() {
                ScanStep::Group => take(&scan),
                ScanStep::End => break true,
                ScanStep::Broken => break scan.is_cut(),
            }
        };
        let reached = scan.pos().offset();
        if !cut || reached == at && piece.len() as u32 == end - at {
            return Ok(reached);
        }
        // The piece is smaller than the group: read more at once.
        bytes = if reached == at { bytes.saturating_mul(2) } else { PIECE_BYTES };
        if reached == at && (piece.len() as u32) < bytes / 2 {
            return Ok(reached); // the file is shorter than it should be
        }
        at = reached;
    }
    Ok(at)
}

/// Intact frames after a position.
#[derive(Default)]
pub(super) struct Lookahead {
    pub(super) frames: u64,
    /// The highest durable position in any of their marks.
    pub(super) durable: Pos,
}

impl Lookahead {
    /// Adds all intact frames in `from..end` of a segment.
    pub(super) fn look(&mut self, bytes: &[u8], segment: &Segment, from: u32, end: u32) {
        let (generation, salt) = (segment.generation, segment.salt);
        let end = (end as usize).min(bytes.len());
        let mut from = from as usize;
        while let Some(at) = find_frame(bytes, generation, salt, from, end) {
            let Ok(frame) = decode_frame(&bytes[at..end], Pos::new(generation, at as u32), salt)
            else {
                break;
            };
            if let Some(mark) = mark_of(&frame) {
                self.durable = self.durable.max(mark);
            } else {
                self.frames += 1;
            }
            from = at + frame.len_bytes();
        }
    }
}
