//! The client's connection over a stream of ours, which is TLS where the URL says so.
//!
//! The client would make its own streams, with TLS of its own or, if it was built without, in the open. Ours trust what
//! those of the other connectors trust.

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

use crate::dial::Stream;

/// Begins the protocol on a stream that is there.
pub(super) async fn over(
    stream: Box<dyn Stream>,
    uri: AMQPUri,
    properties: ConnectionProperties,
) -> lapin::Result<Connection> {
    let stream = Mutex::new(Some(Transport(stream)));
    let runtime = Runtime::new(RuntimeParts::new(Tokio::current(), Streams(Tokio::current())));
    let connect = async move |_, _| match stream.lock().take() {
        Some(stream) => Ok(AsyncTcpStream::Plain(stream)),
        // A connection that is lost is made anew by `link.rs`, not by the client.
        None => Err(io::Error::from(io::ErrorKind::NotConnected).into()),
    };
    Connection::connector(uri, runtime, connect, properties).await
}

/// What the client needs of tokio, with streams of ours.
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

/// A stream as the client reads and writes it.
struct Transport(Box<dyn Stream>);

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
