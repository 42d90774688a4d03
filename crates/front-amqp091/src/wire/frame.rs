//! Frames.
//!
//! ```text
//!  0      1         3          7           7 + size
//!  | type | channel | size     | payload … | 0xCE |
//! ```

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};

use super::error::Exception;
use super::method::EncodeMethod;
use crate::limits::{FRAME_BYTES_MIN, FRAME_BYTES_TOLERANCE};

/// What a client sends first, and what a server answers to anything else.
pub const PROTOCOL_HEADER: [u8; 8] = *b"AMQP\x00\x00\x09\x01";
/// Type, channel and size.
pub const FRAME_HEADER_BYTES: usize = 7;
/// Header and end octet: what a frame has beside its payload.
pub const FRAME_OVERHEAD_BYTES: usize = FRAME_HEADER_BYTES + 1;
const FRAME_END: u8 = 0xce;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameKind {
    Method = 1,
    Header = 2,
    Body = 3,
    Heartbeat = 8,
}

/// A frame whose payload shares the bytes that it was read from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    pub kind: FrameKind,
    pub channel: u16,
    pub payload: Bytes,
}

/// Cuts frames from the bytes of a connection.
#[derive(Debug)]
pub struct FrameDecoder {
    frame_max: u32,
}

impl Default for FrameDecoder {
    /// With the limit before the limits are negotiated.
    fn default() -> Self {
        Self { frame_max: FRAME_BYTES_MIN }
    }
}

impl FrameDecoder {
    /// Sets the negotiated limit. A limit below the minimum counts as the minimum.
    pub fn set_frame_max(&mut self, frame_max: u32) {
        self.frame_max = frame_max.max(FRAME_BYTES_MIN);
    }

    /// Removes a frame from the front, once it is complete.
    pub fn decode(&self, input: &mut BytesMut) -> Result<Option<Frame>, Exception> {
        let Some((kind, channel, size)) = self.header(input)? else { return Ok(None) };
        if input.len() < FRAME_OVERHEAD_BYTES + size {
            return Ok(None);
        }
        let mut frame = input.split_to(FRAME_OVERHEAD_BYTES + size);
        frame.advance(FRAME_HEADER_BYTES);
        let payload = frame.split_to(size).freeze();
        if frame[0] != FRAME_END {
            let why = format!("{{invalid_frame_end_marker,{}}}", frame[0]);
            return Err(Exception::bad_frame(kind, &payload, why));
        }
        let kind = match kind {
            1 => FrameKind::Method,
            2 => FrameKind::Header,
            3 => FrameKind::Body,
            8 if !payload.is_empty() => {
                return Err(Exception::bad_frame(kind, &payload, "unknown_frame"));
            }
            8 if channel != 0 => return Err(Exception::misplaced_frame(kind, &payload)),
            8 => FrameKind::Heartbeat,
            _ => return Err(Exception::bad_frame(kind, &payload, "unknown_frame")),
        };
        Ok(Some(Frame { kind, channel, payload }))
    }

    /// The bytes that are missing until the first frame is complete: how much room the next read needs at least.
    pub fn missing_bytes(&self, input: &[u8]) -> usize {
        let size = match self.header(input) {
            Ok(Some((_, _, size))) => size,
            Ok(None) | Err(_) => 0,
        };
        (FRAME_OVERHEAD_BYTES + size).saturating_sub(input.len())
    }

    /// Type, channel and size, which was checked against the limit.
    fn header(&self, input: &[u8]) -> Result<Option<(u8, u16, usize)>, Exception> {
        let Some(&[kind, c0, c1, s0, s1, s2, s3]) = input.first_chunk::<FRAME_HEADER_BYTES>()
        else {
            return Ok(None);
        };
        let size = u32::from_be_bytes([s0, s1, s2, s3]);
        let payload_max = self.frame_max - FRAME_OVERHEAD_BYTES as u32;
        if size > payload_max.saturating_add(FRAME_BYTES_TOLERANCE) {
            let why = format!("{{frame_too_large,{size},{payload_max}}}");
            return Err(Exception::bad_frame(kind, &[], why));
        }
        Ok(Some((kind, u16::from_be_bytes([c0, c1]), size as usize)))
    }
}

/// Writes a frame around the output of `payload`.
pub fn put_frame(
    out: &mut BytesMut,
    kind: FrameKind,
    channel: u16,
    payload: impl FnOnce(&mut BytesMut),
) {
    let start = out.len();
    let [c0, c1] = channel.to_be_bytes();
    out.extend_from_slice(&[kind as u8, c0, c1, 0, 0, 0, 0]);
    payload(out);
    let size = out.len() - start - FRAME_HEADER_BYTES;
    let size = u32::try_from(size).expect("frames are smaller than 4 GiB");
    out[start + 3..start + FRAME_HEADER_BYTES].copy_from_slice(&size.to_be_bytes());
    out.put_u8(FRAME_END);
}

