//! Content: a method, a header, and a body in as many frames as it needs.
//!
//! [`ContentAssembler`] turns the frames of a channel into methods and publications. [`put_content`] writes a method with
//! its content in one pass.

use bytes::{Bytes, BytesMut};

use super::arguments::{Argument as _, ArgumentWriter};
use super::error::{Exception, ReplyCode};
use super::frame::{FRAME_OVERHEAD_BYTES, Frame, FrameKind, put_frame};
use super::method::{DecodeMethod as _, EncodeMethod, Method, MethodId, basic};
use super::oversize::fitting;
use super::properties::{ContentHeader, Properties};
use crate::limits::{BODY_RESERVE_BYTES_MAX, DETACHED_BYTES_MAX, FRAME_BYTES_MIN};

/// A `basic.publish` with its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Publication {
    pub publish: basic::Publish,
    pub properties: Properties,
    pub body: Bytes,
}

impl Publication {
    /// The same publication without the buffer that it was read into, which may be much larger. A large body keeps its
    /// buffer: there, the rest is small in comparison.
    #[must_use]
    pub fn detached(self) -> Self {
        let Self { publish, properties, body } = self;
        if body.len() >= DETACHED_BYTES_MAX {
            return Self { publish, properties, body };
        }
        let basic::Publish { exchange, routing_key, mandatory, immediate, .. } = publish;
        let (exchange, routing_key) = (exchange.detached(), routing_key.detached());
        Self {
            publish: basic::Publish {
                exchange,
                routing_key,
                mandatory,
                immediate,
                ..Default::default()
            },
            properties: properties.detached(),
            body: Bytes::copy_from_slice(&body),
        }
    }
}

/// What the frames of a channel are put together to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Assembled {
    /// A method without content.
    Method(Method),
    Publication(Publication),
}

/// Puts the frames of one channel together.
#[derive(Debug)]
pub struct ContentAssembler {
    body_bytes_max: u64,
    state: State,
}

#[derive(Debug)]
enum State {
    Method,
    Header(basic::Publish),
    Body { publish: basic::Publish, header: ContentHeader, body: Body },
}

/// The part of a body that has arrived.
#[derive(Debug)]
enum Body {
    /// Nothing, or one frame: most bodies need no second.
    One(Bytes),
    Several(BytesMut),
}

impl ContentAssembler {
    /// Refuses bodies of more bytes than this.
    pub fn new(body_bytes_max: u64) -> Self {
        Self { body_bytes_max, state: State::Method }
    }

    /// Bytes of a body that is not complete.
    pub fn buffered_bytes(&self) -> usize {
        match &self.state {
            State::Body { body, .. } => body.len(),
            State::Method | State::Header(_) => 0,
        }
    }

    /// Takes the next frame of the channel. After an exception, the channel or the connection is to be closed.
    pub fn push(&mut self, frame: Frame) -> Result<Option<Assembled>, Exception> {
        match std::mem::replace(&mut self.state, State::Method) {
            State::Method if frame.kind == FrameKind::Method => {
                match Method::decode(&frame.payload)? {
                    Method::BasicPublish(publish) => {
                        self.state = State::Header(publish);
                        Ok(None)
                    }
                    method => Ok(Some(Assembled::Method(method))),
                }
            }
            State::Method => {
                let detail = "expected method frame, got non method frame instead";
                Err(Exception::new(ReplyCode::UnexpectedFrame, detail))
            }
            State::Header(publish) if frame.kind == FrameKind::Header => {
                let header = self.checked(ContentHeader::decode(&frame.payload)?)?;
                Ok(self.received(publish, header, Body::One(Bytes::new())))
            }
            State::Header(_) => Err(unexpected(
                "expected content header for class 60, got non content header frame instead",
            )),
            State::Body { publish, header, mut body } if frame.kind == FrameKind::Body => {
                let missing = header.body_size - body.len() as u64;
                if frame.payload.len() as u64 > missing {
                    return Err(unexpected(BODY_EXPECTED));
                }
                body.push(frame.payload, missing);
                Ok(self.received(publish, header, body))
            }
            State::Body { .. } => Err(unexpected(BODY_EXPECTED)),
        }
    }

    /// A body that is too large is refused before any of it arrives.
    fn checked(&self, header: ContentHeader) -> Result<ContentHeader, Exception> {
        let (size, max) = (header.body_size, self.body_bytes_max);
        if size > max {
            let detail = format!("message size {size} is larger than configured max size {max}");
            let exception = Exception::new(ReplyCode::PreconditionFailed, detail);
            return Err(exception.caused_by(basic::Publish::ID));
        }
        Ok(header)
    }

