//! Serves one connection: connects it to the engine, runs its I/O loop and cleans up after it.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use bytes::Bytes;
use futures_util::StreamExt;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::conn::{Conn, io::serve};
use crate::{Front, Peer, limits};

/// Serves an AMQP 1.0 connection until it ends or `shutdown` is cancelled. Returns an error if the network fails.
pub async fn serve_connection<S>(
    stream: S,
    front: Arc<Front>,
    shutdown: CancellationToken,
) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send,
{
    let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
    serve_peer(stream, front, shutdown, Peer { address, known: Arc::default() }).await
}

/// Like [`serve_connection`], for a peer whose address and authentication state the server tracks.
pub async fn serve_peer<S>(
    stream: S,
    front: Arc<Front>,
    shutdown: CancellationToken,
    peer: Peer,
) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send,
{
    let (engine, mut outbox) = front.engine.connect();
    let engine = Arc::new(engine);
    let mut conn = Conn::new(front, engine.clone(), peer);
    let mut unwritten = Bytes::new();
    let served = serve(stream, &mut conn, &mut outbox, &mut unwritten, shutdown).await;

    // Operations that were requested in time still reach the engine, although their replies are not sent.
    let closed_cleanly = conn.closed_cleanly;
    conn.release_after_loss(unwritten.len());
    while let Ok(Some(completion)) = timeout(limits::CLOSE_TIMEOUT, conn.pending.next()).await {
        conn.complete_after_close(completion);
    }
    // Deliveries that were never sent are returned before the connection is lost, so that they do not count as failed
    // attempts.
    drop(outbox);
    drop(conn);
    match Arc::try_unwrap(engine) {
        Ok(engine) if closed_cleanly => engine.close().await,
        // The connection was lost: messages leased to it count as failed attempts.
        engine => drop(engine),
    }
    served
}
