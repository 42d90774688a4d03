//! Serves one connection: handshake, connection to the engine, I/O loop, clean-up.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::conn::Conn;
use crate::conn::handshake::{Handshake, Session, shake_hands};
use crate::conn::io::{ignore_rest, serve};
use crate::wire::frame::FrameDecoder;
use crate::{Front, Peer, limits};

impl Peer {
    /// A peer inside the process.
    pub(crate) fn local() -> Self {
        let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let local = SocketAddr::new(address, 0);
        Self { address, port: 0, local, tls: false, known: Arc::default() }
    }
}

/// Serves an AMQP 0-9-1 connection until it ends or `shutdown` is cancelled. Returns an error if the network fails.
pub async fn serve_connection<S>(
    stream: S,
    front: Arc<Front>,
    shutdown: CancellationToken,
) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send,
{
    serve_peer(stream, front, shutdown, Peer::local()).await
}

/// Like [`serve_connection`], for a peer whose address and authentication state the server tracks.
pub async fn serve_peer<S>(
    mut stream: S,
    front: Arc<Front>,
    shutdown: CancellationToken,
    peer: Peer,
) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send,
{
    let shaken = tokio::select! {
        biased;
        () = shutdown.cancelled() => return Ok(()),
        shaken = timeout(limits::HANDSHAKE_TIMEOUT, shake_hands(&mut stream, &front, &peer)) => shaken,
    };
    let Ok(shaken) = shaken else {
        return Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "the client did not finish the handshake in time",
        ));
    };
    let Some(Handshake { session, input, decoder }) = shaken? else { return Ok(()) };
    peer.known.store(true, Ordering::Relaxed);
    serve_session(stream, front, Opened { session, peer, input, decoder }, shutdown, true).await
}

/// A connection after its handshake.
pub(crate) struct Opened {
    pub session: Session,
    pub peer: Peer,
    /// What the client sent early.
    pub input: BytesMut,
    pub decoder: FrameDecoder,
}

/// Serves a connection after its handshake. The management API lists it if it is `listed`.
pub(crate) async fn serve_session<S>(
    mut stream: S,
    front: Arc<Front>,
    opened: Opened,
    shutdown: CancellationToken,
    listed: bool,
) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send,
{
    let Opened { session, peer, input, decoder } = opened;
    let (engine, mut outbox) = front.engine.connect();
    let engine = Arc::new(engine);
    let (inquiry_sender, inquiries) = mpsc::channel(limits::INQUIRIES_MAX);
    let mut conn =
        Conn::new(front.clone(), engine.clone(), session, peer, input, decoder, inquiries);
    let registered = listed.then(|| front.registry.add(&conn, inquiry_sender));
    let served = serve(&mut stream, &mut conn, &mut outbox, shutdown).await;
    drop(registered);

    // Publications and acknowledgements that were received still reach the engine.
    conn.finish().await;
    let clean = conn.closed_cleanly;
    // Deliveries that were never sent are returned before the connection is lost, so that they do not count as failed.
    drop(outbox);
    drop(conn);
    match Arc::try_unwrap(engine) {
        Ok(engine) if clean => engine.close().await,
        engine => drop(engine),
    }
    if clean {
        ignore_rest(stream).await;
    }
    served
}
