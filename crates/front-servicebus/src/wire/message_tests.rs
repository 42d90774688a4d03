use bytes::Bytes;
use malote_model::{Body, BodyKind, Properties as Names, SessionId, Value as Model};
use malote_wire_amqp::message::{Body as DraftBody, Draft};

use super::*;

fn wire(draft: &Draft) -> Wire {
    Wire::parse(draft.to_bytes()).unwrap()
}

fn stored(message: Message) -> Stored {
    let (enqueued_at, sent_at) = (Timestamp(7), Timestamp(7));
    Stored {
        message,
        enqueued_at,
        sent_at,
        dead: None,
        deaths: Vec::new(),
        first_seq: None,
        routed_by: None,
        depth: 1,
    }
}

fn info() -> DeliveryInfo {
    DeliveryInfo { seq: 3, ..DeliveryInfo::default() }
}

fn full() -> Draft {
    Draft {
        properties: Some(Properties {
            message_id: Some(Value::Uuid([9; 16])),
            user_id: Some(Bytes::from_static(b"me")),
            to: Some("there".into()),
            subject: Some("label".into()),
            reply_to: Some("back".into()),
            correlation_id: Some(Value::Ulong(77)),
            content_type: Some(Symbol::from_static("text/plain")),
            group_id: Some("s1".into()),
            group_sequence: Some(5),
            reply_to_group_id: Some("s2".into()),
            ..Properties::default()
        }),
        application_properties: Map::default()
            .with_string("n", 1_i32)
            .with_string("sym", Value::Symbol(Symbol::from_static("sym"))),
        footer: Map::default().with("f", 1_i32),
        ..Draft::data("hello")
    }
}

#[test]
fn the_bare_message_is_preserved_byte_for_byte() {
    let bodies = [
        DraftBody::Data(vec![Bytes::from_static(b"one")]),
        DraftBody::Data(vec![Bytes::from_static(b"one"), Bytes::from_static(b"two")]),
        DraftBody::Data(vec![Bytes::from(vec![0; 70_000])]),
        DraftBody::Value(Value::Int(5)),
        DraftBody::Sequence(vec![vec![Value::Int(5)], vec![Value::Null]]),
        DraftBody::Absent,
    ];
    for body in bodies {
        for draft in [Draft { body: body.clone(), ..full() }, Draft { body, ..Draft::default() }] {
            let given = wire(&draft);
            let mut message = read(&given, || Timestamp(0)).unwrap();
            let no_id = message.message_id.is_none();
            message.message_id.get_or_insert("given".into());
            let back = Wire::parse(write(&stored(message), &info())).unwrap();
            if no_id {
                let properties = back.properties().unwrap();
                assert_eq!(properties.message_id, Some(string("given")));
                assert_eq!(
                    (back.body(), back.footer_encoded()),
                    (given.body(), given.footer_encoded())
                );
            } else {
                assert_eq!(back.bare(), given.bare());
            }
        }
    }
}

#[test]
fn an_unusual_encoding_is_preserved() {
    // A data section with an eight-byte descriptor and a four-byte length.
    let mut bytes = BytesMut::new();
    Properties { message_id: Some(string("m")), ..Properties::default() }.encode(&mut bytes);
    bytes.extend_from_slice(&[0, 0x80, 0, 0, 0, 0, 0, 0, 0, 0x75, 0xb0, 0, 0, 0, 2, b'h', b'i']);
    let given = Wire::parse(bytes.freeze()).unwrap();
    let message = read(&given, || Timestamp(0)).unwrap();
    assert_eq!(message.body, Body { bytes: Bytes::from_static(b"hi"), kind: BodyKind::Bytes });
    let back = Wire::parse(write(&stored(message), &info())).unwrap();
    assert_eq!(back.bare(), given.bare());
}

#[test]
fn message_fields_are_mapped_to_the_model() {
    let draft = Draft {
        header: Some(Header { ttl: Some(500), priority: 9, durable: true, ..Header::default() }),
        message_annotations: Map::default()
            .with(SCHEDULED_TIME, Value::Timestamp(1234))
            .with(PARTITION_KEY, "pk")
            .with("x-opt-sequence-number", 99_i64)
            .with("x-own", "kept"),
        ..full()
    };
    let message = read(&wire(&draft), || Timestamp(0)).unwrap();
    assert_eq!(message.message_id.as_deref(), Some("09090909-0909-0909-0909-090909090909"));
    assert_eq!(message.correlation_id.as_deref(), Some("77"));
    assert_eq!(message.session.as_ref().map(SessionId::as_str), Some("s1"));
    assert_eq!(message.reply_to_session.as_deref(), Some("s2"));
    assert_eq!((message.ttl_ms, message.priority), (Some(500), 9));
    assert_eq!((message.when, message.key.as_deref()), (When::At(Timestamp(1234)), Some("pk")));
    assert_eq!(message.properties.get("n"), Some(&Model::I32(1)));
    let back = Wire::parse(write(&stored(message), &info())).unwrap();
    let annotations = back.message_annotations().unwrap();
    assert_eq!(annotations.get("x-opt-sequence-number"), Some(&Value::Long(3)));
    assert_eq!(annotations.get(PARTITION_KEY), Some(&string("pk")));
    assert_eq!(annotations.get("x-own"), Some(&string("kept")));
    assert_eq!(annotations.get("x-opt-locked-until"), None);
    let header = back.header().unwrap();
    assert_eq!((header.ttl, header.priority, header.durable), (Some(500), 9, true));
}

