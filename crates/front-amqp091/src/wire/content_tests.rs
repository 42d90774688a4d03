use super::*;
use crate::wire::frame::FrameDecoder;
use crate::wire::properties::BasicProperties;
use crate::wire::text::ShortString;

const BODY_BYTES_MAX: u64 = 1 << 20;

fn publish() -> basic::Publish {
    basic::Publish { routing_key: ShortString::from_static("q"), ..basic::Publish::default() }
}

/// The frames of a publication.
fn frames(body: &[u8], frame_max: u32) -> Vec<Frame> {
    let properties =
        BasicProperties { message_id: Some(b"m"), ..BasicProperties::default() }.encode();
    let mut out = BytesMut::new();
    put_content(&mut out, 1, frame_max, &publish(), &properties, body);
    let mut decoder = FrameDecoder::default();
    decoder.set_frame_max(frame_max);
    let mut frames = Vec::new();
    while let Some(frame) = decoder.decode(&mut out).unwrap() {
        assert!(frame.payload.len() + FRAME_OVERHEAD_BYTES <= frame_max as usize);
        frames.push(frame);
    }
    assert!(out.is_empty());
    frames
}

fn refused(frames: impl IntoIterator<Item = Frame>) -> Exception {
    let mut assembler = ContentAssembler::new(BODY_BYTES_MAX);
    let mut frames = frames.into_iter();
    let refused = frames.find_map(|frame| assembler.push(frame).err());
    refused.expect("one frame does not belong there")
}

#[test]
fn a_body_is_cut_and_put_together() {
    for (size, count) in [(0, 2), (1, 3), (4_088, 3), (4_089, 4), (3 * 4_088, 5), (500_000, 125)] {
        let body: Vec<u8> = (0..size).map(|index| index as u8).collect();
        let frames = frames(&body, 4_096);
        assert_eq!((size, frames.len()), (size, count));
        let mut assembler = ContentAssembler::new(BODY_BYTES_MAX);
        let mut done = None;
        for frame in frames {
            assert_eq!(done, None);
            done = assembler.push(frame).unwrap();
        }
        let Some(Assembled::Publication(publication)) = done else { panic!("it is complete") };
        assert_eq!(publication.publish, publish());
        assert_eq!(publication.properties.decode().message_id, Some(&b"m"[..]));
        assert_eq!(publication.body, body);
        assert_eq!(assembler.buffered_bytes(), 0);
    }
}

#[test]
fn a_body_of_one_frame_is_not_copied() {
    let frames = frames(&[7; 1_000], 4_096);
    let start = frames[2].payload.as_ptr();
    let mut assembler = ContentAssembler::new(BODY_BYTES_MAX);
    let last = frames.into_iter().map(|frame| assembler.push(frame).unwrap()).last().flatten();
    let Some(Assembled::Publication(publication)) = last else { panic!("it is complete") };
    assert_eq!(publication.body.as_ptr(), start);
}

/// RabbitMQ accepts empty body frames; they change nothing.
#[test]
fn empty_body_frames_are_skipped() {
    let mut frames = frames(b"hello", 4_096);
    let empty = Frame { payload: Bytes::new(), ..frames[2].clone() };
    frames.insert(2, empty);
    let mut assembler = ContentAssembler::new(BODY_BYTES_MAX);
    let last = frames.into_iter().map(|frame| assembler.push(frame).unwrap()).last().flatten();
    assert!(
        matches!(last, Some(Assembled::Publication(publication)) if publication.body == "hello")
    );
}

#[test]
fn frames_out_of_order_are_refused() {
    let [method, header, body] = frames(b"hello", 4_096).try_into().expect("three frames");
    let text = |frames: &[&Frame]| {
        let exception = refused(frames.iter().copied().cloned());
        (exception.to_string(), exception.method.method)
    };
    let no_method = "UNEXPECTED_FRAME - expected method frame, got non method frame instead";
    assert_eq!(text(&[&header]), (no_method.into(), 0));
    assert_eq!(text(&[&body]), (no_method.into(), 0));
    let no_header = "UNEXPECTED_FRAME - expected content header for class 60, got non content header frame instead";
    assert_eq!(text(&[&method, &body]), (no_header.into(), 40));
    assert_eq!(text(&[&method, &method]), (no_header.into(), 40));
    let no_body = "UNEXPECTED_FRAME - expected content body, got non content body frame instead";
    assert_eq!(text(&[&method, &header, &header]), (no_body.into(), 40));
    let long = Frame { payload: Bytes::from_static(b"hellohello"), ..body.clone() };
    assert_eq!(text(&[&method, &header, &long]), (no_body.into(), 40));
}

