//! The sections that are composites (part 3, section 3.2).

use bytes::{Bytes, BytesMut};

use crate::performative::{Composite, Timestamp, composite, write_list};
use crate::types::{Str, Symbol, Value, put_bool, put_descriptor, put_ubyte, put_uint};

/// Annotations for the next hop.
pub const DELIVERY_ANNOTATIONS: u64 = 0x71;
/// Annotations for the infrastructure.
pub const MESSAGE_ANNOTATIONS: u64 = 0x72;
/// Properties of the application.
pub const APPLICATION_PROPERTIES: u64 = 0x74;
/// A body of bytes.
pub const DATA: u64 = 0x75;
/// A body of lists.
pub const AMQP_SEQUENCE: u64 = 0x76;
/// A body of one value.
pub const AMQP_VALUE: u64 = 0x77;
/// The section after the body.
pub const FOOTER: u64 = 0x78;

composite! {
    /// Delivery details of a message.
    Header = "amqp:header:list", 0x70, fields_min 0 {
        /// Must survive a restart.
        default durable: bool = false,
        /// Higher values are delivered first.
        default priority: u8 = 4,
        /// Time-to-live in milliseconds.
        optional ttl: u32,
        /// Not delivered to another receiver before.
        default first_acquirer: bool = false,
        /// Failed delivery attempts.
        default delivery_count: u32 = 0,
    }
}

impl Header {
    /// Writes the delivery count even if it is 0, because some clients treat a missing count as unknown.
    pub fn encode_counted(&self, out: &mut BytesMut) {
        put_descriptor(out, Header::CODE);
        write_list(out, 5, |list| {
            match self.durable {
                true => list.field(|out| put_bool(out, true)),
                false => list.null(),
            }
            match self.priority == Header::default().priority {
                true => list.null(),
                false => list.field(|out| put_ubyte(out, self.priority)),
            }
            match self.ttl {
                Some(ttl) => list.field(|out| put_uint(out, ttl)),
                None => list.null(),
            }
            match self.first_acquirer {
                true => list.field(|out| put_bool(out, true)),
                false => list.null(),
            }
            list.field(|out| put_uint(out, self.delivery_count));
        });
    }
}

composite! {
    /// Immutable properties of a message.
    Properties = "amqp:properties:list", 0x73, fields_min 0 {
        /// A string, ulong, UUID or binary.
        optional message_id: Value,
        /// The user who created the message.
        optional user_id: Bytes,
        /// The node that the message is for.
        optional to: Str,
        optional subject: Str,
        /// The node for replies.
        optional reply_to: Str,
        optional correlation_id: Value,
        optional content_type: Symbol,
        optional content_encoding: Symbol,
        optional absolute_expiry_time: Timestamp,
        optional creation_time: Timestamp,
        /// The group, or session.
        optional group_id: Str,
        /// The position in the group.
        optional group_sequence: u32,
        /// The group for replies.
        optional reply_to_group_id: Str,
    }
}
