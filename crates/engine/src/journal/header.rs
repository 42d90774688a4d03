//! The first block of a segment file says which segment the file contains.
//!
//! ```text
//! 0       8         12         16           24             32        40    44
//! | magic | format  | salt     | generation | previous_end | durable | crc |
//! ```
//! Little endian; the CRC32C covers everything before it. The block is 4096 bytes and contains the record twice, 2048
//! bytes apart, each inside one sector: a flipped bit in one copy is harmless. Two different valid copies are a torn
//! write; the higher generation counts, because nothing of the newer segment was durable yet, and recovery will find it
//! empty.

use super::Pos;
use crate::format::FORMAT;

/// The offset of the first frame.
pub const HEADER_BYTES: usize = 4096;

const MAGIC: &[u8; 8] = b"maloteJ1";
const RECORD_BYTES: usize = 44;
const COPY_AT: usize = 2048;

/// The header of a segment file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// The number of the segment; 0 for a spare file.
    pub generation: u64,
    /// The end of the journal when this segment was begun.
    pub previous_end: Pos,
    /// The durable position at that time.
    pub durable: Pos,
    /// Mixed into the checksums of its frames.
    pub salt: u32,
}

/// The content of the first block of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeaderBlock {
    /// A segment, or a spare if the generation is 0.
    Valid(Header),
    /// Nothing was written.
    Blank,
    /// Neither copy can be read.
    Damaged,
    /// Written in a later format (`format.rs`).
    Newer(u32),
}

pub fn decode_header(block: &[u8]) -> HeaderBlock {
    let block = &block[..block.len().min(HEADER_BYTES)];
    if block.iter().all(|&byte| byte == 0) {
        return HeaderBlock::Blank;
    }
    let copies = [decode_copy(block, 0), decode_copy(block, COPY_AT)];
    let best =
        copies.iter().flatten().filter_map(|copy| copy.as_ref().ok()).max_by_key(|h| h.generation);
    if let Some(header) = best {
        return HeaderBlock::Valid(*header);
    }
    match copies.iter().flatten().find_map(|copy| copy.err()) {
        Some(version) => HeaderBlock::Newer(version),
        None => HeaderBlock::Damaged,
    }
}

/// `None`: not a header; `Some(Err)`: intact, but of a later format. The layout is the same in every format.
fn decode_copy(block: &[u8], at: usize) -> Option<Result<Header, u32>> {
    let record = block.get(at..at + RECORD_BYTES)?;
    let (fields, crc) = record.split_at(RECORD_BYTES - 4);
    if &fields[..8] != MAGIC || crc != crc32c::crc32c(fields).to_le_bytes() {
        return None;
    }
    let u64_at = |at: usize| fields[at..at + 8].try_into().map(u64::from_le_bytes).unwrap_or(0);
    let format = u64_at(8) as u32;
    if format == 0 {
        return None;
    }
    if format > FORMAT {
        return Some(Err(format));
    }
    Some(Ok(Header {
        generation: u64_at(16),
        previous_end: Pos::from_u64(u64_at(24)),
        durable: Pos::from_u64(u64_at(32)),
        salt: (u64_at(8) >> 32) as u32,
    }))
}

/// Appends the first block.
pub(super) fn push_header(out: &mut Vec<u8>, header: &Header) {
    let mut record = Vec::with_capacity(RECORD_BYTES);
    record.extend_from_slice(MAGIC);
    record.extend_from_slice(&FORMAT.to_le_bytes());
    record.extend_from_slice(&header.salt.to_le_bytes());
    record.extend_from_slice(&header.generation.to_le_bytes());
    record.extend_from_slice(&header.previous_end.get().to_le_bytes());
    record.extend_from_slice(&header.durable.get().to_le_bytes());
    record.extend_from_slice(&crc32c::crc32c(&record).to_le_bytes());
    let at = out.len();
    out.resize(at + HEADER_BYTES, 0);
    out[at..at + RECORD_BYTES].copy_from_slice(&record);
    out[at + COPY_AT..at + COPY_AT + RECORD_BYTES].copy_from_slice(&record);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_readable_copy_suffices_and_no_copy_is_damage() {
        let header = Header {
            generation: 5,
            previous_end: Pos::new(4, 9000),
            durable: Pos::new(4, 8000),
            salt: 77,
        };
        let mut block = Vec::new();
        push_header(&mut block, &header);
        for bit in 0..block.len() * 8 {
            let mut block = block.clone();
            block[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode_header(&block), HeaderBlock::Valid(header), "bit {bit}");
        }
        block[3] ^= 1;
        block[COPY_AT + 20] ^= 1;
        assert_eq!(decode_header(&block), HeaderBlock::Damaged);
        assert_eq!(decode_header(&[0; 4096]), HeaderBlock::Blank);
        assert_eq!(decode_header(b"malote"), HeaderBlock::Damaged);
    }
}
