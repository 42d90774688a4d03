//! AMQP 0-9-1: streams of frames, methods, tables and properties.

use bytes::{Bytes, BytesMut};
use malote_front_amqp091::wire::content::{
    Assembled, ContentAssembler, OutgoingDeliver, put_content,
};
use malote_front_amqp091::wire::death::{Death, would_circulate};
use malote_front_amqp091::wire::frame::{FrameDecoder, put_heartbeat, put_method};
use malote_front_amqp091::wire::method::{
    EncodeMethod as _, Method, basic, connection, exchange, queue,
};
use malote_front_amqp091::wire::properties::{BasicProperties, Properties};
use malote_front_amqp091::wire::table::{ArrayBuilder, FieldTable, FieldValue, TableRef};
use malote_front_amqp091::wire::text::ShortString;
use malote_front_amqp091::{credentials, is_acceptable};

const BODY_BYTES_MAX: u64 = 1 << 20;
/// More than the arguments of any method have if they are empty.
const ARGUMENT_BYTES_MAX: usize = 32;

/// What a client sends, in one stream and each part by itself.
pub(super) fn streams() -> Vec<Vec<u8>> {
    let short = ShortString::from_static;
    let parts: [&dyn Fn(&mut BytesMut); 6] = [
        &|out| {
            let login = FieldTable::builder().with("LOGIN", "guest").with("PASSWORD", "guest");
            let start = connection::StartOk {
                client_properties: FieldTable::default(),
                mechanism: short("AMQPLAIN"),
                response: Bytes::copy_from_slice(login.build().as_bytes()),
                locale: short("en_US"),
            };
            put_method(out, 0, &start);
        },
        &|out| {
            let start = connection::StartOk {
                client_properties: table(),
                mechanism: short("PLAIN"),
                response: Bytes::from_static(b"\0guest\0guest"),
                locale: short("en_US"),
            };
            put_method(out, 0, &start);
        },
        &|out| {
            let declare = queue::Declare {
                queue: short("q"),
                durable: true,
                arguments: table(),
                ..queue::Declare::default()
            };
            put_method(out, 1, &declare);
        },
        &|out| {
            let publish = basic::Publish { routing_key: short("q"), ..basic::Publish::default() };
            put_content(out, 1, 4_096, &publish, &message_properties(), &[7; 10_000]);
        },
        &|out| put_method(out, 1, &basic::Nack { delivery_tag: 1, multiple: true, requeue: true }),
        &put_heartbeat,
    ];
    let mut streams: Vec<Vec<u8>> = parts
        .iter()
        .map(|part| {
            let mut out = BytesMut::new();
            part(&mut out);
            out.to_vec()
        })
        .collect();
    streams.push(streams.concat());
    streams
}

/// Every method with empty arguments, and some with the arguments that clients send.
pub(super) fn methods() -> Vec<Vec<u8>> {
    let mut methods = Vec::new();
    for class in (10..=90).step_by(5) {
        for method in 10..=121 {
            let id = [0, class, 0, method];
            // Zeros are empty strings, empty tables, zero numbers and unset bits; only one length is correct.
            let payloads =
                (0..=ARGUMENT_BYTES_MAX).map(|length| [&id, &vec![0; length][..]].concat());
            let decodes = |payload: &Vec<u8>| Method::decode(&payload.clone().into()).is_ok();
            methods.extend({ payloads }.find(decodes));
        }
    }
    let queue = ShortString::from_static("queue");
    let with_arguments: [Method; 5] = [
        queue::Declare { queue: queue.clone(), arguments: table(), ..queue::Declare::default() }
            .into(),
        queue::Bind { queue: queue.clone(), arguments: table(), ..queue::Bind::default() }.into(),
        exchange::Declare { arguments: table(), ..exchange::Declare::default() }.into(),
        basic::Consume { queue, arguments: table(), ..basic::Consume::default() }.into(),
        connection::StartOk { client_properties: table(), ..connection::StartOk::default() }.into(),
    ];
    methods.extend(with_arguments.map(|method| {
        let mut out = BytesMut::new();
        method.encode(&mut out);
        out.to_vec()
    }));
    methods
}

/// Headers of messages, and arguments of queues.
pub(super) fn tables() -> Vec<Vec<u8>> {
    vec![table().as_bytes().to_vec(), dead_headers(table().as_table()).as_bytes().to_vec()]
}

pub(super) fn properties() -> Vec<Vec<u8>> {
    vec![message_properties().as_bytes().to_vec()]
}

fn table() -> FieldTable {
    let inner = FieldTable::builder().with("publisher_confirms", true).build();
    let array = ArrayBuilder::default().with("a").with(5_i64).with(inner.as_table());
    FieldTable::builder()
        .with("x-message-ttl", 60_000_i32)
        .with("x-max-priority", 9_u8)
        .with("x-dead-letter-exchange", "graves")
        .with("CC", array.values())
        .with("capabilities", inner.as_table())
        .with("ratio", 0.5_f64)
        .with("price", FieldValue::Decimal { scale: 2, value: 100 })
        .with("at", FieldValue::Timestamp(1_700_000_000))
        .with("raw", FieldValue::Bytes(b"\xff"))
        .with("none", FieldValue::Void)
        .build()
}

