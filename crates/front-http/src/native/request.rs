//! Handles all frames except sends (`sends.rs`) and transactions (`transactions.rs`).

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use malote_engine::{Consume, Wants};
use malote_model::{
    Action, AuditAction, LeaseToken, QueueName, QueueSpec, Refusal, Seq, SessionId, limits,
};
use malote_wire_native::body::BodyContent;
use malote_wire_native::frame::{
    AcceptFrame, AcceptedSession, AttachFrame, ClientFrame, CreditFrame, DeclareFrame,
    DeclaredQueue, DeferredFrame, DepthFrame, DepthReply, DetachFrame, EmptyReply, Encoding,
    GetStateFrame, ListSessionsFrame, ReleaseFrame, RenewFrame, SessionStateReply, SetStateFrame,
    SettleFrame,
};
use malote_wire_native::receive::{ReceiveMode, ReceivedBatch};
use malote_wire_native::session::{SessionList, SessionsQuery};
use malote_wire_native::settle::{LeaseResults, RenewRequest, parse_tokens};
use malote_wire_native::text::to_base64;
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use super::connection::{Consumers, NativeConnection};
use crate::audit::outcome;
use crate::convert;
use crate::ops::settle::{renew_leases, settle_leases};
use crate::problem::{Code, Problem};
use crate::replies::reply_name;
use crate::requests::{
    check_list, check_lock, check_range, parse_token, sessions_page, state_change,
};

/// Counts a pending request.
pub(super) type Permit = OwnedSemaphorePermit;

/// Handles frames about consumers in order, so that a client can send credit right after attach. The engine gets them in
/// order. Its answers wait for the disk and do not block later frames.
pub(super) async fn consumer_lane(
    conn: Arc<NativeConnection>,
    mut frames: mpsc::Receiver<(ClientFrame, Permit)>,
) {
    // Bounded by the number of permits.
    let mut answers = FuturesUnordered::new();
    loop {
        let (frame, permit) = tokio::select! {
            Some(()) = answers.next() => continue,
            frame = frames.recv() => match frame {
                Some(frame) => frame,
                None => return,
            },
        };
        if let ClientFrame::Declare(frame) = frame {
            conn.reply(Some(frame.id), declare(&conn, frame).await).await;
            continue;
        }
        let mut changing = Box::pin(change(&conn, frame, permit));
        if poll_fn(|cx| Poll::Ready(changing.as_mut().poll(cx))).await.is_pending() {
            answers.push(changing);
        }
    }
}

/// Handles one frame. The command is queued at the engine after the first poll.
async fn change(conn: &NativeConnection, frame: ClientFrame, permit: Permit) {
    let (id, result) = match frame {
        ClientFrame::Attach(frame) => (frame.id, attach(conn, frame).await),
        ClientFrame::Credit(frame) => (frame.id, credit(conn, frame).await),
        ClientFrame::Detach(frame) => (frame.id, detach(conn, frame).await),
        _ => return,
    };
    conn.reply(Some(id), result.map(|()| EmptyReply {})).await;
    drop(permit);
}

async fn declare(conn: &NativeConnection, frame: DeclareFrame) -> Result<DeclaredQueue, Problem> {
    let queue = match &frame.queue {
        Some(name) => QueueName::new(name)?,
        None => reply_name()?,
    };
    let pending = conn.begin_audit(AuditAction::Declare, (queue.as_str(), "declare"));
    let declared = declare_queue(conn, queue, frame).await;
    pending.end(outcome(&declared));
    declared
}

async fn declare_queue(
    conn: &NativeConnection,
    queue: QueueName,
    frame: DeclareFrame,
) -> Result<DeclaredQueue, Problem> {
    conn.api.allow(&conn.caller, Action::Manage, &queue)?;
    let before = QueueSpec { exclusive: frame.queue.is_none(), ..QueueSpec::default() };
    let spec = frame.spec.apply_to(before.clone())?;
    conn.api.allow_targets(&conn.caller, &before, &spec)?;
    let created = conn.connection.declare(queue.clone(), spec).await?;
    Ok(DeclaredQueue { queue: queue.as_str().to_owned(), created })
}

async fn attach(conn: &NativeConnection, frame: AttachFrame) -> Result<(), Problem> {
    let queue = QueueName::new(&frame.queue)?;
    conn.api.allow(&conn.caller, Action::Receive, &queue)?;
    check_range("credit", frame.credit.into(), 0, limits::CREDIT_MAX.into())?;
    check_range("per_session", frame.per_session.into(), 1, limits::RECEIVE_BATCH_MAX as u64)?;
    check_lock(frame.lock_ms)?;
    let hold = parse_token(frame.session_token.as_deref())?;
    conn.consumers.lock().check_new(frame.consumer, conn.api.limits.consumers_max)?;
    let consume = Consume {
        queue: queue.clone(),
        wants: hold.map_or(Wants::Any { per_session: frame.per_session }, Wants::Held),
        credit: Consumers::first_credit(frame.credit),
        take: frame.mode == ReceiveMode::Delete,
        lock_ms: frame.lock_ms,
        free_standing: false,
        priority: 0,
        exclusive: false,
    };
    let (engine_id, attached) = conn.connection.attaching(consume);
    conn.consumers.lock().attached(frame.consumer, engine_id, queue.clone(), frame.credit);
    let attached = attached.await;
    if attached.is_err() {
        conn.consumers.lock().refused(engine_id);
    }
    attached?;
    // The permission may have been revoked after the first check and before the consumer was listed. From now on, every
    // change is noticed.
    if let Err(problem) = conn.api.allow(&conn.caller, Action::Receive, &queue) {
        // Messages that it has taken still reach the client.
        conn.consumers.lock().end(engine_id);
        let _ = conn.connection.detach(engine_id).await;
        return Err(problem);
    }
    Ok(())
}

