//! Hostile clients of AMQP 0-9-1. Some frames are wrong, so they are written byte by byte, without a client library.
#![allow(clippy::disallowed_methods, reason = "clients of a real process")]

mod abandoned;
mod client;
mod gets;

use std::io::Write;
use std::sync::atomic::AtomicBool;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use bytes::BytesMut;
use malote_front_amqp091::wire::frame::{FrameKind, PROTOCOL_HEADER, put_method};
use malote_front_amqp091::wire::method::{Method, basic, channel, confirm, exchange, queue, tx};
use malote_front_amqp091::wire::properties::{BasicProperties, ContentHeader};
use malote_front_amqp091::wire::table::{ArrayBuilder, FieldTable, FieldValue};

use super::Target;
use super::hostile::{flood, is_stopped, wait};
pub(super) use abandoned::{abandoned_connections, stalled_bodies};
use client::{CHANNELS, Client, repeat, short, start_ok};
pub(super) use gets::get_loops;

/// As large as the server accepts frames.
const FRAME_BYTES: usize = 131_072 - 8;
const MIB: usize = 1 << 20;

/// Connections that begin a handshake and never end it: half of a protocol header, or a `start-ok` that is cut.
pub(super) fn half_handshakes(target: &Target, stop: &AtomicBool) -> Result<()> {
    let mut cut = BytesMut::from(&PROTOCOL_HEADER[..]);
    put_method(&mut cut, 0, &start_ok(FieldTable::default()));
    flood(target.amqp, stop, &cut[..cut.len() - 1], |_| Ok(()));
    Ok(())
}

/// Handshakes that arrive byte by byte.
pub(super) fn slow_handshakes(target: &Target, stop: &AtomicBool) -> Result<()> {
    // A method frame of 4,000 bytes: the server waits for the rest.
    let mut first = PROTOCOL_HEADER.to_vec();
    first.extend([1, 0, 0, 0, 0, 15, 160]);
    flood(target.amqp, stop, &first, |stream| stream.write_all(&[0]));
    Ok(())
}

/// 10,000 channels on one connection: the server must refuse more than it announced.
pub(super) fn too_many_channels(target: &Target, stop: &AtomicBool) -> Result<()> {
    let mut refused = 0;
    while !is_stopped(stop) {
        let Ok(mut client) = Client::open(target) else { continue };
        for number in 1..=10_000 {
            put_method(&mut client.out, number, &channel::Open::default());
        }
        // The server may close the connection while this is written.
        let _ = client.flush();
        let code = client.close_code()?;
        ensure!(code == 530, "10,000 channels were refused with {code}");
        refused += 1;
    }
    ensure!(refused > 0, "no connection could be opened");
    Ok(())
}

/// Connections with as many channels as possible, each with a consumer.
pub(super) fn many_consumers(target: &Target, stop: &AtomicBool) -> Result<()> {
    let mut held = Vec::new();
    for _ in 0..4 {
        let mut client = Client::open(target)?;
        for number in 1..=CHANNELS {
            if is_stopped(stop) {
                return Ok(());
            }
            put_method(&mut client.out, number, &channel::Open::default());
            let consume = basic::Consume { queue: short("good"), ..Default::default() };
            put_method(&mut client.out, number, &consume);
            put_method(&mut client.out, number, &basic::Cancel::default());
            client.flush()?;
            client.wait_for(|method| matches!(method, Method::BasicCancelOk(_)))?;
        }
        held.push(client);
    }
    wait(stop);
    Ok(())
}

/// Tables that are deep, wide, or shorter than they say, in the first method of a client and in later ones.
pub(super) fn table_bombs(target: &Target, stop: &AtomicBool) -> Result<()> {
    let mut deep = FieldTable::default();
    for _ in 0..2_000 {
        deep = FieldTable::builder().with("a", deep.as_table()).build();
        if deep.as_bytes().len() > 60_000 {
            break;
        }
    }
    let wide =
        (0..10_000).fold(FieldTable::builder(), |table, n| table.with(&format!("{n}"), true));
    let array = (0..20_000).fold(ArrayBuilder::default(), |array, _| array.with(FieldValue::Void));
    let array = FieldTable::builder().with("a", array.values()).build();
    let tables = [deep, wide.build(), array];
    repeat(stop, || {
        for table in &tables {
            let mut client = Client::with_channel(target)?;
            let arguments = table.clone();
            let declare = queue::Declare { queue: short("bomb"), arguments, ..Default::default() };
            client.send(1, &declare)?;
            let _ = client.wait_for(|method| matches!(method, Method::QueueDeclareOk(_)));
            let mut client = Client::with_channel(target)?;
            let properties =
                BasicProperties { headers: Some(table.as_table()), ..Default::default() };
            let publish = basic::Publish { routing_key: short("good"), ..Default::default() };
            put_method(&mut client.out, 1, &publish);
            client.header(1, 0, &properties);
            client.flush()?;
            // A table of 4 GiB in a frame of 100 bytes.
            let mut client = Client::with_channel(target)?;
            let mut payload = vec![0, 50, 0, 10, 0, 0, 1, b'q', 0];
            payload.extend([0xff; 4]);
            payload.extend([b'a'; 80]);
            client.frame(FrameKind::Method, 1, &payload);
            client.flush()?;
            let code = client.close_code()?;
            if ![501, 502].contains(&code) {
                return Ok(Some(format!("a table with a wrong length: {code}")));
            }
        }
        Ok(None)
    })
}