    fn received(
        &mut self,
        publish: basic::Publish,
        header: ContentHeader,
        body: Body,
    ) -> Option<Assembled> {
        if (body.len() as u64) < header.body_size {
            self.state = State::Body { publish, header, body };
            return None;
        }
        let ContentHeader { properties, .. } = header;
        let body = match body {
            Body::One(bytes) => bytes,
            Body::Several(bytes) => bytes.freeze(),
        };
        Some(Assembled::Publication(Publication { publish, properties, body }))
    }
}

const BODY_EXPECTED: &str = "expected content body, got non content body frame instead";

fn unexpected(detail: &'static str) -> Exception {
    Exception::new(ReplyCode::UnexpectedFrame, detail).caused_by(basic::Publish::ID)
}

impl Body {
    fn len(&self) -> usize {
        match self {
            Self::One(bytes) => bytes.len(),
            Self::Several(bytes) => bytes.len(),
        }
    }

    /// `missing` is not trusted with more room than a bound: the rest of the body may never arrive.
    fn push(&mut self, part: Bytes, missing: u64) {
        match self {
            Self::One(first) if first.is_empty() => *first = part,
            Self::One(first) => {
                let missing = usize::try_from(missing).unwrap_or(usize::MAX);
                let room = missing.min(BODY_RESERVE_BYTES_MAX).max(part.len());
                let mut bytes = BytesMut::with_capacity(first.len() + room);
                bytes.extend_from_slice(first);
                bytes.extend_from_slice(&part);
                *self = Self::Several(bytes);
            }
            Self::Several(bytes) => bytes.extend_from_slice(&part),
        }
    }
}

/// A `basic.deliver` that borrows its strings.
#[derive(Debug, Clone, Copy)]
pub struct OutgoingDeliver<'a> {
    pub consumer_tag: &'a str,
    pub delivery_tag: u64,
    pub redelivered: bool,
    pub exchange: &'a str,
    pub routing_key: &'a str,
}

/// A `basic.get-ok` that borrows its strings.
#[derive(Debug, Clone, Copy)]
pub struct OutgoingGetOk<'a> {
    pub delivery_tag: u64,
    pub redelivered: bool,
    pub exchange: &'a str,
    pub routing_key: &'a str,
    pub message_count: u32,
}

/// A `basic.return` that borrows its strings. Its text is the name of the code.
#[derive(Debug, Clone, Copy)]
pub struct OutgoingReturn<'a> {
    pub code: ReplyCode,
    pub exchange: &'a str,
    pub routing_key: &'a str,
}

impl EncodeMethod for OutgoingDeliver<'_> {
    fn id(&self) -> MethodId {
        basic::Deliver::ID
    }

    fn write_arguments(&self, writer: &mut ArgumentWriter<'_>) {
        writer.put_short(self.consumer_tag);
        self.delivery_tag.write(writer);
        self.redelivered.write(writer);
        writer.put_short(self.exchange);
        writer.put_short(self.routing_key);
    }
}

impl EncodeMethod for OutgoingGetOk<'_> {
    fn id(&self) -> MethodId {
        basic::GetOk::ID
    }

    fn write_arguments(&self, writer: &mut ArgumentWriter<'_>) {
        self.delivery_tag.write(writer);
        self.redelivered.write(writer);
        writer.put_short(self.exchange);
        writer.put_short(self.routing_key);
        self.message_count.write(writer);
    }
}

impl EncodeMethod for OutgoingReturn<'_> {
    fn id(&self) -> MethodId {
        basic::Return::ID
    }

    fn write_arguments(&self, writer: &mut ArgumentWriter<'_>) {
        self.code.code().write(writer);
        writer.put_short(self.code.name());
        writer.put_short(self.exchange);
        writer.put_short(self.routing_key);
    }
}

/// Writes a method, a header, and a body cut into frames of at most `frame_max` bytes. An empty body has no frame.
pub fn put_content(
    out: &mut BytesMut,
    channel: u16,
    frame_max: u32,
    method: &impl EncodeMethod,
    properties: &Properties,
    body: &[u8],
) {
    let properties = &*fitting(properties, frame_max);
    let part_bytes = frame_max.max(FRAME_BYTES_MIN) as usize - FRAME_OVERHEAD_BYTES;
    let frames = body.len().div_ceil(part_bytes);
    let header_bytes = properties.as_bytes().len() + 64;
    out.reserve(header_bytes + body.len() + frames * FRAME_OVERHEAD_BYTES);
    put_frame(out, FrameKind::Method, channel, |out| method.encode(out));
    put_frame(out, FrameKind::Header, channel, |out| {
        ContentHeader::put(out, body.len() as u64, properties);
    });
    for part in body.chunks(part_bytes) {
        put_frame(out, FrameKind::Body, channel, |out| out.extend_from_slice(part));
    }
}

#[cfg(test)]
#[path = "content_tests.rs"]
mod tests;
