//! Frames: the units of the journal. These are pure functions on bytes; they accept any input and never panic.
//!
//! ```text
//! 0     4     8            12       16     17      18
//! | len | crc | generation | offset | kind | flags | body: len bytes |
//! ```
//! Little endian. `crc` is the CRC32C of everything after it, seeded with `len` and the segment's salt. The salt is
//! secret, so a message body that looks like a frame is not mistaken for one when a reader resynchronizes after damage.
//!
//! `generation` and `offset` are the position that the frame was written for. A frame left over in a recycled segment
//! has a correct checksum and offset; only its generation shows that it is stale.

use super::Pos;

pub const FRAME_HEADER_BYTES: usize = 18;

/// The journal's own frame at the start of each write: it holds the durable position at that time.
pub const KIND_MARK: u8 = 0;

/// The group continues with the next frame.
pub const FLAG_MORE: u8 = 1;

/// The group began in an earlier frame. With this, a reader that resynchronized after damage can tell the rest of a
/// broken group from a complete one.
pub const FLAG_CONT: u8 = 2;

/// A decoded frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame<'a> {
    /// The type of the body; 0 is the journal's own.
    pub kind: u8,
    /// [`FLAG_MORE`] and [`FLAG_CONT`].
    pub flags: u8,
    pub body: &'a [u8],
}

impl Frame<'_> {
    /// The length of header and body.
    pub fn len_bytes(&self) -> usize {
        FRAME_HEADER_BYTES + self.body.len()
    }
}

/// Why there is no frame at a position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The bytes end before the frame.
    #[error("the frame is truncated")]
    Short,
    /// The header is for another position, or nothing was written here.
    #[error("no frame was written at this position")]
    Misplaced,
    #[error("the checksum is wrong")]
    Checksum,
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Decodes the frame at `bytes[0]`, which should be at `expected` in a segment with this salt.
pub fn decode_frame(bytes: &[u8], expected: Pos, salt: u32) -> Result<Frame<'_>, FrameError> {
    if bytes.len() < FRAME_HEADER_BYTES {
        return Err(FrameError::Short);
    }
    let generation = u32_at(bytes, 8);
    let stale =
        generation != expected.generation() as u32 && !cfg!(feature = "mutate-no-generation");
    // Generation 0 is never used: unwritten space reads as 0.
    if stale || generation == 0 || u32_at(bytes, 12) != expected.offset() {
        return Err(FrameError::Misplaced);
    }
    let len = u32_at(bytes, 0);
    let end = (len as usize).checked_add(FRAME_HEADER_BYTES).ok_or(FrameError::Short)?;
    let covered = bytes.get(8..end).ok_or(FrameError::Short)?;
    if crc32c::crc32c_append(len ^ salt, covered) != u32_at(bytes, 4)
        && !cfg!(feature = "mutate-no-crc")
    {
        return Err(FrameError::Checksum);
    }
    Ok(Frame { kind: bytes[16], flags: bytes[17], body: &bytes[FRAME_HEADER_BYTES..end] })
}

/// The length of the frame that a header announces, if the header is for `expected`. Not verified: only for deciding
/// how much to read.
pub(super) fn announced_len(header: &[u8], expected: Pos) -> Option<usize> {
    let named = header.len() >= FRAME_HEADER_BYTES && u32_at(header, 12) == expected.offset();
    named.then(|| u32_at(header, 0) as usize + FRAME_HEADER_BYTES)
}

/// Fills in the header of a frame.
pub(super) fn seal_frame(frame: &mut [u8], pos: Pos, salt: u32, kind: u8, flags: u8) {
    let len = (frame.len() - FRAME_HEADER_BYTES) as u32;
    frame[8..12].copy_from_slice(&(pos.generation() as u32).to_le_bytes());
    frame[12..16].copy_from_slice(&pos.offset().to_le_bytes());
    frame[16] = kind;
    frame[17] = flags;
    let crc = crc32c::crc32c_append(len ^ salt, &frame[8..]);
    frame[0..4].copy_from_slice(&len.to_le_bytes());
    frame[4..8].copy_from_slice(&crc.to_le_bytes());
}

