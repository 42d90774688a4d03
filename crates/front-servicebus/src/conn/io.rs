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
use crate::refusal::of_unknown;

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
        conn.turn();
        if stopping && conn.is_quiet() && !conn.amqp.is_finished() {
            conn.farewell();
            conn.turn();
        }
        if unwritten.is_empty() {
            *unwritten = conn.amqp.take_output();
        }
        if conn.amqp.is_finished() || (stopping && conn.clean) {
            return timeout(limits::FAREWELL, write_all(&mut writer, conn, unwritten))
                .await
                .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        }
        let tick = conn.amqp.next_tick_ms().map_or(FAR, Duration::from_millis);
        let tick = if conn.opened { tick } else { tick.min(limits::HANDSHAKE) };
        let tick = begun + tick;
        let tick = conn.known_by().map_or(tick, |by| tick.min(by));
        let tokens_last = conn.tokens_last();
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
            Some(done) = conn.work.next(), if !conn.work.is_empty() => {
                conn.done(done);
                // All that is over by now: the socket is looked at once, not once for each. Whoever is asked here without
                // being waited for is asked again by the select.
                while let Some(Some(done)) = conn.work.next().now_or_never() {
                    conn.done(done);
                }
            }
            outbound = outbox.next(), if !engine_over => match outbound {
                Some(outbound) => conn.outbound(outbound),
                // The engine is going; so is the process.
                None => engine_over = true,
            },
            () = sleep(tokens_last) => conn.check_again(),
            version = &mut changed => {
                changed = access.changed(version);
                conn.check_again();
            }
            () = sleep_until(tick) => {
                if !conn.opened && begun.elapsed() >= limits::HANDSHAKE {
                    return Err(io::Error::new(io::ErrorKind::TimedOut, "the client has not opened"));
                }
                if conn.known_by().is_some_and(|by| by <= Instant::now()) {
                    conn.close(of_unknown());
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
