//! Serves one socket, and the connection that can be resumed on another socket.

use std::future::poll_fn;
use std::net::IpAddr;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use axum::extract::ws::{CloseFrame, Message, WebSocket, close_code};
use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use malote_model::{AuditProtocol, Principal};
use malote_wire_native::frame::{
    ClientFrame, Encoding, FRAMES_MAX, Reply, ResumeFrame, ServerFrame, Welcome, WelcomeLimits,
};
use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::codec::{decode_frame, encode, join};
use super::connection::{NativeConnection, Outgoing};
use super::request::{Permit, consumer_lane, handle, known};
use super::sends::{IncomingBytes, SendQueue};
use super::transactions::{self, Staged, Staging, has_content, is_staged, without_content};
use crate::Api;
use crate::problem::Problem;

/// Time limit for the close frame with the reason.
const CLOSE_TIME_MAX: Duration = Duration::from_secs(1);
/// Largest number of frames in one message.
const JOIN_MAX: usize = 64;

/// A native connection and its tasks. Dropping it returns its leases as lost.
pub(super) struct ResumableConnection {
    id: u64,
    conn: Arc<NativeConnection>,
    outgoing: mpsc::Receiver<Outgoing>,
    /// Frames that could not be written because the socket failed.
    unwritten: Vec<Outgoing>,
    requests: Arc<Semaphore>,
    sends: SendQueue,
    consumers: mpsc::Sender<(ClientFrame, Permit)>,
    transactions: mpsc::Sender<Staged>,
    staging: Staging,
    tasks: JoinSet<()>,
    /// Whether a request arrived. Afterwards, no other connection can be resumed.
    used: bool,
}

impl ResumableConnection {
    fn new(api: &Api, id: u64, caller: (Principal, IpAddr), encoding: Encoding) -> Self {
        let (conn, outgoing, outbox) = NativeConnection::new(api.clone(), caller, encoding);
        // Each frame in a lane has a permit, so the channels have the same capacity.
        let requests_max = api.limits.requests_max.max(1);
        let (sends, send_lane) = SendQueue::new(&conn);
        let (consumers, consumer_frames) = mpsc::channel(requests_max);
        let (transactions, staged_frames) = mpsc::channel(requests_max);
        let staging = Staging::new(&conn);
        let mut tasks = JoinSet::new();
        tasks.spawn(conn.clone().pump(outbox));
        tasks.spawn(send_lane);
        tasks.spawn(consumer_lane(conn.clone(), consumer_frames));
        tasks.spawn(transactions::lane(conn.clone(), staged_frames));
        Self {
            id,
            conn,
            outgoing,
            unwritten: Vec::new(),
            requests: Arc::new(Semaphore::new(requests_max)),
            sends,
            consumers,
            transactions,
            staging,
            tasks,
            used: false,
        }
    }

    /// Closes the connection. Its leases are released without counting a delivery.
    async fn close(self) {
        let Self { conn, mut tasks, outgoing, .. } = self;
        drop(outgoing);
        tasks.shutdown().await;
        if let Some(conn) = Arc::into_inner(conn) {
            conn.connection.close().await;
        }
    }
}

/// Why a socket ended.
enum End {
    /// Closed by the client, or by us at shutdown.
    Clean,
    /// Broken or silent.
    Lost,
    /// The connection has a new socket.
    TakenOver,
    /// The caller's credential is no longer valid.
    Refused,
    /// The client wants another connection back.
    Resume(ResumeFrame),
}

