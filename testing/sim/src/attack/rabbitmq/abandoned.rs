//! Clients that open something and leave it: connections at every point of their life, and messages without an end.
#![allow(clippy::disallowed_methods, reason = "clients of a real process")]

use std::io::Write as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::scope;

use anyhow::{Result, ensure};
use malote_front_amqp091::wire::frame::{FrameKind, PROTOCOL_HEADER, put_method};
use malote_front_amqp091::wire::method::{basic, channel, confirm, queue};
use malote_front_amqp091::wire::properties::BasicProperties;

use super::super::Target;
use super::super::hostile::{connect, is_stopped, wait};
use super::client::{Client, short};
use super::{FRAME_BYTES, MIB};

/// Connections that are opened before the attack ends early.
const ABANDONED_MAX: u64 = 10_000;
const THREADS: u64 = 4;

/// 10,000 connections, each left without a word: after half a protocol header, during the handshake, with an open
/// channel, with an exclusive queue and a consumer, or in the middle of a body.
pub(in super::super) fn abandoned_connections(target: &Target, stop: &AtomicBool) -> Result<()> {
    let (opened, refused) = (AtomicU64::new(0), AtomicU64::new(0));
    scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                while !is_stopped(stop) {
                    let number = opened.fetch_add(1, Ordering::Relaxed);
                    if number >= ABANDONED_MAX {
                        break;
                    }
                    if abandon(target, number).is_err() {
                        refused.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    // The server is busy with those that left, and still serves.
    wait(stop);
    let (opened, refused) = (opened.into_inner(), refused.into_inner());
    ensure!(refused < opened, "none of {opened} connections got as far as it wanted");
    Ok(())
}

/// Opens a connection and drops it. How far it gets depends on its number.
fn abandon(target: &Target, number: u64) -> Result<()> {
    let stage = number % 5;
    if stage < 2 {
        let mut stream = connect(target.amqp)?;
        let count = if stage == 0 { 4 } else { PROTOCOL_HEADER.len() };
        stream.write_all(&PROTOCOL_HEADER[..count])?;
        return Ok(());
    }
    let mut client = Client::with_channel(target)?;
    match stage {
        2 => {}
        3 => {
            let queue = short(&format!("left-{number}"));
            let declare =
                queue::Declare { queue: queue.clone(), exclusive: true, ..Default::default() };
            put_method(&mut client.out, 1, &declare);
            put_method(&mut client.out, 1, &basic::Consume { queue, ..Default::default() });
        }
        _ => {
            let publish = basic::Publish { routing_key: short("dropped"), ..Default::default() };
            put_method(&mut client.out, 1, &confirm::Select::default());
            put_method(&mut client.out, 1, &publish);
            client.header(1, MIB as u64, &BasicProperties::default());
            client.frame(FrameKind::Body, 1, &[b'x'; 4096]);
        }
    }
    client.flush()?;
    Ok(())
}

/// Publishers on many connections that send nearly all of several messages, and then nothing more.
pub(in super::super) fn stalled_bodies(target: &Target, stop: &AtomicBool) -> Result<()> {
    let body = vec![b'x'; FRAME_BYTES];
    let mut held = Vec::new();
    while held.len() < 40 && !is_stopped(stop) {
        let Ok(mut client) = Client::open(target) else { continue };
        let publish = basic::Publish { routing_key: short("good"), ..Default::default() };
        for number in 1..=2 {
            put_method(&mut client.out, number, &channel::Open::default());
            put_method(&mut client.out, number, &publish);
            client.header(number, (31 * MIB) as u64, &BasicProperties::default());
            for _ in 0..30 * MIB / FRAME_BYTES {
                client.frame(FrameKind::Body, number, &body);
            }
            // The server may close the connection meanwhile.
            let _ = client.flush();
        }
        held.push(client);
    }
    wait(stop);
    Ok(())
}
