//! A connection's bytes, time and end.

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

/// Serves an AMQP 1.0 connection to its end, or until `shutdown`. The error is what the network did.
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

/// The same for a peer that the server keeps an eye on.
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

    // What was asked for in time is handed over; nobody hears the answers.
    let clean = conn.clean;
    conn.ended(unwritten.len());
    while let Ok(Some(done)) = timeout(limits::FAREWELL, conn.work.next()).await {
        conn.done_after_all(done);
    }
    // What is on its way here was seen by nobody: it comes back before the connection is lost, and so uncounted.
    drop(outbox);
    drop(conn);
    match Arc::try_unwrap(engine) {
        Ok(engine) if clean => engine.close().await,
        // A lost connection: whatever was bound to it counts as failed.
        engine => drop(engine),
    }
    served
}