#[test]
fn a_large_body_is_refused_by_its_header() {
    let frames = frames(&vec![0; BODY_BYTES_MAX as usize + 1], 131_072);
    let exception = refused(frames.into_iter().take(2));
    let text =
        "PRECONDITION_FAILED - message size 1048577 is larger than configured max size 1048576";
    assert_eq!(exception.to_string(), text);
    assert_eq!(exception.method, basic::Publish::ID);
}

/// A publisher that announces much and sends little does not get the memory.
#[test]
fn room_is_made_when_bytes_arrive() {
    let mut body = Body::One(Bytes::new());
    body.push(Bytes::from_static(b"a"), u64::MAX);
    body.push(Bytes::from_static(b"b"), u64::MAX);
    let Body::Several(bytes) = body else { panic!("two parts") };
    assert!(bytes.capacity() <= BODY_RESERVE_BYTES_MAX + 64, "{}", bytes.capacity());
}

#[test]
fn borrowed_methods_are_written_like_owned_ones() {
    let encoded = |method: &dyn Fn(&mut BytesMut)| {
        let mut out = BytesMut::new();
        method(&mut out);
        out
    };
    let short = ShortString::from_static;
    let deliver = basic::Deliver {
        consumer_tag: short("tag"),
        delivery_tag: 7,
        redelivered: true,
        exchange: short("ex"),
        routing_key: short("key"),
    };
    let outgoing = OutgoingDeliver {
        consumer_tag: "tag",
        delivery_tag: 7,
        redelivered: true,
        exchange: "ex",
        routing_key: "key",
    };
    assert_eq!(encoded(&|out| outgoing.encode(out)), encoded(&|out| deliver.encode(out)));
    let get_ok = basic::GetOk {
        delivery_tag: 7,
        redelivered: true,
        exchange: short("ex"),
        routing_key: short("key"),
        message_count: 9,
    };
    let outgoing = OutgoingGetOk {
        delivery_tag: 7,
        redelivered: true,
        exchange: "ex",
        routing_key: "key",
        message_count: 9,
    };
    assert_eq!(encoded(&|out| outgoing.encode(out)), encoded(&|out| get_ok.encode(out)));
    let returned = basic::Return {
        reply_code: 312,
        reply_text: short("NO_ROUTE"),
        exchange: short("ex"),
        routing_key: short("key"),
    };
    let outgoing = OutgoingReturn { code: ReplyCode::NoRoute, exchange: "ex", routing_key: "key" };
    assert_eq!(encoded(&|out| outgoing.encode(out)), encoded(&|out| returned.encode(out)));
}

#[test]
fn a_small_publication_that_is_kept_does_not_keep_the_buffer_of_its_read() {
    for (size, shares) in
        [(0, false), (1, false), (DETACHED_BYTES_MAX - 1, false), (DETACHED_BYTES_MAX, true)]
    {
        let frames = frames(&vec![7; size], 131_072);
        let mut buffers: Vec<Bytes> = frames.iter().map(|frame| frame.payload.clone()).collect();
        let mut assembler = ContentAssembler::new(BODY_BYTES_MAX);
        let assembled = frames.into_iter().find_map(|frame| assembler.push(frame).unwrap());
        let Some(Assembled::Publication(read)) = assembled else { panic!("no publication") };
        let kept = read.clone().detached();
        assert_eq!(kept, read);
        drop((read, assembler));
        // The frames of a publication share one buffer.
        let last = buffers.pop().unwrap();
        buffers.clear();
        assert_eq!(last.is_unique(), !shares, "{size}");
    }
}
