//! Which protocol a connection speaks, from its first bytes.
//!
//! ```text
//! TLS         16 03 …                    handshake record, version 3.x
//! AMQP 0-9-1  'A' 'M' 'Q' 'P' 0 0 9 1
//! AMQP 1.0    'A' 'M' 'Q' 'P' id 1 0 0   id: 0 plain, 2 TLS, 3 SASL
//! HTTP        METHOD SP …                or the HTTP/2 preface `PRI * HTTP/2.0`
//! ```
//! In all of these the client speaks first. Kafka does too and has no mark of its own: its
//! requests begin with a length, so they come out as [`Sniffed::Unknown`] and a Kafka port takes
//! those.

use super::stream::Prefixed;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt};

/// No protocol needs more bytes to be told apart.
pub const SNIFF_BYTES_MAX: usize = 16;

/// What the first bytes say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sniffed {
    /// A TLS client hello.
    Tls,
    /// An HTTP request line.
    Http,
    /// AMQP 0-9-1.
    Amqp091,
    /// AMQP 1.0, and the layer asked for first.
    Amqp10(Amqp10Layer),
    /// `AMQP` and a version that we do not speak: its handler answers with the one we do.
    AmqpOther,
    /// Something else.
    Unknown,
}

/// The layer that an AMQP 1.0 header asks for (part 2.2 of its specification).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Amqp10Layer {
    /// Protocol id 0: frames at once.
    Plain,
    /// Protocol id 2: TLS inside the connection.
    Tls,
    /// Protocol id 3: SASL first.
    Sasl,
}

/// What [`classify`] says about the bytes so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Enough seen.
    Is(Sniffed),
    /// The bytes could still become several things.
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

/// Tells protocols apart. Total: any bytes get a verdict, and [`SNIFF_BYTES_MAX`] bytes never get
/// [`Verdict::NeedMore`].
pub fn classify(bytes: &[u8]) -> Verdict {
    match bytes {
        [] | [0x16] => Verdict::NeedMore,
        [0x16, 0x03, ..] => Verdict::Is(Sniffed::Tls),
        [b'A', b'M', b'Q', b'P', version @ ..] => classify_amqp(version),
        [b'A', rest @ ..] if b"MQP".starts_with(rest) => Verdict::NeedMore,
        _ => classify_http(bytes),
    }
}

fn classify_amqp(version: &[u8]) -> Verdict {
    let Some(version) = version.first_chunk::<4>() else { return Verdict::NeedMore };
    Verdict::Is(match version {
        [0, 0, 9, 1] => Sniffed::Amqp091,
        [0, 1, 0, 0] => Sniffed::Amqp10(Amqp10Layer::Plain),
        [2, 1, 0, 0] => Sniffed::Amqp10(Amqp10Layer::Tls),
        [3, 1, 0, 0] => Sniffed::Amqp10(Amqp10Layer::Sasl),
        _ => Sniffed::AmqpOther,
    })
}

fn classify_http(bytes: &[u8]) -> Verdict {
    // RFC 9112, 2.2: an empty line before the request line is to be ignored.
    let line = match bytes {
        [b'\r'] => return Verdict::NeedMore,
        [b'\r', b'\n', line @ ..] => line,
        line => line,
    };
    if METHODS.iter().any(|method| line.starts_with(method)) {
        Verdict::Is(Sniffed::Http)
    } else if METHODS.iter().any(|method| method.starts_with(line)) {
        Verdict::NeedMore
    } else {
        Verdict::Is(Sniffed::Unknown)
    }
}

