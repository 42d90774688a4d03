//! The nine performatives of the transport (part 2, section 2.7).

use bytes::{Bytes, BytesMut};

use crate::types::{DecodeFault, Decoded, Map, Reader, Str};

use super::composite::{Composite, composite, read_descriptor, read_list};
use super::error::AmqpError;
use super::field::{ReceiverSettleMode, Role, SenderSettleMode, Symbols};
use super::state::DeliveryState;
use super::terminus::{AnyTarget, Source};

composite! {
    /// Opens a connection.
    Open = "amqp:open:list", 0x10, fields_min 10 {
        /// Name of the sender of this performative.
        required container_id: Str,
        /// Name of the peer.
        optional hostname: Str,
        /// Largest frame accepted.
        default max_frame_size: u32 = u32::MAX,
        /// Highest channel accepted.
        default channel_max: u16 = u16::MAX,
        /// Idle timeout in milliseconds.
        optional idle_time_out: u32,
        /// Locales supported for output.
        default outgoing_locales: Symbols = Symbols::default(),
        /// Locales desired for input.
        default incoming_locales: Symbols = Symbols::default(),
        default offered_capabilities: Symbols = Symbols::default(),
        default desired_capabilities: Symbols = Symbols::default(),
        optional properties: Map,
    }
}

composite! {
    /// Begins a session on a channel.
    Begin = "amqp:begin:list", 0x11, fields_min 8 {
        /// In a reply: the channel of the begin that is answered.
        optional remote_channel: u16,
        /// The transfer-id of the next transfer.
        required next_outgoing_id: u32,
        /// The number of transfers that the sender of this frame can accept.
        required incoming_window: u32,
        /// Transfers that may be outstanding.
        required outgoing_window: u32,
        /// Highest handle accepted.
        default handle_max: u32 = u32::MAX,
        default offered_capabilities: Symbols = Symbols::default(),
        default desired_capabilities: Symbols = Symbols::default(),
        optional properties: Map,
    }
}

composite! {
    /// Attaches a link to a session.
    Attach = "amqp:attach:list", 0x12, fields_min 14 {
        /// The name of the link on both ends.
        required name: Str,
        /// The number of the link on this end.
        required handle: u32,
        /// The role of this end.
        required role: Role,
        /// Settlement policy of the sender.
        default snd_settle_mode: SenderSettleMode = SenderSettleMode::Mixed,
        /// Settlement policy of the receiver.
        default rcv_settle_mode: ReceiverSettleMode = ReceiverSettleMode::First,
        /// Where messages come from.
        optional source: Source,
        /// Where messages go to.
        optional target: AnyTarget,
        /// Unsettled deliveries of an earlier attachment of the link.
        optional unsettled: Map,
        /// Whether `unsettled` is incomplete.
        default incomplete_unsettled: bool = false,
        /// Initial delivery count; required for senders.
        optional initial_delivery_count: u32,
        /// Largest message accepted; zero and absent mean unlimited.
        optional max_message_size: u64,
        default offered_capabilities: Symbols = Symbols::default(),
        default desired_capabilities: Symbols = Symbols::default(),
        optional properties: Map,
    }
}

composite! {
    /// Updates windows, and the credit of a link.
    Flow = "amqp:flow:list", 0x13, fields_min 11 {
        /// The transfer-id expected next; absent before the begin of the peer.
        optional next_incoming_id: u32,
        /// The number of transfers that the sender of this frame can accept.
        required incoming_window: u32,
        /// The transfer-id of the next transfer.
        required next_outgoing_id: u32,
        /// Transfers that may be outstanding.
        required outgoing_window: u32,
        /// The link; absent if only the session is updated.
        optional handle: u32,
        /// Deliveries sent on the link.
        optional delivery_count: u32,
        /// Further deliveries that the receiver accepts.
        optional link_credit: u32,
        /// Further messages that the sender has.
        optional available: u32,
        /// Use up the credit: send available messages, then discard the rest.
        default drain: bool = false,
        /// Requests a flow in return.
        default echo: bool = false,
        optional properties: Map,
    }
}