/// The length of a mark frame.
pub(super) const MARK_BYTES: usize = FRAME_HEADER_BYTES + 8;

/// Appends a mark frame at `pos`.
pub(super) fn push_mark(out: &mut Vec<u8>, pos: Pos, salt: u32, durable: Pos) {
    let at = out.len();
    out.extend_from_slice(&[0; FRAME_HEADER_BYTES]);
    out.extend_from_slice(&durable.get().to_le_bytes());
    seal_frame(&mut out[at..], pos, salt, KIND_MARK, 0);
}

/// The durable position in a mark frame.
pub(super) fn mark_of(frame: &Frame<'_>) -> Option<Pos> {
    let body: [u8; 8] = frame.body.try_into().ok()?;
    (frame.kind == KIND_MARK).then(|| Pos::from_u64(u64::from_le_bytes(body)))
}

/// The next offset in `from..end` of a segment where an intact frame starts.
pub(super) fn find_frame(
    segment: &[u8],
    generation: u64,
    salt: u32,
    from: usize,
    end: usize,
) -> Option<usize> {
    let end = end.min(segment.len());
    (from..end.saturating_sub(FRAME_HEADER_BYTES - 1)).find(|&at| {
        // The offset field rules out almost all positions before a checksum is computed.
        u32_at(segment, at + 12) as usize == at
            && decode_frame(&segment[at..end], Pos::new(generation, at as u32), salt).is_ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SALT: u32 = 0x5a17;

    fn sealed(pos: Pos, body: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; FRAME_HEADER_BYTES];
        bytes.extend_from_slice(body);
        seal_frame(&mut bytes, pos, SALT, 3, FLAG_MORE);
        bytes
    }

    #[test]
    fn a_frame_is_read_only_where_it_was_written() {
        let pos = Pos::new(7, 4096);
        let bytes = sealed(pos, b"body");
        let frame = Frame { kind: 3, flags: FLAG_MORE, body: b"body" };
        assert_eq!(decode_frame(&bytes, pos, SALT), Ok(frame));
        assert_eq!(decode_frame(&bytes, Pos::new(7, 4097), SALT), Err(FrameError::Misplaced));
        if !cfg!(feature = "mutate-no-generation") {
            assert_eq!(decode_frame(&bytes, Pos::new(8, 4096), SALT), Err(FrameError::Misplaced));
        }
    }

    #[test]
    fn every_truncation_and_every_flipped_bit_is_detected() {
        let pos = Pos::new(7, 4096);
        let bytes = sealed(pos, b"a body of some length");
        for cut in 0..bytes.len() {
            assert!(decode_frame(&bytes[..cut], pos, SALT).is_err(), "cut at {cut}");
        }
        for bit in 0..bytes.len() * 8 {
            let mut bytes = bytes.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let noticed = decode_frame(&bytes, pos, SALT).is_err();
            assert!(
                noticed || cfg!(any(feature = "mutate-no-crc", feature = "mutate-no-generation")),
                "bit {bit}"
            );
        }
    }

    #[test]
    fn a_frame_inside_a_body_needs_the_salt() {
        let mut segment = vec![0; 4096];
        let forged = sealed(Pos::new(7, 4096 + FRAME_HEADER_BYTES as u32), b"forged");
        let mut outer = vec![0; FRAME_HEADER_BYTES];
        outer.extend_from_slice(&forged);
        seal_frame(&mut outer, Pos::new(7, 4096), 1, 3, 0);
        segment.extend_from_slice(&outer);
        let found = find_frame(&segment, 7, 1, 4097, segment.len());
        assert_eq!(found, if cfg!(feature = "mutate-no-crc") { Some(4114) } else { None });
    }

    #[test]
    fn a_false_length_allocates_nothing() {
        let pos = Pos::new(1, 4096);
        let mut bytes = sealed(pos, b"body");
        bytes[..4].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(decode_frame(&bytes, pos, SALT), Err(FrameError::Short));
        assert_eq!(decode_frame(&[0; 64], pos, SALT), Err(FrameError::Misplaced));
    }
}
