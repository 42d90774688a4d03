//! Reading and writing primitives.

use bytes::Bytes;
use malote_model::{LeaseToken, QueueName, SessionId, Timestamp, TopicName};

use crate::event::QueueId;
use crate::journal::Pos;

/// The bytes are truncated or malformed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the record is cut short or malformed")]
pub(crate) struct Malformed;

/// Reads values from a slice.
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

type ReadResult<T> = Result<T, Malformed>;

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    pub(crate) fn take(&mut self, n: usize) -> ReadResult<&'a [u8]> {
        let (front, rest) = self.rest.split_at_checked(n).ok_or(Malformed)?;
        self.rest = rest;
        Ok(front)
    }

    pub(crate) fn u8(&mut self) -> ReadResult<u8> {
        Ok(self.take(1)?[0])
    }

    pub(crate) fn bool(&mut self) -> ReadResult<bool> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed),
        }
    }

    pub(crate) fn fixed<const N: usize>(&mut self) -> ReadResult<[u8; N]> {
        self.take(N)?.try_into().map_err(|_| Malformed)
    }

    #[inline]
    pub(crate) fn var(&mut self) -> ReadResult<u64> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return Err(Malformed);
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Malformed)
    }

    pub(crate) fn var32(&mut self) -> ReadResult<u32> {
        u32::try_from(self.var()?).map_err(|_| Malformed)
    }

    /// Reads a number of items, each at least one byte long: never more than there are bytes.
    pub(crate) fn count(&mut self) -> ReadResult<usize> {
        let n = self.var()?;
        if n > self.rest.len() as u64 {
            return Err(Malformed);
        }
        Ok(n as usize)
    }

    pub(crate) fn bytes(&mut self) -> ReadResult<&'a [u8]> {
        let n = self.count()?;
        self.take(n)
    }

    pub(crate) fn str(&mut self) -> ReadResult<&'a str> {
        std::str::from_utf8(self.bytes()?).map_err(|_| Malformed)
    }

    pub(crate) fn time(&mut self) -> ReadResult<Timestamp> {
        self.var().map(Timestamp)
    }

    pub(crate) fn pos(&mut self) -> ReadResult<Pos> {
        self.var().map(Pos::from_u64)
    }

    pub(crate) fn queue(&mut self) -> ReadResult<QueueId> {
        self.var32().map(QueueId)
    }

    pub(crate) fn name(&mut self) -> ReadResult<QueueName> {
        QueueName::new(self.str()?).map_err(|_| Malformed)
    }

    pub(crate) fn topic(&mut self) -> ReadResult<TopicName> {
        TopicName::new(self.str()?).map_err(|_| Malformed)
    }

    pub(crate) fn token(&mut self) -> ReadResult<LeaseToken> {
        self.fixed().map(LeaseToken::from_bytes)
    }

    /// An empty text means no session: session ids are never empty.
    pub(crate) fn session(&mut self) -> ReadResult<Option<SessionId>> {
        match self.str()? {
            "" => Ok(None),
            id => SessionId::new(id).map(Some).map_err(|_| Malformed),
        }
    }
}

/// Appends values to a buffer.
pub(crate) trait EncodeExt {
    fn put_u8(&mut self, value: u8);
    fn put_var(&mut self, value: u64);
    fn put_bytes(&mut self, bytes: &[u8]);

    fn put_str(&mut self, text: &str) {
        self.put_bytes(text.as_bytes());
    }
    fn put_bool(&mut self, value: bool) {
        self.put_u8(u8::from(value));
    }
    fn put_time(&mut self, time: Timestamp) {
        self.put_var(time.0);
    }
    fn put_pos(&mut self, pos: Pos) {
        self.put_var(pos.get());
    }
    fn put_queue(&mut self, queue: QueueId) {
        self.put_var(u64::from(queue.0));
    }
    fn put_session(&mut self, session: Option<&SessionId>) {
        self.put_str(session.map_or("", SessionId::as_str));
    }
}

impl EncodeExt for Vec<u8> {
    fn put_u8(&mut self, value: u8) {
        self.push(value);
    }

    #[inline]
    fn put_var(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.push(value as u8);
    }

    fn put_bytes(&mut self, bytes: &[u8]) {
        self.put_var(bytes.len() as u64);
        self.extend_from_slice(bytes);
    }
}

/// The part of `whole` that `part` points into, without a copy.
pub(crate) fn slice_of(whole: &Bytes, part: &[u8]) -> Bytes {
    whole.slice_ref(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_round_trip_at_their_limits() {
        for value in [0, 1, 127, 128, 16_383, 16_384, u64::from(u32::MAX), u64::MAX - 1, u64::MAX] {
            let mut buf = Vec::new();
            buf.put_var(value);
            assert_eq!(Reader::new(&buf).var(), Ok(value));
            assert_eq!(Reader::new(&buf[..buf.len() - 1]).var(), Err(Malformed));
        }
        assert_eq!(Reader::new(&[0xff; 10]).var(), Err(Malformed));
    }
}
