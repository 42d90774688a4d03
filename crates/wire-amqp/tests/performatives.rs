//! Performatives and frames: handwritten bytes, tolerance, and errors that name the field.
#![allow(clippy::unwrap_used)] // a test

use bytes::{Bytes, BytesMut};
use malote_wire_amqp::frame::{
    Frame, FrameError, FrameKind, Protocol, put_frame, take_frame, take_protocol,
};
use malote_wire_amqp::performative::*;
use malote_wire_amqp::types::*;
use proptest::prelude::*;

fn encode(performative: &Performative) -> Vec<u8> {
    let mut out = BytesMut::new();
    performative.encode(&mut out);
    out.to_vec()
}

fn decode(bytes: &[u8]) -> Decoded<(Performative, Bytes)> {
    Performative::decode(&Bytes::copy_from_slice(bytes))
}

#[test]
fn a_transfer_and_its_payload() {
    let bytes = b"\x00\x53\x14\xc0\x10\x0b\x43\x52\x07\xa0\x02\x01\x02\x43\x42\x40\x40\x40\x40\x40\x40payload";
    let (performative, payload) = decode(bytes).unwrap();
    let Performative::Transfer(transfer) = &performative else { panic!("{performative:?}") };
    assert_eq!(transfer.handle, 0);
    assert_eq!(transfer.delivery_id, Some(7));
    assert_eq!(transfer.delivery_tag.as_deref(), Some(&[1, 2][..]));
    assert_eq!(transfer.message_format, Some(0));
    assert_eq!(transfer.settled, Some(false));
    assert!(!transfer.more && !transfer.aborted);
    assert_eq!(payload, "payload");
    assert_eq!(encode(&performative), bytes[..bytes.len() - 7]);
}

#[test]
fn fields_at_the_end_may_be_absent_and_unknown_ones_may_follow() {
    let begin = Begin {
        next_outgoing_id: 1,
        incoming_window: 2,
        outgoing_window: 3,
        handle_max: 255,
        ..Begin::default()
    };
    let short = b"\x00\x53\x11\xc0\x0a\x05\x40\x52\x01\x52\x02\x52\x03\x52\xff";
    assert_eq!(decode(short).unwrap().0, Performative::Begin(Box::new(begin.clone())));
    let extra =
        b"\x00\x53\x11\xc0\x10\x0a\x40\x52\x01\x52\x02\x52\x03\x52\xff\x40\x40\x40\xa1\x01x\x41";
    let extra = [&extra[..4], &[extra.len() as u8 - 5], &extra[5..]].concat();
    assert_eq!(decode(&extra).unwrap().0, Performative::Begin(Box::new(begin)));
}

#[test]
fn descriptors_may_be_symbols() {
    let mut bytes = vec![0x00, 0xa3, 14];
    bytes.extend_from_slice(b"amqp:open:list");
    bytes.extend_from_slice(b"\xc0\x04\x01\xa1\x01c");
    let Performative::Open(open) = decode(&bytes).unwrap().0 else { panic!("an open") };
    assert_eq!(open.container_id, "c");
    assert_eq!(open.max_frame_size, u32::MAX);
    assert_eq!(open.channel_max, u16::MAX);
}

/// Clients read these by position, without checking the number of fields.
#[test]
fn transport_lists_are_written_in_full() {
    let error =
        AmqpError { condition: Symbol::from_static("amqp:not-found"), ..AmqpError::default() };
    let close = Performative::Close(Close { error: Some(error) });
    let bytes = encode(&close);
    assert_eq!(
        bytes,
        b"\x00\x53\x18\xc0\x19\x01\x00\x53\x1d\xc0\x13\x03\xa3\x0eamqp:not-found\x40\x40"
    );
    assert_eq!(encode(&Performative::End(End::default())), b"\x00\x53\x17\xc0\x02\x01\x40");
}

/// Message sections and states are shortened: `rejected` without an error is an empty list.
#[test]
fn states_drop_what_is_absent() {
    let state = |state| {
        let disposition = Disposition {
            role: Role::Sender,
            settled: true,
            state: Some(state),
            ..Default::default()
        };
        encode(&Performative::Disposition(disposition))
    };
    let head = b"\x00\x53\x15\xc0\x0a\x06\x42\x43\x40\x41";
    assert_eq!(state(DeliveryState::Accepted), [&head[..], b"\x00\x53\x24\x45\x40"].concat());
    let rejected = DeliveryState::Rejected(Rejected::default());
    assert_eq!(state(rejected), [&head[..], b"\x00\x53\x25\x45\x40"].concat());
    let deferred = Modified { undeliverable_here: Some(true), ..Modified::default() };
    let bytes = state(DeliveryState::Modified(deferred));
    assert_eq!(bytes[4..], *b"\x0e\x06\x42\x43\x40\x41\x00\x53\x27\xc0\x03\x02\x40\x41\x40");
}