/// Writes a method without content.
pub fn put_method(out: &mut BytesMut, channel: u16, method: &impl EncodeMethod) {
    put_frame(out, FrameKind::Method, channel, |out| method.encode(out));
}

pub fn put_heartbeat(out: &mut BytesMut) {
    put_frame(out, FrameKind::Heartbeat, 0, |_| {});
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::method::basic;

    fn decoded(bytes: &[u8]) -> Result<Option<Frame>, String> {
        FrameDecoder::default().decode(&mut bytes.into()).map_err(|error| error.to_string())
    }

    fn frame(kind: u8, channel: u16, payload: &[u8]) -> Vec<u8> {
        let size = payload.len() as u32;
        let mut bytes = vec![kind];
        bytes.extend(channel.to_be_bytes());
        bytes.extend(size.to_be_bytes());
        bytes.extend(payload);
        bytes.push(FRAME_END);
        bytes
    }

    #[test]
    fn a_frame_waits_for_its_last_byte() {
        let mut bytes = BytesMut::new();
        put_method(&mut bytes, 7, &basic::Ack { delivery_tag: 1, multiple: true });
        put_heartbeat(&mut bytes);
        let length = bytes.len() - FRAME_OVERHEAD_BYTES;
        let decoder = FrameDecoder::default();
        for end in 0..length {
            let mut part = BytesMut::from(&bytes[..end]);
            assert_eq!(decoder.decode(&mut part), Ok(None));
            let missing = decoder.missing_bytes(&part);
            let known = if end < FRAME_HEADER_BYTES { FRAME_OVERHEAD_BYTES } else { length };
            assert_eq!((end, missing), (end, known - end));
        }
        let ack = decoder.decode(&mut bytes).unwrap().unwrap();
        assert_eq!((ack.kind, ack.channel, ack.payload.len()), (FrameKind::Method, 7, 13));
        let heartbeat = decoder.decode(&mut bytes).unwrap().unwrap();
        assert_eq!((heartbeat.kind, heartbeat.channel), (FrameKind::Heartbeat, 0));
        assert!(bytes.is_empty());
    }

    #[test]
    fn broken_frames_are_refused() {
        let refused = |bytes: &[u8]| decoded(bytes).expect_err("it is malformed");
        let mut end = frame(1, 1, &[0, 60, 0, 70]);
        *end.last_mut().unwrap() = 205;
        let text =
            "FRAME_ERROR - type 1, all octets = <<0,60,0,70>>: {invalid_frame_end_marker,205}";
        assert_eq!(refused(&end), text);
        let text = "FRAME_ERROR - type 9, all octets = <<\"abc\">>: unknown_frame";
        assert_eq!(refused(&frame(9, 1, b"abc")), text);
        let text = "FRAME_ERROR - type 8, all octets = <<\"x\">>: unknown_frame";
        assert_eq!(refused(&frame(8, 0, b"x")), text);
        let text = "UNEXPECTED_FRAME - type 8, all octets = <<>>";
        assert_eq!(refused(&frame(8, 1, b"")), text);
    }

    /// The size is refused before a byte of the payload has arrived.
    #[test]
    fn large_frames_are_refused_by_their_header() {
        let mut decoder = FrameDecoder::default();
        decoder.set_frame_max(131_072);
        let head = |size: u32| {
            let mut head = BytesMut::from(&[3, 0, 1][..]);
            head.put_u32(size);
            head
        };
        let refused = decoder.decode(&mut head(500_000)).expect_err("it is too large");
        let text = "FRAME_ERROR - type 3, all octets = <<>>: {frame_too_large,500000,131064}";
        assert_eq!(refused.to_string(), text);
        assert!(decoder.decode(&mut head(131_073)).is_err());
        assert_eq!(decoder.decode(&mut head(131_072)), Ok(None));
        decoder.set_frame_max(0);
        assert!(decoder.decode(&mut head(FRAME_BYTES_MIN + 1)).is_err());
    }

    #[test]
    fn payloads_share_the_input() {
        let mut bytes = BytesMut::from(&frame(3, 1, &[7; 100])[..]);
        let start = bytes.as_ptr();
        let body = FrameDecoder::default().decode(&mut bytes).unwrap().unwrap();
        assert_eq!(body.payload.as_ptr(), start.wrapping_add(FRAME_HEADER_BYTES));
    }
}
