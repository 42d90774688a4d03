//! One open port with the front ends that speak on it.

use super::sniff::{SniffError, sniff};
use super::{BindError, Gate, Listener, Pass, Sniffed, Stream, Tls, TlsInfo};
use crate::settings::Listen;
use crate::shutdown::{Shutdown, ShutdownToken};
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

/// What a handler returns: ends when the connection is done.
pub type HandlerFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A front end as a port sees it: takes a connection and serves it to its end.
///
/// It begins no new work once [`ShutdownToken::draining`] resolves, finishes what is under way
/// and closes; when stopping becomes final its future is dropped.
pub type Handler = Arc<dyn Fn(Stream, PeerInfo, ShutdownToken) -> HandlerFuture + Send + Sync>;

/// Makes a [`Handler`] of an async function.
pub fn handler<F, T>(serve: F) -> Handler
where
    F: Fn(Stream, PeerInfo, ShutdownToken) -> T + Send + Sync + 'static,
    T: Future<Output = ()> + Send + 'static,
{
    Arc::new(move |stream, peer, shutdown| Box::pin(serve(stream, peer, shutdown)))
}

/// What is known of a connection before its first request.
#[derive(Debug, Clone)]
pub struct PeerInfo {
    /// Number of the connection, unique within the process: the `conn` of log lines.
    pub conn: u64,
    /// Name of the listener it came in by.
    pub front: &'static str,
    /// The peer.
    pub remote: SocketAddr,
    /// Our end.
    pub local: SocketAddr,
    /// What its first bytes said, inside TLS if there is any.
    pub sniffed: Sniffed,
    /// Set when the connection speaks TLS.
    pub tls: Option<TlsInfo>,
    /// What it is counted by. A connection that outlives its handler keeps it.
    pub pass: Arc<Pass>,
}

/// Who serves what on one port. A port with nobody on it is not opened.
#[derive(Clone, Default)]
pub struct Router {
    /// HTTP/1.1.
    pub http: Option<Handler>,
    /// AMQP 1.0.
    pub amqp10: Option<Handler>,
    /// AMQP 0-9-1.
    pub amqp091: Option<Handler>,
    /// Protocols without a mark of their own, such as Kafka.
    pub other: Option<Handler>,
    /// Whether its HTTP answers health, and does so when there is no room for anything else.
    pub health: bool,
}

impl Router {
    /// Whether nobody speaks here.
    pub fn is_empty(&self) -> bool {
        self.handlers().next().is_none()
    }

    fn handlers(&self) -> impl Iterator<Item = &Handler> {
        [&self.http, &self.amqp10, &self.amqp091, &self.other].into_iter().flatten()
    }

    fn route(&self, sniffed: Sniffed) -> Option<&Handler> {
        let exact = match sniffed {
            Sniffed::Http => self.http.as_ref(),
            Sniffed::Amqp10(_) => self.amqp10.as_ref(),
            Sniffed::Amqp091 => self.amqp091.as_ref(),
            // Either answers with the version that it speaks, as both specifications ask.
            Sniffed::AmqpOther => self.amqp091.as_ref().or(self.amqp10.as_ref()),
            Sniffed::Unknown => self.other.as_ref(),
            Sniffed::Tls => None,
        };
        // A lone front end gets everything, to refuse it in its own words.
        exact.or_else(|| {
            let mut all = self.handlers();
            all.next().filter(|_| all.next().is_none() && sniffed != Sniffed::Tls)
        })
    }
}

impl std::fmt::Debug for Router {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Router")
            .field("http", &self.http.is_some())
            .field("amqp10", &self.amqp10.is_some())
            .field("amqp091", &self.amqp091.is_some())
            .field("other", &self.other.is_some())
            .finish()
    }
}

/// How connections are let in; the same for all ports.
#[derive(Debug, Clone)]
pub struct Admission {
    /// The certificate, if TLS is spoken.
    pub tls: Option<Arc<Tls>>,
    /// Whether connections without TLS are refused.
    pub tls_required: bool,
    /// The connection limit.
    pub gate: Arc<Gate>,
    /// For the first bytes, and again for the TLS handshake.
    pub handshake_timeout: Duration,
}

/// An open port, ready to serve.
#[derive(Debug)]
pub struct Port {
    listener: Listener,
    router: Router,
    admission: Admission,
}

