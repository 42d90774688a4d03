//! `basic.get` in loops on a large queue.
#![allow(clippy::disallowed_methods, reason = "clients of a real process")]

use std::io::Write as _;
use std::sync::atomic::AtomicBool;
use std::thread::scope;
use std::time::Duration;

use anyhow::{Result, ensure};
use malote_front_amqp091::wire::frame::put_method;
use malote_front_amqp091::wire::method::{Method, basic, confirm, queue};
use malote_front_amqp091::wire::table::FieldTable;

use super::super::Target;
use super::super::hostile::is_stopped;
use super::MIB;
use super::client::{Client, repeat, short};

const QUEUE: &str = "large";
const BODY_BYTES: usize = 4 << 10;
/// Bytes of messages in the queue.
const QUEUE_BYTES_MAX: usize = 256 * MIB;
/// Messages that are there before the first get.
const FILLED: usize = 16_384;
const BATCH: usize = 1_024;

/// Clients that get one message after the other: some remove each, some never acknowledge and leave with thousands, and
/// some ask without reading the answers. Another connection keeps the queue full.
pub(in super::super) fn get_loops(target: &Target, stop: &AtomicBool) -> Result<()> {
    let mut filler = Client::with_channel(target)?;
    let bytes = QUEUE_BYTES_MAX as i64;
    let arguments = FieldTable::builder().with("x-max-length-bytes", bytes).build();
    let (queue, durable) = (short(QUEUE), true);
    filler.send(1, &queue::Declare { queue, durable, arguments, ..Default::default() })?;
    filler.wait_for(|method| matches!(method, Method::QueueDeclareOk(_)))?;
    filler.send(1, &confirm::Select::default())?;
    filler.wait_for(|method| matches!(method, Method::ConfirmSelectOk(_)))?;
    let mut published = 0;
    for _ in 0..FILLED / BATCH {
        fill(&mut filler, &mut published)?;
    }
    scope(|scope| {
        let takers = [true, false].map(|no_ack| {
            scope.spawn(move || repeat(stop, || get_and_leave(target, stop, no_ack).map(|()| None)))
        });
        let silent = scope.spawn(|| get_unread(target, stop));
        let mut filled = Ok(());
        while !is_stopped(stop) && filled.is_ok() {
            filled = fill(&mut filler, &mut published);
        }
        let others = takers.into_iter().chain([silent]).map(|thread| {
            thread.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a client panicked")))
        });
        others.collect::<Result<()>>()?;
        filled
    })
}

/// Publishes messages and waits for the confirm of the last one.
fn fill(filler: &mut Client, published: &mut u64) -> Result<()> {
    let body = vec![b'x'; BODY_BYTES];
    (0..BATCH).for_each(|_| filler.publish(1, QUEUE, false, &body));
    filler.flush()?;
    *published += BATCH as u64;
    filler.wait_for(
        |method| matches!(method, Method::BasicAck(ack) if ack.delivery_tag >= *published),
    )
}

/// Gets messages, one at a time, and leaves without acknowledging any.
fn get_and_leave(target: &Target, stop: &AtomicBool, no_ack: bool) -> Result<()> {
    let mut client = Client::with_channel(target)?;
    let mut got = 0;
    while got < 5_000 && !is_stopped(stop) {
        let get = basic::Get { queue: short(QUEUE), no_ack, ..Default::default() };
        (0..50).for_each(|_| put_method(&mut client.out, 1, &get));
        client.flush()?;
        for _ in 0..50 {
            client.wait_for(|method| {
                matches!(method, Method::BasicGetOk(_) | Method::BasicGetEmpty(_))
            })?;
            got += 1;
        }
    }
    ensure!(got > 0 || is_stopped(stop), "nothing was answered");
    Ok(())
}

/// Asks on several connections as fast as the server reads, and reads nothing.
fn get_unread(target: &Target, stop: &AtomicBool) -> Result<()> {
    let mut held = Vec::new();
    for _ in 0..10 {
        let client = Client::with_channel(target)?;
        client.stream.set_write_timeout(Some(Duration::from_millis(20)))?;
        held.push(client);
    }
    while !is_stopped(stop) {
        for client in &mut held {
            if client.out.is_empty() {
                let get = basic::Get { queue: short(QUEUE), ..Default::default() };
                (0..1_000).for_each(|_| put_method(&mut client.out, 1, &get));
            }
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
