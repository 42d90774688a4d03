//! The hostile clients. Each keeps its connections open until `stop` is set; the server may close them earlier.
#![allow(clippy::disallowed_methods, reason = "clients of a real process")]

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use malote_wire_amqp::connection::{Config, Connection, Event, LinkId, Outgoing, SessionId};
use malote_wire_amqp::performative::{
    Attach, Open, Role, SaslInit, Source, Target as LinkTarget, condition,
};
use malote_wire_amqp::types::{Str, Symbol};

use super::process::KEY;
use super::{AUTHORIZATION, Target};

/// More than the server allows in total.
const CONNECTIONS: usize = 400;
/// Timeout for connecting, reading and writing.
const TIMEOUT: Duration = Duration::from_secs(5);

pub(super) fn connect(to: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&to, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    Ok(stream)
}

pub(super) fn is_stopped(stop: &AtomicBool) -> bool {
    stop.load(Ordering::Relaxed)
}

pub(super) fn wait(stop: &AtomicBool) {
    while !is_stopped(stop) {
        sleep(Duration::from_millis(20));
    }
}

/// Keeps [`CONNECTIONS`] connections open, and replaces those that the server closes.
pub(super) fn flood(
    to: SocketAddr,
    stop: &AtomicBool,
    first: &[u8],
    mut keep_busy: impl FnMut(&mut TcpStream) -> io::Result<()>,
) {
    let mut held: Vec<TcpStream> = Vec::new();
    while !is_stopped(stop) {
        held.retain_mut(|stream| keep_busy(stream).is_ok());
        for _ in held.len()..CONNECTIONS {
            if is_stopped(stop) {
                return;
            }
            // A refused connection is retried in the next round.
            let opened = connect(to).and_then(|mut stream| {
                stream.write_all(first)?;
                Ok(stream)
            });
            held.extend(opened);
        }
        sleep(Duration::from_millis(100));
    }
}

/// Request headers that nearly fill the server's buffer and never end.
pub(super) fn incomplete_headers(target: &Target, stop: &AtomicBool) -> Result<()> {
    let mut head = b"GET /api/v1/queues HTTP/1.1\r\nhost: localhost\r\nx-long: ".to_vec();
    head.extend([b'a'; 48 << 10]);
    flood(target.http, stop, &head, |_| Ok(()));
    Ok(())
}

/// Request headers that arrive byte by byte.
pub(super) fn slowloris(target: &Target, stop: &AtomicBool) -> Result<()> {
    let head = b"POST /api/v1/queues/good/messages HTTP/1.1\r\nhost: localhost\r\nx: ";
    flood(target.http, stop, head, |stream| stream.write_all(b"a"));
    Ok(())
}

/// Native connections without credentials. They send large frames if the server accepts them.
pub(super) fn anonymous_connects(target: &Target, stop: &AtomicBool) -> Result<()> {
    let handshake = "GET /api/v1/connect HTTP/1.1\r\nhost: localhost\r\nupgrade: websocket\r\n\
        connection: upgrade\r\nsec-websocket-version: 13\r\n\
        sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
        sec-websocket-protocol: malote.v1.json\r\n\r\n";
    let mut held = Vec::new();
    let mut accepted = 0;
    while !is_stopped(stop) {
        if held.len() >= CONNECTIONS / 4 {
            held.clear();
        }
        let Ok(mut stream) = connect(target.http) else { continue };
        let mut status = [0; 12];
        if stream.write_all(handshake.as_bytes()).is_err()
            || stream.read_exact(&mut status).is_err()
        {
            continue;
        }
        if status.ends_with(b"101") {
            accepted += 1;
            // A masked text frame of 15 MiB, sent without its last mebibyte.
            let mut frame = vec![0x81, 0xff];
            frame.extend((15_u64 << 20).to_be_bytes());
            frame.extend([0; 4]);
            frame.extend(vec![b'a'; 14 << 20]);
            let _ = stream.write_all(&frame);
        }
        held.push(stream);
    }
    ensure!(accepted == 0, "{accepted} native connections were accepted without credentials");
    Ok(())
}

/// A client of the AMQP port.
struct Amqp {
    amqp: Connection,
    stream: TcpStream,
}

