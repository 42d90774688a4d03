//! Values: handwritten bytes from the specification, round trips, and malformed bytes.
#![allow(clippy::unwrap_used)] // a test

use bytes::{Bytes, BytesMut};
use malote_wire_amqp::types::*;
use proptest::prelude::*;

fn encode(value: &Value) -> Vec<u8> {
    let mut out = BytesMut::new();
    put_value(&mut out, value);
    out.to_vec()
}

fn decode(bytes: &[u8]) -> Decoded<Value> {
    let bytes = Bytes::copy_from_slice(bytes);
    let mut reader = Reader::new(&bytes);
    let value = reader.value()?;
    reader.expect_end()?;
    Ok(value)
}

/// The bytes decode to the value, and the value encodes to these bytes.
#[track_caller]
fn check(bytes: &[u8], value: impl Into<Value>) {
    let value = value.into();
    assert_eq!(decode(bytes).as_ref(), Ok(&value));
    assert_eq!(encode(&value), bytes, "{value:?}");
}

/// Another encoding of the value, which is accepted but not used.
#[track_caller]
fn check_long(bytes: &[u8], value: impl Into<Value>) {
    assert_eq!(decode(bytes), Ok(value.into()));
}

#[test]
fn primitives_have_their_shortest_form() {
    check(&[0x40], Value::Null);
    check(&[0x41], true);
    check(&[0x42], false);
    check_long(&[0x56, 0x01], true);
    check_long(&[0x56, 0x00], false);
    check(&[0x50, 0xff], 255_u8);
    check(&[0x60, 0x01, 0x02], 0x0102_u16);
    check(&[0x43], 0_u32);
    check(&[0x52, 0xff], 255_u32);
    check(&[0x70, 0, 0, 1, 0], 256_u32);
    check_long(&[0x70, 0, 0, 0, 7], 7_u32);
    check(&[0x44], 0_u64);
    check(&[0x53, 0x70], 0x70_u64);
    check(&[0x80, 0, 0, 0, 0x13, 0x70, 0, 0, 0x0c], 0x13_7000_000c_u64);
    check(&[0x51, 0x80], -128_i8);
    check(&[0x61, 0xff, 0xfe], -2_i16);
    check(&[0x54, 0xff], -1_i32);
    check(&[0x71, 0, 0, 0, 202], 202_i32);
    check(&[0x55, 0x7f], 127_i64);
    check(&[0x81, 0, 0, 0, 0, 0, 0, 0, 0x80], 128_i64);
    check(&[0x72, 0x3f, 0x80, 0, 0], 1.0_f32);
    check(&[0x82, 0xbf, 0xf0, 0, 0, 0, 0, 0, 0], -1.0_f64);
    check(&[0x73, 0, 0x01, 0xf6, 0x00], '😀');
    check(&[0x83, 0, 0, 1, 0x8b, 0xcf, 0xe5, 0x68, 0], Value::Timestamp(1_700_000_000_000));
    check(
        &[0x98, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16],
        Value::Uuid([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]),
    );
    check(&[0xa0, 2, 0xff, 0x00], Bytes::from_static(&[0xff, 0x00]));
    check(b"\xa1\x05hello", "hello");
    check(b"\xa3\x03abc", Symbol::from_static("abc"));
}

#[test]
fn long_values_use_the_wide_form() {
    let text = "x".repeat(256);
    let mut bytes = vec![0xb1, 0, 0, 1, 0];
    bytes.extend_from_slice(text.as_bytes());
    check(&bytes, text.as_str());

    let list = vec![Value::from(text.as_str())];
    let mut wide = vec![0xd0, 0, 0, 1, 9, 0, 0, 0, 1];
    wide.extend_from_slice(&bytes);
    check(&wide, list);

    // 254 bytes of content and the count are the limit of the short form.
    check(&[&[0xc0, 0xff, 0xfe][..], &[0x40; 254]].concat(), vec![Value::Null; 254]);
    check(&[&[0xd0, 0, 0, 1, 3, 0, 0, 0, 255][..], &[0x40; 255]].concat(), vec![Value::Null; 255]);
}

