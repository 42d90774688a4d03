//! Every method and property, encoded here and decoded by the codec of another project, and the other way round.

use amq_protocol::frame::{AMQPFrame, WriteContext, gen_frame, parse_frame};
use bytes::{Bytes, BytesMut};
use malote_front_amqp091::wire::content::{ContentAssembler, put_content};
use malote_front_amqp091::wire::frame::{FrameDecoder, FrameKind, put_method};
use malote_front_amqp091::wire::method::{
    EncodeMethod, Method, access, basic, channel, confirm, connection, exchange, queue, tx,
};
use malote_front_amqp091::wire::properties::{BasicProperties, ContentHeader};
use malote_front_amqp091::wire::table::{ArrayBuilder, FieldTable, FieldValue};
use malote_front_amqp091::wire::text::ShortString;

const FRAME_MAX: u32 = 4_096;

fn short(text: &'static str) -> ShortString {
    ShortString::from_static(text)
}

/// A table that the other codec can represent: it keeps tables sorted by name, and has its own tags for some types.
fn table() -> FieldTable {
    let inner = FieldTable::builder().with("deep", FieldValue::Void).build();
    let array = ArrayBuilder::default().with(true).with("text").with(inner.as_table());
    FieldTable::builder()
        .with("a-bool", true)
        .with("b-i8", -1_i8)
        .with("c-u8", 255_u8)
        .with("d-i16", -2_i16)
        .with("e-u16", 65_535_u16)
        .with("f-i32", i32::MIN)
        .with("g-u32", u32::MAX)
        .with("h-i64", i64::MIN)
        .with("i-f32", 1.5_f32)
        .with("j-f64", -2.5_f64)
        .with("k-decimal", FieldValue::Decimal { scale: 2, value: 100 })
        .with("l-string", "é")
        .with("m-array", array.values())
        .with("n-time", FieldValue::Timestamp(1_700_000_000))
        .with("o-table", inner.as_table())
        .with("p-void", FieldValue::Void)
        .with("q-bytes", FieldValue::Bytes(b"\xff\x00"))
        .build()
}

