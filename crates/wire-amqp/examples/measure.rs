//! Measures the codec and the engine: `cargo run --release -p malote-wire-amqp --example measure`

use std::hint::black_box;

use bytes::{Bytes, BytesMut};
use malote_wire_amqp::connection::*;
use malote_wire_amqp::frame::{FrameKind, put_frame, take_frame};
use malote_wire_amqp::message::{Draft, Message};
use malote_wire_amqp::performative::*;
use malote_wire_amqp::types::Symbol;
use tokio::time::Instant;

const BODY_BYTES: usize = 1_024;

fn report(what: &str, rounds: u32, run: impl FnOnce()) {
    let begun = Instant::now();
    run();
    println!("{what:<62} {:>7.0} ns", begun.elapsed().as_nanos() as f64 / f64::from(rounds));
}

fn main() {
    let rounds = 1_000_000;
    let payload = Draft::data(vec![7_u8; BODY_BYTES]).to_bytes();
    decode_and_encode(rounds, &payload);
    let parsed = payload.clone();
    report("message: sections found", rounds, || {
        for _ in 0..rounds {
            black_box(Message::parse(black_box(parsed.clone())).expect("our own"));
        }
    });
    engines(rounds, &payload);
}

/// The codec alone: a transfer of 1 KiB in, a disposition out.
fn decode_and_encode(rounds: u32, payload: &Bytes) {
    let transfer = Performative::Transfer(Transfer {
        delivery_id: Some(70_000),
        delivery_tag: Some(Bytes::from_static(&[7; 16])),
        message_format: Some(0),
        settled: Some(false),
        ..Transfer::default()
    });
    let mut stream = BytesMut::new();
    for _ in 0..50 {
        put_frame(&mut stream, FrameKind::Amqp, 0, |out| {
            transfer.encode(out);
            out.extend_from_slice(payload);
        });
    }
    let mut out = BytesMut::with_capacity(1 << 16);
    report("codec: transfer of 1 KiB decoded, disposition encoded", rounds, || {
        for _ in 0..rounds / 50 {
            let mut input = BytesMut::from(&stream[..]);
            while let Some(frame) = take_frame(&mut input, 65_536).expect("our own") {
                let (performative, payload) = Performative::decode(&frame.body).expect("our own");
                let Performative::Transfer(transfer) = performative else { continue };
                black_box(payload);
                let disposition = Disposition {
                    role: Role::Receiver,
                    first: transfer.delivery_id.unwrap_or(0),
                    settled: true,
                    state: Some(DeliveryState::Accepted),
                    ..Disposition::default()
                };
                put_frame(&mut out, FrameKind::Amqp, 0, |out| disposition.encode(out));
            }
            out.clear();
        }
    });
}

/// Both engines: send, parse, deliver, settle, confirm.
fn engines(rounds: u32, payload: &Bytes) {
    let mechanisms = vec![Symbol::from_static("ANONYMOUS")];
    let mut client = Connection::client(Config { sasl: false, ..Config::default() }, 0);
    let mut server = Connection::server(Config { sasl: false, mechanisms, ..Config::default() }, 0);
    client.open(Open::default()).expect("first");
    let session = client.begin().expect("open");
    let attach = Attach {
        name: "l".into(),
        role: Role::Sender,
        target: Some(Target::at("q").into()),
        ..Attach::default()
    };
    let sender = client.attach(session, attach).expect("begun");
    let mut receiver = None;
    for _ in 0..3 {
        server.feed(&client.take_output(), 0);
        while let Some(event) = server.next_event() {
            match event {
                Event::Open(_) => server.open(Open::default()).expect("asked"),
                Event::Attach { link, attach } => {
                    server.accept(link, attach.answer()).expect("asked");
                    server.grant(link, u32::MAX / 2).expect("accepted");
                    receiver = Some(link);
                }
                _ => {}
            }
        }
        client.feed(&server.take_output(), 0);
        while client.next_event().is_some() {}
    }
    let receiver = receiver.expect("attached");
    for batch in [1, 50] {
        let what = format!("both engines: sent, received, settled, {batch} at a time");
        report(&what, rounds, || {
            for _ in 0..rounds / batch {
                for key in 0..u64::from(batch) {
                    let tag = Bytes::from_static(&[7; 16]);
                    let payload = payload.clone();
                    let outgoing = Outgoing { key, tag, payload, ..Outgoing::default() };
                    client.send(sender, outgoing).expect("there is credit");
                }
                server.feed(&client.take_output(), 0);
                while let Some(event) = server.next_event() {
                    if let Event::Delivery(incoming) = event {
                        let state = Some(DeliveryState::Accepted);
                        server.dispose(receiver, incoming.delivery, true, state).expect("open");
                    }
                }
                client.feed(&server.take_output(), 0);
                while let Some(event) = client.next_event() {
                    black_box(event);
                }
            }
        });
    }
}
