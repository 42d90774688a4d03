//! A message by its sections. Finding them costs a step over each; only what is asked for is decoded.
//!
//! A broker rewrites what stands before the bare message, and must give the bare message back byte for byte
//! (part 3, section 3.2). So the encoded bytes are kept, and each section is a range of them.

mod batch;
mod draft;
mod section;

use std::ops::Range;

use bytes::{Bytes, BytesMut};

use crate::performative::{Composite, read_descriptor};
use crate::types::{Decoded, Fault, Map, Reader, Value};

pub use batch::{BATCH_FORMAT, BatchTooLong, decode_batch, encode_batch};
pub use draft::{Body, Draft};
pub use section::{
    AMQP_SEQUENCE, AMQP_VALUE, APPLICATION_PROPERTIES, DATA, DELIVERY_ANNOTATIONS, FOOTER, Header,
    MESSAGE_ANNOTATIONS, Properties,
};

/// Where a section lies: its descriptor and value.
type Span = Range<usize>;

/// What a message's body consists of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyKind {
    /// Nothing. The specification wants a body, but clients exist that send none.
    Absent,
    /// One or more runs of bytes.
    Data,
    /// One or more lists.
    Sequence,
    /// One value.
    Value,
}

/// Kinds of sections, and so the runs of them that a message may have.
const RUNS_MAX: usize = 9;

/// The sections in their order. One that comes twice does so afterwards, too.
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
            _ if count == RUNS_MAX => return Err(Fault::SectionOrder.into()),
            _ => runs.push((section, start..end)),
        }
    }
    runs.sort_by_key(|(section, _)| *section);
    let mut out = BytesMut::with_capacity(encoded.len());
    runs.into_iter().for_each(|(_, span)| out.extend_from_slice(&encoded[span]));
    Ok(out.freeze())
}

/// An encoded message and the places of its sections.
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
    /// Finds the sections. They must stand in order, and each only once, save parts of the body.
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
                return Err(Fault::SectionOrder.into());
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
                _ => return Err(Fault::UnknownDescriptor.into()),
            }
        }
        message.encoded = encoded;
        Ok(message)
    }

    /// The same, but sections that stand in another order are put in theirs first: a client exists that writes the
    /// annotations of a delivery last.
    pub fn parse_any_order(encoded: Bytes) -> Decoded<Message> {
        match Message::parse(encoded.clone()) {
            Err(error) if error.fault == Fault::SectionOrder => Message::parse(in_order(&encoded)?),
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

    /// All of it.
    pub fn encoded(&self) -> &Bytes {
        &self.encoded
    }

    /// Properties, application properties, body and footer, as they came.
    pub fn bare(&self) -> Bytes {
        self.encoded.slice(self.bare.clone())
    }

    /// The bytes of the body: each section with its descriptor.
    pub fn body(&self) -> Bytes {
        self.encoded.slice(self.body.clone())
    }

    /// What the body consists of.
    pub fn body_kind(&self) -> BodyKind {
        self.body_kind
    }

    /// The bytes of the properties, with their descriptor.
    pub fn properties_encoded(&self) -> Option<&[u8]> {
        self.section(&self.properties)
    }

    /// The bytes of the application properties, with their descriptor.
    pub fn application_properties_encoded(&self) -> Option<&[u8]> {
        self.section(&self.application_properties)
    }

    /// The bytes of the footer, with its descriptor.
    pub fn footer_encoded(&self) -> Option<&[u8]> {
        self.section(&self.footer)
    }

    fn section(&self, span: &Option<Span>) -> Option<&[u8]> {
        span.clone().map(|span| &self.encoded[span])
    }

    /// The header; all defaults when there is none.
    pub fn header(&self) -> Decoded<Header> {
        self.composite(&self.header)
    }

    /// The properties; none set when there are none.
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

    /// The application's own properties.
    pub fn application_properties(&self) -> Decoded<Map> {
        self.map(&self.application_properties)
    }

    /// The footer.
    pub fn footer(&self) -> Decoded<Map> {
        self.map(&self.footer)
    }

    /// The runs of bytes of a [`BodyKind::Data`] body; none for another.
    pub fn data(&self) -> Decoded<Vec<Bytes>> {
        let mut parts = Vec::new();
        self.each_part(BodyKind::Data, |reader| {
            let code = reader.u8()?;
            parts.push(reader.binary(code)?);
            Ok(())
        })?;
        Ok(parts)
    }

    /// The same as one run; a body that has only one is not copied.
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

    /// The lists of a [`BodyKind::Sequence`] body; none for another.
    pub fn sequences(&self) -> Decoded<Vec<Vec<Value>>> {
        let mut parts = Vec::new();
        self.each_part(BodyKind::Sequence, |reader| match reader.value()? {
            Value::List(items) => {
                parts.push(items);
                Ok(())
            }
            _ => Err(Fault::UnknownDescriptor.into()),
        })?;
        Ok(parts)
    }

    /// The value of a [`BodyKind::Value`] body; none for another.
    pub fn value(&self) -> Decoded<Option<Value>> {
        let mut value = None;
        self.each_part(BodyKind::Value, |reader| {
            value = Some(reader.value()?);
            Ok(())
        })?;
        Ok(value)
    }

    /// The value of a [`BodyKind::Value`] body that is a composite, such as those that a coordinator is sent.
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
