//! Walks the groups of one segment in memory. Tells a whole group from a broken one and
//! finds the way back after damage; what a broken group means (torn tail or
//! damage) is for the caller to say, who knows what was durable.

use std::io;
use std::ops::Range;

use super::Pos;
use super::frame::{
    FLAG_CONT, FLAG_MORE, FrameError, KIND_MARK, decode_frame, find_frame, mark_of,
};
use super::segment::Segment;

/// A frame of the current group.
pub(super) struct Placed {
    pub(super) pos: Pos,
    pub(super) kind: u8,
    body: Range<usize>,
}

/// What stands at the scanner's place.
pub(super) enum Found {
    /// A whole group, in [`Scanner::group`].
    Group,
    /// A group starts here, or should, and something in it is not intact.
    Broken,
    /// The given end is reached.
    End,
}

/// A position in one segment's bytes.
pub(super) struct Scanner<'a> {
    bytes: &'a [u8],
    /// Where `bytes` begins in the segment.
    base: usize,
    generation: u64,
    salt: u32,
    at: usize,
    end: usize,
    group: Vec<Placed>,
    /// First place where nothing intact was found, when broken.
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

    /// Scans a piece of a segment that begins at `at`, for whole groups only.
    fn of_piece(bytes: &'a [u8], segment: &Segment, at: u32) -> Self {
        let end = at + bytes.len() as u32;
        Scanner { base: at as usize, ..Self::new(bytes, segment, at, end) }
    }

    /// After [`Found::Broken`] in a piece: whether only the end of the piece is in the way.
    fn is_cut(&self) -> bool {
        let rest = self.bytes.get(self.bad - self.base..).unwrap_or(&[]);
        decode_frame(rest, self.pos_of(self.bad), self.salt) == Err(FrameError::Short)
    }

    /// Where the next group starts.
    pub(super) fn pos(&self) -> Pos {
        self.pos_of(self.at)
    }

    fn pos_of(&self, at: usize) -> Pos {
        Pos::new(self.generation, at as u32)
    }

    /// The frames of the group just found; none if it was the journal's own mark.
    pub(super) fn group(&self) -> impl Iterator<Item = (Pos, u8, &'a [u8])> + '_ {
        self.group.iter().map(|placed| (placed.pos, placed.kind, &self.bytes[placed.body.clone()]))
    }

    /// The durable mark, if the group just found was one.
    pub(super) fn mark(&self) -> Option<Pos> {
        self.mark
    }

    pub(super) fn next(&mut self) -> Found {
        self.group.clear();
        self.mark = None;
        if self.at >= self.end {
            return Found::End;
        }
        let mut at = self.at;
        loop {
            let stop = (self.end - self.base).min(self.bytes.len());
            let rest = self.bytes.get(at - self.base..stop).unwrap_or(&[]);
            let frame = match decode_frame(rest, self.pos_of(at), self.salt) {
                // A group that lost its first or its last frames is as broken as a bad checksum.
                Ok(frame) if (frame.flags & FLAG_CONT != 0) == (at != self.at) => frame,
                _ => {
                    self.bad = at;
                    return Found::Broken;
                }
            };
            let end = at - self.base + frame.len_bytes();
            let body = end - frame.body.len()..end;
            if frame.kind == KIND_MARK {
                self.mark = mark_of(&frame);
            } else {
                self.group.push(Placed { pos: self.pos_of(at), kind: frame.kind, body });
            }
            at += frame.len_bytes();
            if frame.flags & FLAG_MORE == 0 {
                self.at = at;
                return Found::Group;
            }
            if at >= self.end {
                self.bad = at;
                return Found::Broken;
            }
        }
    }

    /// After [`Found::Broken`]: goes to the next group start behind the damage. `false` if there is none;
    /// then the scanner stands at the end.
    pub(super) fn skip_damage(&mut self) -> bool {
        let mut from = self.bad;
        // A group that was cut short by the start of another: that one is intact.
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

/// Read at once by [`walk`], unless a group is longer.
const PIECE_BYTES: u32 = 1 << 20;

/// Hands over the whole groups of a segment from `from` on, which is read piece by piece: memory is needed for a piece
/// and not for the segment. Tells where it stopped: at `end`, or at a group that is not whole.
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
                Found::Group => take(&scan),
                Found::End => break true,
                Found::Broken => break scan.is_cut(),
            }
        };
        let reached = scan.pos().offset();
        if !cut || reached == at && piece.len() as u32 == end - at {
            return Ok(reached);
        }
        // Not even one group fits: more at once.
        bytes = if reached == at { bytes.saturating_mul(2) } else { PIECE_BYTES };
        if reached == at && (piece.len() as u32) < bytes / 2 {
            return Ok(reached); // the file is shorter than it should be
        }
        at = reached;
    }
    Ok(at)
}

/// What intact frames lie ahead, wherever they are.
#[derive(Default)]
pub(super) struct Ahead {
    pub(super) frames: u64,
    /// The highest durable position any of them knows of.
    pub(super) durable: Pos,
}

impl Ahead {
    /// Adds every intact frame in `from..end` of a segment.
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
