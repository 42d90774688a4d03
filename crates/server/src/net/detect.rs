//! Detects the protocol of a connection from its first bytes.
//!
//! ```text
//! TLS         16 03 …                    handshake record, version 3.x
//! AMQP 1.0    'A' 'M' 'Q' 'P' id 1 0 0   id: 0 plain, 2 TLS, 3 SASL
//! AMQP 0-9-1  'A' 'M' 'Q' 'P' 0 0 9 1    another version with these zeros is answered with this one
//! HTTP        METHOD SP …                or the HTTP/2 preface `PRI * HTTP/2.0`
//! ```
//! In all of these, the client sends first.

use super::stream::PrefixedStream;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt};

/// Bytes that are sufficient to detect any protocol.
pub const DETECT_BYTES_MAX: usize = 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DetectedProtocol {
    /// A TLS client hello.
    Tls,
    /// An HTTP request line.
    Http,
    /// AMQP 1.0, and the layer that it starts with.
    Amqp10(Amqp10Layer),
    /// AMQP 0-9-1, as RabbitMQ clients speak it.
    Amqp091,
    /// `AMQP` with an unsupported version. The handler replies with the supported one.
    AmqpOther,
    Unknown,
}

/// The layer that an AMQP 1.0 header asks for (part 2.2 of the specification).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Amqp10Layer {
    /// Protocol id 0: frames without a security layer.
    Plain,
    /// Protocol id 2: TLS inside the connection.
    Tls,
    /// Protocol id 3: SASL first.
    Sasl,
}

/// Result of [`detect_protocol`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detection {
    Protocol(DetectedProtocol),
    /// The bytes are still ambiguous.
    NeedMore,
}

const METHODS: [&[u8]; 10] = [
    b"GET ",
    b"POST ",
    b"PUT ",
    b"DELETE ",
    b"PATCH ",
    b"HEAD ",
    b"OPTIONS ",
    b"CONNECT ",
    b"TRACE ",
    b"PRI ",
];

/// Detects the protocol from the bytes received so far. [`DETECT_BYTES_MAX`] bytes are never ambiguous.
pub fn detect_protocol(bytes: &[u8]) -> Detection {
    match bytes {
        [] | [0x16] => Detection::NeedMore,
        [0x16, 0x03, ..] => Detection::Protocol(DetectedProtocol::Tls),
        [b'A', b'M', b'Q', b'P', version @ ..] => detect_amqp(version),
        [b'A', rest @ ..] if b"MQP".starts_with(rest) => Detection::NeedMore,
        _ => detect_http(bytes),
    }
}

fn detect_amqp(version: &[u8]) -> Detection {
    let Some(version) = version.first_chunk::<4>() else { return Detection::NeedMore };
    Detection::Protocol(match version {
        [0, 1, 0, 0] => DetectedProtocol::Amqp10(Amqp10Layer::Plain),
        [2, 1, 0, 0] => DetectedProtocol::Amqp10(Amqp10Layer::Tls),
        [3, 1, 0, 0] => DetectedProtocol::Amqp10(Amqp10Layer::Sasl),
        [0, 0, _, _] => DetectedProtocol::Amqp091,
        _ => DetectedProtocol::AmqpOther,
    })
}

fn detect_http(bytes: &[u8]) -> Detection {
    // RFC 9112, 2.2: an empty line before the request line is ignored.
    let line = match bytes {
        [b'\r'] => return Detection::NeedMore,
        [b'\r', b'\n', line @ ..] => line,
        line => line,
    };
    if METHODS.iter().any(|method| line.starts_with(method)) {
        Detection::Protocol(DetectedProtocol::Http)
    } else if METHODS.iter().any(|method| method.starts_with(line)) {
        Detection::NeedMore
    } else {
        Detection::Protocol(DetectedProtocol::Unknown)
    }
}