/// Every method, with arguments that differ from each other and from the defaults.
fn methods() -> Vec<Method> {
    let text = || Bytes::from_static(b"long text");
    let close = (404, short("NOT_FOUND - no"), 50, 10);
    vec![
        connection::Start {
            version_major: 0,
            version_minor: 9,
            server_properties: table(),
            mechanisms: Bytes::from_static(b"PLAIN AMQPLAIN"),
            locales: Bytes::from_static(b"en_US"),
        }
        .into(),
        connection::StartOk {
            client_properties: table(),
            mechanism: short("PLAIN"),
            response: Bytes::from_static(b"\0guest\0guest"),
            locale: short("en_US"),
        }
        .into(),
        connection::Secure { challenge: text() }.into(),
        connection::SecureOk { response: text() }.into(),
        connection::Tune { channel_max: 2047, frame_max: 131_072, heartbeat: 60 }.into(),
        connection::TuneOk { channel_max: 100, frame_max: 4_096, heartbeat: 5 }.into(),
        connection::Open { virtual_host: short("/"), ..Default::default() }.into(),
        connection::OpenOk::default().into(),
        connection::Close {
            reply_code: close.0,
            reply_text: close.1.clone(),
            class_id: close.2,
            method_id: close.3,
        }
        .into(),
        connection::CloseOk {}.into(),
        connection::Blocked { reason: short("low on disk") }.into(),
        connection::Unblocked {}.into(),
        connection::UpdateSecret { new_secret: text(), reason: short("old") }.into(),
        connection::UpdateSecretOk {}.into(),
        channel::Open::default().into(),
        channel::OpenOk::default().into(),
        channel::Flow { active: true }.into(),
        channel::FlowOk { active: true }.into(),
        channel::Close {
            reply_code: close.0,
            reply_text: close.1,
            class_id: close.2,
            method_id: close.3,
        }
        .into(),
        channel::CloseOk {}.into(),
        access::Request {
            realm: short("/data"),
            exclusive: false,
            passive: true,
            active: false,
            write: true,
            read: true,
        }
        .into(),
        exchange::Declare {
            exchange: short("ex"),
            kind: short("topic"),
            durable: true,
            internal: true,
            arguments: table(),
            ..Default::default()
        }
        .into(),
        exchange::DeclareOk {}.into(),
        exchange::Delete { exchange: short("ex"), no_wait: true, ..Default::default() }.into(),
        exchange::DeleteOk {}.into(),
        exchange::Bind {
            destination: short("to"),
            source: short("from"),
            routing_key: short("a.#"),
            no_wait: true,
            arguments: table(),
            ..Default::default()
        }
        .into(),
        exchange::BindOk {}.into(),
        exchange::Unbind {
            destination: short("to"),
            source: short("from"),
            routing_key: short("a.#"),
            arguments: table(),
            ..Default::default()
        }
        .into(),
        exchange::UnbindOk {}.into(),
        queue::Declare {
            queue: short("q"),
            passive: true,
            exclusive: true,
            no_wait: true,
            arguments: table(),
            ..Default::default()
        }
        .into(),
        queue::DeclareOk { queue: short("q"), message_count: 7, consumer_count: 9 }.into(),
        queue::Bind {
            queue: short("q"),
            exchange: short("ex"),
            routing_key: short("k"),
            no_wait: true,
            arguments: table(),
            ..Default::default()
        }
        .into(),
        queue::BindOk {}.into(),
        queue::Purge { queue: short("q"), no_wait: true, ..Default::default() }.into(),
        queue::PurgeOk { message_count: u32::MAX }.into(),
        queue::Delete { queue: short("q"), if_empty: true, ..Default::default() }.into(),
        queue::DeleteOk { message_count: 3 }.into(),
        queue::Unbind {
            queue: short("q"),
            exchange: short("ex"),
            routing_key: short("k"),
            arguments: table(),
            ..Default::default()
        }
        .into(),
        queue::UnbindOk {}.into(),
        // The other codec does not keep `prefetch_size`.
        basic::Qos { prefetch_size: 0, prefetch_count: 65_535, global: true }.into(),
        basic::QosOk {}.into(),
        basic::Consume {
            queue: short("q"),
            consumer_tag: short("tag"),
            no_ack: true,
            no_wait: true,
            arguments: table(),
            ..Default::default()
        }
        .into(),
        basic::ConsumeOk { consumer_tag: short("tag") }.into(),
        basic::Cancel { consumer_tag: short("tag"), no_wait: true }.into(),
        basic::CancelOk { consumer_tag: short("tag") }.into(),
        basic::Publish {
            exchange: short("ex"),
            routing_key: short("k"),
            mandatory: true,
            ..Default::default()
        }
        .into(),
        basic::Return {
            reply_code: 312,
            reply_text: short("NO_ROUTE"),
            exchange: short("ex"),
            routing_key: short("k"),
        }
        .into(),
        basic::Deliver {
            consumer_tag: short("tag"),
            delivery_tag: u64::MAX,
            redelivered: true,
            exchange: short("ex"),
            routing_key: short("k"),
        }
        .into(),
        basic::Get { queue: short("q"), no_ack: true, ..Default::default() }.into(),
        basic::GetOk {
            delivery_tag: 5,
            redelivered: true,
            exchange: short("ex"),
            routing_key: short("k"),
            message_count: 6,
        }
        .into(),
        basic::GetEmpty::default().into(),
        basic::Ack { delivery_tag: 5, multiple: true }.into(),
        basic::Reject { delivery_tag: 5, requeue: true }.into(),
        basic::RecoverAsync { requeue: true }.into(),
        basic::Recover { requeue: true }.into(),
        basic::RecoverOk {}.into(),
        basic::Nack { delivery_tag: 5, multiple: false, requeue: true }.into(),
        confirm::Select { no_wait: true }.into(),
        confirm::SelectOk {}.into(),
        tx::Select {}.into(),
        tx::SelectOk {}.into(),
        tx::Commit {}.into(),
        tx::CommitOk {}.into(),
        tx::Rollback {}.into(),
        tx::RollbackOk {}.into(),
    ]
}

/// The other codec reads a frame, and writes it again.
fn through_the_other(bytes: &[u8]) -> (AMQPFrame, Vec<u8>) {
    let (rest, frame) = parse_frame(bytes)
        .unwrap_or_else(|error| panic!("the other codec refuses {bytes:02x?}: {error:?}"));
    assert!(rest.is_empty());
    let written = gen_frame(&frame)(WriteContext::from(Vec::new())).expect("a frame is written");
    (frame, written.into_inner().0)
}

