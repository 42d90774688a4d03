//! The I/O loop of a connection: one task that reads, writes and waits for pending operations.

use std::io;

use bytes::{Buf, Bytes};
use futures_util::{FutureExt, StreamExt};
use malote_engine::Outbox;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Duration, Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::Conn;
use crate::limits;
use crate::refusal::unauthenticated;

/// Deadline used when no timer is set.
const FAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// Reads, writes and dispatches until the connection ends.
pub(crate) async fn serve<S>(
    stream: S,
    conn: &mut Conn,
    outbox: &mut Outbox,
    unwritten: &mut Bytes,
    shutdown: CancellationToken,
) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send,
{
    let begun = Instant::now();
    let now_ms = || begun.elapsed().as_millis() as u64;
    let (mut reader, mut writer) = tokio::io::split(stream);
    let mut stopping = false;
    let mut engine_over = false;
    let access = conn.front.access.clone();
    let mut changed = access.changed(access.version());
    loop {
        conn.make_progress();
        if stopping && conn.is_idle() && !conn.amqp.is_finished() {
            conn.close_for_shutdown();
            conn.make_progress();
        }
        if unwritten.is_empty() {
            *unwritten = conn.amqp.take_output();
        }
        if conn.amqp.is_finished() || (stopping && conn.closed_cleanly) {
            return timeout(limits::CLOSE_TIMEOUT, write_all(&mut writer, conn, unwritten))
                .await
                .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        }
        let tick = conn.amqp.next_tick_ms().map_or(FAR, Duration::from_millis);
        let tick = if conn.opened { tick } else { tick.min(limits::HANDSHAKE_TIMEOUT) };
        let tick = begun + tick;
        let tick = conn.authentication_deadline().map_or(tick, |by| tick.min(by));
        let token_check_delay = conn.token_check_delay();
        let wants_input = conn.amqp.wants_input() && !stopping;
        tokio::select! {
            written = writer.write(unwritten), if !unwritten.is_empty() => match written? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                count => unwritten.advance(count),
            },
            read = reader.read_buf(conn.amqp.input()), if wants_input => match read? {
                0 => return Ok(()),
                _ => conn.amqp.received(now_ms()),
            },
            Some(completion) = conn.pending.next(), if !conn.pending.is_empty() => {
                conn.complete(completion);
                // Handles everything that has completed by now, so that the socket is polled once and not once per
                // operation. The select polls again for the rest.
                while let Some(Some(completion)) = conn.pending.next().now_or_never() {
                    conn.complete(completion);
                }
            }
            outbound = outbox.next(), if !engine_over => match outbound {
                Some(outbound) => conn.outbound(outbound),
                // The engine is stopping, and so is the process.
                None => engine_over = true,
            },
            () = sleep(token_check_delay) => conn.recheck_permissions(),
            version = &mut changed => {
                changed = access.changed(version);
                conn.recheck_permissions();
            }
            () = sleep_until(tick) => {
                if !conn.opened && begun.elapsed() >= limits::HANDSHAKE_TIMEOUT {
                    return Err(io::Error::new(io::ErrorKind::TimedOut, "the client did not send an open in time"));
                }
                if conn.authentication_deadline().is_some_and(|by| by <= Instant::now()) {
                    conn.close(unauthenticated());
                    stopping = true;
                    continue;
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
    unwritten: &mut Bytes,
) -> io::Result<()> {
    writer.write_all_buf(unwritten).await?;
    *unwritten = conn.amqp.take_output();
    writer.write_all_buf(unwritten).await?;
    writer.shutdown().await
}
