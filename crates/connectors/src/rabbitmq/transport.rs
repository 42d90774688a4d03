//! Runs the client library over this crate's streams, with TLS if the URL asks for it.
//!
//! The library would open its own streams, with other TLS settings, or without TLS if it was built so. These streams
//! trust the same certificates as those of the other connectors.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use async_rs::traits::Reactor;
use async_rs::util::RuntimeParts;
use async_rs::{Runtime, Tokio};
use futures_io::{AsyncRead, AsyncWrite};
use futures_util::Stream as Ticks;
use lapin::tcp::AsyncTcpStream;
use lapin::uri::AMQPUri;
use lapin::{Connection, ConnectionProperties};
use parking_lot::Mutex;
use tokio::io::ReadBuf;

use crate::dial::ByteStream;

/// Opens an AMQP connection on a connected stream.
pub(super) async fn connect(
    stream: Box<dyn ByteStream>,
    uri: AMQPUri,
    properties: ConnectionProperties,
) -> lapin::Result<Connection> {
    let stream = Mutex::new(Some(Transport(stream)));
    let runtime = Runtime::new(RuntimeParts::new(Tokio::current(), Streams(Tokio::current())));
    let connect = async move |_, _| match stream.lock().take() {
        Some(stream) => Ok(AsyncTcpStream::Plain(stream)),
        // `connection.rs` reconnects, not the client library.
        None => Err(io::Error::from(io::ErrorKind::NotConnected).into()),
    };
    Connection::connector(uri, runtime, connect, properties).await
}

/// The runtime for the client library. It opens no streams by itself.
#[derive(Clone, Debug)]
struct Streams(Tokio);

impl Reactor for Streams {
    type TcpStream = Transport;
    type Sleep = <Tokio as Reactor>::Sleep;

    fn register<H: io::Read + io::Write + Send + 'static>(
        &self,
        _: H,
    ) -> io::Result<impl AsyncRead + AsyncWrite + Send + Unpin + 'static> {
        Err::<Transport, _>(io::ErrorKind::Unsupported.into())
    }

    fn sleep(&self, time: Duration) -> Self::Sleep {
        self.0.sleep(time)
    }

    fn interval(&self, time: Duration) -> impl Ticks<Item = Instant> + Send + 'static {
        self.0.interval(time)
    }

    fn tcp_connect_addr(
        &self,
        _: SocketAddr,
    ) -> impl Future<Output = io::Result<Transport>> + Send + 'static {
        std::future::ready(Err(io::ErrorKind::Unsupported.into()))
    }
}

/// A stream with the I/O traits that the client library uses.
struct Transport(Box<dyn ByteStream>);

impl AsyncRead for Transport {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let mut into = ReadBuf::new(into);
        let read = Pin::new(&mut *self.0).poll_read(context, &mut into);
        read.map_ok(|()| into.filled().len())
    }
}

impl AsyncWrite for Transport {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0).poll_flush(context)
    }

    fn poll_close(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0).poll_shutdown(context)
    }
}
