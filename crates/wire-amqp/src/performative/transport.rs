//! The nine performatives of the transport (part 2, section 2.7).

use bytes::{Bytes, BytesMut};

use crate::types::{Decoded, Fault, Map, Reader, Str};

use super::composite::{Composite, composite, read_descriptor, read_list};
use super::error::AmqpError;
use super::field::{ReceiverSettleMode, Role, SenderSettleMode, Symbols};
use super::state::DeliveryState;
use super::terminus::{AnyTarget, Source};

composite! {
    /// Begins a connection.
    Open = "amqp:open:list", 0x10, fields_min 10 {
        /// Who speaks.
        required container_id: Str,
        /// Who is spoken to.
        optional hostname: Str,
        /// The largest frame that the speaker takes.
        default max_frame_size: u32 = u32::MAX,
        /// The highest channel that the speaker takes.
        default channel_max: u16 = u16::MAX,
        /// Milliseconds of silence that the speaker bears.
        optional idle_time_out: u32,
        /// Locales that the speaker can use.
        default outgoing_locales: Symbols = Symbols::default(),
        /// Locales that the speaker wishes for.
        default incoming_locales: Symbols = Symbols::default(),
        /// Extensions the speaker has.
        default offered_capabilities: Symbols = Symbols::default(),
        /// Extensions the speaker wishes for.
        default desired_capabilities: Symbols = Symbols::default(),
        /// Facts about the speaker.
        optional properties: Map,
    }
}

composite! {
    /// Begins a session on a channel.
    Begin = "amqp:begin:list", 0x11, fields_min 8 {
        /// In an answer: the channel of the begin that is answered.
        optional remote_channel: u16,
        /// The transfer-id of the speaker's next transfer.
        required next_outgoing_id: u32,
        /// How many transfers the speaker takes.
        required incoming_window: u32,
        /// How many transfers the speaker keeps.
        required outgoing_window: u32,
        /// The highest handle that the speaker takes.
        default handle_max: u32 = u32::MAX,
        /// Extensions the speaker has.
        default offered_capabilities: Symbols = Symbols::default(),
        /// Extensions the speaker wishes for.
        default desired_capabilities: Symbols = Symbols::default(),
        /// Facts about the session.
        optional properties: Map,
    }
}

composite! {
    /// Attaches a link to a session.
    Attach = "amqp:attach:list", 0x12, fields_min 14 {
        /// The name by which both ends know the link.
        required name: Str,
        /// The number by which the speaker will know it.
        required handle: u32,
        /// Which end the speaker is.
        required role: Role,
        /// What the sender does about settling.
        default snd_settle_mode: SenderSettleMode = SenderSettleMode::Mixed,
        /// When the receiver settles.
        default rcv_settle_mode: ReceiverSettleMode = ReceiverSettleMode::First,
        /// Where messages come from.
        optional source: Source,
        /// Where messages go to.
        optional target: AnyTarget,
        /// Deliveries of an earlier life of the link.
        optional unsettled: Map,
        /// Whether there are more of them.
        default incomplete_unsettled: bool = false,
        /// Where a sender begins to count; mandatory for it.
        optional initial_delivery_count: u32,
        /// The largest message that the speaker takes; zero and absent mean any.
        optional max_message_size: u64,
        /// Extensions the speaker has.
        default offered_capabilities: Symbols = Symbols::default(),
        /// Extensions the speaker wishes for.
        default desired_capabilities: Symbols = Symbols::default(),
        /// Facts about the link.
        optional properties: Map,
    }
}

composite! {
    /// Tells windows, and the credit of a link.
    Flow = "amqp:flow:list", 0x13, fields_min 11 {
        /// The transfer-id that the speaker expects next; absent before it has seen a begin.
        optional next_incoming_id: u32,
        /// How many transfers the speaker takes.
        required incoming_window: u32,
        /// The transfer-id of the speaker's next transfer.
        required next_outgoing_id: u32,
        /// How many transfers the speaker keeps.
        required outgoing_window: u32,
        /// The link; absent when only the session is meant.
        optional handle: u32,
        /// How many deliveries were sent on the link.
        optional delivery_count: u32,
        /// How many more the receiver takes.
        optional link_credit: u32,
        /// How many more the sender has.
        optional available: u32,
        /// Send what there is, and use up the rest of the credit.
        default drain: bool = false,
        /// Asks for a flow in return.
        default echo: bool = false,
        /// Facts about the link.
        optional properties: Map,
    }
}

composite! {
    /// A message, or a part of one. The payload follows the performative.
    Transfer = "amqp:transfer:list", 0x14, fields_min 11 {
        /// The link.
        required handle: u32,
        /// The delivery's number in the session.
        optional delivery_id: u32,
        /// The delivery's name on the link.
        optional delivery_tag: Bytes,
        /// What the payload is.
        optional message_format: u32,
        /// Whether nothing needs to be heard of it again.
        optional settled: bool,
        /// Whether more frames follow.
        default more: bool = false,
        /// When the receiver settles this one.
        optional rcv_settle_mode: ReceiverSettleMode,
        /// The sender's state of it.
        optional state: DeliveryState,
        /// Whether it is one of an earlier life of the link.
        default resume: bool = false,
        /// Whether it is taken back before it was complete.
        default aborted: bool = false,
        /// Whether its disposition may wait for others.
        default batchable: bool = false,
    }
}

composite! {
    /// Tells what has become of deliveries.
    Disposition = "amqp:disposition:list", 0x15, fields_min 6 {
        /// Which end the speaker is.
        required role: Role,
        /// The first delivery.
        required first: u32,
        /// The last; absent when it is the first.
        optional last: u32,
        /// Whether the speaker has forgotten them.
        default settled: bool = false,
        /// What has become of them.
        optional state: DeliveryState,
        /// Whether the answer may wait for others.
        default batchable: bool = false,
    }
}

composite! {
    /// Detaches a link.
    Detach = "amqp:detach:list", 0x16, fields_min 3 {
        /// The link.
        required handle: u32,
        /// Whether it is gone for good.
        default closed: bool = false,
        /// Why, if not by wish.
        optional error: AmqpError,
    }
}

composite! {
    /// Ends a session.
    End = "amqp:end:list", 0x17, fields_min 1 {
        /// Why, if not by wish.
        optional error: AmqpError,
    }
}

composite! {
    /// Ends a connection.
    Close = "amqp:close:list", 0x18, fields_min 1 {
        /// Why, if not by wish.
        optional error: AmqpError,
    }
}

/// Any of them.
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
    /// Reads the body of a frame: the performative, and the payload of a transfer. Nothing else has one.
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
            _ => return Err(Fault::UnknownDescriptor.into()),
        };
        reader.expect_end()?;
        Ok((performative, Bytes::new()))
    }

    /// Writes it, without the payload of a transfer.
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