/// Why a connection could not be classified.
#[derive(Debug, thiserror::Error)]
pub enum SniffError {
    /// The peer connected and said too little.
    #[error("the peer did not say what it speaks within {} ms", .0.as_millis())]
    Silent(Duration),
    /// The peer left first, as a port check does.
    #[error("the peer closed the connection before it said what it speaks")]
    Closed,
    /// The connection broke.
    #[error("the connection broke: {0}")]
    Broken(#[from] std::io::Error),
}

/// Reads just enough to classify a connection, and gives a stream that begins with those bytes.
pub async fn sniff<S>(mut stream: S, limit: Duration) -> Result<(Sniffed, Prefixed<S>), SniffError>
where
    S: AsyncRead + Unpin,
{
    let mut bytes = [0; SNIFF_BYTES_MAX];
    let mut filled = 0;
    let reading = async {
        loop {
            match stream.read(&mut bytes[filled..]).await? {
                0 => return Err(SniffError::Closed),
                count => filled += count,
            }
            if let Verdict::Is(sniffed) = classify(&bytes[..filled]) {
                return Ok(sniffed);
            }
        }
    };
    let sniffed =
        tokio::time::timeout(limit, reading).await.map_err(|_| SniffError::Silent(limit))??;
    Ok((sniffed, Prefixed::new(&bytes[..filled], stream)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn is(bytes: &[u8], sniffed: Sniffed) {
        assert_eq!(classify(bytes), Verdict::Is(sniffed), "{bytes:?}");
        // Shorter looks never say something else first.
        for end in 0..bytes.len() {
            let early = classify(&bytes[..end]);
            assert!(early == Verdict::NeedMore || early == Verdict::Is(sniffed), "{bytes:?} {end}");
        }
    }

    #[test]
    fn protocols_by_their_first_bytes() {
        is(b"\x16\x03\x01\x02\x00\x01", Sniffed::Tls);
        is(b"AMQP\x00\x00\x09\x01", Sniffed::Amqp091);
        is(b"AMQP\x00\x01\x00\x00", Sniffed::Amqp10(Amqp10Layer::Plain));
        is(b"AMQP\x02\x01\x00\x00", Sniffed::Amqp10(Amqp10Layer::Tls));
        is(b"AMQP\x03\x01\x00\x00", Sniffed::Amqp10(Amqp10Layer::Sasl));
        is(b"AMQP\x01\x01\x00\x09", Sniffed::AmqpOther);
        is(b"GET / HTTP/1.1\r\n", Sniffed::Http);
        is(b"\r\nPOST / HTTP/1.1", Sniffed::Http);
        is(b"OPTIONS * HTTP/1.1", Sniffed::Http);
        is(b"PRI * HTTP/2.0\r\n", Sniffed::Http);
        is(b"\x00\x00\x00\x2b\x00\x12\x00\x04", Sniffed::Unknown);
        is(b"SSH-2.0-OpenSSH", Sniffed::Unknown);
        is(b"get / HTTP/1.1", Sniffed::Unknown);
        is(b"\x16\x04", Sniffed::Unknown);
        assert_eq!(classify(b""), Verdict::NeedMore);
    }

    proptest! {
        #[test]
        fn any_bytes_get_an_answer(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let verdict = classify(&bytes);
            prop_assert!(bytes.len() < SNIFF_BYTES_MAX || verdict != Verdict::NeedMore);
        }

        #[test]
        fn nearly_right_bytes_get_an_answer(
            start in proptest::sample::select(vec!["AMQP", "A", "GET", "\r\n", "OPTIONS", "\x16", "PRI"]),
            rest in proptest::collection::vec(any::<u8>(), 0..20),
        ) {
            let bytes = [start.as_bytes(), &rest].concat();
            let verdict = classify(&bytes);
            prop_assert!(bytes.len() < SNIFF_BYTES_MAX || verdict != Verdict::NeedMore);
        }
    }

    #[tokio::test]
    async fn what_was_read_is_read_again_by_the_handler() {
        let (mut client, server) = tokio::io::duplex(64);
        let writer = tokio::spawn(async move {
            use tokio::io::AsyncWriteExt;
            for byte in b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n" {
                client.write_all(&[*byte]).await.unwrap();
                tokio::task::yield_now().await;
            }
        });
        let (sniffed, mut stream) = sniff(server, Duration::from_secs(5)).await.unwrap();
        assert_eq!(sniffed, Sniffed::Http);
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        assert_eq!(text, "GET /a HTTP/1.1\r\nHost: x\r\n\r\n");
        writer.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn silence_has_an_end() {
        let (_client, server) = tokio::io::duplex(64);
        let error = sniff(server, Duration::from_secs(5)).await.map(|_| ()).unwrap_err();
        assert!(matches!(error, SniffError::Silent(_)), "{error}");
    }

    #[tokio::test]
    async fn a_peer_that_leaves_is_no_riddle() {
        let (client, server) = tokio::io::duplex(64);
        drop(client);
        let error = sniff(server, Duration::from_secs(5)).await.map(|_| ()).unwrap_err();
        assert!(matches!(error, SniffError::Closed), "{error}");
    }
}
