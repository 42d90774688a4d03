//! The byte streams that front ends get.

use super::sniff::SNIFF_BYTES_MAX;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

/// A stream whose first bytes were read already and are read again.
#[derive(Debug)]
pub struct Prefixed<S> {
    bytes: [u8; SNIFF_BYTES_MAX],
    /// Bytes of `bytes` in use, and how many of them were given out.
    filled: u8,
    given: u8,
    inner: S,
}

impl<S> Prefixed<S> {
    /// At most [`SNIFF_BYTES_MAX`] bytes can be put back.
    pub fn new(prefix: &[u8], inner: S) -> Self {
        assert!(prefix.len() <= SNIFF_BYTES_MAX, "the sniffer reads no more than it may");
        let mut bytes = [0; SNIFF_BYTES_MAX];
        bytes[..prefix.len()].copy_from_slice(prefix);
        Prefixed { bytes, filled: prefix.len() as u8, given: 0, inner }
    }

    /// The stream below; bytes not yet read again are not in it.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Prefixed<S> {
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

/// Writing passes through.
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

impl<S: AsyncWrite + Unpin> AsyncWrite for Prefixed<S> {
    forward_write!(this => &mut this.inner);

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}

/// A connection as a front end gets it: from its first byte, with TLS taken off.
#[derive(Debug)]
pub enum Stream {
    /// Without TLS.
    Plain(Prefixed<TcpStream>),
    /// With TLS. Boxed: the state of a TLS session is large and most connections have none.
    Tls(Box<Prefixed<TlsStream<Prefixed<TcpStream>>>>),
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
trait Writer: AsyncWrite + Unpin {}
impl<T: AsyncWrite + Unpin> Writer for T {}

impl Stream {
    fn writer(&mut self) -> &mut dyn Writer {
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
