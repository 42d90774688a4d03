//! Messages: their sections, the preserved bare message, and batches.
#![allow(clippy::unwrap_used)] // a test

use bytes::{Bytes, BytesMut};
use malote_wire_amqp::message::*;
use malote_wire_amqp::performative::{Declare, Discharge};
use malote_wire_amqp::types::*;
use proptest::prelude::*;

fn sample() -> Draft {
    Draft {
        header: Some(Header { ttl: Some(5_000), ..Header::default() }),
        delivery_annotations: Map::default().with("x-opt-lock-token", Value::Uuid([7; 16])),
        message_annotations: Map::default().with("x-opt-sequence-number", 9_i64),
        properties: Some(Properties {
            message_id: Some("id".into()),
            group_id: Some("session".into()),
            ..Properties::default()
        }),
        application_properties: Map::default().with_string("colour", "red"),
        body: Body::Data(vec![Bytes::from_static(b"one"), Bytes::from_static(b"two")]),
        footer: Map::default().with("sum", 1_u32),
    }
}

#[test]
fn sections_are_found_and_read_when_asked_for() {
    let draft = sample();
    let encoded = draft.to_bytes();
    let message = Message::parse(encoded.clone()).unwrap();
    assert_eq!(message.header().unwrap().ttl, Some(5_000));
    assert_eq!(message.header().unwrap().priority, 4);
    assert_eq!(message.delivery_annotations().unwrap(), draft.delivery_annotations);
    assert_eq!(message.message_annotations().unwrap(), draft.message_annotations);
    assert_eq!(Some(message.properties().unwrap()), draft.properties);
    assert_eq!(message.application_properties().unwrap(), draft.application_properties);
    assert_eq!(message.body_kind(), BodyKind::Data);
    assert_eq!(message.data().unwrap(), ["one", "two"]);
    assert_eq!(message.value().unwrap(), None);
    assert_eq!(message.footer().unwrap(), draft.footer);
    let parts = [
        message.properties_encoded().unwrap(),
        message.application_properties_encoded().unwrap(),
        &message.body(),
        message.footer_encoded().unwrap(),
    ];
    assert_eq!(message.bare(), parts.concat());
}

/// What a broker does: a new header and annotations before a stored bare message.
#[test]
fn the_bare_message_is_preserved() {
    // As a client may write it: wide forms instead of short ones, explicit defaults.
    let bare = b"\x00\x80\0\0\0\0\0\0\0\x73\xd0\0\0\0\x09\0\0\0\x01\xb1\0\0\0\x02id\x00\x53\x75\xb0\0\0\0\x02hi";
    let bare = [&bare[..14], &[0x0b], &bare[15..]].concat();
    let encoded = [b"\x00\x53\x70\xc0\x02\x01\x41".to_vec(), bare.clone()].concat();
    let message = Message::parse(encoded.into()).unwrap();
    assert_eq!(message.bare(), bare);
    let mut out = BytesMut::new();
    let header = Some(Header { delivery_count: 3, ..Header::default() });
    Draft { header, ..Draft::default() }.encode(&mut out);
    out.extend_from_slice(&message.bare());
    let again = Message::parse(out.freeze()).unwrap();
    assert_eq!(again.bare(), bare);
    assert_eq!(again.header().unwrap().delivery_count, 3);
    assert_eq!(again.properties().unwrap().message_id, Some("id".into()));
    assert_eq!(again.data().unwrap(), ["hi"]);
}

#[test]
fn bodies_of_every_kind() {
    let lists = vec![vec![Value::Null], vec![1_i32.into(), "x".into()]];
    let sequence = Draft { body: Body::Sequence(lists.clone()), ..Draft::default() };
    let message = Message::parse(sequence.to_bytes()).unwrap();
    assert_eq!(message.body_kind(), BodyKind::Sequence);
    assert_eq!(message.sequences().unwrap(), lists);

    let message = Message::parse(Draft::value("token").to_bytes()).unwrap();
    assert_eq!(message.value().unwrap(), Some("token".into()));
    assert_eq!(message.bare(), &b"\x00\x53\x77\xa1\x05token"[..]);

    let declare = Described { descriptor: 0x31_u64.into(), value: Value::List(vec![]) };
    let message = Message::parse(Draft::value(declare).to_bytes()).unwrap();
    assert_eq!(message.value_as::<Declare>(), Ok(Some(Declare::default())));
    assert!(message.value_as::<Discharge>().is_err());

    let message = Message::parse(Bytes::new()).unwrap();
    assert_eq!(message.body_kind(), BodyKind::Absent);
    assert_eq!(message.data().unwrap(), Vec::<Bytes>::new());
    assert_eq!(message.properties().unwrap(), Properties::default());
}