#[test]
fn compounds() {
    check(&[0x45], vec![]);
    check_long(&[0xc0, 1, 0], vec![]);
    check_long(&[0xd0, 0, 0, 0, 4, 0, 0, 0, 0], vec![]);
    check(b"\xc0\x06\x02\x52\x01\xa1\x01a", vec![1_u32.into(), "a".into()]);
    check(&[0xc1, 1, 0], Map::default());
    check(b"\xc1\x07\x02\xa3\x03key\x41", Map::default().with("key", true));
    // An array contains its type once, even if it is empty.
    check(&[0xe0, 2, 0, 0x81], std::iter::empty::<i64>().collect::<Array>());
    check(
        &[0xe0, 18, 2, 0x81, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2],
        [1_i64, 2].into_iter().collect::<Array>(),
    );
    let lists = Array::new(Kind::List, vec![vec![1_u32.into()].into(), Value::List(vec![])]);
    check(
        &[0xe0, 20, 2, 0xd0, 0, 0, 0, 6, 0, 0, 0, 1, 0x52, 1, 0, 0, 0, 4, 0, 0, 0, 0],
        lists.unwrap(),
    );
    assert_eq!(Array::new(Kind::Long, vec![1_u32.into()]), None);
}

/// The figure of part 1, section 1.4: a book with a list of authors.
#[test]
fn the_book_of_the_specification() {
    let mut bytes = vec![0x00, 0xa3, 0x11];
    bytes.extend_from_slice(b"example:book:list");
    bytes.extend_from_slice(&[0xc0, 0x40, 0x03, 0xa1, 0x15]);
    bytes.extend_from_slice(b"AMQP for & by Dummies");
    bytes.extend_from_slice(&[0xe0, 0x25, 0x02, 0xa1, 0x0e]);
    bytes.extend_from_slice(b"Rob J. Godfrey");
    bytes.push(0x13);
    bytes.extend_from_slice(b"Rafael H. Schloming");
    bytes.push(0x40);
    let authors: Array =
        ["Rob J. Godfrey", "Rafael H. Schloming"].into_iter().map(Str::from).collect();
    let book = vec!["AMQP for & by Dummies".into(), authors.into(), Value::Null];
    let descriptor = Value::Symbol(Symbol::from_static("example:book:list"));
    check(&bytes, Described { descriptor, value: book.into() });
}

#[test]
fn a_string_shares_the_bytes_it_came_in() {
    let bytes = Bytes::from_static(b"\xa1\x05hello");
    let Value::String(text) = Reader::new(&bytes).value().unwrap() else { panic!("a string") };
    assert_eq!(text.as_bytes().as_ptr(), bytes[2..].as_ptr());
}

#[test]
fn malformed_values_are_refused() {
    let fault = |bytes: &[u8]| decode(bytes).unwrap_err().fault;
    assert_eq!(fault(&[]), DecodeFault::Truncated);
    assert_eq!(fault(&[0xb0, 0xff, 0xff, 0xff, 0xff, 1]), DecodeFault::Truncated);
    assert_eq!(fault(&[0xd0, 0, 0, 0, 4, 0xff, 0xff, 0xff, 0xff]), DecodeFault::TooMany);
    assert_eq!(fault(&[0xc0, 0, 0]), DecodeFault::WrongSize);
    assert_eq!(fault(&[0xc0, 3, 1, 0x40, 0x40]), DecodeFault::WrongSize);
    assert_eq!(fault(&[0xc1, 2, 1, 0x40]), DecodeFault::OddMap);
    assert_eq!(fault(&[0xa1, 2, 0xc3, 0x28]), DecodeFault::NotUtf8);
    assert_eq!(fault(&[0xa3, 2, 0xc3, 0xa9]), DecodeFault::NotAscii);
    assert_eq!(fault(&[0x56, 2]), DecodeFault::OutOfRange);
    assert_eq!(fault(&[0x73, 0, 0, 0xd8, 0]), DecodeFault::OutOfRange);
    assert_eq!(fault(&[0x57, 0]), DecodeFault::UnknownCode(0x57));
    assert_eq!(fault(&[0x40, 0x40]), DecodeFault::LeftOver);
    // Four billion nulls in eleven bytes.
    assert_eq!(fault(&[0xf0, 0, 0, 0, 5, 0xff, 0xff, 0xff, 0xff, 0x40]), DecodeFault::TooMany);
    assert_eq!(fault(&[0xe0, 3, 1, 0x00, 0x40]), DecodeFault::Truncated);
}