/// Serves one socket.
pub(super) async fn run(
    api: Api,
    (caller, address): (Principal, IpAddr),
    encoding: Encoding,
    mut socket: WebSocket,
) {
    let _open = api.metrics.connection("native");
    api.access.audit().signed_in(&caller, address, AuditProtocol::Native);
    let (id, secret, mut taken_over) = api.native.register(&caller, encoding);
    let mut session = ResumableConnection::new(&api, id, (caller.clone(), address), encoding);
    if send_now(&mut socket, &welcome(&api, id, secret), encoding).await.is_err() {
        api.native.remove(id);
        return;
    }
    loop {
        match serve(&api, &mut session, &mut socket, &taken_over).await {
            End::Clean | End::Refused => {
                api.native.remove(session.id);
                session.close().await;
                return;
            }
            End::Lost | End::TakenOver => break,
            End::Resume(frame) => {
                let wanted = frame.id;
                match resume(&api, &caller, encoding, frame).await {
                    Ok((resumed, signal)) => {
                        let fresh = std::mem::replace(&mut session, resumed);
                        taken_over = signal;
                        api.native.remove(fresh.id);
                        fresh.close().await;
                        let ok = Resumed {
                            connection: session.id,
                            consumers: session.conn.consumers.lock().names(),
                        };
                        let reply = reply(Some(wanted), Ok(ok));
                        if send_now(&mut socket, &reply, encoding).await.is_err() {
                            break;
                        }
                    }
                    Err(problem) => {
                        if send_now(
                            &mut socket,
                            &reply::<Resumed>(Some(wanted), Err(problem)),
                            encoding,
                        )
                        .await
                        .is_err()
                        {
                            break;
                        }
                    }
                }
                session.used = true;
            }
        }
    }
    let id = session.id;
    api.native.park(id, session);
    drop(socket);
    if taken_over.is_cancelled() {
        return;
    }
    tokio::select! {
        () = tokio::time::sleep(api.limits.reconnect_grace) => {}
        () = taken_over.cancelled() => return,
        () = api.shutdown.cancelled() => {}
    }
    if let Some(session) = api.native.give_up(id, &taken_over) {
        tracing::debug!(conn = id, front = "native", "connection lost and not resumed");
        if api.shutdown.is_cancelled() {
            session.close().await;
        }
    }
}

/// The answer to a resume frame.
#[derive(Serialize)]
struct Resumed {
    connection: u64,
    consumers: Vec<u64>,
}

async fn resume(
    api: &Api,
    caller: &Principal,
    encoding: Encoding,
    frame: ResumeFrame,
) -> Result<(ResumableConnection, CancellationToken), Problem> {
    let leases = frame.leases.map(known).transpose()?;
    let (session, taken_over) =
        api.native.claim(frame.connection, &frame.secret, caller, encoding).await?;
    if let Some(leases) = leases {
        session.conn.release_unknown_leases(&leases).await?;
    }
    Ok((session, taken_over))
}

fn welcome(api: &Api, connection: u64, secret: String) -> ServerFrame<()> {
    let limits = &api.limits;
    let ms = |duration: std::time::Duration| duration.as_millis() as u64;
    ServerFrame::Welcome(Welcome {
        connection,
        secret,
        reconnect_grace_ms: ms(limits.reconnect_grace),
        limits: WelcomeLimits {
            frame_bytes_max: limits.frame_bytes_max as u64,
            frames_max: FRAMES_MAX as u64,
            requests_max: limits.requests_max as u64,
            sends_max: limits.sends_max as u64,
            send_bytes_max: limits.send_bytes_max as u64,
            consumers_max: limits.consumers_max as u64,
            transactions_max: limits.transactions_max as u64,
            staged_bytes_max: limits.staged_bytes_max as u64,
            ping_every_ms: ms(limits.ping_every),
            silence_max_ms: ms(limits.silence_max),
        },
    })
}

fn reply<T>(id: Option<u64>, result: Result<T, Problem>) -> ServerFrame<T> {
    let (ok, problem) = match result {
        Ok(ok) => (Some(ok), None),
        Err(problem) => (None, Some(Box::new(problem.body()))),
    };
    ServerFrame::Reply(Reply { id, ok, problem })
}

async fn send_now<T: Serialize>(
    socket: &mut WebSocket,
    frame: &ServerFrame<T>,
    encoding: Encoding,
) -> Result<(), axum::Error> {
    socket.send(message(encode(frame, encoding), encoding)).await
}

fn message(bytes: Vec<u8>, encoding: Encoding) -> Message {
    match encoding {
        // serde_json writes UTF-8.
        Encoding::Json => match String::from_utf8(bytes) {
            Ok(text) => Message::Text(text.into()),
            Err(error) => Message::Binary(error.into_bytes().into()),
        },
        Encoding::MessagePack => Message::Binary(bytes.into()),
    }
}

