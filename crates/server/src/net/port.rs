//! An open port with its front ends.

use super::detect::{DetectError, read_protocol};
use super::{
    BindError, ConnectionLimit, ConnectionPermit, DetectedProtocol, Listener, Stream, Tls, TlsInfo,
};
use crate::settings::Listen;
use crate::shutdown::{Shutdown, ShutdownToken};
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

/// Ends when the connection is done.
pub type HandlerFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Serves a connection until it ends.
///
/// Once [`ShutdownToken::draining`] resolves, it finishes current work, begins no new work, and closes. When the drain
/// ends, its future is dropped.
pub type ConnectionHandler =
    Arc<dyn Fn(Stream, PeerInfo, ShutdownToken) -> HandlerFuture + Send + Sync>;

/// Makes a [`ConnectionHandler`] from an async function.
pub fn handler<F, T>(serve: F) -> ConnectionHandler
where
    F: Fn(Stream, PeerInfo, ShutdownToken) -> T + Send + Sync + 'static,
    T: Future<Output = ()> + Send + 'static,
{
    Arc::new(move |stream, peer, shutdown| Box::pin(serve(stream, peer, shutdown)))
}

/// What is known about a connection before its first request.
#[derive(Debug, Clone)]
pub struct PeerInfo {
    /// Number of the connection, unique within the process; `conn` in the log.
    pub conn: u64,
    /// Name of the listener.
    pub front: &'static str,
    pub remote: SocketAddr,
    pub local: SocketAddr,
    /// The detected protocol, inside TLS if TLS is used.
    pub protocol: DetectedProtocol,
    /// Set if the connection uses TLS.
    pub tls: Option<TlsInfo>,
    /// Keeps the connection counted; a connection that outlives its handler holds on to it.
    pub permit: Arc<ConnectionPermit>,
}

/// The handlers of a port. A port without handlers is not opened.
#[derive(Clone, Default)]
pub struct Router {
    pub http: Option<ConnectionHandler>,
    pub amqp10: Option<ConnectionHandler>,
    pub amqp091: Option<ConnectionHandler>,
    /// Whether HTTP on this port serves health checks, even when the connection limit is reached.
    pub health: bool,
}

impl Router {
    pub fn is_empty(&self) -> bool {
        self.handlers().next().is_none()
    }

    fn handlers(&self) -> impl Iterator<Item = &ConnectionHandler> {
        [&self.http, &self.amqp10, &self.amqp091].into_iter().flatten()
    }

    fn route(&self, protocol: DetectedProtocol) -> Option<&ConnectionHandler> {
        let exact = match protocol {
            DetectedProtocol::Http => self.http.as_ref(),
            DetectedProtocol::Amqp091 => self.amqp091.as_ref(),
            // For another version of AMQP, the handler replies with the supported one, as the specification demands.
            DetectedProtocol::Amqp10(_) | DetectedProtocol::AmqpOther => self.amqp10.as_ref(),
            // It answers anything else with its protocol header, as RabbitMQ does.
            DetectedProtocol::Unknown => self.amqp091.as_ref(),
            DetectedProtocol::Tls => None,
        };
        // A single front end gets everything, so that it can refuse it in its own protocol.
        exact.or_else(|| {
            let mut all = self.handlers();
            all.next().filter(|_| all.next().is_none() && protocol != DetectedProtocol::Tls)
        })
    }
}

impl std::fmt::Debug for Router {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Router")
            .field("http", &self.http.is_some())
            .field("amqp10", &self.amqp10.is_some())
            .field("amqp091", &self.amqp091.is_some())
            .finish()
    }
}

/// How connections are accepted; the same for all ports.
#[derive(Debug, Clone)]
pub struct Admission {
    /// The certificate, if TLS is enabled.
    pub tls: Option<Arc<Tls>>,
    /// Whether connections without TLS are refused.
    pub tls_required: bool,
    /// The connection limit.
    pub limit: Arc<ConnectionLimit>,
    /// Time for the first bytes, and again for the TLS handshake.
    pub handshake_timeout: Duration,
}

#[derive(Debug)]
pub struct Port {
    listener: Listener,
    router: Router,
    admission: Admission,
}

impl Port {
    /// Opens the port of the listener `front`; `None` if it is off or has no handlers.
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

