//! Sources, targets and coordinators.

use bytes::BytesMut;

use crate::types::{DecodeFault, Decoded, Map, Reader, Symbol, Value};

use super::composite::{Composite, composite, read_descriptor, read_list};
use super::field::{Field, Symbols};
use super::state::DeliveryState;

const SESSION_END: Symbol = Symbol::from_static("session-end");

composite! {
    /// Where messages come from.
    Source = "amqp:source:list", 0x28, fields_min 0 {
        /// The node; usually a string.
        optional address: Value,
        /// What is preserved: 0 nothing, 1 configuration, 2 unsettled state.
        default durable: u32 = 0,
        /// When the terminus begins to expire.
        default expiry_policy: Symbol = SESSION_END,
        /// Seconds until it expires.
        default timeout: u32 = 0,
        /// Whether the node must be created for this link.
        default dynamic: bool = false,
        /// Properties of a created node.
        optional dynamic_node_properties: Map,
        /// `move` or `copy`.
        optional distribution_mode: Symbol,
        /// Selects the messages that are sent.
        optional filter: Map,
        /// The outcome of deliveries that are left unsettled.
        optional default_outcome: DeliveryState,
        /// Descriptors of the supported outcomes.
        default outcomes: Symbols = Symbols::default(),
        default capabilities: Symbols = Symbols::default(),
    }
}

composite! {
    /// Where messages go to.
    Target = "amqp:target:list", 0x29, fields_min 0 {
        /// The node; usually a string.
        optional address: Value,
        /// What is preserved: 0 nothing, 1 configuration, 2 unsettled state.
        default durable: u32 = 0,
        /// When the terminus begins to expire.
        default expiry_policy: Symbol = SESSION_END,
        /// Seconds until it expires.
        default timeout: u32 = 0,
        /// Whether the node must be created for this link.
        default dynamic: bool = false,
        /// Properties of a created node.
        optional dynamic_node_properties: Map,
        default capabilities: Symbols = Symbols::default(),
    }
}

composite! {
    /// The target of a link that controls transactions.
    Coordinator = "amqp:coordinator:list", 0x30, fields_min 0 {
        /// Supported kinds of transactions.
        default capabilities: Symbols = Symbols::default(),
    }
}

impl Source {
    /// A source with an address.
    pub fn at(address: impl Into<Value>) -> Source {
        Source { address: Some(address.into()), ..Source::default() }
    }
}

impl Target {
    /// A target with an address.
    pub fn at(address: impl Into<Value>) -> Target {
        Target { address: Some(address.into()), ..Target::default() }
    }
}

/// The target of an attach.
#[derive(Debug, Clone, PartialEq)]
pub enum AnyTarget {
    Target(Target),
    Coordinator(Coordinator),
}

impl From<Target> for AnyTarget {
    fn from(target: Target) -> AnyTarget {
        AnyTarget::Target(target)
    }
}

impl Field for AnyTarget {
    fn read(code: u8, reader: &mut Reader<'_>) -> Decoded<AnyTarget> {
        match read_descriptor(code, reader)? {
            Target::CODE => read_list(reader).map(AnyTarget::Target),
            Coordinator::CODE => read_list(reader).map(AnyTarget::Coordinator),
            _ => Err(DecodeFault::UnknownDescriptor.into()),
        }
    }

    fn write(&self, out: &mut BytesMut) {
        match self {
            AnyTarget::Target(target) => target.encode(out),
            AnyTarget::Coordinator(coordinator) => coordinator.encode(out),
        }
    }
}
