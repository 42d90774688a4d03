//! The handshake: SASL and open.

use std::io;

use bytes::Bytes;
use malote_wire_amqp::connection::{Config as Limits, Connection, Event};
use malote_wire_amqp::performative::{Open, SaslCode, SaslInit, condition};
use malote_wire_amqp::types::{Map, Str, Symbol};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::Instant;

use super::super::config::{Config, Credential};
use super::super::error::{Error, ErrorKind, Result};
use super::super::limits;
use crate::dial::ByteStream;

/// Opens an AMQP connection on a stream.
pub(in super::super) async fn open(
    config: &Config,
    container: &str,
    stream: &mut Box<dyn ByteStream>,
) -> Result<(Connection, Instant)> {
    let started = Instant::now();
    let limits = Limits {
        container_id: Str::from(container),
        max_frame_size: limits::FRAME_BYTES_MAX,
        channel_max: limits::CHANNEL_MAX,
        links_max: limits::LINKS_MAX,
        idle_time_out_ms: Some(limits::IDLE_MS),
        max_message_size: limits::MESSAGE_BYTES_MAX,
        incoming_bytes_max: limits::INCOMING_BYTES_MAX,
        outgoing_bytes_max: limits::OUTGOING_BYTES_MAX,
        ..Limits::default()
    };
    let mut amqp = Connection::client(limits, 0);
    loop {
        while let Some(event) = amqp.next_event() {
            if take(config, &mut amqp, event)? {
                return Ok((amqp, started));
            }
        }
        let output = amqp.take_output();
        let spoken = async {
            stream.write_all(&output).await?;
            stream.flush().await?;
            match stream.read_buf(amqp.input()).await? {
                0 => Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
                _ => Ok(()),
            }
        };
        spoken.await.map_err(|error| Error::Unreachable {
            to: format!("{}:{}", config.host, config.port),
            why: error.to_string(),
        })?;
        amqp.received(started.elapsed().as_millis() as u64);
    }
}

/// Handles one event of the handshake. Returns true once the server has opened the connection.
fn take(config: &Config, amqp: &mut Connection, event: Event) -> Result<bool> {
    match event {
        Event::SaslMechanisms(offered) => {
            let (mechanism, response) = match &config.credential {
                Credential::Plain { user, password } => {
                    ("PLAIN", Some(format!("\0{user}\0{password}")))
                }
                // Keys and signatures are sent to `$cbs` later.
                Credential::Key { .. } | Credential::Signature(_) | Credential::Anonymous => {
                    ("ANONYMOUS", None)
                }
            };
            if !offered.sasl_server_mechanisms.contains(mechanism) {
                let text = format!("the server does not support SASL {mechanism}");
                return Err(Error::new(
                    ErrorKind::Unauthorized,
                    condition::UNAUTHORIZED_ACCESS,
                    text,
                ));
            }
            amqp.sasl_init(SaslInit {
                mechanism: Symbol::lossy(mechanism),
                initial_response: response.map(Bytes::from),
                hostname: Some(Str::from(config.host.as_str())),
            })?;
        }
        Event::SaslOutcome(outcome) => {
            if outcome.code != SaslCode::Ok {
                let text = "the server refused the user name or password";
                return Err(Error::new(
                    ErrorKind::Unauthorized,
                    condition::UNAUTHORIZED_ACCESS,
                    text,
                ));
            }
            amqp.open(Open {
                hostname: Some(Str::from(config.host.as_str())),
                properties: Some(
                    Map::default()
                        .with("product", "malote")
                        .with("version", env!("CARGO_PKG_VERSION")),
                ),
                ..Open::default()
            })?;
        }
        Event::Open(_) => return Ok(true),
        Event::Close { error: Some(error) } | Event::Failed(error) => {
            return Err(Error::refused(&error));
        }
        Event::Close { error: None } => {
            return Err(Error::Lost(
                "the server closed the connection during the handshake".to_owned(),
            ));
        }
        other => {
            let text = format!("the server sent {other:?} before it opened the connection");
            return Err(Error::Unreadable(text));
        }
    }
    Ok(false)
}
