//! A connection's bytes, time and end.

use std::io;
use std::pin::Pin;
use std::sync::Arc;

use bytes::{Buf, Bytes};
use futures_util::StreamExt;
use malote_engine::{Outbound, Outbox};
use malote_model::Settlement;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Duration, Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use crate::conn::Conn;
use crate::{Front, limits};

/// Nothing is due.
const FAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// Serves an AMQP 1.0 connection to its end, or until `shutdown`. The error is what the network did.
pub async fn serve_connection<S>(
    stream: S,
    front: Arc<Front>,
    shutdown: CancellationToken,
) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send,
{
    let (engine, outbox) = front.engine.connect();
    let engine = Arc::new(engine);
    let mut conn = Conn::new(front.clone(), engine.clone());
    let mut outbox = next(outbox);
    let served = serve(stream, &mut conn, &mut outbox, shutdown).await;

    // What was asked for in time is handed over; nobody hears the answers.
    conn.drop_all();
    let clean = conn.clean;
    while let Ok(Some(_)) = timeout(limits::FAREWELL, conn.work.next()).await {}
    drop(conn);
    match Arc::try_unwrap(engine) {
        Ok(engine) if clean => engine.close().await,
        // A lost connection: whatever was bound to it counts as failed.
        engine => drop(engine),
    }
    // Leases that stand free of the connection, and that nobody has seen.
    while let (Some(outbound), rest) = outbox.await {
        if let Outbound::Deliver(_, deliveries) = outbound {
            let leases = deliveries.iter().filter_map(|delivery| delivery.lease).collect();
            let release = Settlement::Release { delay_ms: 0 };
            let _ = front.engine.settle(None, leases, release, None).await;
        }
        outbox = next(rest);
    }
    served
}

type Next = Pin<Box<dyn Future<Output = (Option<Outbound>, Outbox)> + Send>>;

/// The next word of the engine. Not to be dropped half-way, so it keeps what it reads from.
fn next(mut outbox: Outbox) -> Next {
    Box::pin(async move { (outbox.next().await, outbox) })
}

async fn serve<S>(
    stream: S,
    conn: &mut Conn,
    outbox: &mut Next,
    shutdown: CancellationToken,
) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send,
{
    let begun = Instant::now();
    let now_ms = || begun.elapsed().as_millis() as u64;
    let (mut reader, mut writer) = tokio::io::split(stream);
    let mut unwritten = Bytes::new();
    let mut stopping = false;
    let mut engine_over = false;
    loop {
        conn.turn();
        if stopping && conn.is_quiet() && !conn.amqp.is_finished() {
            conn.farewell();
            conn.turn();
        }
        if unwritten.is_empty() {
            unwritten = conn.amqp.take_output();
        }
        if conn.amqp.is_finished() || (stopping && conn.clean) {
            return timeout(limits::FAREWELL, write_all(&mut writer, conn, unwritten))
                .await
                .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        }
        let tick = conn.amqp.next_tick_ms().map_or(FAR, Duration::from_millis);
        let tick = if conn.opened { tick } else { tick.min(limits::HANDSHAKE) };
        let wants_input = conn.amqp.wants_input() && !stopping;
        tokio::select! {
            written = writer.write(&unwritten), if !unwritten.is_empty() => match written? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                count => unwritten.advance(count),
            },
            read = reader.read_buf(conn.amqp.input()), if wants_input => match read? {
                0 => return Ok(()),
                _ => conn.amqp.received(now_ms()),
            },
            Some(done) = conn.work.next(), if !conn.work.is_empty() => conn.done(done),
            (outbound, rest) = &mut *outbox, if !engine_over => {
                *outbox = next(rest);
                match outbound {
                    Some(outbound) => conn.outbound(outbound),
                    // The engine is going; so is the process.
                    None => engine_over = true,
                }
            }
            () = sleep_until(begun + tick) => {
                if !conn.opened && begun.elapsed() >= limits::HANDSHAKE {
                    return Err(io::Error::new(io::ErrorKind::TimedOut, "the client has not opened"));
                }
                conn.amqp.tick(now_ms());
            }
            () = shutdown.cancelled(), if !stopping => stopping = true,
        }
    }
}

async fn write_all(
    writer: &mut (impl AsyncWrite + Unpin),
    conn: &mut Conn,
    unwritten: Bytes,
) -> io::Result<()> {
    writer.write_all(&unwritten).await?;
    writer.write_all(&conn.amqp.take_output()).await?;
    writer.shutdown().await
}
