//! One socket from welcome to its end, and the session that may get another one.

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
use super::link::{Link, Outgoing};
use super::request::{Permit, consumer_lane, handle, known};
use super::sends::{Arrived, Sends};
use super::transactions::{self, Staged, Staging, has_content, is_staged, without_content};
use crate::Api;
use crate::problem::Problem;

/// How long a caller that is sent away may take to hear why.
const FAREWELL: Duration = Duration::from_secs(1);
/// Frames written as one message at most.
const JOIN_MAX: usize = 64;

/// A native connection and all that works for it. Dropped, its leases come back as lost.
pub(super) struct Session {
    id: u64,
    link: Arc<Link>,
    outgoing: mpsc::Receiver<Outgoing>,
    /// Taken from `outgoing` and not written: the socket broke.
    unwritten: Vec<Outgoing>,
    requests: Arc<Semaphore>,
    sends: Sends,
    consumers: mpsc::Sender<(ClientFrame, Permit)>,
    transactions: mpsc::Sender<Staged>,
    staging: Staging,
    tasks: JoinSet<()>,
    /// Something was asked already: it is too late to resume another connection.
    used: bool,
}

impl Session {
    fn new(api: &Api, id: u64, caller: (Principal, IpAddr), encoding: Encoding) -> Self {
        let (link, outgoing, outbox) = Link::new(api.clone(), caller, encoding);
        // Frames in the lane hold permits: it is as long as there are permits.
        let requests_max = api.limits.requests_max.max(1);
        let (sends, send_lane) = Sends::new(&link);
        let (consumers, consumer_frames) = mpsc::channel(requests_max);
        let (transactions, staged_frames) = mpsc::channel(requests_max);
        let staging = Staging::new(&link);
        let mut tasks = JoinSet::new();
        tasks.spawn(link.clone().pump(outbox));
        tasks.spawn(send_lane);
        tasks.spawn(consumer_lane(link.clone(), consumer_frames));
        tasks.spawn(transactions::lane(link.clone(), staged_frames));
        Self {
            id,
            link,
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

    /// An orderly end: what is out comes back uncounted.
    async fn close(self) {
        let Self { link, mut tasks, outgoing, .. } = self;
        drop(outgoing);
        tasks.shutdown().await;
        if let Some(link) = Arc::into_inner(link) {
            link.connection.close().await;
        }
    }
}

/// Why a socket is done.
enum End {
    /// Closed by the client, or by us at shutdown.
    Clean,
    /// Broken or silent.
    Lost,
    /// The connection has a new socket.
    Kicked,
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
    let (id, secret, mut kick) = api.native.register(&caller, encoding);
    let mut session = Session::new(&api, id, (caller.clone(), address), encoding);
    if send_now(&mut socket, &welcome(&api, id, secret), encoding).await.is_err() {
        api.native.remove(id);
        return;
    }
    loop {
        match serve(&api, &mut session, &mut socket, &kick).await {
            End::Clean | End::Refused => {
                api.native.remove(session.id);
                session.close().await;
                return;
            }
            End::Lost | End::Kicked => break,
            End::Resume(frame) => {
                let wanted = frame.id;
                match resume(&api, &caller, encoding, frame).await {
                    Ok((resumed, signal)) => {
                        let fresh = std::mem::replace(&mut session, resumed);
                        kick = signal;
                        api.native.remove(fresh.id);
                        fresh.close().await;
                        let ok = Resumed {
                            connection: session.id,
                            consumers: session.link.consumers.lock().names(),
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
    if kick.is_cancelled() {
        return;
    }
    tokio::select! {
        () = tokio::time::sleep(api.limits.reconnect_grace) => {}
        () = kick.cancelled() => return,
        () = api.shutdown.cancelled() => {}
    }
    if let Some(session) = api.native.give_up(id, &kick) {
        tracing::debug!(conn = id, front = "native", "connection lost and not resumed");
        if api.shutdown.is_cancelled() {
            session.close().await;
        }
    }
}

/// What a resumed connection is.
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
) -> Result<(Session, CancellationToken), Problem> {
    let leases = frame.leases.map(known).transpose()?;
    let (session, kick) =
        api.native.claim(frame.connection, &frame.secret, caller, encoding).await?;
    if let Some(leases) = leases {
        session.link.keep_only(&leases).await?;
    }
    Ok((session, kick))
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
    says: &ServerFrame<T>,
    encoding: Encoding,
) -> Result<(), axum::Error> {
    socket.send(message(encode(says, encoding), encoding)).await
}

fn message(bytes: Vec<u8>, encoding: Encoding) -> Message {
    match encoding {
        // serde_json writes UTF-8 and nothing else.
        Encoding::Json => match String::from_utf8(bytes) {
            Ok(text) => Message::Text(text.into()),
            Err(error) => Message::Binary(error.into_bytes().into()),
        },
        Encoding::MessagePack => Message::Binary(bytes.into()),
    }
}

/// Reads and writes side by side until one of them is done: neither may wait for the other.
async fn serve(
    api: &Api,
    session: &mut Session,
    socket: &mut WebSocket,
    kick: &CancellationToken,
) -> End {
    let encoding = session.link.encoding;
    let heard = Mutex::new(Instant::now());
    let Session {
        link,
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
                    link.reply::<()>(None, Err(problem)).await;
                    continue;
                }
            };
            let mut arrived = Arrived::new(bytes.len());
            let (size, mut staged_bytes) = (bytes.len(), None);
            drop(bytes);
            while tasks.try_join_next().is_some() {}
            for frame in frames {
                let frame = match frame {
                    Ok(ClientFrame::Send(frame)) if frame.transaction.is_none() => {
                        sends.put(frame, &mut arrived, link).await;
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
                        // Handed to the engine before the next frame is looked at: a session must not be let go
                        // before what was settled ahead of it. The answer may take its time.
                        let mut request = Box::pin(handle(link.clone(), frame, permit));
                        let begun = poll_fn(|cx| Poll::Ready(request.as_mut().poll(cx))).await;
                        if begun.is_pending() {
                            tasks.spawn(request);
                        }
                    }
                    Err(rejected) => link.reply::<()>(rejected.id, Err(rejected.problem)).await,
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
            // Kept until it is written, so that a new socket gets it.
            let frames = unwritten.iter().map(|frame| frame.bytes.clone()).collect();
            if sink.send(message(join(frames, encoding), encoding)).await.is_err() {
                return End::Lost;
            }
            unwritten.clear();
        }
    };

    // From the start: something may have changed since the caller was known, or while there was no socket.
    let watch = async {
        loop {
            let seen = api.access.version();
            if !link.check_again().await {
                return End::Refused;
            }
            api.access.changed(seen).await;
        }
    };

    let end = tokio::select! {
        end = read => end,
        end = write => end,
        end = watch => end,
        () = kick.cancelled() => End::Kicked,
    };
    if let End::Refused = end {
        let reason = "the credentials of this connection are no longer valid".into();
        let close = Message::Close(Some(CloseFrame { code: close_code::POLICY, reason }));
        let _ = tokio::time::timeout(FAREWELL, sink.send(close)).await;
    }
    end
}