impl Amqp {
    /// Opens a connection with a key, or anonymously.
    fn open(to: SocketAddr, key: Option<(&str, &str)>) -> Result<Amqp> {
        let config = Config { channel_max: 1000, ..Config::default() };
        let mut client = Amqp { amqp: Connection::client(config, 0), stream: connect(to)? };
        client.wait_for(|event| matches!(event, Event::SaslMechanisms(_)).then_some(()))?;
        let (mechanism, initial_response) = match key {
            Some((name, secret)) => ("PLAIN", Some(Bytes::from(format!("\0{name}\0{secret}")))),
            None => ("ANONYMOUS", None),
        };
        let mechanism = Symbol::from_static(mechanism);
        let init = SaslInit { mechanism, initial_response, hostname: None };
        client.amqp.sasl_init(init)?;
        client.wait_for(|event| matches!(event, Event::SaslOutcome(_)).then_some(()))?;
        client.amqp.open(Open::default())?;
        client.wait_for(|event| matches!(event, Event::Open(_)).then_some(()))?;
        Ok(client)
    }

    fn write(&mut self) -> io::Result<()> {
        let output = self.amqp.take_output();
        self.stream.write_all(&output)
    }

    fn wait_for<T>(&mut self, pick: impl Fn(&Event) -> Option<T>) -> Result<T> {
        loop {
            self.write()?;
            while let Some(event) = self.amqp.next_event() {
                if let Some(found) = pick(&event) {
                    return Ok(found);
                }
            }
            self.write()?;
            let mut bytes = [0; 4096];
            let count = self.stream.read(&mut bytes)?;
            if count == 0 {
                bail!("the server closed the connection");
            }
            self.amqp.feed(&bytes[..count], 0);
        }
    }

    fn sender(&mut self, channel: SessionId, name: &str, at: &str) -> Result<LinkId> {
        let attach = Attach {
            name: Str::from(name),
            role: Role::Sender,
            source: Some(Source::at("here")),
            target: Some(LinkTarget::at(at).into()),
            ..Attach::default()
        };
        Ok(self.amqp.attach(channel, attach)?)
    }

    fn receiver(&mut self, channel: SessionId, name: &str, at: &str) -> Result<LinkId> {
        let attach = Attach {
            name: Str::from(name),
            role: Role::Receiver,
            source: Some(Source::at(at)),
            target: Some(LinkTarget::at("here").into()),
            ..Attach::default()
        };
        Ok(self.amqp.attach(channel, attach)?)
    }

    /// The error condition with which the server detached a link, or `None` if it attached the link.
    fn detach_condition(&mut self, link: LinkId) -> Result<Option<String>> {
        self.wait_for(|event| match event {
            Event::Attached { link: id, attach }
                if *id == link && attach.source.is_some() && attach.target.is_some() =>
            {
                Some(None)
            }
            Event::Detach { link: id, error, .. } if *id == link => {
                let condition = error.as_ref().map(|error| error.condition.to_string());
                Some(Some(condition.unwrap_or_default()))
            }
            _ => None,
        })
    }
}

/// Token messages of several megabytes that never end.
pub(super) fn huge_frames(target: &Target, stop: &AtomicBool) -> Result<()> {
    let mut held = Vec::new();
    while !is_stopped(stop) && held.len() < CONNECTIONS / 4 {
        let Ok(mut client) = Amqp::open(target.amqp, None) else { continue };
        let sent = (|| -> Result<()> {
            let channel = client.amqp.begin()?;
            let link = client.sender(channel, "token", "$cbs")?;
            client.wait_for(|event| match event {
                Event::Flow(flow) if flow.link == link && flow.credit > 0 => Some(()),
                _ => None,
            })?;
            let payload = Bytes::from(vec![0; 8 << 20]);
            let tag = Bytes::from_static(b"1");
            client.amqp.send(link, Outgoing { key: 1, tag, payload, ..Outgoing::default() })?;
            let output = client.amqp.take_output();
            // Everything except the end.
            client.stream.write_all(&output[..output.len().saturating_sub(100)])?;
            Ok(())
        })();
        // The server is expected to close the connection during the transfer.
        drop(sent);
        held.push(client);
    }
    wait(stop);
    Ok(())
}