/// Why the protocol could not be detected.
#[derive(Debug, thiserror::Error)]
pub enum DetectError {
    /// The peer sent too few bytes in time.
    #[error("no protocol detected within {} ms", .0.as_millis())]
    Silent(Duration),
    /// The peer closed the connection, as a port check does.
    #[error("the peer closed the connection before sending a request")]
    Closed,
    #[error("connection failed: {0}")]
    Broken(#[from] std::io::Error),
}

/// Reads enough to detect the protocol, and returns a stream that starts with those bytes.
pub async fn read_protocol<S>(
    mut stream: S,
    limit: Duration,
) -> Result<(DetectedProtocol, PrefixedStream<S>), DetectError>
where
    S: AsyncRead + Unpin,
{
    let mut bytes = [0; DETECT_BYTES_MAX];
    let mut filled = 0;
    let reading = async {
        loop {
            match stream.read(&mut bytes[filled..]).await? {
                0 => return Err(DetectError::Closed),
                count => filled += count,
            }
            if let Detection::Protocol(protocol) = detect_protocol(&bytes[..filled]) {
                return Ok(protocol);
            }
        }
    };
    let protocol =
        tokio::time::timeout(limit, reading).await.map_err(|_| DetectError::Silent(limit))??;
    Ok((protocol, PrefixedStream::new(&bytes[..filled], stream)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn is(bytes: &[u8], protocol: DetectedProtocol) {
        assert_eq!(detect_protocol(bytes), Detection::Protocol(protocol), "{bytes:?}");
        // A prefix is never detected as another protocol.
        for end in 0..bytes.len() {
            let early = detect_protocol(&bytes[..end]);
            assert!(
                early == Detection::NeedMore || early == Detection::Protocol(protocol),
                "{bytes:?} {end}"
            );
        }
    }

    #[test]
    fn protocols_by_their_first_bytes() {
        is(b"\x16\x03\x01\x02\x00\x01", DetectedProtocol::Tls);
        is(b"AMQP\x00\x00\x09\x01", DetectedProtocol::Amqp091);
        is(b"AMQP\x01\x01\x00\x0a", DetectedProtocol::AmqpOther);
        is(b"AMQP\x00\x01\x00\x00", DetectedProtocol::Amqp10(Amqp10Layer::Plain));
        is(b"AMQP\x02\x01\x00\x00", DetectedProtocol::Amqp10(Amqp10Layer::Tls));
        is(b"AMQP\x03\x01\x00\x00", DetectedProtocol::Amqp10(Amqp10Layer::Sasl));
        is(b"AMQP\x01\x01\x00\x09", DetectedProtocol::AmqpOther);
        is(b"GET / HTTP/1.1\r\n", DetectedProtocol::Http);
        is(b"\r\nPOST / HTTP/1.1", DetectedProtocol::Http);
        is(b"OPTIONS * HTTP/1.1", DetectedProtocol::Http);
        is(b"PRI * HTTP/2.0\r\n", DetectedProtocol::Http);
        is(b"\x00\x00\x00\x2b\x00\x12\x00\x04", DetectedProtocol::Unknown);
        is(b"SSH-2.0-OpenSSH", DetectedProtocol::Unknown);
        is(b"get / HTTP/1.1", DetectedProtocol::Unknown);
        is(b"\x16\x04", DetectedProtocol::Unknown);
        assert_eq!(detect_protocol(b""), Detection::NeedMore);
    }

    proptest! {
        #[test]
        fn any_bytes_get_an_answer(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let verdict = detect_protocol(&bytes);
            prop_assert!(bytes.len() < DETECT_BYTES_MAX || verdict != Detection::NeedMore);
        }

        #[test]
        fn nearly_right_bytes_get_an_answer(
            start in proptest::sample::select(vec!["AMQP", "A", "GET", "\r\n", "OPTIONS", "\x16", "PRI"]),
            rest in proptest::collection::vec(any::<u8>(), 0..20),
        ) {
            let bytes = [start.as_bytes(), &rest].concat();
            let verdict = detect_protocol(&bytes);
            prop_assert!(bytes.len() < DETECT_BYTES_MAX || verdict != Detection::NeedMore);
        }
    }

    #[tokio::test]
    async fn the_handler_reads_the_detected_bytes_again() {
        let (mut client, server) = tokio::io::duplex(64);
        let writer = tokio::spawn(async move {
            use tokio::io::AsyncWriteExt;
            for byte in b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n" {
                client.write_all(&[*byte]).await.unwrap();
                tokio::task::yield_now().await;
            }
        });
        let (protocol, mut stream) = read_protocol(server, Duration::from_secs(5)).await.unwrap();
        assert_eq!(protocol, DetectedProtocol::Http);
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        assert_eq!(text, "GET /a HTTP/1.1\r\nHost: x\r\n\r\n");
        writer.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_peer_times_out() {
        let (_client, server) = tokio::io::duplex(64);
        let error = read_protocol(server, Duration::from_secs(5)).await.map(|_| ()).unwrap_err();
        assert!(matches!(error, DetectError::Silent(_)), "{error}");
    }

    #[tokio::test]
    async fn a_closed_connection_is_reported() {
        let (client, server) = tokio::io::duplex(64);
        drop(client);
        let error = read_protocol(server, Duration::from_secs(5)).await.map(|_| ()).unwrap_err();
        assert!(matches!(error, DetectError::Closed), "{error}");
    }
}
