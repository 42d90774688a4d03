//! Protocol headers and frames (part 2, sections 2.2 and 2.3).
//!
//! ```text
//!  0        4      5      6         8            doff * 4          size
//!  | size   | doff | type | channel | extended … | body …          |
//! ```

use bytes::{Buf, Bytes, BytesMut};

/// The frame size that every peer must accept.
pub const MIN_MAX_FRAME_SIZE: u32 = 512;
/// Size, offset, type and channel.
pub const FRAME_HEADER_BYTES: usize = 8;
const PROTOCOL_HEADER_BYTES: usize = 8;

/// The layer that follows a protocol header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    Amqp,
    /// TLS, then AMQP.
    Tls,
    /// SASL, then AMQP.
    Sasl,
}

impl Protocol {
    /// The eight bytes of the header.
    pub const fn header(self) -> [u8; PROTOCOL_HEADER_BYTES] {
        let id = match self {
            Protocol::Amqp => 0,
            Protocol::Tls => 2,
            Protocol::Sasl => 3,
        };
        [b'A', b'M', b'Q', b'P', id, 1, 0, 0]
    }
}

/// The layer of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameKind {
    /// Frames of the AMQP layer, after SASL.
    Amqp,
    /// The SASL layer.
    Sasl,
}

/// A frame. One with an empty body only keeps the connection alive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// The layer that the frame belongs to.
    pub kind: FrameKind,
    /// The channel of the session; unused in the SASL layer.
    pub channel: u16,
    /// The performative and its payload.
    pub body: Bytes,
}

/// Invalid bytes. Nothing after them can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Larger than agreed, or smaller than its own header.
    #[error(
        "frame of {size_bytes} bytes exceeds the limit of {size_bytes_max}, or is smaller than its header"
    )]
    Size {
        /// The size in the frame header.
        size_bytes: u32,
        /// The limit agreed on in `open`.
        size_bytes_max: u32,
    },
    /// The body begins inside the header or after the end.
    #[error("invalid data offset {0} in a frame header")]
    Offset(u8),
    /// Neither AMQP nor SASL.
    #[error("unknown frame type {0}")]
    Kind(u8),
    /// An unknown protocol header.
    #[error("not an AMQP 1.0 protocol header")]
    Header,
}

/// Removes a protocol header from the front, once it is complete.
pub fn take_protocol(input: &mut BytesMut) -> Result<Option<Protocol>, FrameError> {
    let seen = &input[..input.len().min(PROTOCOL_HEADER_BYTES)];
    let known = [Protocol::Amqp, Protocol::Tls, Protocol::Sasl];
    let Some(protocol) = known.into_iter().find(|protocol| protocol.header().starts_with(seen))
    else {
        return Err(FrameError::Header);
    };
    if seen.len() < PROTOCOL_HEADER_BYTES {
        return Ok(None);
    }
    input.advance(PROTOCOL_HEADER_BYTES);
    Ok(Some(protocol))
}

/// Removes a frame from the front, once it is complete. Its body shares the bytes of the input.
pub fn take_frame(input: &mut BytesMut, size_bytes_max: u32) -> Result<Option<Frame>, FrameError> {
    let Some(&head) = input.first_chunk::<FRAME_HEADER_BYTES>() else { return Ok(None) };
    let [s0, s1, s2, s3, doff, kind, c0, c1] = head;
    let size_bytes = u32::from_be_bytes([s0, s1, s2, s3]);
    if size_bytes > size_bytes_max || (size_bytes as usize) < FRAME_HEADER_BYTES {
        return Err(FrameError::Size { size_bytes, size_bytes_max });
    }
    let offset = usize::from(doff) * 4;
    if offset < FRAME_HEADER_BYTES || offset > size_bytes as usize {
        return Err(FrameError::Offset(doff));
    }
    let kind = match kind {
        0 => FrameKind::Amqp,
        1 => FrameKind::Sasl,
        other => return Err(FrameError::Kind(other)),
    };
    if input.len() < size_bytes as usize {
        return Ok(None);
    }
    let mut body = input.split_to(size_bytes as usize);
    body.advance(offset);
    Ok(Some(Frame { kind, channel: u16::from_be_bytes([c0, c1]), body: body.freeze() }))
}

/// Writes a frame around the output of `body`, and returns its size.
pub fn put_frame(
    out: &mut BytesMut,
    kind: FrameKind,
    channel: u16,
    body: impl FnOnce(&mut BytesMut),
) -> usize {
    let start = out.len();
    let [high, low] = channel.to_be_bytes();
    out.extend_from_slice(&[0, 0, 0, 0, 2, matches!(kind, FrameKind::Sasl).into(), high, low]);
    body(out);
    let size = out.len() - start;
    let size_bytes = u32::try_from(size).expect("frames are smaller than 4 GiB");
    out[start..start + 4].copy_from_slice(&size_bytes.to_be_bytes());
    size
}
