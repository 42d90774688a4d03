//! A client without a library, so that it can write wrong frames and stop in the middle of anything.
#![allow(clippy::disallowed_methods, reason = "a client of a real process")]

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::AtomicBool;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Result, bail};
use bytes::{Bytes, BytesMut};
use malote_front_amqp091::wire::frame::{Frame, FrameDecoder, FrameKind, PROTOCOL_HEADER};
use malote_front_amqp091::wire::frame::{put_frame, put_method};
use malote_front_amqp091::wire::method::{EncodeMethod, Method, basic, channel, connection};
use malote_front_amqp091::wire::properties::BasicProperties;
use malote_front_amqp091::wire::table::FieldTable;
use malote_front_amqp091::wire::text::ShortString;

use super::super::hostile::{connect, is_stopped};
use super::super::{PASSWORD, Target};

/// As many as the server announces.
pub(super) const CHANNELS: u16 = 2_047;

/// A connection on which the handshake is complete.
pub(super) struct Client {
    pub(super) stream: TcpStream,
    input: BytesMut,
    decoder: FrameDecoder,
    pub(super) out: BytesMut,
}

pub(super) fn short(text: &str) -> ShortString {
    ShortString::truncated(text)
}

pub(super) fn start_ok(client_properties: FieldTable) -> connection::StartOk {
    connection::StartOk {
        client_properties,
        mechanism: short("PLAIN"),
        response: Bytes::from(format!("\0admin\0{PASSWORD}")),
        locale: short("en_US"),
    }
}

impl Client {
    /// Connects as `admin`, without heartbeats.
    pub(super) fn open(target: &Target) -> Result<Client> {
        let mut decoder = FrameDecoder::default();
        decoder.set_frame_max(131_072);
        let (input, out) = (BytesMut::new(), BytesMut::new());
        let mut client = Client { stream: connect(target.amqp)?, input, decoder, out };
        client.stream.write_all(&PROTOCOL_HEADER)?;
        client.wait_for(|method| matches!(method, Method::ConnectionStart(_)))?;
        client.send(0, &start_ok(FieldTable::default()))?;
        client.wait_for(|method| matches!(method, Method::ConnectionTune(_)))?;
        let tune = connection::TuneOk { channel_max: CHANNELS, frame_max: 131_072, heartbeat: 0 };
        client.send(0, &tune)?;
        let open = connection::Open { virtual_host: short("/"), ..Default::default() };
        client.send(0, &open)?;
        client.wait_for(|method| matches!(method, Method::ConnectionOpenOk(_)))?;
        Ok(client)
    }

    pub(super) fn with_channel(target: &Target) -> Result<Client> {
        let mut client = Client::open(target)?;
        client.open_channel(1)?;
        Ok(client)
    }

    pub(super) fn open_channel(&mut self, number: u16) -> Result<()> {
        self.send(number, &channel::Open::default())?;
        self.wait_for(|method| matches!(method, Method::ChannelOpenOk(_)))
    }

    /// Writes a method, without waiting for an answer.
    pub(super) fn send(&mut self, channel: u16, method: &impl EncodeMethod) -> io::Result<()> {
        put_method(&mut self.out, channel, method);
        self.flush()
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.stream.write_all(&self.out.split())
    }

    pub(super) fn frame(&mut self, kind: FrameKind, channel: u16, payload: &[u8]) {
        put_frame(&mut self.out, kind, channel, |out| out.extend_from_slice(payload));
    }

    /// A publication to a queue, or to one that does not exist. Nothing is written yet.
    pub(super) fn publish(&mut self, channel: u16, key: &str, mandatory: bool, body: &[u8]) {
        let publish = basic::Publish { routing_key: short(key), mandatory, ..Default::default() };
        put_method(&mut self.out, channel, &publish);
        self.header(channel, body.len() as u64, &BasicProperties::default());
        self.frame(FrameKind::Body, channel, body);
    }

    pub(super) fn header(
        &mut self,
        channel: u16,
        body_size: u64,
        properties: &BasicProperties<'_>,
    ) {
        // Class 60, weight 0.
        let mut payload = vec![0, 60, 0, 0];
        payload.extend(body_size.to_be_bytes());
        payload.extend_from_slice(properties.encode().as_bytes());
        self.frame(FrameKind::Header, channel, &payload);
    }

    pub(super) fn next(&mut self) -> Result<Frame> {
        loop {
            if let Ok(Some(frame)) = self.decoder.decode(&mut self.input) {
                return Ok(frame);
            }
            let mut bytes = [0; 16 << 10];
            let count = self.stream.read(&mut bytes)?;
            if count == 0 {
                bail!("the server closed the connection");
            }
            self.input.extend_from_slice(&bytes[..count]);
        }
    }

    pub(super) fn wait_for(&mut self, is: impl Fn(&Method) -> bool) -> Result<()> {
        loop {
            let frame = self.next()?;
            if frame.kind != FrameKind::Method {
                continue;
            }
            let method = Method::decode(&frame.payload);
            match method {
                Ok(method) if is(&method) => return Ok(()),
                Ok(Method::ConnectionClose(close)) => bail!("closed: {}", close.reply_text),
                Ok(Method::ChannelClose(close)) => bail!("channel closed: {}", close.reply_text),
                _ => {}
            }
        }
    }

    /// The reply code with which the server closes the connection.
    pub(super) fn close_code(&mut self) -> Result<u16> {
        loop {
            let frame = self.next()?;
            if frame.kind == FrameKind::Method
                && let Ok(Method::ConnectionClose(close)) = Method::decode(&frame.payload)
            {
                return Ok(close.reply_code);
            }
        }
    }
}

/// Repeats an attack on new connections until it is stopped. Errors of a connection are part of the attack. Fails if
/// `once` returns a problem, or never gets to its end.
pub(super) fn repeat(
    stop: &AtomicBool,
    mut once: impl FnMut() -> Result<Option<String>>,
) -> Result<()> {
    let mut last = Ok(None);
    let mut completed = 0_u64;
    while !is_stopped(stop) {
        last = once();
        match &last {
            Ok(None) => completed += 1,
            Ok(Some(problem)) => bail!("{problem}"),
            Err(_) => sleep(Duration::from_millis(5)),
        }
    }
    match last {
        Err(error) if completed == 0 => Err(error),
        _ => Ok(()),
    }
}