#[test]
fn sections_out_of_order_are_refused() {
    let fault = |bytes: &'static [u8]| Message::parse(Bytes::from_static(bytes)).unwrap_err().fault;
    // Two headers; a header after the properties; data and then a value; something unknown.
    assert_eq!(fault(b"\x00\x53\x70\x45\x00\x53\x70\x45"), DecodeFault::SectionOrder);
    assert_eq!(fault(b"\x00\x53\x73\x45\x00\x53\x70\x45"), DecodeFault::SectionOrder);
    assert_eq!(fault(b"\x00\x53\x75\xa0\0\x00\x53\x77\x40"), DecodeFault::SectionOrder);
    assert_eq!(fault(b"\x00\x53\x77\x40\x00\x53\x77\x40"), DecodeFault::SectionOrder);
    assert_eq!(fault(b"\x00\x53\x79\x40"), DecodeFault::UnknownDescriptor);
    assert_eq!(fault(b"\x00\x53\x75\xa0\x05abc"), DecodeFault::Truncated);
}

#[test]
fn sections_are_put_in_order_for_those_who_ask() {
    let parse = |bytes: &'static [u8]| Message::parse_any_order(Bytes::from_static(bytes));
    // Properties, two data sections, and then a delivery annotation.
    let last = parse(
        b"\x00\x53\x73\x45\x00\x53\x75\xa0\x01a\x00\x53\x75\xa0\x01b\x00\x53\x71\xc1\x01\x00",
    )
    .unwrap();
    assert_eq!(&last.encoded()[..6], b"\x00\x53\x71\xc1\x01\x00");
    assert_eq!(last.data().unwrap(), [Bytes::from_static(b"a"), Bytes::from_static(b"b")]);
    assert_eq!(&last.bare()[..4], b"\x00\x53\x73\x45");
    // Errors that do not depend on the order remain errors.
    let fault = |bytes: &'static [u8]| parse(bytes).unwrap_err().fault;
    assert_eq!(
        fault(b"\x00\x53\x73\x45\x00\x53\x70\x45\x00\x53\x73\x45"),
        DecodeFault::SectionOrder
    );
    assert_eq!(
        fault(b"\x00\x53\x77\x40\x00\x53\x70\x45\x00\x53\x75\xa0\0"),
        DecodeFault::SectionOrder
    );
    let alternating = b"\x00\x53\x73\x45\x00\x53\x70\x45".repeat(6);
    let many = Message::parse_any_order(alternating.into());
    assert_eq!(many.unwrap_err().fault, DecodeFault::SectionOrder);
}

#[test]
fn batches() {
    let messages = [sample().to_bytes(), Draft::value(5_i32).to_bytes()];
    let mut out = BytesMut::new();
    encode_batch(&messages, &mut out);
    let envelope = Message::parse(out.freeze()).unwrap();
    let found = decode_batch(&envelope, 2).unwrap().unwrap();
    assert_eq!(found.iter().map(|message| message.encoded().clone()).collect::<Vec<_>>(), messages);
    assert_eq!(decode_batch(&envelope, 1), Ok(Err(BatchTooLong { messages_max: 1 })));
    let broken = Message::parse(Draft::data(&b"\x00"[..]).to_bytes()).unwrap();
    assert!(decode_batch(&broken, 2).is_err());
}

proptest! {
    #[test]
    fn mutated_messages_do_not_panic(
        at in any::<prop::sample::Index>(), with: u8, cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = sample().to_bytes().to_vec();
        let at = at.index(bytes.len());
        bytes[at] ^= with;
        bytes.truncate(cut.index(bytes.len()) + 1);
        if let Ok(message) = Message::parse(bytes.into()) {
            let _ = message.header();
            let _ = message.properties();
            let _ = message.message_annotations();
            let _ = message.delivery_annotations();
            let _ = message.application_properties();
            let _ = message.data();
            let _ = message.sequences();
            let _ = message.value();
            let _ = message.footer();
            prop_assert!(message.encoded().ends_with(&message.bare()));
        }
    }
}
