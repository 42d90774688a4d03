//! One HTTP/1 connection over any stream, with limits for slow and greedy peers.
//!
//! | the peer | the limit |
//! |---|---|
//! | sends its request head slowly | [`ConnectionLimits::head_time_max`] for the whole head |
//! | sends no request | [`ConnectionLimits::idle_time_max`] |
//! | reads its answer slowly | [`ConnectionLimits::write_pause_max`] for each [`WRITE_BYTES_MIN`] |
//! | requests large answers and reads none | [`ConnectionLimits::pages`] and [`ConnectionLimits::received`], of all connections and of each address |

use std::any::Any;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use std::{fmt, io};

use axum::Router;
use axum::body::{Body, HttpBody};
use axum::extract::ConnectInfo;
use bytes::Bytes;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::header::{CONNECTION, HeaderValue, UPGRADE};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use malote_model::PeerMark;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;
use tokio_util::sync::CancellationToken;

use crate::{ConnectionLimits, Share};

/// Headers of one request; more is a mistake or an attack.
const HEADERS_MAX: usize = 128;
/// A peer must read this number of bytes of an answer, or all of it, within [`ConnectionLimits::write_pause_max`].
const WRITE_BYTES_MIN: usize = 64 << 10;
/// Smaller answers are not counted: the system's buffers hold as much.
const ANSWER_BYTES_MIN: usize = 64 << 10;
/// Paths that are answered when the server is full.
const HEALTH: [&str; 2] = ["/livez", "/readyz"];

/// The other end of a connection.
#[derive(Clone)]
pub struct Peer {
    /// The address of the client.
    pub address: SocketAddr,
    /// Set once its caller is authenticated. Until then, the server may evict the connection.
    pub known: Arc<AtomicBool>,
    /// The server is full: only health is answered.
    pub health_only: bool,
    /// Cancelled when the server evicts the connection.
    pub evicted: CancellationToken,
    /// Its entry in the server's count of connections, released when dropped.
    pub place: Arc<dyn Any + Send + Sync>,
}

impl From<SocketAddr> for Peer {
    fn from(address: SocketAddr) -> Peer {
        Peer {
            address,
            known: Arc::default(),
            health_only: false,
            evicted: CancellationToken::new(),
            place: Arc::new(()),
        }
    }
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Peer({})", self.address)
    }
}

/// The server's entry for a connection, as an extension of a request that upgrades it to a WebSocket.
#[derive(Clone)]
pub struct ConnectionSlot {
    /// Whether the peer is authenticated.
    pub authenticated: Arc<AtomicBool>,
    /// Cancelled when the server closes the connection to make room for others.
    pub evicted: CancellationToken,
    /// Counts the connection until it is dropped.
    pub permit: Arc<dyn Any + Send + Sync>,
}

impl Default for ConnectionSlot {
    /// A connection that is neither counted nor evicted, for tests without a server.
    fn default() -> Self {
        let (authenticated, evicted) = (Arc::default(), CancellationToken::new());
        Self { authenticated, evicted, permit: Arc::new(()) }
    }
}