async fn credit(conn: &NativeConnection, frame: CreditFrame) -> Result<(), Problem> {
    check_range("credit", frame.credit.into(), 0, limits::CREDIT_MAX.into())?;
    let passed = conn.consumers.lock().credit(frame.consumer, frame.credit, frame.replace)?;
    if let Some((engine_id, credit)) = passed {
        conn.connection.credit(engine_id, credit, frame.replace).await?;
    }
    Ok(())
}

async fn detach(conn: &NativeConnection, frame: DetachFrame) -> Result<(), Problem> {
    let engine_id = conn.consumers.lock().detach(frame.consumer)?;
    Ok(conn.connection.detach(engine_id).await?)
}

/// Handles any other frame. Its command is queued at the engine after the first poll, so there must be no await before
/// the engine call. This keeps the order of frames.
pub(super) async fn handle(conn: Arc<NativeConnection>, frame: ClientFrame, permit: Permit) {
    let conn = &*conn;
    match frame {
        ClientFrame::ReceiveDeferred(frame) => {
            conn.reply(Some(frame.id), deferred(conn, frame).await).await
        }
        ClientFrame::Settle(frame) => conn.reply(Some(frame.id), settle(conn, frame).await).await,
        ClientFrame::Renew(frame) => conn.reply(Some(frame.id), renew(conn, frame).await).await,
        ClientFrame::Accept(frame) => conn.reply(Some(frame.id), accept(conn, frame).await).await,
        ClientFrame::Release(frame) => conn.reply(Some(frame.id), release(conn, frame).await).await,
        ClientFrame::GetState(frame) => {
            conn.reply(Some(frame.id), get_state(conn, frame).await).await
        }
        ClientFrame::SetState(frame) => {
            conn.reply(Some(frame.id), set_state(conn, frame).await).await
        }
        ClientFrame::ListSessions(frame) => {
            conn.reply(Some(frame.id), list_sessions(conn, frame).await).await
        }
        ClientFrame::Depth(frame) => conn.reply(Some(frame.id), depth(conn, frame).await).await,
        ClientFrame::Ping(frame) => conn.reply(Some(frame.id), Ok(EmptyReply {})).await,
        ClientFrame::Resume(frame) => {
            let why = "resume must be the first frame of a new connection";
            conn.reply::<EmptyReply>(Some(frame.id), Err(Problem::new(Code::ResumeRefused, why)))
                .await;
        }
        // Handled in other lanes.
        ClientFrame::Send(_)
        | ClientFrame::Declare(_)
        | ClientFrame::Attach(_)
        | ClientFrame::Credit(_)
        | ClientFrame::Detach(_)
        | ClientFrame::Begin(_)
        | ClientFrame::Commit(_)
        | ClientFrame::Rollback(_) => {}
    }
    drop(permit);
}

fn queue_for(conn: &NativeConnection, name: &str, action: Action) -> Result<QueueName, Problem> {
    let queue = QueueName::new(name)?;
    conn.api.allow(&conn.caller, action, &queue)?;
    Ok(queue)
}

async fn deferred(conn: &NativeConnection, frame: DeferredFrame) -> Result<ReceivedBatch, Problem> {
    let queue = queue_for(conn, &frame.queue, Action::Receive)?;
    check_list("seqs", frame.seqs.len(), limits::RECEIVE_BATCH_MAX)?;
    let seqs = frame.seqs.into_iter().map(Seq).collect();
    let hold = parse_token(frame.session_token.as_deref())?;
    let take = frame.mode == ReceiveMode::Delete;
    let deliveries = conn.connection.receive_deferred(queue, seqs, hold, take).await?;
    let now = conn.api.engine.now();
    for delivery in &deliveries {
        if let Some(lease) = delivery.lease {
            conn.leases.lock().insert(lease, delivery.until, now);
        }
    }
    let out = |delivery| convert::delivered_message(delivery, conn.encoding);
    Ok(ReceivedBatch { messages: deliveries.into_iter().map(out).collect() })
}