impl Port {
    /// Opens the port of the listener called `front`; `None` when it is off or nobody speaks on
    /// it.
    pub async fn open(
        front: &'static str,
        listen: &Listen,
        router: Router,
        admission: Admission,
    ) -> Result<Option<Port>, BindError> {
        if router.is_empty() {
            return Ok(None);
        }
        let listener = Listener::bind(front, listen).await?;
        Ok(listener.map(|listener| Port { listener, router, admission }))
    }

    /// Name of the listener.
    pub fn front(&self) -> &'static str {
        self.listener.front()
    }

    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.listener.local_addr()
    }

    /// Accepts until draining begins, then closes the port. Connections run as tasks of
    /// `shutdown`, which waits for them.
    pub async fn serve(self, shutdown: Shutdown) {
        let Port { listener, router, admission } = self;
        let (front, local) = (listener.front(), listener.local_addr());
        // Connections share this and not the listener, or the last of them would keep the port
        // open while the server drains.
        let entrance = Arc::new(Entrance { front, local, router, admission });
        let token = shutdown.token();
        loop {
            let (stream, remote) = tokio::select! {
                biased;
                () = token.draining() => return,
                accepted = listener.accept() => accepted,
            };
            let gate = &entrance.admission.gate;
            let pass = match gate.enter(remote.ip()) {
                Some(pass) => pass,
                None if entrance.router.health => gate.enter_for_health(remote.ip()),
                // Without a pass the stream is dropped, which closes it.
                None => continue,
            };
            let (entrance, token, pass) = (Arc::clone(&entrance), token.clone(), Arc::new(pass));
            shutdown.spawn(async move {
                tokio::select! {
                    () = entrance.connection(stream, remote, &pass, token) => {}
                    () = pass.evicted.cancelled() => {}
                }
            });
        }
    }
}

/// What every connection of a port needs.
struct Entrance {
    front: &'static str,
    local: SocketAddr,
    router: Router,
    admission: Admission,
}

impl Entrance {
    async fn connection(
        &self,
        stream: TcpStream,
        remote: SocketAddr,
        pass: &Arc<Pass>,
        token: ShutdownToken,
    ) {
        let (front, conn) = (self.front, pass.conn);
        let arrived = tokio::select! {
            biased;
            // Nothing was asked yet, so nothing is owed.
            () = token.draining() => return,
            arrived = self.arrive(stream) => arrived,
        };
        let (stream, sniffed, tls) = match arrived {
            Ok(arrived) => arrived,
            Err(error) => {
                tracing::debug!(front, conn, %remote, %error, "connection not taken");
                return;
            }
        };
        let Some(handler) = self.router.route(sniffed) else {
            tracing::debug!(front, conn, %remote, ?sniffed, "nobody here speaks that");
            return;
        };
        if pass.health_only && sniffed != Sniffed::Http {
            return;
        }
        let (local, pass) = (self.local, Arc::clone(pass));
        let peer = PeerInfo { conn, front, remote, local, sniffed, tls, pass };
        handler(stream, peer, token).await;
    }

    /// From the first byte to a stream that a front end can take.
    async fn arrive(
        &self,
        stream: TcpStream,
    ) -> Result<(Stream, Sniffed, Option<TlsInfo>), SniffError> {
        let Admission { tls, tls_required, handshake_timeout: limit, .. } = &self.admission;
        let limit = *limit;
        let (sniffed, mut stream) = sniff(stream, limit).await?;
        match (tls, sniffed) {
            (Some(tls), Sniffed::Tls) => {
                // Boxed: connections without TLS, and silent ones, need not hold room for a session.
                Box::pin(async {
                    let (info, stream) = tls.accept(stream, limit).await?;
                    let (sniffed, stream) = sniff(stream, limit).await?;
                    Ok((Stream::Tls(Box::new(stream)), sniffed, Some(info)))
                })
                .await
            }
            (_, sniffed) if *tls_required => {
                if sniffed == Sniffed::Http {
                    // Best effort: the peer may be gone.
                    let _ = tokio::time::timeout(limit, stream.write_all(SPEAK_TLS)).await;
                    let _ = stream.shutdown().await;
                }
                Err(std::io::Error::other("TLS is required and the peer does not speak it").into())
            }
            (_, sniffed) => Ok((Stream::Plain(stream), sniffed, None)),
        }
    }
}

const SPEAK_TLS: &[u8] = b"HTTP/1.1 400 Bad Request\r\n\
    Content-Type: text/plain\r\nContent-Length: 43\r\nConnection: close\r\n\r\n\
    This port speaks TLS only: use an https URL";