fn decode_one(bytes: &[u8]) -> Method {
    let mut input = BytesMut::from(bytes);
    let frame = FrameDecoder::default()
        .decode(&mut input)
        .expect("a correct frame")
        .expect("a whole frame");
    assert!(input.is_empty());
    assert_eq!((frame.kind, frame.channel), (FrameKind::Method, 3));
    Method::decode(&frame.payload).expect("a correct method")
}

#[test]
fn every_method_both_ways() {
    let methods = methods();
    let mut ids: Vec<_> =
        methods.iter().map(|method| method.id()).map(|id| (id.class, id.method)).collect();
    ids.dedup();
    // `access.request-ok` is the one left out: the other codec does not write its ticket.
    assert_eq!(ids.len(), 65);
    for method in methods {
        let mut ours = BytesMut::new();
        put_method(&mut ours, 3, &method);
        assert_eq!(decode_one(&ours), method);
        let (_, theirs) = through_the_other(&ours);
        assert_eq!(decode_one(&theirs), method, "written by the other codec");
    }
}

/// The names of the arguments, which bytes alone do not show: one method with all kinds of them.
#[test]
fn arguments_have_the_same_names() {
    use amq_protocol::protocol::{AMQPClass, basic::AMQPMethod};
    let consume = basic::Consume {
        queue: short("q"),
        consumer_tag: short("tag"),
        no_local: false,
        no_ack: true,
        exclusive: false,
        no_wait: true,
        ..Default::default()
    };
    let mut ours = BytesMut::new();
    put_method(&mut ours, 3, &consume);
    let (frame, _) = through_the_other(&ours);
    let AMQPFrame::Method(3, AMQPClass::Basic(AMQPMethod::Consume(theirs))) = frame else {
        panic!("a consume on channel 3");
    };
    assert_eq!((theirs.queue.as_str(), theirs.consumer_tag.as_str()), ("q", "tag"));
    let flags = (theirs.no_local, theirs.no_ack, theirs.exclusive, theirs.nowait);
    assert_eq!(flags, (false, true, false, true));
}

#[test]
fn content_both_ways() {
    let headers = table();
    let properties = BasicProperties {
        content_type: Some(b"text/plain"),
        content_encoding: Some(b"gzip"),
        headers: Some(headers.as_table()),
        delivery_mode: Some(2),
        priority: Some(9),
        correlation_id: Some(b"c"),
        reply_to: Some(b"r"),
        expiration: Some(b"1000"),
        message_id: Some(b"m"),
        timestamp: Some(1_700_000_000),
        kind: Some(b"t"),
        user_id: Some(b"guest"),
        app_id: Some(b"a"),
        cluster_id: Some(b"x"),
    };
    let publish = basic::Publish { routing_key: short("q"), ..Default::default() };
    let body = vec![7; 10_000];
    let mut ours = BytesMut::new();
    put_content(&mut ours, 3, FRAME_MAX, &publish, &properties.encode(), &body);
    let mut rest: &[u8] = &ours;
    let (mut theirs, mut their_body) = (BytesMut::new(), Vec::new());
    while !rest.is_empty() {
        let (left, frame) = parse_frame(rest).expect("the other codec reads it");
        if let AMQPFrame::Header(3, header) = &frame {
            assert_eq!(header.body_size, 10_000);
            assert_eq!(header.properties.message_id().as_ref().map(|id| id.as_str()), Some("m"));
            assert_eq!(header.properties.kind().as_ref().map(|kind| kind.as_str()), Some("t"));
            assert_eq!(*header.properties.timestamp(), Some(1_700_000_000));
        }
        if let AMQPFrame::Body(3, part) = &frame {
            their_body.extend_from_slice(part);
        }
        let written = gen_frame(&frame)(WriteContext::from(Vec::new())).expect("it is written");
        theirs.extend_from_slice(&written.into_inner().0);
        rest = left;
    }
    assert_eq!(their_body, body);
    let decoder = FrameDecoder::default();
    let mut assembler = ContentAssembler::new(1 << 20);
    let mut done = None;
    while let Some(frame) = decoder.decode(&mut theirs).unwrap() {
        if frame.kind == FrameKind::Header {
            let header = ContentHeader::decode(&frame.payload).unwrap();
            assert_eq!(header.properties.decode(), properties);
        }
        done = assembler.push(frame).unwrap();
    }
    assert!(done.is_some(), "the publication is complete");
}