#[test]
fn depth_is_bounded() {
    let nested = |depth: usize| {
        let mut value = Value::Null;
        for _ in 0..depth {
            value = Value::List(vec![value]);
        }
        encode(&value)
    };
    assert!(decode(&nested(DEPTH_MAX as usize)).is_ok());
    assert_eq!(decode(&nested(DEPTH_MAX as usize + 1)).unwrap_err().fault, DecodeFault::TooDeep);
    assert_eq!(decode(&vec![0; 100_000]).unwrap_err().fault, DecodeFault::TooDeep);
    let described = Bytes::from(vec![0; 100_000]);
    assert_eq!(Reader::new(&described).skip().unwrap_err().fault, DecodeFault::TooDeep);
}

fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Bool),
        any::<u8>().prop_map(Value::Ubyte),
        any::<u16>().prop_map(Value::Ushort),
        prop_oneof![0..300_u32, any::<u32>()].prop_map(Value::Uint),
        prop_oneof![0..300_u64, any::<u64>()].prop_map(Value::Ulong),
        any::<i8>().prop_map(Value::Byte),
        any::<i16>().prop_map(Value::Short),
        prop_oneof![-200..200_i32, any::<i32>()].prop_map(Value::Int),
        prop_oneof![-200..200_i64, any::<i64>()].prop_map(Value::Long),
        any::<f32>().prop_filter("not a number", |n| !n.is_nan()).prop_map(Value::Float),
        any::<f64>().prop_filter("not a number", |n| !n.is_nan()).prop_map(Value::Double),
        any::<[u8; 4]>().prop_map(Value::Decimal32),
        any::<[u8; 8]>().prop_map(Value::Decimal64),
        any::<[u8; 16]>().prop_map(Value::Decimal128),
        any::<char>().prop_map(Value::Char),
        any::<i64>().prop_map(Value::Timestamp),
        any::<[u8; 16]>().prop_map(Value::Uuid),
        proptest::collection::vec(any::<u8>(), 0..300).prop_map(|v| Value::Binary(v.into())),
        ".{0,90}".prop_map(|text: String| Value::from(text.as_str())),
        "[ -~]{0,300}".prop_map(|text: String| Value::Symbol(Symbol::new(text).unwrap())),
    ];
    leaf.prop_recursive(5, 64, 8, |inner| {
        let few = proptest::collection::vec(inner.clone(), 0..8);
        let pair = (inner.clone(), inner.clone());
        prop_oneof![
            few.clone().prop_map(Value::List),
            proptest::collection::vec(pair.clone(), 0..6).prop_map(|pairs| Map(pairs).into()),
            pair.prop_map(|(descriptor, value)| Described { descriptor, value }.into()),
            // The items with the type of the first one.
            (few, proptest::option::of(inner)).prop_map(|(items, descriptor)| {
                let kind = items.first().map_or(Kind::Uuid, Value::kind);
                let kind = if kind == Kind::Described { Kind::Null } else { kind };
                let same = items.into_iter().filter(|item| item.kind() == kind).collect();
                let array = Array::new(kind, same).unwrap();
                match descriptor {
                    Some(descriptor) => array.described(descriptor).into(),
                    None => Value::Array(array),
                }
            }),
        ]
    })
}

proptest! {
    #[test]
    fn any_value_round_trips(value in any_value()) {
        let bytes = encode(&value);
        prop_assert_eq!(decode(&bytes), Ok(value));
        let bytes = Bytes::from(bytes);
        let mut reader = Reader::new(&bytes);
        reader.skip().unwrap();
        prop_assert!(reader.is_at_end());
    }

    #[test]
    fn a_value_cut_short_is_an_error(value in any_value(), cut in any::<prop::sample::Index>()) {
        let bytes = encode(&value);
        prop_assert!(decode(&bytes[..cut.index(bytes.len())]).is_err());
    }

    #[test]
    fn any_bytes_give_a_value_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(value) = decode(&bytes) {
            // What can be decoded can be encoded and decoded again; NaN is not equal to itself.
            let again = decode(&encode(&value)).unwrap();
            prop_assert_eq!(format!("{again:?}"), format!("{value:?}"));
        }
    }
}
