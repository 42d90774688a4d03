//! Random tables, properties and frames.

use bytes::{Bytes, BytesMut};
use malote_front_amqp091::wire::content::{Assembled, ContentAssembler, put_content};
use malote_front_amqp091::wire::frame::{FrameDecoder, put_method};
use malote_front_amqp091::wire::method::{EncodeMethod as _, Method, basic, queue};
use malote_front_amqp091::wire::properties::{BasicProperties, ContentHeader, Properties};
use malote_front_amqp091::wire::table::{ArrayBuilder, FieldTable, FieldValue, TableRef};
use malote_front_amqp091::wire::text::ShortString;
use proptest::collection::vec;
use proptest::prelude::*;

/// A value that owns its bytes.
#[derive(Debug, Clone)]
enum Owned {
    Bool(bool),
    I8(i8),
    U8(u8),
    I16(i16),
    U16(u16),
    I32(i32),
    U32(u32),
    I64(i64),
    F32(f32),
    F64(f64),
    Decimal(u8, u32),
    Timestamp(u64),
    Void,
    String(Vec<u8>),
    Bytes(Vec<u8>),
    Array(Vec<Owned>),
    Table(Vec<(String, Owned)>),
}

fn value() -> impl Strategy<Value = Owned> {
    let leaf = prop_oneof![
        any::<bool>().prop_map(Owned::Bool),
        any::<i8>().prop_map(Owned::I8),
        any::<u8>().prop_map(Owned::U8),
        any::<i16>().prop_map(Owned::I16),
        any::<u16>().prop_map(Owned::U16),
        any::<i32>().prop_map(Owned::I32),
        any::<u32>().prop_map(Owned::U32),
        any::<i64>().prop_map(Owned::I64),
        (-1e6..1e6_f32).prop_map(Owned::F32),
        (-1e6..1e6_f64).prop_map(Owned::F64),
        any::<(u8, u32)>().prop_map(|(scale, value)| Owned::Decimal(scale, value)),
        any::<u64>().prop_map(Owned::Timestamp),
        Just(Owned::Void),
        vec(any::<u8>(), 0..20).prop_map(Owned::String),
        vec(any::<u8>(), 0..20).prop_map(Owned::Bytes),
    ];
    leaf.prop_recursive(4, 24, 5, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..5).prop_map(Owned::Array),
            vec((".{0,8}", inner), 0..5).prop_map(Owned::Table),
        ]
    })
}

fn fields() -> impl Strategy<Value = Vec<(String, Owned)>> {
    vec((".{0,8}", value()), 0..6)
}

