//! What of a bare message cannot be rebuilt from its canonical form, so that it comes back byte for byte.
//!
//! ```text
//! shape u8 | annotations: length u32, bytes | head: length u32, bytes | tail
//! ```
//! *Head* is properties and application properties, *tail* the footer. With [`Shape::Plain`] the body stands between
//! them in its usual encoding and is stored once, in the message; with [`Shape::Whole`] (several data sections, or an
//! encoding that we would write otherwise) the tail is the rest of the bare message, and the body is stored twice.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use malote_model::{Body, BodyKind, Native};
use malote_wire_amqp::message::{AMQP_VALUE, BodyKind as Wire, DATA, Message};
use malote_wire_amqp::types::{Decoded, put_binary_start, put_descriptor};

/// Room that is made for what follows the body: most messages have nothing there.
const FOOTER_BYTES: usize = 16;

/// How head, body and tail make a bare message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    Plain,
    Whole,
}

/// The parts, as they were received.
#[derive(Debug, Clone, PartialEq)]
pub struct Parts {
    shape: Shape,
    /// What the sender wrote and is kept of the header and the annotations; empty if there is nothing.
    pub annotations: Bytes,
    /// Properties and application properties.
    pub head: Bytes,
    tail: Bytes,
}

/// The body of a message as the model has it.
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

/// Writes a body in its usual encoding.
pub fn put_body(out: &mut BytesMut, body: &Body) {
    put_body_start(out, body);
    out.extend_from_slice(&body.bytes);
}

/// What stands before its bytes.
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

/// Takes apart what was received; `body` is its body as the model has it.
pub fn keep(message: &Message, annotations: &[u8], body: &Body) -> Native {
    let bare = message.bare();
    let (head, rest) = bare.split_at(head_bytes(message));
    let mut out = BytesMut::with_capacity(9 + annotations.len() + head.len() + FOOTER_BYTES);
    // Whether it is usual is tried out where the parts will stand.
    put_body_start(&mut out, body);
    let tail = match message.body_kind() {
        Wire::Absent => None,
        _ => rest.strip_prefix(&out[..]).and_then(|rest| rest.strip_prefix(&body.bytes[..])),
    };
    out.clear();
    let (shape, tail) = tail.map_or((Shape::Whole, rest), |tail| (Shape::Plain, tail));
    out.put_u8(u8::from(shape == Shape::Whole));
    for part in [annotations, head] {
        // Sections of a message of at most 32 MiB.
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

/// Reads what [`keep`] wrote; none if another protocol wrote it.
pub fn parts_of(native: &Native) -> Option<Parts> {
    if native.protocol != Native::AMQP_10 {
        return None;
    }
    let mut rest = native.bytes.clone();
    let shape = match rest.try_get_u8().ok()? {
        0 => Shape::Plain,
        1 => Shape::Whole,
        _ => return None,
    };
    let mut part = || {
        let length = rest.try_get_u32().ok()? as usize;
        (length <= rest.len()).then(|| rest.split_to(length))
    };
    let (annotations, head) = (part()?, part()?);
    Some(Parts { shape, annotations, head, tail: rest })
}

impl Parts {
    /// Writes what follows the head.
    pub fn put_rest(&self, out: &mut BytesMut, body: &Body) {
        if self.shape == Shape::Plain {
            put_body(out, body);
        }
        out.extend_from_slice(&self.tail);
    }
}
