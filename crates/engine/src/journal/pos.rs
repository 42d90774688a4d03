//! Positions in the journal.

use std::fmt;

/// Bits of a [`Pos`] for the offset in a segment.
const OFFSET_BITS: u32 = 26;

/// The maximum length of a segment.
pub const SEGMENT_BYTES_MAX: u64 = 1 << OFFSET_BITS;

/// A position in the journal, and its log sequence number: positions are ordered as they were written.
///
/// ```text
/// 63                              26 25             0
/// | generation of the segment        | byte offset   |
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Pos(u64);

impl Pos {
    /// Before all positions: generations start at 1.
    pub const ZERO: Pos = Pos(0);

    pub const fn new(generation: u64, offset: u32) -> Pos {
        debug_assert!((offset as u64) < SEGMENT_BYTES_MAX);
        Pos(generation << OFFSET_BITS | offset as u64)
    }

    /// The inverse of [`Pos::get`].
    pub const fn from_u64(raw: u64) -> Pos {
        Pos(raw)
    }

    /// The position as a number, with the same order.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The number of the segment.
    pub const fn generation(self) -> u64 {
        self.0 >> OFFSET_BITS
    }

    /// The byte offset in the segment.
    pub const fn offset(self) -> u32 {
        (self.0 & (SEGMENT_BYTES_MAX - 1)) as u32
    }

    /// The position `bytes` later in the same segment.
    pub(super) const fn plus(self, bytes: u32) -> Pos {
        Pos(self.0 + bytes as u64)
    }
}

impl fmt::Display for Pos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.generation(), self.offset())
    }
}

impl fmt::Debug for Pos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