async fn settle(conn: &NativeConnection, frame: SettleFrame) -> Result<LeaseResults, Problem> {
    let queue = queue_for(conn, &frame.queue, Action::Receive)?;
    check_list("items", frame.items.len(), limits::SETTLE_BATCH_MAX)?;
    conn.leases.lock().settled(frame.items.iter().flat_map(|item| &item.leases));
    let texts: Vec<Vec<String>> = frame.items.iter().map(|item| item.leases.clone()).collect();
    // All are queued at once, so that they share a commit.
    let each = futures_util::future::join_all(
        frame.items.into_iter().map(|item| settle_leases(&conn.api, &queue, item)),
    );
    let mut results = Vec::new();
    for (outcome, leases) in each.await.into_iter().zip(texts) {
        match outcome {
            Ok(mut item) => results.append(&mut item.results),
            Err(problem) => {
                results
                    .extend(leases.into_iter().map(|lease| convert::failed_lease(lease, &problem)));
            }
        }
    }
    Ok(LeaseResults { results })
}

async fn renew(conn: &NativeConnection, frame: RenewFrame) -> Result<LeaseResults, Problem> {
    let queue = queue_for(conn, &frame.queue, Action::Receive)?;
    renew_leases(&conn.api, &queue, RenewRequest { leases: frame.leases, lock_ms: frame.lock_ms })
        .await
}

async fn accept(
    conn: &NativeConnection,
    frame: AcceptFrame,
) -> Result<impl Serialize + use<>, Problem> {
    let queue = queue_for(conn, &frame.queue, Action::Receive)?;
    check_range("wait_ms", frame.wait_ms, 0, limits::ACCEPT_WAIT_MS_MAX)?;
    check_lock(frame.lock_ms)?;
    let session = frame.session.as_deref().map(SessionId::new).transpose()?;
    let waiting = conn.connection.accept(queue.clone(), session, frame.wait_ms, frame.lock_ms);
    let held = conn.api.while_allowed(&conn.caller, Action::Receive, &queue, waiting).await??;
    if let Some(held) = &held {
        conn.leases.lock().hold(held.hold, held.until, conn.api.engine.now());
    }
    Ok(AcceptedSession { held: held.map(convert::held_session) })
}

async fn release(conn: &NativeConnection, frame: ReleaseFrame) -> Result<EmptyReply, Problem> {
    let queue = queue_for(conn, &frame.queue, Action::Receive)?;
    let hold = frame.token.parse()?;
    conn.api.engine.release_session(Some(&queue), hold).await?;
    conn.leases.lock().released(hold);
    Ok(EmptyReply {})
}

async fn get_state(
    conn: &NativeConnection,
    frame: GetStateFrame,
) -> Result<SessionStateReply, Problem> {
    let hold: Option<LeaseToken> = parse_token(frame.token.as_deref())?;
    if hold.is_some() {
        return read_state(conn, &frame, hold).await;
    }
    let detail = format!("get_state session={}", frame.session);
    let pending = conn.begin_audit(AuditAction::ReadState, (&frame.queue, &detail));
    let state = read_state(conn, &frame, None).await;
    pending.end(outcome(&state));
    state
}

/// Without a token, the caller is an operator.
async fn read_state(
    conn: &NativeConnection,
    frame: &GetStateFrame,
    hold: Option<LeaseToken>,
) -> Result<SessionStateReply, Problem> {
    let action = if hold.is_some() { Action::Receive } else { Action::Manage };
    let queue = queue_for(conn, &frame.queue, action)?;
    let session = SessionId::new(&frame.session)?;
    let state = conn.api.engine.get_state(queue, session, hold).await?;
    Ok(match conn.encoding {
        Encoding::Json => {
            SessionStateReply { state: None, state_base64: state.map(|state| to_base64(&state)) }
        }
        Encoding::MessagePack => {
            SessionStateReply { state: state.map(BodyContent::Bytes), state_base64: None }
        }
    })
}

async fn list_sessions(
    conn: &NativeConnection,
    frame: ListSessionsFrame,
) -> Result<SessionList, Problem> {
    let queue = QueueName::new(&frame.queue)?;
    conn.api.allow_view(&conn.caller, &queue)?;
    let page = SessionsQuery { after: frame.after, max: frame.max };
    let (from, max) = sessions_page(&page)?;
    let (sessions, next) = conn.api.engine.sessions(queue, from, max).await?;
    let sessions = sessions.into_iter().map(convert::session_info).collect();
    Ok(SessionList { sessions, next: next.map(|next| next.to_string()) })
}

async fn set_state(conn: &NativeConnection, frame: SetStateFrame) -> Result<EmptyReply, Problem> {
    let queue = queue_for(conn, &frame.queue, Action::Receive)?;
    conn.api.engine.set_state(Some(&queue), state_change(frame.change)?).await?;
    Ok(EmptyReply {})
}

async fn depth(
    conn: &NativeConnection,
    frame: DepthFrame,
) -> Result<impl Serialize + use<>, Problem> {
    let queue = QueueName::new(&frame.queue)?;
    conn.api.allow_view(&conn.caller, &queue)?;
    let facts = conn.api.engine.describe(queue).await?;
    Ok(DepthReply { depth: convert::queue_depth(&facts, conn.api.engine.now()) })
}

/// The leases that a resuming client knows.
pub(super) fn known(leases: Vec<String>) -> Result<Vec<LeaseToken>, Refusal> {
    parse_tokens(leases).into_iter().map(|(_, token)| token).collect()
}