/// Calls `then` with the value as the codec has it.
fn with_value(value: &Owned, then: &mut dyn FnMut(FieldValue<'_>)) {
    match value {
        Owned::Bool(value) => then((*value).into()),
        Owned::I8(value) => then((*value).into()),
        Owned::U8(value) => then((*value).into()),
        Owned::I16(value) => then((*value).into()),
        Owned::U16(value) => then((*value).into()),
        Owned::I32(value) => then((*value).into()),
        Owned::U32(value) => then((*value).into()),
        Owned::I64(value) => then((*value).into()),
        Owned::F32(value) => then((*value).into()),
        Owned::F64(value) => then((*value).into()),
        Owned::Decimal(scale, value) => then(FieldValue::Decimal { scale: *scale, value: *value }),
        Owned::Timestamp(seconds) => then(FieldValue::Timestamp(*seconds)),
        Owned::Void => then(FieldValue::Void),
        Owned::String(bytes) => then(FieldValue::String(bytes)),
        Owned::Bytes(bytes) => then(FieldValue::Bytes(bytes)),
        Owned::Array(values) => {
            let mut array = ArrayBuilder::default();
            values.iter().for_each(|value| with_value(value, &mut |value| array.put(value)));
            then(array.values().into())
        }
        Owned::Table(fields) => then(table(fields).as_table().into()),
    }
}

fn table(fields: &[(String, Owned)]) -> FieldTable {
    let mut builder = FieldTable::builder();
    for (name, value) in fields {
        with_value(value, &mut |value| builder.put(name, value));
    }
    builder.build()
}

fn short() -> impl Strategy<Value = Option<Vec<u8>>> {
    proptest::option::of(vec(any::<u8>(), 0..=255))
}

proptest! {
    #[test]
    fn tables_are_read_as_they_were_written(fields in fields()) {
        let built = table(&fields);
        let parsed = FieldTable::parse(built.as_bytes().clone()).expect("built as a table");
        prop_assert_eq!(parsed.fields().count(), fields.len());
        for (field, (name, value)) in parsed.fields().zip(&fields) {
            prop_assert_eq!(field.name, name);
            with_value(value, &mut |value| assert_eq!(field.value, value));
        }
        // A copy is the same, byte for byte.
        let mut copy = FieldTable::builder();
        copy.copy(parsed.as_table(), |_| true);
        prop_assert_eq!(copy.build(), built);
    }

    #[test]
    fn bytes_are_a_table_or_are_refused(bytes in vec(any::<u8>(), 0..200)) {
        if let Ok(table) = TableRef::parse(&bytes) {
            let mut copy = FieldTable::builder();
            copy.copy(table, |_| true);
            let copy = copy.build();
            prop_assert_eq!(&copy.as_bytes()[..], &bytes[..]);
        }
    }

    #[test]
    fn properties_are_read_as_they_were_written(
        texts in proptest::array::uniform10(short()),
        headers in proptest::option::of(fields()),
        (delivery_mode, priority, timestamp) in any::<(Option<u8>, Option<u8>, Option<u64>)>(),
    ) {
        let headers = headers.map(|fields| table(&fields));
        let [content_type, content_encoding, correlation_id, reply_to, expiration, message_id, kind, user_id, app_id, cluster_id] =
            texts.each_ref().map(Option::as_deref);
        let properties = BasicProperties {
            content_type, content_encoding, correlation_id, reply_to, expiration, message_id, kind, user_id, app_id, cluster_id,
            headers: headers.as_ref().map(FieldTable::as_table),
            delivery_mode, priority, timestamp,
        };
        let encoded = properties.encode();
        prop_assert_eq!(encoded.decode(), properties);
        let parsed = Properties::parse(encoded.as_bytes().clone());
        prop_assert_eq!(parsed, Some(encoded));
    }

    #[test]
    fn bytes_are_properties_or_are_refused(bytes in vec(any::<u8>(), 0..100)) {
        if let Some(properties) = Properties::parse(bytes.clone().into()) {
            let encoded = properties.decode().encode();
            prop_assert_eq!(&encoded.as_bytes()[..], &bytes[..]);
        }
        let _ = ContentHeader::decode(&bytes.into());
    }

    #[test]
    fn bytes_are_a_method_or_are_refused(
        class in prop_oneof![Just(10_u16), Just(20), Just(30), Just(40), Just(50), Just(60), Just(85), Just(90)],
        method in 0..13_u16,
        arguments in vec(any::<u8>(), 0..60),
    ) {
        let mut payload = Vec::new();
        payload.extend(class.to_be_bytes());
        payload.extend((method * 10).to_be_bytes());
        payload.extend(arguments);
        if let Ok(method) = Method::decode(&Bytes::from(payload)) {
            let mut again = BytesMut::new();
            method.encode(&mut again);
            prop_assert_eq!(Method::decode(&again.freeze()), Ok(method));
        }
    }

    /// The result does not depend on how the network cuts the bytes.
    #[test]
    fn a_stream_is_read_in_any_pieces(
        body in vec(any::<u8>(), 0..20_000),
        fields in fields(),
        cuts in vec(1..5_000_usize, 1..40),
    ) {
        let declare = queue::Declare {
            queue: ShortString::from_static("q"),
            arguments: table(&fields),
            ..Default::default()
        };
        let publish = basic::Publish::default();
        let properties = BasicProperties { message_id: Some(b"m"), ..Default::default() }.encode();
        let mut stream = BytesMut::new();
        put_method(&mut stream, 1, &declare);
        put_content(&mut stream, 1, 4_096, &publish, &properties, &body);
        put_method(&mut stream, 1, &basic::Ack { delivery_tag: 1, multiple: false });
        let mut expected = read(&stream, std::iter::once(stream.len()));
        prop_assert_eq!(expected.len(), 3);
        prop_assert_eq!(&read(&stream, cuts.into_iter().cycle()), &expected);
        let Assembled::Publication(publication) = expected.swap_remove(1) else { panic!("a publication") };
        prop_assert_eq!(&publication.body[..], &body[..]);
    }
}

/// Reads a stream that arrives in pieces of these sizes.
fn read(stream: &[u8], mut sizes: impl Iterator<Item = usize>) -> Vec<Assembled> {
    let decoder = FrameDecoder::default();
    let mut assembler = ContentAssembler::new(1 << 20);
    let (mut input, mut rest, mut done) = (BytesMut::new(), stream, Vec::new());
    while !rest.is_empty() {
        let size = sizes.next().expect("sizes do not end").min(rest.len());
        let (piece, left) = rest.split_at(size);
        input.extend_from_slice(piece);
        rest = left;
        while let Some(frame) = decoder.decode(&mut input).expect("correct frames") {
            done.extend(assembler.push(frame).expect("in order"));
        }
    }
    done
}

/// The same, cut at every single byte.
#[test]
fn a_stream_is_read_byte_by_byte() {
    let mut stream = BytesMut::new();
    let properties = BasicProperties { priority: Some(1), ..Default::default() }.encode();
    put_content(&mut stream, 9, 4_096, &basic::Publish::default(), &properties, &[1; 5_000]);
    let whole = read(&stream, std::iter::once(stream.len()));
    assert_eq!(read(&stream, std::iter::repeat(1)), whole);
    for at in 1..stream.len() {
        assert_eq!(read(&stream, [at, stream.len()].into_iter()), whole);
    }
}
