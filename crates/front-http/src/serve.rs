//! One HTTP/1 connection over any stream, bounded in every direction.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::extract::ConnectInfo;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;
use tokio_util::sync::CancellationToken;

use crate::Limits;

/// Headers of one request; more is a mistake or an attack.
const HEADERS_MAX: usize = 128;

/// Serves requests until the peer, a time-out or `shutdown` ends the connection.
///
/// Keep-alive, upgrades to WebSocket; a head that does not come, or an answer that is not taken, ends it. After
/// `shutdown` the request under way is still answered. The error is what the peer or the network did: log it at
/// debug.
pub async fn serve_connection<S>(
    stream: S,
    router: Router,
    peer: SocketAddr,
    limits: &Limits,
    shutdown: CancellationToken,
) -> Result<(), hyper::Error>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    // Not a layer: that would copy the whole router for every connection.
    let router = TowerToHyperService::new(router);
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(ConnectInfo(peer));
        router.call(request)
    });
    let stream = Impatient::new(stream, limits.write_pause_max);
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head_time_max)
        .max_buf_size(limits.head_bytes_max.max(8192))
        .max_headers(HEADERS_MAX)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    tokio::pin!(connection);
    tokio::select! {
        result = &mut connection => return result,
        () = shutdown.cancelled() => connection.as_mut().graceful_shutdown(),
    }
    connection.await
}

/// A stream whose peer must take bytes within a time.
struct Impatient<S> {
    stream: S,
    pause_max: Duration,
    /// Runs while the peer takes nothing.
    waiting: Option<Pin<Box<Sleep>>>,
}

impl<S> Impatient<S> {
    fn new(stream: S, pause_max: Duration) -> Self {
        Self { stream, pause_max, waiting: None }
    }

    /// Starts, stops or checks the clock by what the stream said.
    fn judge<T>(&mut self, cx: &mut Context<'_>, said: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if said.is_ready() {
            self.waiting = None;
            return said;
        }
        let pause = self.pause_max;
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(tokio::time::sleep(pause)));
        match waiting.as_mut().poll(cx) {
            Poll::Ready(()) => {
                Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the peer takes nothing")))
            }
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Impatient<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Impatient<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let said = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.judge(cx, said)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let said = Pin::new(&mut self.stream).poll_write_vectored(cx, buffers);
        self.judge(cx, said)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let said = Pin::new(&mut self.stream).poll_flush(cx);
        self.judge(cx, said)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let said = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.judge(cx, said)
    }
}
