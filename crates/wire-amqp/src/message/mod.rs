//! A message and its sections. Parsing only finds the sections; they are decoded on demand.
//!
//! A broker replaces what precedes the bare message and must preserve the bare message byte for byte (part 3, section
//! 3.2). Therefore the encoded bytes are kept, and each section is a range of them.

mod batch;
mod draft;
mod section;

use std::ops::Range;

use bytes::{Bytes, BytesMut};

use crate::performative::{Composite, read_descriptor};
use crate::types::{DecodeFault, Decoded, Map, Reader, Value};

pub use batch::{BATCH_FORMAT, BatchTooLong, decode_batch, encode_batch};
pub use draft::{Body, Draft};
pub use section::{
    AMQP_SEQUENCE, AMQP_VALUE, APPLICATION_PROPERTIES, DATA, DELIVERY_ANNOTATIONS, FOOTER, Header,
    MESSAGE_ANNOTATIONS, Properties,
};

/// The range of a section: its descriptor and value.
type Span = Range<usize>;

/// The kind of a message body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyKind {
    /// Not allowed by the specification, but some clients send no body.
    Absent,
    /// One or more data sections.
    Data,
    /// One or more lists.
    Sequence,
    Value,
}

/// Kinds of sections, and so the most runs of them in a message.
const RUNS_MAX: usize = 9;

/// Sorts the sections. Duplicates stay duplicates.
fn in_order(encoded: &Bytes) -> Decoded<Bytes> {
    let mut reader = Reader::new(encoded);
    let mut runs: Vec<(u64, Span)> = Vec::new();
    while !reader.is_at_end() {
        let start = reader.position();
        let code = reader.u8()?;
        let section = read_descriptor(code, &mut reader)?;
        reader.skip()?;
        let end = reader.position();
        let count = runs.len();
        match runs.last_mut() {
            Some((last, span)) if *last == section => span.end = end,
            _ if count == RUNS_MAX => return Err(DecodeFault::SectionOrder.into()),
            _ => runs.push((section, start..end)),
        }
    }
    runs.sort_by_key(|(section, _)| *section);
    let mut out = BytesMut::with_capacity(encoded.len());
    runs.into_iter().for_each(|(_, span)| out.extend_from_slice(&encoded[span]));
    Ok(out.freeze())
}

/// An encoded message and the ranges of its sections.
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    encoded: Bytes,
    header: Option<Span>,
    delivery_annotations: Option<Span>,
    message_annotations: Option<Span>,
    properties: Option<Span>,
    application_properties: Option<Span>,
    body: Span,
    body_kind: BodyKind,
    footer: Option<Span>,
    bare: Span,
}

impl Message {
    /// Finds the sections. They must be in order, and only body sections may be repeated.
    pub fn parse(encoded: Bytes) -> Decoded<Message> {
        let end = encoded.len();
        let mut message = Message {
            encoded: Bytes::new(),
            header: None,
            delivery_annotations: None,
            message_annotations: None,
            properties: None,
            application_properties: None,
            body: end..end,
            body_kind: BodyKind::Absent,
            footer: None,
            bare: end..end,
        };
        let mut reader = Reader::new(&encoded);
        let mut last = 0;
        while !reader.is_at_end() {
            let start = reader.position();
            let code = reader.u8()?;
            let section = read_descriptor(code, &mut reader)?;
            let repeated = section == last && matches!(section, DATA | AMQP_SEQUENCE);
            let body = |code| (DATA..=AMQP_VALUE).contains(&code);
            if (section <= last && !repeated) || (body(last) && body(section) && !repeated) {
                return Err(DecodeFault::SectionOrder.into());
            }
            last = section;
            reader.skip()?;
            let span = start..reader.position();
            if section >= Properties::CODE && message.bare.is_empty() {
                message.bare = start..end;
            }
            match section {
                Header::CODE => message.header = Some(span),
                DELIVERY_ANNOTATIONS => message.delivery_annotations = Some(span),
                MESSAGE_ANNOTATIONS => message.message_annotations = Some(span),
                Properties::CODE => message.properties = Some(span),
                APPLICATION_PROPERTIES => message.application_properties = Some(span),
                DATA => message.add_body(span, BodyKind::Data),
                AMQP_SEQUENCE => message.add_body(span, BodyKind::Sequence),
                AMQP_VALUE => message.add_body(span, BodyKind::Value),
                FOOTER => message.footer = Some(span),
                _ => return Err(DecodeFault::UnknownDescriptor.into()),
            }
        }
        message.encoded = encoded;
        Ok(message)
    }

    /// Like [`Message::parse`], but sorts the sections first. One client writes delivery annotations last.
    pub fn parse_any_order(encoded: Bytes) -> Decoded<Message> {
        match Message::parse(encoded.clone()) {
            Err(error) if error.fault == DecodeFault::SectionOrder => {
                Message::parse(in_order(&encoded)?)
            }
            parsed => parsed,
        }
    }

    fn add_body(&mut self, span: Span, kind: BodyKind) {
        if self.body_kind == BodyKind::Absent {
            self.body = span;
            self.body_kind = kind;
        } else {
            self.body.end = span.end;
        }
    }

