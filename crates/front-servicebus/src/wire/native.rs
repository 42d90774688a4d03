//! Parts of a bare message that cannot be rebuilt from the message model, so that it is preserved byte for byte.
//!
//! ```text
//! storage u8 | annotations: length u32, bytes | head: length u32, bytes | tail
//! ```
//! The *head* is properties and application properties, the *tail* is the footer. With [`BodyStorage::Shared`], the
//! body has its usual encoding and is stored once, in the message. With [`BodyStorage::Verbatim`] (several data
//! sections, or an unusual encoding), the tail is the rest of the bare message, so the body is stored twice.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use malote_model::{Body, BodyKind, Native};
use malote_wire_amqp::message::{AMQP_VALUE, BodyKind as Wire, DATA, Message};
use malote_wire_amqp::types::{Decoded, put_binary_start, put_descriptor};

/// Space reserved for the footer; most messages have none.
const FOOTER_BYTES: usize = 16;

/// How the body is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BodyStorage {
    Shared,
    Verbatim,
}

/// The decoded parts.
#[derive(Debug, Clone, PartialEq)]
pub struct NativeParts {
    storage: BodyStorage,
    /// The part of the sender's header and annotations that is preserved.
    pub annotations: Bytes,
    /// Properties and application properties.
    pub head: Bytes,
    tail: Bytes,
}

/// The body of a message, for the model.
pub fn body_of(message: &Message) -> Decoded<Body> {
    let body = message.body();
    Ok(match message.body_kind() {
        Wire::Absent => Body::default(),
        Wire::Data => Body { bytes: message.data_joined()?, kind: BodyKind::Bytes },
        Wire::Sequence => Body { bytes: body, kind: BodyKind::AmqpSequence },
        Wire::Value => {
            let usual = usual_descriptor(AMQP_VALUE);
            let bytes = match body.strip_prefix(&usual[..]) {
                Some(_) => body.slice(usual.len()..),
                None => {
                    let mut out = BytesMut::new();
                    let value = message.value()?.unwrap_or_default();
                    malote_wire_amqp::types::put_value(&mut out, &value);
                    out.freeze()
                }
            };
            Body { bytes, kind: BodyKind::AmqpValue }
        }
    })
}

fn usual_descriptor(code: u64) -> BytesMut {
    let mut out = BytesMut::new();
    put_descriptor(&mut out, code);
    out
}

/// Encodes a body in the usual way.
pub fn put_body(out: &mut BytesMut, body: &Body) {
    put_body_start(out, body);
    out.extend_from_slice(&body.bytes);
}

/// Encodes what precedes the bytes of a body.
fn put_body_start(out: &mut BytesMut, body: &Body) {
    match body.kind {
        BodyKind::Bytes | BodyKind::Text => {
            put_descriptor(out, DATA);
            put_binary_start(out, body.bytes.len());
        }
        BodyKind::AmqpValue => put_descriptor(out, AMQP_VALUE),
        BodyKind::AmqpSequence => {}
    }
}

/// Encodes the parts of a received message. `body` is the body returned by [`body_of`].
pub fn encode_native(message: &Message, annotations: &[u8], body: &Body) -> Native {
    let bare = message.bare();
    let (head, rest) = bare.split_at(head_bytes(message));
    let mut out = BytesMut::with_capacity(9 + annotations.len() + head.len() + FOOTER_BYTES);
    // The output buffer serves as scratch space to compare the encoding.
    put_body_start(&mut out, body);
    let tail = match message.body_kind() {
        Wire::Absent => None,
        _ => rest.strip_prefix(&out[..]).and_then(|rest| rest.strip_prefix(&body.bytes[..])),
    };
    out.clear();
    let (storage, tail) =
        tail.map_or((BodyStorage::Verbatim, rest), |tail| (BodyStorage::Shared, tail));
    out.put_u8(u8::from(storage == BodyStorage::Verbatim));
    for part in [annotations, head] {
        // Cannot overflow: a message has at most 32 MiB.
        out.put_u32(part.len() as u32);
        out.extend_from_slice(part);
    }
    out.extend_from_slice(tail);
    Native { protocol: Native::AMQP_10, bytes: out.freeze() }
}

/// Bytes of properties and application properties.
pub fn head_bytes(message: &Message) -> usize {
    let sections = [message.properties_encoded(), message.application_properties_encoded()];
    sections.into_iter().flatten().map(<[u8]>::len).sum()
}

/// Decodes what [`encode_native`] wrote; none if another protocol wrote it.
pub fn decode_native(native: &Native) -> Option<NativeParts> {
    if native.protocol != Native::AMQP_10 {
        return None;
    }
    let mut rest = native.bytes.clone();
    let storage = match rest.try_get_u8().ok()? {
        0 => BodyStorage::Shared,
        1 => BodyStorage::Verbatim,
        _ => return None,
    };
    let mut part = || {
        let length = rest.try_get_u32().ok()? as usize;
        (length <= rest.len()).then(|| rest.split_to(length))
    };
    let (annotations, head) = (part()?, part()?);
    Some(NativeParts { storage, annotations, head, tail: rest })
}

impl NativeParts {
    /// Encodes what follows the head.
    pub fn put_body_and_footer(&self, out: &mut BytesMut, body: &Body) {
        if self.storage == BodyStorage::Shared {
            put_body(out, body);
        }
        out.extend_from_slice(&self.tail);
    }
}