/// Links without a token to the management nodes of one existing entity and of entities that do not exist.
pub(super) fn management_links(target: &Target, stop: &AtomicBool) -> Result<()> {
    let mut number = 0_u64;
    while !is_stopped(stop) {
        let Ok(mut client) = Amqp::open(target.amqp, None) else { continue };
        let Ok(channel) = client.amqp.begin() else { continue };
        for _ in 0..100 {
            if is_stopped(stop) {
                return Ok(());
            }
            number += 1;
            let at = match number % 2 {
                0 => "good/$management".to_owned(),
                _ => format!("missing-{number}/$management"),
            };
            let Ok(link) = client.sender(channel, &number.to_string(), &at) else { break };
            let Ok(refused) = client.detach_condition(link) else { break };
            let unauthorized = refused.as_deref() == Some(condition::UNAUTHORIZED_ACCESS);
            ensure!(
                unauthorized,
                "`{at}` without a token: {}",
                refused.as_deref().unwrap_or("attached")
            );
        }
    }
    Ok(())
}

/// Peek requests whose answers are never read.
pub(super) fn unread_peeks(target: &Target, stop: &AtomicBool) -> Result<()> {
    let request = format!(
        "GET /api/v1/queues/peeked/messages?max=1000 HTTP/1.1\r\nhost: localhost\r\n{AUTHORIZATION}\r\n"
    );
    let mut held = Vec::new();
    for _ in 0..100 {
        if is_stopped(stop) {
            break;
        }
        let Ok(mut stream) = connect(target.http) else { continue };
        let _ = stream.write_all(request.as_bytes());
        held.push(stream);
    }
    wait(stop);
    Ok(())
}

/// Login attempts with wrong passwords for unknown users, as fast as possible, on many connections.
pub(super) fn failed_logins(target: &Target, stop: &AtomicBool) -> Result<()> {
    std::thread::scope(|scope| {
        for guesser in 0..32_usize {
            scope.spawn(move || {
                let mut guess = guesser;
                while !is_stopped(stop) {
                    guess += 32;
                    // The length is a multiple of three, as `base64` requires.
                    let pair = format!("guess{guesser:03}:{guess:06}");
                    let request = format!(
                        "GET /api/v1/queues HTTP/1.1\r\nhost: localhost\r\nauthorization: Basic {}\r\n\r\n",
                        base64(pair.as_bytes())
                    );
                    let Ok(mut stream) = connect(target.http) else { continue };
                    let mut status = [0; 12];
                    if stream.write_all(request.as_bytes()).is_ok() {
                        let _ = stream.read_exact(&mut status);
                    }
                }
            });
        }
    });
    Ok(())
}

/// Base64 of input whose length is a multiple of three.
fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for three in bytes.chunks_exact(3) {
        let bits = three.iter().fold(0_usize, |bits, byte| bits << 8 | usize::from(*byte));
        for at in [18, 12, 6, 0] {
            text.push(LETTERS[bits >> at & 63].into());
        }
    }
    text
}

/// A client with a key for `a*` that attaches to other queues by changing the case of their names.
pub(super) fn forged_names(target: &Target, stop: &AtomicBool) -> Result<()> {
    // The server loads a new key within a second.
    let sign_in = || Amqp::open(target.amqp, Some((KEY, &target.secret)));
    let mut signed_in = sign_in();
    while signed_in.is_err() && !is_stopped(stop) {
        sleep(Duration::from_millis(50));
        signed_in = sign_in();
    }
    let mut client = signed_in.context("cannot log in with the key")?;
    let channel = client.amqp.begin()?;
    for (at, expected) in [
        ("alpha", None),
        ("ALPHA", None),
        ("aDmin-q", Some(condition::NOT_FOUND)),
        ("aDmin-q/$management", Some(condition::NOT_FOUND)),
        ("aDmin-q/$deadletterqueue", Some(condition::NOT_FOUND)),
        ("a-missing", Some(condition::NOT_FOUND)),
        ("Admin-q", Some(condition::UNAUTHORIZED_ACCESS)),
        ("Missing", Some(condition::UNAUTHORIZED_ACCESS)),
    ] {
        let link = client.receiver(channel, at, at)?;
        let refused = client.detach_condition(link)?;
        ensure!(
            refused.as_deref() == expected,
            "`{at}`: {}",
            refused.as_deref().unwrap_or("attached")
        );
    }
    wait(stop);
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn base64_matches_the_standard_encoding() {
        assert_eq!(super::base64(b"guess001:000032"), "Z3Vlc3MwMDE6MDAwMDMy");
    }
}