/// The answer of a front end to a request that is refused because the server is busy, for this reason.
pub type BusyAnswer = fn(&'static str) -> Response<Body>;

/// Serves requests until the peer, a timeout or `shutdown` ends the connection.
///
/// It supports keep-alive and upgrades to WebSocket. After `shutdown`, the current request is still answered. The error
/// is caused by the peer or the network: log it at debug.
pub async fn serve_connection<S>(
    stream: S,
    router: Router,
    peer: impl Into<Peer>,
    limits: &ConnectionLimits,
    busy: BusyAnswer,
    shutdown: CancellationToken,
) -> Result<(), hyper::Error>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let peer = peer.into();
    // Not a layer, which would copy the whole router for every connection.
    let router = TowerToHyperService::new(router);
    let requests = Arc::new(Requests::default());
    let stream = TimedStream::new(stream, limits, requests.clone());
    let (pages, received) = (limits.pages.clone(), limits.received.clone());
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(ConnectInfo(peer.address));
        // Before the answer: the server must not evict a connection whose authenticated request waits.
        request.extensions_mut().insert(PeerMark(peer.known.clone()));
        if request.headers().contains_key(UPGRADE) {
            request.extensions_mut().insert(ConnectionSlot {
                authenticated: peer.known.clone(),
                evicted: peer.evicted.clone(),
                permit: peer.place.clone(),
            });
        }
        // A repeated GET gives the same answer. The answer to another request may be the only copy of its messages.
        let can_repeat = request.method().is_safe();
        let pending = requests.begin();
        let refused = peer.health_only && !HEALTH.contains(&request.uri().path());
        let (peer, pages, received) = (peer.clone(), pages.clone(), received.clone());
        let answering = (!refused).then(|| router.call(request));
        async move {
            let mut response = match answering {
                Some(answering) => answering.await?,
                None => busy("too many connections are open: only health is answered"),
            };
            // An answer in memory is counted until it is written. A streamed answer has its own bound.
            let bytes = response.body().size_hint().exact().unwrap_or(0) as usize;
            let mut share = None;
            if bytes > ANSWER_BYTES_MIN && !can_repeat {
                share = Some(received.wait(peer.address.ip(), bytes).await);
            } else if bytes > ANSWER_BYTES_MIN {
                share = pages.take(peer.address.ip(), bytes);
                if share.is_none() {
                    let why = "too many answers wait to be read: read them, or ask for less";
                    response = busy(why);
                }
            }
            if peer.health_only {
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            Ok::<_, Infallible>(response.map(|body| CountedBody {
                body,
                _pending: pending,
                share: share.map(Arc::new),
            }))
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        // `TimedStream` has different limits for a slow head and an idle connection.
        .header_read_timeout(None)
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

/// A body, and what is counted until it is written.
struct CountedBody {
    body: Body,
    _pending: PendingRequest,
    share: Option<Arc<Share>>,
}

/// Bytes of an answer. The connection takes a whole answer out of its body at once; only these last until it is written.
struct CountedBytes {
    bytes: Bytes,
    _share: Arc<Share>,
}

impl AsRef<[u8]> for CountedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl HttpBody for CountedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        Poll::Ready(frame.map(|frame| {
            let counted = |bytes| match &self.share {
                Some(share) => Bytes::from_owner(CountedBytes { bytes, _share: share.clone() }),
                None => bytes,
            };
            Ok(frame?.map_data(counted))
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The requests of a connection, as far as its stream must know of them.
#[derive(Default)]
struct Requests {
    begun: AtomicU64,
    done: AtomicU64,
}

/// A request that is not answered yet.
struct PendingRequest(Arc<Requests>);

impl Requests {
    /// A head is complete.
    fn begin(self: &Arc<Self>) -> PendingRequest {
        self.begun.fetch_add(1, Ordering::AcqRel);
        PendingRequest(self.clone())
    }

    fn begun(&self) -> u64 {
        self.begun.load(Ordering::Acquire)
    }

    fn is_idle(&self) -> bool {
        self.begun() == self.done.load(Ordering::Acquire)
    }
}

impl Drop for PendingRequest {
    fn drop(&mut self) {
        self.0.done.fetch_add(1, Ordering::AcqRel);
    }
}

/// A stream whose peer must send a request head, send another request and read answers, each within a time limit.
struct TimedStream<S> {
    stream: S,
    requests: Arc<Requests>,
    head_time_max: Duration,
    idle_time_max: Duration,
    write_pause_max: Duration,
    /// Requests that had begun when a byte was last looked at.
    seen: u64,
    /// Something of the next head has come. The first head is due from the start.
    in_head: bool,
    /// Runs while the peer owes us a head, or a first byte of it.
    reading: Option<Pin<Box<Sleep>>>,
    /// Runs while the peer takes nothing, or too little.
    writing: Option<Pin<Box<Sleep>>>,
    /// Bytes it has taken since.
    taken: usize,
}

impl<S> TimedStream<S> {
    fn new(stream: S, limits: &ConnectionLimits, requests: Arc<Requests>) -> Self {
        let ConnectionLimits { head_time_max, idle_time_max, write_pause_max, .. } = *limits;
        Self {
            stream,
            requests,
            head_time_max,
            idle_time_max,
            write_pause_max,
            seen: 0,
            in_head: true,
            reading: None,
            writing: None,
            taken: 0,
        }
    }

    /// Starts, stops or checks the clock of heads by what the stream said.
    fn check_read(
        &mut self,
        cx: &mut Context<'_>,
        came: bool,
        said: Poll<io::Result<()>>,
    ) -> Poll<io::Result<()>> {
        let begun = self.requests.begun();
        if begun != self.seen {
            // The head that was waited for is complete.
            (self.seen, self.in_head, self.reading) = (begun, false, None);
        }
        if !self.requests.is_idle() {
            // A body, or a peer that waits for its answer: their readers are patient in their own way.
            self.reading = None;
            return said;
        }
        if came && !self.in_head {
            (self.in_head, self.reading) = (true, None);
        }
        if said.is_ready() && self.reading.is_some() {
            // Bytes of a head do not buy it more time.
            return said;
        }
        let limit = if self.in_head { self.head_time_max } else { self.idle_time_max };
        let waiting = self.reading.get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
        if said.is_ready() {
            return said;
        }
        match waiting.as_mut().poll(cx) {
            Poll::Ready(()) => {
                Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "no request came in time")))
            }
            Poll::Pending => Poll::Pending,
        }
    }

    /// The same for what the peer takes: `bytes`, if the stream is ready.
    fn check_write<T>(
        &mut self,
        cx: &mut Context<'_>,
        said: Poll<io::Result<T>>,
        bytes: impl FnOnce(&T) -> usize,
    ) -> Poll<io::Result<T>> {
        if let Poll::Ready(result) = &said {
            self.taken += result.as_ref().map_or(0, bytes);
            if self.taken >= WRITE_BYTES_MIN {
                (self.writing, self.taken) = (None, 0);
            }
            return said;
        }
        let pause = self.write_pause_max;
        let waiting = self.writing.get_or_insert_with(|| Box::pin(tokio::time::sleep(pause)));
        match waiting.as_mut().poll(cx) {
            Poll::Ready(()) => {
                Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the peer takes nothing")))
            }
            Poll::Pending => Poll::Pending,
        }
    }

    /// All of it is taken.
    fn check_flush(
        &mut self,
        cx: &mut Context<'_>,
        said: Poll<io::Result<()>>,
    ) -> Poll<io::Result<()>> {
        self.check_write(cx, said, |()| WRITE_BYTES_MIN)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for TimedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let said = Pin::new(&mut self.stream).poll_read(cx, buffer);
        self.check_read(cx, buffer.filled().len() > before, said)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TimedStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let said = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.check_write(cx, said, |taken| *taken)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let said = Pin::new(&mut self.stream).poll_write_vectored(cx, buffers);
        self.check_write(cx, said, |taken| *taken)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let said = Pin::new(&mut self.stream).poll_flush(cx);
        self.check_flush(cx, said)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let said = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.check_flush(cx, said)
    }
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

    use super::*;
    use crate::Budget;

    const ADDRESS: ([u8; 4], u16) = ([127, 0, 0, 2], 1);

    fn limits() -> ConnectionLimits {
        ConnectionLimits {
            head_time_max: Duration::from_secs(15),
            idle_time_max: Duration::from_secs(300),
            write_pause_max: Duration::from_secs(60),
            head_bytes_max: 64 << 10,
            pages: Budget::new(1 << 20, 1 << 20),
            received: Budget::new(1 << 20, 1 << 20),
        }
    }

    fn busy(why: &'static str) -> Response<Body> {
        Response::builder().status(429).body(Body::from(why)).unwrap()
    }

    fn serve(limits: ConnectionLimits, health_only: bool) -> DuplexStream {
        let (ours, theirs) = tokio::io::duplex(1 << 10);
        let router = Router::new()
            .route("/small", get(|| async { "small" }))
            .route("/large", get(large).post(large))
            .route("/livez", get(|| async { "ok" }));
        let peer = Peer { health_only, ..Peer::from(SocketAddr::from(ADDRESS)) };
        tokio::spawn(async move {
            let shutdown = CancellationToken::new();
            let _ = serve_connection(theirs, router, peer, &limits, busy, shutdown).await;
        });
        ours
    }

    /// An answer that uses the whole budget.
    async fn large() -> Vec<u8> {
        vec![b'x'; 1 << 20]
    }

    async fn ask(stream: &mut DuplexStream, path: &str) {
        send(stream, "GET", path).await;
    }

    async fn send(stream: &mut DuplexStream, method: &str, path: &str) {
        let head = format!("{method} {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
    }

    /// The status line of an answer.
    async fn status(stream: &mut DuplexStream) -> String {
        let mut text = String::new();
        while !text.ends_with("\r\n") {
            text.push(stream.read_u8().await.unwrap().into());
        }
        text.trim_end().to_owned()
    }

    #[tokio::test(start_paused = true)]
    async fn an_incomplete_head_times_out() {
        for drip in [false, true] {
            let mut stream = serve(limits(), false);
            stream.write_all(b"GET /small HTTP/1.1\r\n").await.unwrap();
            let begun = tokio::time::Instant::now();
            let closed = async {
                let mut byte = [0];
                stream.read(&mut byte).await.unwrap_or(0)
            };
            if drip {
                drop(closed);
                // A byte each second is no progress either.
                while stream.write_all(b"x").await.is_ok() {
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    assert!(begun.elapsed() < Duration::from_secs(60), "still open");
                }
            } else {
                assert_eq!(closed.await, 0);
            }
            assert!(begun.elapsed() <= Duration::from_secs(20), "{:?}", begun.elapsed());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_between_two_requests_may_be_idle_for_longer() {
        let mut stream = serve(limits(), false);
        for _ in 0..3 {
            ask(&mut stream, "/small").await;
            assert_eq!(status(&mut stream).await, "HTTP/1.1 200 OK");
            let mut rest = vec![0; 1024];
            while !rest.starts_with(b"small") && !String::from_utf8_lossy(&rest).contains("small") {
                let count = stream.read(&mut rest).await.unwrap();
                assert_ne!(count, 0);
            }
            tokio::time::sleep(Duration::from_secs(200)).await;
        }
        // Half of the next head, after a good request.
        stream.write_all(b"GET /sm").await.unwrap();
        let begun = tokio::time::Instant::now();
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).await.unwrap();
        assert!(begun.elapsed() <= Duration::from_secs(20), "{:?}", begun.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_server_answers_health_and_nothing_else() {
        for (path, expected) in
            [("/livez", "HTTP/1.1 200 OK"), ("/small", "HTTP/1.1 429 Too Many Requests")]
        {
            let mut stream = serve(limits(), true);
            ask(&mut stream, path).await;
            assert_eq!(status(&mut stream).await, expected, "{path}");
            stream.read_to_end(&mut Vec::new()).await.unwrap();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn without_room_a_get_is_refused_and_a_post_waits() {
        let limits = limits();
        let mut unread = serve(limits.clone(), false);
        ask(&mut unread, "/large").await;
        assert_eq!(status(&mut unread).await, "HTTP/1.1 200 OK");
        let mut refused = serve(limits.clone(), false);
        ask(&mut refused, "/large").await;
        assert_eq!(status(&mut refused).await, "HTTP/1.1 429 Too Many Requests");
        // Their answers may be the only copy of received messages.
        let (mut first, mut waiting) = (serve(limits.clone(), false), serve(limits, false));
        send(&mut first, "POST", "/large").await;
        assert_eq!(status(&mut first).await, "HTTP/1.1 200 OK", "unread pages do not stop it");
        send(&mut waiting, "POST", "/large").await;
        let early = tokio::time::timeout(Duration::from_secs(10), status(&mut waiting)).await;
        assert!(early.is_err(), "{early:?}");
        drop(first);
        assert_eq!(status(&mut waiting).await, "HTTP/1.1 200 OK");
    }
}
