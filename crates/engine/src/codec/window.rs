//! Reads values from a source that is too large for memory.

use std::io::Read;

use malote_model::SessionId;

use super::read::{Malformed, Reader};
use crate::event::QueueId;
use crate::journal::Pos;

type ReadResult<T> = Result<T, Malformed>;

/// The size of a read. Most items are far smaller than [`ITEM_BYTES`].
const PIECE_BYTES: usize = 1 << 20;
const ITEM_BYTES: usize = 64 << 10;

/// Reads values from a stream through a moving buffer.
pub(crate) struct StreamReader<'a> {
    source: &'a mut dyn Read,
    /// Bytes left in the source.
    left: u64,
    buf: Vec<u8>,
    at: usize,
}

impl<'a> StreamReader<'a> {
    pub(crate) fn new(source: &'a mut dyn Read, bytes: u64) -> Self {
        Self { source, left: bytes, buf: Vec::new(), at: 0 }
    }

    /// Reads one item. If the buffer ends inside the item, it is read again with more data.
    #[inline]
    pub(crate) fn item<T>(
        &mut self,
        read: impl Fn(&mut Reader<'_>) -> ReadResult<T>,
    ) -> ReadResult<T> {
        let mut bytes = ITEM_BYTES;
        loop {
            if self.buf.len() - self.at < bytes && self.left > 0 {
                self.fill(bytes)?;
            }
            let mut reader = Reader::new(&self.buf[self.at..]);
            match read(&mut reader) {
                Ok(item) => {
                    self.at = self.buf.len() - reader.rest().len();
                    return Ok(item);
                }
                Err(error) if self.left == 0 => return Err(error),
                Err(_) => bytes = 2 * (self.buf.len() - self.at),
            }
        }
    }

    /// Fills the buffer with at least this many bytes, or with all that are left.
    fn fill(&mut self, bytes: usize) -> ReadResult<()> {
        self.buf.drain(..self.at);
        self.at = 0;
        let more = bytes.max(PIECE_BYTES).saturating_sub(self.buf.len()) as u64;
        let more = more.min(self.left);
        let got = Read::take(&mut *self.source, more)
            .read_to_end(&mut self.buf)
            .map_err(|_| Malformed)?;
        if got as u64 != more {
            return Err(Malformed);
        }
        self.left -= more;
        Ok(())
    }

    /// Bytes left to read.
    pub(crate) fn rest(&self) -> u64 {
        self.left + (self.buf.len() - self.at) as u64
    }

    /// Reads a number of items, each at least one byte long: never more than there are bytes.
    pub(crate) fn count(&mut self) -> ReadResult<usize> {
        let n = self.var()?;
        if n > self.rest() { Err(Malformed) } else { Ok(n as usize) }
    }

    pub(crate) fn var(&mut self) -> ReadResult<u64> {
        self.item(|r| r.var())
    }

    pub(crate) fn var32(&mut self) -> ReadResult<u32> {
        self.item(|r| r.var32())
    }

    pub(crate) fn u8(&mut self) -> ReadResult<u8> {
        self.item(|r| r.u8())
    }

    pub(crate) fn bool(&mut self) -> ReadResult<bool> {
        self.item(|r| r.bool())
    }

    pub(crate) fn pos(&mut self) -> ReadResult<Pos> {
        self.item(|r| r.pos())
    }

    pub(crate) fn queue(&mut self) -> ReadResult<QueueId> {
        self.item(|r| r.queue())
    }

    pub(crate) fn session(&mut self) -> ReadResult<Option<SessionId>> {
        self.item(|r| r.session())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::EncodeExt;

    #[test]
    fn items_of_any_length_are_found_across_pieces() {
        let mut bytes = Vec::new();
        let lengths = [0, 1, 100, ITEM_BYTES - 1, ITEM_BYTES, PIECE_BYTES + 7, 3, 3 * PIECE_BYTES];
        for (n, &len) in lengths.iter().enumerate() {
            bytes.put_var(n as u64);
            bytes.put_bytes(&vec![n as u8; len]);
        }
        let mut source = &bytes[..];
        let mut window = StreamReader::new(&mut source, bytes.len() as u64);
        for (n, &len) in lengths.iter().enumerate() {
            assert_eq!(window.var(), Ok(n as u64));
            let got = window.item(|r| r.bytes().map(<[u8]>::to_vec)).unwrap();
            assert_eq!(got, vec![n as u8; len]);
        }
        assert_eq!((window.rest(), window.u8()), (0, Err(Malformed)));
        // A source that is shorter than announced.
        let mut source = &bytes[..];
        let mut window = StreamReader::new(&mut source, bytes.len() as u64 + 1);
        assert!((0..lengths.len()).any(|_| {
            window.var().is_err() || window.item(|r| r.bytes().map(<[u8]>::len)).is_err()
        }));
    }
}
