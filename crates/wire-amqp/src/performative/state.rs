//! Delivery states and outcomes (part 3, section 3.4), and those of transactions (part 4, section 4.5).

use bytes::{BufMut, Bytes, BytesMut};

use crate::types::code::DESCRIBED;
use crate::types::{Decoded, Described, Map, Reader, Value, put_value};

use super::composite::{Composite, composite, read_list};
use super::error::AmqpError;
use super::field::Field;

composite! {
    /// How far a delivery was received.
    Received = "amqp:received:list", 0x23, fields_min 0 {
        required section_number: u32,
        /// Offset within the section.
        required section_offset: u64,
    }
}

composite! {
    /// The message was processed successfully.
    Accepted = "amqp:accepted:list", 0x24, fields_min 0 {}
}

composite! {
    /// Invalid; not to be delivered again.
    Rejected = "amqp:rejected:list", 0x25, fields_min 0 {
        /// The reason. In Service Bus, an error from the server means that settling failed.
        optional error: AmqpError,
    }
}

composite! {
    /// Returned without processing.
    Released = "amqp:released:list", 0x26, fields_min 0 {}
}

composite! {
    /// Returned with changes.
    Modified = "amqp:modified:list", 0x27, fields_min 0 {
        /// Counts as a delivery attempt.
        optional delivery_failed: bool,
        /// Must not be delivered to this receiver again.
        optional undeliverable_here: bool,
        /// Merged into the message's annotations.
        optional message_annotations: Map,
    }
}

composite! {
    /// A transaction was begun.
    Declared = "amqp:declared:list", 0x33, fields_min 0 {
        required txn_id: Bytes,
    }
}

composite! {
    /// A delivery that is part of a transaction.
    TransactionalState = "amqp:transactional-state:list", 0x34, fields_min 0 {
        required txn_id: Bytes,
        /// The outcome if the transaction is committed.
        optional outcome: Box<DeliveryState>,
    }
}

composite! {
    /// Begins a transaction: the body of a message to the coordinator.
    Declare = "amqp:declare:list", 0x31, fields_min 0 {
        /// A distributed transaction.
        optional global_id: Value,
    }
}

composite! {
    /// Ends a transaction: the body of a message to the coordinator.
    Discharge = "amqp:discharge:list", 0x32, fields_min 0 {
        required txn_id: Bytes,
        /// Roll the transaction back instead of committing it.
        optional fail: bool,
    }
}

/// The state of a delivery.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs, reason = "named after the types they hold")]
pub enum DeliveryState {
    Received(Received),
    Accepted,
    Rejected(Rejected),
    Released,
    Modified(Modified),
    Declared(Declared),
    Transactional(TransactionalState),
    /// A state of an extension, unchanged.
    Other(Box<Described>),
}

impl DeliveryState {
    pub fn rejected(error: AmqpError) -> DeliveryState {
        DeliveryState::Rejected(Rejected { error: Some(error) })
    }
}

impl Field for DeliveryState {
    fn read(code: u8, reader: &mut Reader<'_>) -> Decoded<DeliveryState> {
        // The descriptor is read as a value, because that of an extension may have any type.
        if code != DESCRIBED {
            let found = code;
            return Err(crate::types::DecodeFault::WrongType {
                expected: "a delivery state",
                found,
            }
            .into());
        }
        let descriptor = reader.value()?;
        let number = match &descriptor {
            Value::Ulong(code) => Some(*code),
            Value::Symbol(name) => super::code_of(name),
            _ => None,
        };
        Ok(match number {
            Some(Received::CODE) => DeliveryState::Received(read_list(reader)?),
            Some(Accepted::CODE) => {
                read_list::<Accepted>(reader)?;
                DeliveryState::Accepted
            }
            Some(Rejected::CODE) => DeliveryState::Rejected(read_list(reader)?),
            Some(Released::CODE) => {
                read_list::<Released>(reader)?;
                DeliveryState::Released
            }
            Some(Modified::CODE) => DeliveryState::Modified(read_list(reader)?),
            Some(Declared::CODE) => DeliveryState::Declared(read_list(reader)?),
            Some(TransactionalState::CODE) => DeliveryState::Transactional(read_list(reader)?),
            _ => {
                let value = reader.value()?;
                DeliveryState::Other(Box::new(Described { descriptor, value }))
            }
        })
    }

    fn write(&self, out: &mut BytesMut) {
        match self {
            DeliveryState::Received(state) => state.encode(out),
            DeliveryState::Accepted => Accepted {}.encode(out),
            DeliveryState::Rejected(state) => state.encode(out),
            DeliveryState::Released => Released {}.encode(out),
            DeliveryState::Modified(state) => state.encode(out),
            DeliveryState::Declared(state) => state.encode(out),
            DeliveryState::Transactional(state) => state.encode(out),
            DeliveryState::Other(described) => {
                out.put_u8(DESCRIBED);
                put_value(out, &described.descriptor);
                put_value(out, &described.value);
            }
        }
    }
}

impl Field for Box<DeliveryState> {
    fn read(code: u8, reader: &mut Reader<'_>) -> Decoded<Box<DeliveryState>> {
        // Each level is a list, and the nesting of lists is limited.
        DeliveryState::read(code, reader).map(Box::new)
    }

    fn write(&self, out: &mut BytesMut) {
        self.as_ref().write(out);
    }
}