/// Frames that announce up to 4 GiB, and frames without their end.
pub(super) fn frame_size_lies(target: &Target, stop: &AtomicBool) -> Result<()> {
    repeat(stop, || {
        for size in [u32::MAX, 1 << 30, 131_073] {
            let mut client = Client::with_channel(target)?;
            let mut head = vec![3, 0, 1];
            head.extend(size.to_be_bytes());
            head.extend([0; 4096]);
            client.stream.write_all(&head)?;
            let code = client.close_code()?;
            if code != 501 {
                return Ok(Some(format!("a frame of {size} bytes was answered with {code}")));
            }
        }
        Ok(None)
    })
}

/// Headers that announce a body of 16 EiB, and bodies on all channels that never end.
pub(super) fn endless_bodies(target: &Target, stop: &AtomicBool) -> Result<()> {
    let body = vec![b'x'; FRAME_BYTES];
    repeat(stop, || {
        let mut client = Client::with_channel(target)?;
        let publish = basic::Publish { routing_key: short("good"), ..Default::default() };
        put_method(&mut client.out, 1, &publish);
        client.header(1, u64::MAX, &BasicProperties::default());
        client.flush()?;
        let refused = client.wait_for(|method| matches!(method, Method::ConnectionStart(_)));
        let text = refused.err().map_or(String::new(), |error| error.to_string());
        if !text.contains("message size") {
            return Ok(Some(format!("a body of 16 EiB: {text}")));
        }

        let mut client = Client::open(target)?;
        for number in 1..=200 {
            put_method(&mut client.out, number, &channel::Open::default());
            put_method(&mut client.out, number, &publish);
            client.header(number, (30 * MIB) as u64, &BasicProperties::default());
        }
        client.flush()?;
        while !is_stopped(stop) {
            for number in 1..=200 {
                client.frame(FrameKind::Body, number, &body);
                // The server closes the connection before it has 64 MiB.
                if client.flush().is_err() {
                    return Ok(None);
                }
            }
        }
        Ok(None)
    })
}

/// Consumers that never read: the queue is kept full by another connection.
pub(super) fn unread_consumers(target: &Target, stop: &AtomicBool) -> Result<()> {
    let mut filler = Client::with_channel(target)?;
    let arguments = FieldTable::builder().with("x-max-length-bytes", (64 * MIB) as i64).build();
    let durable = true;
    let declare =
        queue::Declare { queue: short("unread"), durable, arguments, ..Default::default() };
    filler.send(1, &declare)?;
    filler.wait_for(|method| matches!(method, Method::QueueDeclareOk(_)))?;
    filler.send(1, &confirm::Select::default())?;
    filler.wait_for(|method| matches!(method, Method::ConfirmSelectOk(_)))?;
    let mut held = Vec::new();
    for no_ack in [false, true].into_iter().cycle().take(20) {
        let mut client = Client::with_channel(target)?;
        let consume = basic::Consume { queue: short("unread"), no_ack, ..Default::default() };
        client.send(1, &consume)?;
        held.push(client);
    }
    let body = vec![b'x'; 100 << 10];
    while !is_stopped(stop) {
        filler.publish(1, "unread", false, &body);
        filler.flush()?;
        filler.wait_for(|method| matches!(method, Method::BasicAck(_) | Method::BasicNack(_)))?;
    }
    Ok(())
}

/// Publications that come back because no queue gets them, and confirms: none of them is read.
pub(super) fn unread_returns(target: &Target, stop: &AtomicBool) -> Result<()> {
    flood_unread(target, stop, "missing", true, 64 << 10)
}

/// Publications whose confirms are not read.
pub(super) fn unread_confirms(target: &Target, stop: &AtomicBool) -> Result<()> {
    flood_unread(target, stop, "dropped", false, 100)
}

/// Publishes on several connections as fast as the server reads, and reads nothing.
fn flood_unread(
    target: &Target,
    stop: &AtomicBool,
    key: &str,
    mandatory: bool,
    body_bytes: usize,
) -> Result<()> {
    let body = vec![b'x'; body_bytes];
    let mut held = Vec::new();
    for _ in 0..10 {
        let mut client = Client::with_channel(target)?;
        client.send(1, &confirm::Select::default())?;
        client.stream.set_write_timeout(Some(Duration::from_millis(20)))?;
        held.push(client);
    }
    while !is_stopped(stop) {
        for client in &mut held {
            if client.out.is_empty() {
                (0..100).for_each(|_| client.publish(1, key, mandatory, &body));
            }
            // A full connection is tried again: what the kernel took is not sent twice.
            while let Ok(count) = client.stream.write(&client.out) {
                let _ = client.out.split_to(count);
                if client.out.is_empty() || is_stopped(stop) {
                    break;
                }
            }
        }
    }
    Ok(())
}

