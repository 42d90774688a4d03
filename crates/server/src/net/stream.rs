//! The byte streams passed to front ends.

use super::detect::DETECT_BYTES_MAX;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

/// A stream whose first bytes were already read, and are returned again.
#[derive(Debug)]
pub struct PrefixedStream<S> {
    bytes: [u8; DETECT_BYTES_MAX],
    /// Valid bytes in `bytes`, and how many of them were returned again.
    filled: u8,
    given: u8,
    inner: S,
}

impl<S> PrefixedStream<S> {
    /// `prefix` has at most [`DETECT_BYTES_MAX`] bytes.
    pub fn new(prefix: &[u8], inner: S) -> Self {
        assert!(prefix.len() <= DETECT_BYTES_MAX, "the prefix is larger than DETECT_BYTES_MAX");
        let mut bytes = [0; DETECT_BYTES_MAX];
        bytes[..prefix.len()].copy_from_slice(prefix);
        PrefixedStream { bytes, filled: prefix.len() as u8, given: 0, inner }
    }

    /// The underlying stream, without the prefix.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for PrefixedStream<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let left = &this.bytes[usize::from(this.given)..usize::from(this.filled)];
        if left.is_empty() {
            return Pin::new(&mut this.inner).poll_read(cx, buf);
        }
        let count = left.len().min(buf.remaining());
        buf.put_slice(&left[..count]);
        this.given += count as u8;
        Poll::Ready(Ok(()))
    }
}

/// Passes writes through.
macro_rules! forward_write {
    ($self:ident => $inner:expr) => {
        fn poll_write(
            self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            let $self = self.get_mut();
            Pin::new($inner).poll_write(cx, bytes)
        }

        fn poll_write_vectored(
            self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            parts: &[IoSlice<'_>],
        ) -> Poll<io::Result<usize>> {
            let $self = self.get_mut();
            Pin::new($inner).poll_write_vectored(cx, parts)
        }

        fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            let $self = self.get_mut();
            Pin::new($inner).poll_flush(cx)
        }

        fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            let $self = self.get_mut();
            Pin::new($inner).poll_shutdown(cx)
        }
    };
}

impl<S: AsyncWrite + Unpin> AsyncWrite for PrefixedStream<S> {
    forward_write!(this => &mut this.inner);

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}

/// A connection for a front end, from its first byte, decrypted.
#[derive(Debug)]
pub enum Stream {
    Plain(PrefixedStream<TcpStream>),
    /// Boxed, because the state of a TLS session is large and most connections have none.
    Tls(Box<PrefixedStream<TlsStream<PrefixedStream<TcpStream>>>>),
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Stream::Tls(stream) => Pin::new(stream.as_mut()).poll_read(cx, buf),
        }
    }
}

/// Both kinds as one writer.
trait PlainOrTls: AsyncWrite + Unpin {}
impl<T: AsyncWrite + Unpin> PlainOrTls for T {}

impl Stream {
    fn writer(&mut self) -> &mut dyn PlainOrTls {
        match self {
            Stream::Plain(stream) => stream,
            Stream::Tls(stream) => stream.as_mut(),
        }
    }
}

impl AsyncWrite for Stream {
    forward_write!(this => this.writer());

    fn is_write_vectored(&self) -> bool {
        match self {
            Stream::Plain(stream) => stream.is_write_vectored(),
            Stream::Tls(stream) => stream.is_write_vectored(),
        }
    }
}