composite! {
    /// A message, or a part of one. The payload follows the performative.
    Transfer = "amqp:transfer:list", 0x14, fields_min 11 {
        required handle: u32,
        /// The number of the delivery in the session.
        optional delivery_id: u32,
        /// The tag of the delivery on the link.
        optional delivery_tag: Bytes,
        /// The format of the payload.
        optional message_format: u32,
        /// Whether the sender has settled the delivery.
        optional settled: bool,
        /// Whether more frames follow.
        default more: bool = false,
        /// When the receiver settles this delivery.
        optional rcv_settle_mode: ReceiverSettleMode,
        /// The sender's state of the delivery.
        optional state: DeliveryState,
        /// Whether it resumes a delivery of an earlier attachment.
        default resume: bool = false,
        /// Whether it is aborted before completion.
        default aborted: bool = false,
        /// Whether its disposition may be batched with others.
        default batchable: bool = false,
    }
}

composite! {
    /// Reports the state of deliveries.
    Disposition = "amqp:disposition:list", 0x15, fields_min 6 {
        /// The role of this end.
        required role: Role,
        /// The first delivery.
        required first: u32,
        /// The last delivery; absent if it is the first.
        optional last: u32,
        /// Whether this end has settled them.
        default settled: bool = false,
        optional state: DeliveryState,
        /// Whether the reply may be batched with others.
        default batchable: bool = false,
    }
}

composite! {
    /// Detaches a link.
    Detach = "amqp:detach:list", 0x16, fields_min 3 {
        required handle: u32,
        /// Whether the link is closed for good.
        default closed: bool = false,
        optional error: AmqpError,
    }
}

composite! {
    /// Ends a session.
    End = "amqp:end:list", 0x17, fields_min 1 {
        optional error: AmqpError,
    }
}

composite! {
    /// Closes a connection.
    Close = "amqp:close:list", 0x18, fields_min 1 {
        optional error: AmqpError,
    }
}

#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs, reason = "named after the types they hold")]
pub enum Performative {
    Open(Box<Open>),
    Begin(Box<Begin>),
    Attach(Box<Attach>),
    Flow(Flow),
    Transfer(Transfer),
    Disposition(Disposition),
    Detach(Detach),
    End(End),
    Close(Close),
}

impl Performative {
    /// Reads the body of a frame: the performative, and the payload of a transfer.
    pub fn decode(body: &Bytes) -> Decoded<(Performative, Bytes)> {
        let reader = &mut Reader::new(body);
        let code = reader.u8()?;
        let performative = match read_descriptor(code, reader)? {
            Transfer::CODE => {
                let transfer = read_list(reader)?;
                return Ok((Performative::Transfer(transfer), body.slice(reader.position()..)));
            }
            Disposition::CODE => Performative::Disposition(read_list(reader)?),
            Flow::CODE => Performative::Flow(read_list(reader)?),
            Attach::CODE => Performative::Attach(Box::new(read_list(reader)?)),
            Detach::CODE => Performative::Detach(read_list(reader)?),
            Begin::CODE => Performative::Begin(Box::new(read_list(reader)?)),
            End::CODE => Performative::End(read_list(reader)?),
            Open::CODE => Performative::Open(Box::new(read_list(reader)?)),
            Close::CODE => Performative::Close(read_list(reader)?),
            _ => return Err(DecodeFault::UnknownDescriptor.into()),
        };
        reader.expect_end()?;
        Ok((performative, Bytes::new()))
    }

    /// Writes the performative, without the payload of a transfer.
    pub fn encode(&self, out: &mut BytesMut) {
        match self {
            Performative::Open(open) => open.encode(out),
            Performative::Begin(begin) => begin.encode(out),
            Performative::Attach(attach) => attach.encode(out),
            Performative::Flow(flow) => flow.encode(out),
            Performative::Transfer(transfer) => transfer.encode(out),
            Performative::Disposition(disposition) => disposition.encode(out),
            Performative::Detach(detach) => detach.encode(out),
            Performative::End(end) => end.encode(out),
            Performative::Close(close) => close.encode(out),
        }
    }
}
