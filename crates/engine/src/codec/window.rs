//! Takes values off the front of something too large to be held in memory at once.

use std::io::Read;

use malote_model::SessionId;

use super::read::{Reader, Truncated};
use crate::event::QueueId;
use crate::journal::Pos;

type Got<T> = Result<T, Truncated>;

/// Read at once. Most items are far smaller than [`ITEM_BYTES`].
const PIECE_BYTES: usize = 1 << 20;
const ITEM_BYTES: usize = 64 << 10;

/// A part of a long text of values, which moves on as they are taken.
pub(crate) struct Window<'a> {
    source: &'a mut dyn Read,
    /// Bytes that the source still has.
    left: u64,
    buf: Vec<u8>,
    at: usize,
}

impl<'a> Window<'a> {
    pub(crate) fn new(source: &'a mut dyn Read, bytes: u64) -> Self {
        Self { source, left: bytes, buf: Vec::new(), at: 0 }
    }

    /// Takes one item. It is tried again with more in sight if what is there ends in the middle of it.
    #[inline]
    pub(crate) fn item<T>(&mut self, read: impl Fn(&mut Reader<'_>) -> Got<T>) -> Got<T> {
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

    /// Brings at least so many bytes into sight, or all that there are.
    fn fill(&mut self, bytes: usize) -> Got<()> {
        self.buf.drain(..self.at);
        self.at = 0;
        let more = bytes.max(PIECE_BYTES).saturating_sub(self.buf.len()) as u64;
        let more = more.min(self.left);
        let got = Read::take(&mut *self.source, more)
            .read_to_end(&mut self.buf)
            .map_err(|_| Truncated)?;
        if got as u64 != more {
            return Err(Truncated);
        }
        self.left -= more;
        Ok(())
    }

    /// Bytes that are still to come.
    pub(crate) fn rest(&self) -> u64 {
        self.left + (self.buf.len() - self.at) as u64
    }

    /// A number of things that follow, each at least one byte long: never more than there are bytes.
    pub(crate) fn count(&mut self) -> Got<usize> {
        let n = self.var()?;
        if n > self.rest() { Err(Truncated) } else { Ok(n as usize) }
    }

    pub(crate) fn var(&mut self) -> Got<u64> {
        self.item(|r| r.var())
    }

    pub(crate) fn var32(&mut self) -> Got<u32> {
        self.item(|r| r.var32())
    }

    pub(crate) fn u8(&mut self) -> Got<u8> {
        self.item(|r| r.u8())
    }

    pub(crate) fn bool(&mut self) -> Got<bool> {
        self.item(|r| r.bool())
    }

    pub(crate) fn pos(&mut self) -> Got<Pos> {
        self.item(|r| r.pos())
    }

    pub(crate) fn queue(&mut self) -> Got<QueueId> {
        self.item(|r| r.queue())
    }

    pub(crate) fn session(&mut self) -> Got<Option<SessionId>> {
        self.item(|r| r.session())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::Put;

    #[test]
    fn items_of_any_length_are_found_across_pieces() {
        let mut bytes = Vec::new();
        let lengths = [0, 1, 100, ITEM_BYTES - 1, ITEM_BYTES, PIECE_BYTES + 7, 3, 3 * PIECE_BYTES];
        for (n, &len) in lengths.iter().enumerate() {
            bytes.put_var(n as u64);
            bytes.put_bytes(&vec![n as u8; len]);
        }
        let mut source = &bytes[..];
        let mut window = Window::new(&mut source, bytes.len() as u64);
        for (n, &len) in lengths.iter().enumerate() {
            assert_eq!(window.var(), Ok(n as u64));
            let got = window.item(|r| r.bytes().map(<[u8]>::to_vec)).unwrap();
            assert_eq!(got, vec![n as u8; len]);
        }
        assert_eq!((window.rest(), window.u8()), (0, Err(Truncated)));
        // A source that has less than it was said to have.
        let mut source = &bytes[..];
        let mut window = Window::new(&mut source, bytes.len() as u64 + 1);
        assert!((0..lengths.len()).any(|_| {
            window.var().is_err() || window.item(|r| r.bytes().map(<[u8]>::len)).is_err()
        }));
    }
}