#[test]
fn errors_name_the_field() {
    let missing = decode(b"\x00\x53\x10\xc0\x02\x01\x40").unwrap_err();
    assert_eq!(missing.to_string(), "amqp:open:list.container-id: a mandatory field is missing");
    assert_eq!(missing.condition(), condition::INVALID_FIELD);
    let wrong = decode(b"\x00\x53\x12\xc0\x06\x03\xa1\x01x\x43\x43").unwrap_err();
    assert_eq!(
        wrong.to_string(),
        "amqp:attach:list.role: expected boolean, found format code 0x43"
    );
    assert_eq!(wrong.condition(), condition::INVALID_FIELD);
    let inner = decode(b"\x00\x53\x18\xc0\x08\x01\x00\x53\x1d\xc0\x02\x01\x43").unwrap_err();
    assert_eq!(inner.field, Some(("amqp:error:list", "condition")));
    let cut = decode(b"\x00\x53\x18\xc0\x07\x01\x00\x53").unwrap_err();
    assert_eq!(cut.condition(), condition::DECODE_ERROR);
    let mode = decode(b"\x00\x53\x12\xc0\x08\x04\xa1\x01x\x43\x41\x50\x03").unwrap_err();
    assert_eq!(mode.to_string(), "amqp:attach:list.snd-settle-mode: undefined value 3");
    assert_eq!(decode(b"\x00\x53\x19\x45").unwrap_err().fault, DecodeFault::UnknownDescriptor);
    assert_eq!(decode(b"\x00\x53\x17\x45\x40").unwrap_err().fault, DecodeFault::LeftOver);
}

#[test]
fn symbols_come_alone_or_in_an_array() {
    let decode = |bytes: &'static [u8]| SaslFrame::decode(&Bytes::from_static(bytes)).unwrap();
    let one = decode(b"\x00\x53\x40\xc0\x08\x01\xa3\x05PLAIN");
    let array = decode(b"\x00\x53\x40\xc0\x0b\x01\xe0\x08\x01\xa3\x05PLAIN");
    assert_eq!(one, array);
    let mut out = BytesMut::new();
    one.encode(&mut out);
    assert_eq!(out, &b"\x00\x53\x40\xc0\x0b\x01\xe0\x08\x01\xa3\x05PLAIN"[..]);
}

#[test]
fn a_source_with_a_filter_round_trips() {
    let session = Described { descriptor: 0x13_7000_000c_u64.into(), value: Value::Null };
    let source = Source {
        filter: Some(Map::default().with("com.microsoft:session-filter", session)),
        default_outcome: Some(DeliveryState::Modified(Modified::default())),
        outcomes: [Symbol::from_static("amqp:accepted:list")].into_iter().collect(),
        ..Source::at("orders")
    };
    let attach = Attach {
        name: "link".into(),
        role: Role::Receiver,
        source: Some(source),
        target: Some(AnyTarget::Coordinator(Coordinator::default())),
        unsettled: Some(Map::default()),
        max_message_size: Some(1 << 40),
        properties: Some(Map::default().with("com.microsoft:timeout", 59_900_u32)),
        ..Attach::default()
    };
    let performative = Performative::Attach(Box::new(attach));
    let bytes = encode(&performative);
    assert_eq!(decode(&bytes), Ok((performative, Bytes::new())));
}

#[test]
fn transactional_and_unknown_states_round_trip() {
    let outcome = Some(Box::new(DeliveryState::Accepted));
    let stranger = Described { descriptor: Symbol::from_static("x:y").into(), value: 5_i32.into() };
    for state in [
        DeliveryState::Transactional(TransactionalState { txn_id: "t".into(), outcome }),
        DeliveryState::Declared(Declared { txn_id: "t".into() }),
        DeliveryState::Received(Received { section_number: 1, section_offset: 2 }),
        DeliveryState::Other(Box::new(stranger)),
    ] {
        let transfer =
            Performative::Transfer(Transfer { state: Some(state), ..Transfer::default() });
        assert_eq!(decode(&encode(&transfer)), Ok((transfer, Bytes::new())));
    }
}

