//! A message to be written.

use bytes::{Bytes, BytesMut};

use crate::performative::Composite;
use crate::types::{Map, Value, put_binary, put_descriptor, put_map, put_value};

use super::section::{
    AMQP_SEQUENCE, AMQP_VALUE, APPLICATION_PROPERTIES, DATA, DELIVERY_ANNOTATIONS, FOOTER, Header,
    MESSAGE_ANNOTATIONS, Properties,
};

/// The body of a message to be written.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum Body {
    /// No body: the output is followed by a bare message from elsewhere.
    #[default]
    Absent,
    Data(Vec<Bytes>),
    Sequence(Vec<Vec<Value>>),
    Value(Value),
}

/// A message to be written. Absent sections and empty maps are omitted. A draft with only a header and annotations can
/// precede a stored bare message.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Draft {
    pub header: Option<Header>,
    /// Annotations for the next hop.
    pub delivery_annotations: Map,
    /// Annotations for the infrastructure.
    pub message_annotations: Map,
    pub properties: Option<Properties>,
    pub application_properties: Map,
    pub body: Body,
    pub footer: Map,
}

impl Draft {
    /// A message with a body of bytes.
    pub fn data(bytes: impl Into<Bytes>) -> Draft {
        Draft { body: Body::Data(vec![bytes.into()]), ..Draft::default() }
    }

    /// A message with a body of one value.
    pub fn value(value: impl Into<Value>) -> Draft {
        Draft { body: Body::Value(value.into()), ..Draft::default() }
    }

    pub fn encode(&self, out: &mut BytesMut) {
        if let Some(header) = &self.header {
            header.encode(out);
        }
        put_section(out, DELIVERY_ANNOTATIONS, &self.delivery_annotations);
        put_section(out, MESSAGE_ANNOTATIONS, &self.message_annotations);
        if let Some(properties) = &self.properties {
            properties.encode(out);
        }
        put_section(out, APPLICATION_PROPERTIES, &self.application_properties);
        match &self.body {
            Body::Absent => {}
            Body::Data(parts) => {
                for part in parts {
                    put_descriptor(out, DATA);
                    put_binary(out, part);
                }
            }
            Body::Sequence(parts) => {
                for part in parts {
                    put_descriptor(out, AMQP_SEQUENCE);
                    put_value(out, &Value::List(part.clone()));
                }
            }
            Body::Value(value) => {
                put_descriptor(out, AMQP_VALUE);
                put_value(out, value);
            }
        }
        put_section(out, FOOTER, &self.footer);
    }

    pub fn to_bytes(&self) -> Bytes {
        let mut out = BytesMut::new();
        self.encode(&mut out);
        out.freeze()
    }
}

fn put_section(out: &mut BytesMut, code: u64, map: &Map) {
    if !map.is_empty() {
        put_descriptor(out, code);
        put_map(out, map);
    }
}