/// Direct replies to a requester that does not read.
pub(super) fn unread_replies(target: &Target, stop: &AtomicBool) -> Result<()> {
    let mut requester = Client::with_channel(target)?;
    let (queue, no_ack) = (short("amq.rabbitmq.reply-to"), true);
    requester.send(1, &basic::Consume { queue, no_ack, ..Default::default() })?;
    requester.wait_for(|method| matches!(method, Method::BasicConsumeOk(_)))?;
    let reply_to = Some(&b"amq.rabbitmq.reply-to"[..]);
    let publish = basic::Publish { routing_key: short("alpha"), ..Default::default() };
    put_method(&mut requester.out, 1, &publish);
    requester.header(1, 0, &BasicProperties { reply_to, ..Default::default() });
    requester.flush()?;
    let mut responder = Client::with_channel(target)?;
    let name = loop {
        responder.send(1, &basic::Get { queue: short("alpha"), no_ack, ..Default::default() })?;
        let frame = responder.next()?;
        let method = Method::decode(&frame.payload);
        if !matches!(method, Ok(Method::BasicGetOk(_))) {
            sleep(Duration::from_millis(20));
            continue;
        }
        let header = ContentHeader::decode(&responder.next()?.payload);
        let Ok(header) = header else { bail!("the request has no header") };
        let name = header.properties.decode().reply_to.map(<[u8]>::to_vec);
        break String::from_utf8(name.unwrap_or_default())?;
    };
    let body = vec![b'x'; 100 << 10];
    while !is_stopped(stop) {
        responder.publish(1, &name, false, &body);
        responder.flush()?;
    }
    Ok(())
}

/// Transactions on many channels that are never committed.
pub(super) fn endless_transactions(target: &Target, stop: &AtomicBool) -> Result<()> {
    let body = vec![b'x'; 64 << 10];
    repeat(stop, || {
        let mut client = Client::open(target)?;
        for number in 1..=500 {
            put_method(&mut client.out, number, &channel::Open::default());
            put_method(&mut client.out, number, &tx::Select {});
        }
        client.flush()?;
        while !is_stopped(stop) {
            for number in 1..=500 {
                client.publish(number, "dropped", false, &body);
                // Channels that were closed discard the rest.
                if client.flush().is_err() {
                    return Ok(None);
                }
            }
        }
        Ok(None)
    })
}

/// A message with thousands of keys for the default exchange: each of them is a copy.
pub(super) fn many_copies(target: &Target, stop: &AtomicBool) -> Result<()> {
    let body = vec![b'x'; FRAME_BYTES];
    let keys = (0..10_000).fold(ArrayBuilder::default(), |keys, n| keys.with(&*format!("q{n}")));
    let headers = FieldTable::builder().with("CC", keys.values()).build();
    repeat(stop, || {
        let mut client = Client::with_channel(target)?;
        let publish = basic::Publish { routing_key: short("dropped"), ..Default::default() };
        put_method(&mut client.out, 1, &publish);
        let properties =
            BasicProperties { headers: Some(headers.as_table()), ..Default::default() };
        client.header(1, (8 * FRAME_BYTES) as u64, &properties);
        (0..8).for_each(|_| client.frame(FrameKind::Body, 1, &body));
        client.flush()?;
        let refused = client.wait_for(|method| matches!(method, Method::ConnectionStart(_)));
        let text = refused.err().map_or(String::new(), |error| error.to_string());
        Ok((!text.contains("10001 queues")).then(|| format!("10,000 copies of 1 MiB: {text}")))
    })
}

/// Exclusive queues and bindings, as many as time allows, on connections that end.
pub(super) fn many_queues(target: &Target, stop: &AtomicBool) -> Result<()> {
    let mut number = 0_u64;
    repeat(stop, || {
        let mut client = Client::with_channel(target)?;
        for _ in 0..500 {
            if is_stopped(stop) {
                break;
            }
            number += 1;
            let (name, exclusive) = (short(&format!("own-{number}")), true);
            let declare = queue::Declare {
                queue: name.clone(),
                exclusive,
                no_wait: true,
                ..Default::default()
            };
            put_method(&mut client.out, 1, &declare);
            for key in 0..10 {
                let bind = queue::Bind {
                    queue: name.clone(),
                    exchange: short("amq.topic"),
                    routing_key: short(&format!("{number}.{key}.#")),
                    no_wait: key < 9,
                    ..Default::default()
                };
                put_method(&mut client.out, 1, &bind);
            }
            client.flush()?;
            client.wait_for(|method| matches!(method, Method::QueueBindOk(_)))?;
        }
        Ok(None)
    })
}

/// Connections with a channel and a declaration that end without a word, one after the other.
pub(super) fn connection_churn(target: &Target, stop: &AtomicBool) -> Result<()> {
    let declare = exchange::Declare {
        exchange: short("amq.topic"),
        kind: short("topic"),
        passive: true,
        ..Default::default()
    };
    repeat(stop, || {
        let mut client = Client::with_channel(target)?;
        client.send(1, &declare)?;
        client.wait_for(|method| matches!(method, Method::ExchangeDeclareOk(_)))?;
        Ok(None)
    })
}