    /// The message as it was received.
    pub fn encoded(&self) -> &Bytes {
        &self.encoded
    }

    /// Properties, application properties, body and footer, unchanged.
    pub fn bare(&self) -> Bytes {
        self.encoded.slice(self.bare.clone())
    }

    /// The bytes of the body: each section with its descriptor.
    pub fn body(&self) -> Bytes {
        self.encoded.slice(self.body.clone())
    }

    pub fn body_kind(&self) -> BodyKind {
        self.body_kind
    }

    /// The encoded properties, with their descriptor.
    pub fn properties_encoded(&self) -> Option<&[u8]> {
        self.section(&self.properties)
    }

    /// The encoded application properties, with their descriptor.
    pub fn application_properties_encoded(&self) -> Option<&[u8]> {
        self.section(&self.application_properties)
    }

    /// The encoded footer, with its descriptor.
    pub fn footer_encoded(&self) -> Option<&[u8]> {
        self.section(&self.footer)
    }

    fn section(&self, span: &Option<Span>) -> Option<&[u8]> {
        span.clone().map(|span| &self.encoded[span])
    }

    /// The header; defaults if there is none.
    pub fn header(&self) -> Decoded<Header> {
        self.composite(&self.header)
    }

    /// The properties; defaults if there are none.
    pub fn properties(&self) -> Decoded<Properties> {
        self.composite(&self.properties)
    }

    /// Annotations for this hop.
    pub fn delivery_annotations(&self) -> Decoded<Map> {
        self.map(&self.delivery_annotations)
    }

    /// Annotations for the infrastructure.
    pub fn message_annotations(&self) -> Decoded<Map> {
        self.map(&self.message_annotations)
    }

    pub fn application_properties(&self) -> Decoded<Map> {
        self.map(&self.application_properties)
    }

    pub fn footer(&self) -> Decoded<Map> {
        self.map(&self.footer)
    }

    /// The data sections of a [`BodyKind::Data`] body; empty for others.
    pub fn data(&self) -> Decoded<Vec<Bytes>> {
        let mut parts = Vec::new();
        self.each_part(BodyKind::Data, |reader| {
            let code = reader.u8()?;
            parts.push(reader.binary(code)?);
            Ok(())
        })?;
        Ok(parts)
    }

    /// The data sections joined. A single one is not copied.
    pub fn data_joined(&self) -> Decoded<Bytes> {
        let (mut first, mut joined) = (Bytes::new(), BytesMut::new());
        self.each_part(BodyKind::Data, |reader| {
            let code = reader.u8()?;
            let part = reader.binary(code)?;
            if first.is_empty() && joined.is_empty() {
                first = part;
            } else {
                joined.extend_from_slice(&std::mem::take(&mut first));
                joined.extend_from_slice(&part);
            }
            Ok(())
        })?;
        Ok(if joined.is_empty() { first } else { joined.freeze() })
    }

    /// The lists of a [`BodyKind::Sequence`] body; empty for others.
    pub fn sequences(&self) -> Decoded<Vec<Vec<Value>>> {
        let mut parts = Vec::new();
        self.each_part(BodyKind::Sequence, |reader| match reader.value()? {
            Value::List(items) => {
                parts.push(items);
                Ok(())
            }
            _ => Err(DecodeFault::UnknownDescriptor.into()),
        })?;
        Ok(parts)
    }

    /// The value of a [`BodyKind::Value`] body; none for others.
    pub fn value(&self) -> Decoded<Option<Value>> {
        let mut value = None;
        self.each_part(BodyKind::Value, |reader| {
            value = Some(reader.value()?);
            Ok(())
        })?;
        Ok(value)
    }

    /// The value of a [`BodyKind::Value`] body as a composite, such as a message to a coordinator.
    pub fn value_as<T: Composite>(&self) -> Decoded<Option<T>> {
        let mut value = None;
        self.each_part(BodyKind::Value, |reader| {
            value = Some(T::decode(reader)?);
            Ok(())
        })?;
        Ok(value)
    }

    fn each_part(
        &self,
        kind: BodyKind,
        mut read: impl FnMut(&mut Reader<'_>) -> Decoded<()>,
    ) -> Decoded<()> {
        if self.body_kind != kind {
            return Ok(());
        }
        let mut reader = Reader::within(&self.encoded, self.body.clone());
        while !reader.is_at_end() {
            let code = reader.u8()?;
            read_descriptor(code, &mut reader)?;
            read(&mut reader)?;
        }
        Ok(())
    }

    fn composite<T: Composite + Default>(&self, span: &Option<Span>) -> Decoded<T> {
        match span {
            Some(span) => T::decode(&mut Reader::within(&self.encoded, span.clone())),
            None => Ok(T::default()),
        }
    }

    fn map(&self, span: &Option<Span>) -> Decoded<Map> {
        let Some(span) = span else { return Ok(Map::default()) };
        let mut reader = Reader::within(&self.encoded, span.clone());
        let code = reader.u8()?;
        read_descriptor(code, &mut reader)?;
        let code = reader.u8()?;
        reader.map(code)
    }
}