/// Reads and writes concurrently until one of them ends. Neither waits for the other.
async fn serve(
    api: &Api,
    session: &mut ResumableConnection,
    socket: &mut WebSocket,
    taken_over: &CancellationToken,
) -> End {
    let encoding = session.conn.encoding;
    let heard = Mutex::new(Instant::now());
    let ResumableConnection {
        conn,
        outgoing,
        unwritten,
        requests,
        sends,
        consumers,
        transactions,
        staging,
        tasks,
        used,
        ..
    } = session;
    let (mut sink, mut stream) = socket.split();

    let read = async {
        loop {
            let Some(Ok(message)) = stream.next().await else { return End::Lost };
            *heard.lock() = Instant::now();
            let bytes: Bytes = match message {
                Message::Text(text) => text.into(),
                Message::Binary(bytes) => bytes,
                Message::Ping(_) | Message::Pong(_) => continue,
                Message::Close(_) => return End::Clean,
            };
            let frames = match decode_frame(&bytes, encoding) {
                Ok(frames) => frames,
                Err(problem) => {
                    conn.reply::<()>(None, Err(problem)).await;
                    continue;
                }
            };
            let mut arrived = IncomingBytes::new(bytes.len());
            let (size, mut staged_bytes) = (bytes.len(), None);
            drop(bytes);
            while tasks.try_join_next().is_some() {}
            for frame in frames {
                let frame = match frame {
                    Ok(ClientFrame::Send(frame)) if frame.transaction.is_none() => {
                        sends.put(frame, &mut arrived, conn).await;
                        *used = true;
                        continue;
                    }
                    other => other,
                };
                let Ok(permit) = requests.clone().acquire_owned().await else { return End::Lost };
                match frame {
                    Ok(ClientFrame::Resume(frame)) if !*used => return End::Resume(frame),
                    Ok(
                        frame @ (ClientFrame::Declare(_)
                        | ClientFrame::Attach(_)
                        | ClientFrame::Credit(_)
                        | ClientFrame::Detach(_)),
                    ) => {
                        drop(consumers.send((frame, permit)).await);
                    }
                    Ok(frame) if is_staged(&frame) => {
                        let bytes = match &staged_bytes {
                            _ if !has_content(&frame) => Ok(None),
                            None => staging.share(size).map(Some),
                            held => Ok(held.clone()),
                        };
                        let frame = match &bytes {
                            Ok(None) => frame,
                            Ok(held) => {
                                staged_bytes = held.clone();
                                frame
                            }
                            Err(_) => without_content(frame),
                        };
                        drop(transactions.send(Staged { frame, permit, bytes }).await);
                    }
                    Ok(frame) => {
                        // Queued at the engine before the next frame is read, so that a session is not released
                        // before earlier settlements. The answer can come later.
                        let mut request = Box::pin(handle(conn.clone(), frame, permit));
                        let begun = poll_fn(|cx| Poll::Ready(request.as_mut().poll(cx))).await;
                        if begun.is_pending() {
                            tasks.spawn(request);
                        }
                    }
                    Err(rejected) => conn.reply::<()>(rejected.id, Err(rejected.problem)).await,
                }
                *used = true;
            }
        }
    };

    let write = async {
        let mut ticks = tokio::time::interval(api.limits.ping_every);
        ticks.tick().await;
        loop {
            if unwritten.is_empty() {
                tokio::select! {
                    count = outgoing.recv_many(unwritten, JOIN_MAX) => {
                        if count == 0 {
                            return End::Lost;
                        }
                    }
                    _ = ticks.tick() => {
                        if heard.lock().elapsed() >= api.limits.silence_max {
                            return End::Lost;
                        }
                        if sink.send(Message::Ping(Bytes::new())).await.is_err() {
                            return End::Lost;
                        }
                        continue;
                    }
                    () = api.shutdown.cancelled() => {
                        let reason = "the broker is stopping".into();
                        let close = CloseFrame { code: close_code::AWAY, reason };
                        let _ = sink.send(Message::Close(Some(close))).await;
                        return End::Clean;
                    }
                }
            }
            // Stored until it is written, so that a new socket can send it.
            let frames = unwritten.iter().map(|frame| frame.bytes.clone()).collect();
            if sink.send(message(join(frames, encoding), encoding)).await.is_err() {
                return End::Lost;
            }
            unwritten.clear();
        }
    };

    // Checked at the start, because permissions may have changed since the authentication or without a socket.
    let watch = async {
        loop {
            let seen = api.access.version();
            if !conn.recheck_permissions().await {
                return End::Refused;
            }
            api.access.changed(seen).await;
        }
    };

    let end = tokio::select! {
        end = read => end,
        end = write => end,
        end = watch => end,
        () = taken_over.cancelled() => End::TakenOver,
    };
    if let End::Refused = end {
        let reason = "the credentials of this connection are no longer valid".into();
        let close = Message::Close(Some(CloseFrame { code: close_code::POLICY, reason }));
        let _ = tokio::time::timeout(CLOSE_TIME_MAX, sink.send(close)).await;
    }
    end
}