#[test]
fn changed_properties_are_sent_and_others_keep_their_type() {
    let mut message = read(&wire(&full()), || Timestamp(0)).unwrap();
    message.properties.set("n", Model::I32(2));
    message.subject = Some("other".into());
    let mut stored = stored(message);
    stored.first_seq = Some(malote_model::Seq(41));
    let from = malote_model::QueueName::new("q").unwrap();
    let dead = malote_engine::DeadLetter::once("why".into(), "because".into(), Timestamp(1), from);
    stored.dead = Some(malote_engine::DeadLetter {
        from_seq: malote_model::Seq(41),
        receives: 1,
        failed: 1,
        ..dead
    });
    let queue = QueueName::new("q").unwrap().dead_letters();
    let info = DeliveryInfo::of(&queue, &stored, Seq(3), 0);
    let back = Wire::parse(write(&stored, &info)).unwrap();
    let names = back.application_properties().unwrap();
    assert_eq!(names.get("n"), Some(&Value::Int(2)));
    assert_eq!(names.get("sym"), Some(&Value::Symbol(Symbol::from_static("sym"))));
    assert_eq!(names.get("DeadLetterReason"), Some(&string("why")));
    assert_eq!(names.get("DeadLetterErrorDescription"), Some(&string("because")));
    let properties = back.properties().unwrap();
    assert_eq!(properties.subject.as_deref(), Some("other"));
    assert_eq!(properties.message_id, Some(Value::Uuid([9; 16])));
    assert_eq!(properties.group_sequence, Some(5));
    let annotations = back.message_annotations().unwrap();
    assert_eq!(annotations.get("x-opt-enqueue-sequence-number"), Some(&Value::Long(41)));
}

#[test]
fn a_binary_partition_key_is_read_as_text() {
    let key = |value: Value| {
        let message_annotations = Map::default().with(PARTITION_KEY, value);
        read(&wire(&Draft { message_annotations, ..full() }), || Timestamp(7)).unwrap().key
    };
    assert_eq!(key(string("é")), Some("é".to_owned()));
    assert_eq!(key(Value::Binary("é".into())), Some("é".to_owned()));
    assert_eq!(key(Value::Binary(Bytes::from_static(&[0xff, 0]))), Some("ff00".to_owned()));
}

/// A plain message carries exactly what the service sends; tests of its clients count the sections.
#[test]
fn a_delivery_has_exactly_the_annotations_of_the_service() {
    let message = read(&wire(&full()), || Timestamp(7)).unwrap();
    let queue = QueueName::new("q").unwrap();
    let encoded = |queue: &QueueName| {
        let stored = stored(message.clone());
        write(&stored, &DeliveryInfo::of(queue, &stored, Seq(3), 0))
    };
    let back = encoded(&queue);
    // A header with only a count, and empty delivery annotations.
    let head = [0, 0x53, 0x70, 0xc0, 6, 5, 0x40, 0x40, 0x40, 0x40, 0x43, 0, 0x53, 0x71, 0xc1, 1, 0];
    assert_eq!(&back[..head.len()], head);
    let names = |bytes: Bytes| {
        let annotations = Wire::parse(bytes).unwrap().message_annotations().unwrap();
        annotations.0.iter().map(|(name, _)| text(name)).collect::<Vec<_>>()
    };
    assert_eq!(names(back), ["x-opt-enqueued-time", "x-opt-sequence-number"]);
    let copy = names(encoded(&QueueName::new("t/Subscriptions/s").unwrap()));
    assert_eq!(copy[2..], ["x-opt-enqueue-sequence-number"]);
}

#[test]
fn messages_of_other_protocols_are_written_from_the_canonical_form() {
    let properties = Names::from_iter([("a".to_owned(), Model::Bool(true))]);
    let body = Body { bytes: Bytes::from_static(b"text"), kind: BodyKind::Text };
    let message = Message {
        message_id: Some("id".into()),
        session: Some(SessionId::new("s").unwrap()),
        content_type: Some("a/b".into()),
        properties,
        body,
        ..Message::default()
    };
    let back = Wire::parse(write(&stored(message), &info())).unwrap();
    let fields = back.properties().unwrap();
    assert_eq!((fields.message_id, fields.group_id), (Some(string("id")), Some("s".into())));
    assert_eq!(back.application_properties().unwrap().get("a"), Some(&Value::Bool(true)));
    assert_eq!(back.data().unwrap(), [Bytes::from_static(b"text")]);
}

#[test]
fn an_invalid_session_id_is_refused() {
    let long = "x".repeat(129);
    let properties = Some(Properties { group_id: Some(long.into()), ..Properties::default() });
    let error =
        read(&wire(&Draft { properties, ..Draft::default() }), || Timestamp(0)).unwrap_err();
    assert_eq!(error.condition.as_str(), condition::INVALID_FIELD);
}

/// A header has 32 bits of milliseconds, about 49 days. Longer times are sent as an expiry time.
#[test]
fn a_long_ttl_is_sent_as_an_expiry_time() {
    let days = |days: i64| days * 86_400_000;
    let now = Timestamp(1_000);
    let ttl_ms = |ttl: Option<u32>, until: Option<i64>| {
        let absolute_expiry_time =
            until.map(|until| malote_wire_amqp::performative::Timestamp(until + 1_000));
        let properties = Some(Properties { absolute_expiry_time, ..Properties::default() });
        let header = Some(Header { ttl, ..Header::default() });
        read(&wire(&Draft { header, properties, ..Draft::data("x") }), || now).unwrap().ttl_ms
    };
    assert_eq!(ttl_ms(Some(u32::MAX), Some(days(90))), Some(days(90) as u64));
    assert_eq!(ttl_ms(Some(5), Some(days(90))), Some(5));
    assert_eq!(ttl_ms(None, Some(days(90))), Some(days(90) as u64));
    assert_eq!(ttl_ms(Some(u32::MAX), None), Some(u64::from(u32::MAX)));
    assert_eq!(ttl_ms(None, None), None);
}
