//! The I/O loop of a connection.

use std::io;
use std::time::Duration;

use bytes::{Buf, Bytes};
use futures_util::{FutureExt, StreamExt};
use malote_engine::Outbox;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::Conn;
use crate::limits;
use crate::refusal::stopping;
use crate::wire::frame::put_heartbeat;

/// Deadline used when no timer is set.
const FAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// When a heartbeat must be sent or has been missed.
struct Heartbeats {
    interval: Option<Duration>,
    received: Instant,
    sent: Instant,
}

impl Heartbeats {
    fn new(seconds: u16) -> Self {
        let interval = (seconds > 0).then(|| Duration::from_secs(seconds.into()));
        Self { interval, received: Instant::now(), sent: Instant::now() }
    }

    /// The next time to send a heartbeat or to give up.
    fn next(&self) -> Instant {
        match self.interval {
            Some(interval) => (self.sent + interval / 2).min(self.received + interval * 2),
            None => Instant::now() + FAR,
        }
    }

    fn is_lost(&self) -> bool {
        self.interval.is_some_and(|interval| self.received.elapsed() >= interval * 2)
    }

    fn is_due(&self) -> bool {
        self.interval.is_some_and(|interval| self.sent.elapsed() >= interval / 2)
    }
}

/// Reads, writes and dispatches until the connection ends.
pub(crate) async fn serve<S>(
    stream: S,
    conn: &mut Conn,
    outbox: &mut Outbox,
    shutdown: CancellationToken,
) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send,
{
    let (mut reader, mut writer) = tokio::io::split(stream);
    let mut heartbeats = Heartbeats::new(conn.session.heartbeat);
    let mut unwritten = Bytes::new();
    let mut stopping_sent = false;
    let mut engine_over = false;
    let access = conn.front.access.clone();
    let mut changed = access.changed(access.version());
    let mut metadata = conn.front.metadata.subscribe();
    // Either may have changed during the handshake.
    conn.recheck_permissions();
    conn.recheck_vhost();
    let mut timeout_check = Instant::now() + limits::CONSUMER_TIMEOUT_CHECK;
    loop {
        conn.make_progress();
        if unwritten.is_empty() {
            unwritten = conn.out.split().freeze();
        }
        if conn.is_finished() {
            let last = write_all(&mut writer, conn, &mut unwritten);
            return timeout(limits::CLOSE_TIMEOUT, last)
                .await
                .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        }
        let wants_input = conn.wants_input();
        if wants_input {
            conn.reserve_input();
        }
        let has_room = unwritten.len() + conn.out.len() < limits::OUTPUT_BYTES_HIGH;
        let wants_messages =
            !engine_over && (conn.only_leaves() || has_room && conn.takes_messages());
        let tick = heartbeats.next().min(timeout_check);
        let tick = conn.closing_deadline().map_or(tick, |by| tick.min(by));
        tokio::select! {
            written = writer.write(&unwritten), if !unwritten.is_empty() => match written? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                count => {
                    unwritten.advance(count);
                    conn.traffic.sent_bytes += count as u64;
                    conn.traffic.writes += 1;
                    heartbeats.sent = Instant::now();
                    // Consumers without a prefetch limit get credit for what was written.
                    conn.written();
                }
            },
            read = reader.read_buf(&mut conn.input), if wants_input => match read? {
                0 => return Ok(()),
                count => {
                    heartbeats.received = Instant::now();
                    conn.traffic.received_bytes += count as u64;
                    conn.traffic.reads += 1;
                }
            },
            Some(completion) = conn.pending.next(), if !conn.pending.is_empty() => {
                conn.complete(completion);
                // Handles everything that has completed by now, so that the socket is polled once and not once per
                // operation. The select polls again for the rest.
                while let Some(Some(completion)) = conn.pending.next().now_or_never() {
                    conn.complete(completion);
                }
            }
            outbound = outbox.next(), if wants_messages => match outbound {
                Some(outbound) => {
                    conn.outbound(outbound);
                    while conn.out.len() < limits::OUTPUT_BYTES_HIGH
                        && conn.takes_messages()
                        && let Some(Some(outbound)) = outbox.next().now_or_never()
                    {
                        conn.outbound(outbound);
                    }
                }
                // The engine is stopping, and so is the process.
                None => engine_over = true,
            },
            Some(reply) = conn.direct_replies.recv(), if has_room => conn.direct_reply(reply),
            Some(inquiry) = conn.inquiries.recv() => conn.answer_inquiry(inquiry),
            version = &mut changed => {
                changed = access.changed(version);
                conn.recheck_permissions();
            }
            Ok(()) = metadata.changed() => conn.recheck_vhost(),
            () = sleep_until(tick) => {
                if heartbeats.is_lost() {
                    return Err(io::Error::new(io::ErrorKind::TimedOut, "missed heartbeats from the client"));
                }
                if heartbeats.is_due() {
                    put_heartbeat(&mut conn.out);
                    heartbeats.sent = Instant::now();
                }
                if timeout_check <= Instant::now() {
                    timeout_check = Instant::now() + limits::CONSUMER_TIMEOUT_CHECK;
                    conn.check_consumer_timeouts();
                }
            }
            () = shutdown.cancelled(), if !stopping_sent => {
                stopping_sent = true;
                conn.make_progress();
                conn.close_connection(&stopping());
            }
        }
    }
}

/// Reads and ignores what a client sends after its `connection.close`, until it closes its side: other channels may have
/// frames under way, and closing with unread data would reset the connection before the client has read `close-ok`.
pub(crate) async fn ignore_rest(mut stream: impl AsyncRead + Unpin) {
    let mut ignored = [0; 4096];
    let rest = async { while matches!(stream.read(&mut ignored).await, Ok(1..)) {} };
    let _ = timeout(limits::CLOSE_TIMEOUT, rest).await;
}

async fn write_all(
    writer: &mut (impl AsyncWrite + Unpin),
    conn: &mut Conn,
    unwritten: &mut Bytes,
) -> io::Result<()> {
    writer.write_all_buf(unwritten).await?;
    let mut rest = conn.out.split().freeze();
    writer.write_all_buf(&mut rest).await?;
    writer.shutdown().await
}