    pub fn front(&self) -> &'static str {
        self.listener.front()
    }

    pub fn local_addr(&self) -> SocketAddr {
        self.listener.local_addr()
    }

    /// Accepts connections until the drain begins, then closes the port. Connections run as tasks of `shutdown`, which
    /// waits for them.
    pub async fn serve(self, shutdown: Shutdown) {
        let Port { listener, router, admission } = self;
        let (front, local) = (listener.front(), listener.local_addr());
        // Connections share this and not the listener, which would keep the port open during the drain.
        let state = Arc::new(PortState { front, local, router, admission });
        let token = shutdown.token();
        loop {
            let (stream, remote) = tokio::select! {
                biased;
                () = token.draining() => return,
                accepted = listener.accept() => accepted,
            };
            let limit = &state.admission.limit;
            let permit = match limit.acquire(remote.ip()).await {
                Some(permit) => permit,
                None if state.router.health => limit.acquire_for_health(remote.ip()),
                // Dropping the stream closes the connection.
                None => continue,
            };
            let (state, token, permit) = (Arc::clone(&state), token.clone(), Arc::new(permit));
            shutdown.spawn(async move {
                tokio::select! {
                    () = state.connection(stream, remote, &permit, token) => {}
                    () = permit.evicted.cancelled() => {}
                }
            });
            // The new connection reads its request before others are accepted: otherwise a burst of connections could evict
            // one whose request has already arrived.
            tokio::task::yield_now().await;
        }
    }
}

/// What every connection of a port needs.
struct PortState {
    front: &'static str,
    local: SocketAddr,
    router: Router,
    admission: Admission,
}

impl PortState {
    async fn connection(
        &self,
        stream: TcpStream,
        remote: SocketAddr,
        permit: &Arc<ConnectionPermit>,
        token: ShutdownToken,
    ) {
        let (front, conn) = (self.front, permit.conn);
        let accepted = tokio::select! {
            biased;
            // The peer has not sent a request yet.
            () = token.draining() => return,
            accepted = self.accept_stream(stream) => accepted,
        };
        let (stream, protocol, tls) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::debug!(front, conn, %remote, %error, "connection closed before a request");
                return;
            }
        };
        let Some(handler) = self.router.route(protocol) else {
            tracing::debug!(front, conn, %remote, ?protocol, "protocol not supported on this port");
            return;
        };
        if permit.health_only && protocol != DetectedProtocol::Http {
            return;
        }
        let (local, permit) = (self.local, Arc::clone(permit));
        let peer = PeerInfo { conn, front, remote, local, protocol, tls, permit };
        handler(stream, peer, token).await;
    }

    /// Detects the protocol and does the TLS handshake.
    async fn accept_stream(
        &self,
        stream: TcpStream,
    ) -> Result<(Stream, DetectedProtocol, Option<TlsInfo>), DetectError> {
        let Admission { tls, tls_required, handshake_timeout: timeout, .. } = &self.admission;
        let timeout = *timeout;
        let (protocol, mut stream) = read_protocol(stream, timeout).await?;
        match (tls, protocol) {
            (Some(tls), DetectedProtocol::Tls) => {
                // Boxed, so that connections without TLS do not reserve memory for a TLS session.
                Box::pin(async {
                    let (info, stream) = tls.accept(stream, timeout).await?;
                    let (protocol, stream) = read_protocol(stream, timeout).await?;
                    Ok((Stream::Tls(Box::new(stream)), protocol, Some(info)))
                })
                .await
            }
            (_, protocol) if *tls_required => {
                if protocol == DetectedProtocol::Http {
                    // Best effort: the peer may already be gone.
                    let _ = tokio::time::timeout(timeout, stream.write_all(SPEAK_TLS)).await;
                    let _ = stream.shutdown().await;
                }
                Err(std::io::Error::other("TLS is required").into())
            }
            (_, protocol) => Ok((Stream::Plain(stream), protocol, None)),
        }
    }
}

const SPEAK_TLS: &[u8] = b"HTTP/1.1 400 Bad Request\r\n\
    Content-Type: text/plain\r\nContent-Length: 43\r\nConnection: close\r\n\r\n\
    This port speaks TLS only: use an https URL";
