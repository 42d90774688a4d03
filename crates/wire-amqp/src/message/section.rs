//! The sections that are composites (part 3, section 3.2).

use bytes::{Bytes, BytesMut};

use crate::performative::{Composite, Timestamp, composite, write_list};
use crate::types::{Str, Symbol, Value, put_bool, put_descriptor, put_ubyte, put_uint};

/// Annotations for the next hop.
pub const DELIVERY_ANNOTATIONS: u64 = 0x71;
/// Annotations for the infrastructure.
pub const MESSAGE_ANNOTATIONS: u64 = 0x72;
/// Properties for the application.
pub const APPLICATION_PROPERTIES: u64 = 0x74;
/// A body of bytes.
pub const DATA: u64 = 0x75;
/// A body of lists.
pub const AMQP_SEQUENCE: u64 = 0x76;
/// A body of one value.
pub const AMQP_VALUE: u64 = 0x77;
/// What follows the body.
pub const FOOTER: u64 = 0x78;

composite! {
    /// How the message is to be delivered.
    Header = "amqp:header:list", 0x70, fields_min 0 {
        /// Must survive a restart.
        default durable: bool = false,
        /// Higher is earlier.
        default priority: u8 = 4,
        /// Milliseconds to live.
        optional ttl: u32,
        /// Nobody else has had it.
        default first_acquirer: bool = false,
        /// Attempts that failed before.
        default delivery_count: u32 = 0,
    }
}

impl Header {
    /// Writes the delivery count also when it is 0: clients exist that take one that is left out for none at all.
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
    /// What does not change on the way.
    Properties = "amqp:properties:list", 0x73, fields_min 0 {
        /// Names the message: a string, ulong, uuid or binary.
        optional message_id: Value,
        /// Who made it.
        optional user_id: Bytes,
        /// The node it is meant for.
        optional to: Str,
        /// What it is about.
        optional subject: Str,
        /// Where answers go.
        optional reply_to: Str,
        /// The message it belongs to.
        optional correlation_id: Value,
        /// What the body is.
        optional content_type: Symbol,
        /// How the body is packed.
        optional content_encoding: Symbol,
        /// When it is of no use any more.
        optional absolute_expiry_time: Timestamp,
        /// When it was made.
        optional creation_time: Timestamp,
        /// The group, or session.
        optional group_id: Str,
        /// Its place in the group.
        optional group_sequence: u32,
        /// The group that answers should have.
        optional reply_to_group_id: Str,
    }
}