fn message_properties() -> Properties {
    let headers = table();
    let properties = BasicProperties {
        content_type: Some(b"application/json"),
        headers: Some(headers.as_table()),
        delivery_mode: Some(2),
        priority: Some(5),
        expiration: Some(b"60000"),
        message_id: Some(b"m"),
        timestamp: Some(1_700_000_000),
        ..BasicProperties::default()
    };
    properties.encode()
}

fn dead_headers(headers: TableRef<'_>) -> FieldTable {
    let death = Death {
        reason: "expired",
        queue: "q",
        exchange: "",
        routing_keys: &["q"],
        time: 5,
        original_expiration: Some("60000"),
        count: 2,
    };
    death.record(headers)
}

/// What can be read can be written, and then means the same.
pub(super) fn try_stream(bytes: &[u8]) {
    let decoder = FrameDecoder::default();
    let mut input = BytesMut::from(bytes);
    let mut assembler = ContentAssembler::new(BODY_BYTES_MAX);
    while let Ok(Some(frame)) = decoder.decode(&mut input) {
        match assembler.push(frame) {
            Ok(Some(Assembled::Method(method))) => {
                let mut out = BytesMut::new();
                method.encode(&mut out);
                if let Method::ConnectionStartOk(start_ok) = &method {
                    let _ = credentials(start_ok);
                }
                assert_eq!(Method::decode(&out.freeze()), Ok(method));
            }
            Ok(Some(Assembled::Publication(publication))) => {
                let deliver = OutgoingDeliver {
                    consumer_tag: "tag",
                    delivery_tag: 1,
                    redelivered: false,
                    exchange: &publication.publish.exchange,
                    routing_key: &publication.publish.routing_key,
                };
                let mut out = BytesMut::new();
                let (properties, body) = (&publication.properties, &publication.body);
                put_content(&mut out, 1, 4_096, &deliver, properties, body);
                while let Ok(Some(_)) = decoder.decode(&mut out) {}
                assert!(out.is_empty(), "what is written are frames");
                let _ = is_acceptable(publication);
            }
            Ok(None) => {}
            Err(exception) => {
                let mut out = BytesMut::new();
                put_method(&mut out, 0, &exception.connection_close());
                return;
            }
        }
    }
    let _ = decoder.missing_bytes(&input);
}

/// The payload of a method frame. Fuzzing it alone keeps the frame correct, so that every mutation reaches the decoder.
pub(super) fn try_method(bytes: &[u8]) {
    match Method::decode(&Bytes::copy_from_slice(bytes)) {
        Ok(method) => {
            let mut out = BytesMut::new();
            method.encode(&mut out);
            assert_eq!(Method::decode(&out.freeze()), Ok(method));
        }
        Err(exception) => {
            assert!(exception.reply_text().len() <= usize::from(u8::MAX), "it is a short string");
            let _ = exception.connection_close();
        }
    }
}

pub(super) fn try_table(bytes: &[u8]) {
    let Ok(table) = TableRef::parse(bytes) else { return };
    let mut copy = FieldTable::builder();
    copy.copy(table, |_| true);
    assert_eq!(copy.build().as_bytes(), bytes, "every field is copied");
    let _ = format!("{table:?}");
    let _ = would_circulate(table, "expired", "q");
    // One event more makes one level more at most: an entry of `x-death` is a table in an array.
    let dead = dead_headers(table);
    assert!(would_circulate(dead.as_table(), "expired", "q"));
    assert_eq!(dead.get("x-last-death-reason").and_then(FieldValue::as_str), Some("expired"));
}

pub(super) fn try_properties(bytes: &[u8]) {
    let Some(properties) = Properties::parse(Bytes::copy_from_slice(bytes)) else { return };
    let decoded = properties.decode();
    assert_eq!(decoded.encode(), properties);
    let changed = BasicProperties { expiration: None, ..decoded }.encode();
    assert_eq!(changed.decode().expiration, None);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Methods of AMQP 0-9-1 with RabbitMQ's extensions.
    const METHODS: usize = 66;

    /// Mutated input is only as good as the input was.
    #[test]
    fn the_corpus_is_correct() {
        for stream in streams() {
            let decoder = FrameDecoder::default();
            let mut input = BytesMut::from(&stream[..]);
            while decoder.decode(&mut input).expect("a correct frame").is_some() {}
            assert!(input.is_empty());
            try_stream(&stream);
        }
        let methods = methods();
        let ids: BTreeSet<_> = methods.iter().map(|payload| &payload[..4]).collect();
        assert_eq!(ids.len(), METHODS, "every method is in the corpus");
        for method in &methods {
            assert!(Method::decode(&method.clone().into()).is_ok());
            try_method(method);
        }
        for table in tables() {
            assert!(TableRef::parse(&table).is_ok());
            try_table(&table);
        }
        for properties in properties() {
            assert!(Properties::parse(properties.clone().into()).is_some());
            try_properties(&properties);
        }
    }
}