#[test]
fn frames() {
    let mut input =
        BytesMut::from(&b"\0\0\0\x08\x02\0\0\0\0\0\0\x0d\x03\x01\0\x05ext!a\0\0\0\x09"[..]);
    let empty = Frame { kind: FrameKind::Amqp, channel: 0, body: Bytes::new() };
    assert_eq!(take_frame(&mut input, 512), Ok(Some(empty)));
    let extended = Frame { kind: FrameKind::Sasl, channel: 5, body: Bytes::from_static(b"a") };
    assert_eq!(take_frame(&mut input, 512), Ok(Some(extended)));
    assert_eq!(take_frame(&mut input, 512), Ok(None));
    assert_eq!(&input[..], b"\0\0\0\x09");

    let error = |bytes: &[u8]| take_frame(&mut BytesMut::from(bytes), 512).unwrap_err();
    // Refused before the rest has arrived.
    let size = FrameError::Size { size_bytes: 513, size_bytes_max: 512 };
    assert_eq!(error(b"\0\0\x02\x01\x02\0\0\0"), size);
    let size = FrameError::Size { size_bytes: 7, size_bytes_max: 512 };
    assert_eq!(error(b"\0\0\0\x07\x02\0\0\0"), size);
    assert_eq!(error(b"\0\0\0\x0b\x03\0\0\0"), FrameError::Offset(3));
    assert_eq!(error(b"\0\0\0\x08\x01\0\0\0"), FrameError::Offset(1));
    assert_eq!(error(b"\0\0\0\x08\x02\x02\0\0"), FrameError::Kind(2));
}

#[test]
fn protocol_headers() {
    let take = |bytes: &[u8]| take_protocol(&mut BytesMut::from(bytes));
    assert_eq!(take(b"AMQP\x00\x01\x00\x00"), Ok(Some(Protocol::Amqp)));
    assert_eq!(take(b"AMQP\x02\x01\x00\x00"), Ok(Some(Protocol::Tls)));
    assert_eq!(take(b"AMQP\x03\x01\x00\x00rest"), Ok(Some(Protocol::Sasl)));
    assert_eq!(take(b"AMQP\x03"), Ok(None));
    assert_eq!(take(b"AMQP\x00\x00\x09\x01"), Err(FrameError::Header));
    assert_eq!(take(b"G"), Err(FrameError::Header));
}

proptest! {
    #[test]
    fn any_flow_round_trips(
        next_incoming_id: Option<u32>, incoming_window: u32, next_outgoing_id: u32,
        outgoing_window: u32, handle: Option<u32>, delivery_count: Option<u32>,
        link_credit: Option<u32>, available: Option<u32>, drain: bool, echo: bool,
    ) {
        let flow = Performative::Flow(Flow {
            next_incoming_id, incoming_window, next_outgoing_id, outgoing_window, handle,
            delivery_count, link_credit, available, drain, echo, properties: None,
        });
        prop_assert_eq!(decode(&encode(&flow)), Ok((flow, Bytes::new())));
    }

    #[test]
    fn any_transfer_round_trips(
        handle: u32, delivery_id: Option<u32>, tag: Option<Vec<u8>>, format: Option<u32>,
        settled: Option<bool>, more: bool, aborted: bool, payload: Vec<u8>,
    ) {
        let transfer = Performative::Transfer(Transfer {
            handle, delivery_id, delivery_tag: tag.map(Bytes::from), message_format: format,
            settled, more, aborted, ..Transfer::default()
        });
        let bytes = [encode(&transfer), payload.clone()].concat();
        prop_assert_eq!(decode(&bytes), Ok((transfer, Bytes::from(payload))));
    }

    #[test]
    fn frames_survive_any_split(bodies in proptest::collection::vec(any::<Vec<u8>>(), 1..6), split in 1..40_usize) {
        let mut wire = BytesMut::new();
        for (channel, body) in bodies.iter().enumerate() {
            put_frame(&mut wire, FrameKind::Amqp, channel as u16, |out| out.extend_from_slice(body));
        }
        let mut input = BytesMut::new();
        let mut seen = Vec::new();
        for part in wire.chunks(split) {
            input.extend_from_slice(part);
            while let Some(frame) = take_frame(&mut input, 65_536).unwrap() {
                seen.push(frame.body.to_vec());
            }
        }
        prop_assert_eq!(seen, bodies);
    }
}
