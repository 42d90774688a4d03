//! What each frame does, sends and transactions apart: those are in `sends.rs` and `transactions.rs`.

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

use super::link::{Consumers, Link};
use crate::audit::outcome;
use crate::convert;
use crate::ops::settle::{renew_leases, settle_leases};
use crate::problem::{Code, Problem};
use crate::replies::reply_name;
use crate::requests::{
    check_list, check_lock, check_range, parse_token, sessions_page, state_change,
};

/// Counted while a request has no answer.
pub(super) type Permit = OwnedSemaphorePermit;

/// Frames that change consumers, one after the other: a credit may follow its attach without waiting. The engine gets
/// them in their order; its answers, which wait for the disk, hold up nobody behind them.
pub(super) async fn consumer_lane(
    link: Arc<Link>,
    mut frames: mpsc::Receiver<(ClientFrame, Permit)>,
) {
    // As many as there are permits.
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
            link.reply(Some(frame.id), declare(&link, frame).await).await;
            continue;
        }
        let mut changing = Box::pin(change(&link, frame, permit));
        if poll_fn(|cx| Poll::Ready(changing.as_mut().poll(cx))).await.is_pending() {
            answers.push(changing);
        }
    }
}

/// One of them; with the engine once this was polled for the first time.
async fn change(link: &Link, frame: ClientFrame, permit: Permit) {
    let (id, result) = match frame {
        ClientFrame::Attach(frame) => (frame.id, attach(link, frame).await),
        ClientFrame::Credit(frame) => (frame.id, credit(link, frame).await),
        ClientFrame::Detach(frame) => (frame.id, detach(link, frame).await),
        _ => return,
    };
    link.reply(Some(id), result.map(|()| EmptyReply {})).await;
    drop(permit);
}

async fn declare(link: &Link, frame: DeclareFrame) -> Result<DeclaredQueue, Problem> {
    let queue = match &frame.queue {
        Some(name) => QueueName::new(name)?,
        None => reply_name()?,
    };
    let pending = link.begin_audit(AuditAction::Declare, (queue.as_str(), "declare"));
    let declared = declare_queue(link, queue, frame).await;
    pending.end(outcome(&declared));
    declared
}

async fn declare_queue(
    link: &Link,
    queue: QueueName,
    frame: DeclareFrame,
) -> Result<DeclaredQueue, Problem> {
    link.api.allow(&link.caller, Action::Manage, &queue)?;
    let before = QueueSpec { exclusive: frame.queue.is_none(), ..QueueSpec::default() };
    let spec = frame.spec.apply_to(before.clone())?;
    link.api.allow_targets(&link.caller, &before, &spec)?;
    let created = link.connection.declare(queue.clone(), spec).await?;
    Ok(DeclaredQueue { queue: queue.as_str().to_owned(), created })
}

async fn attach(link: &Link, frame: AttachFrame) -> Result<(), Problem> {
    let queue = QueueName::new(&frame.queue)?;
    link.api.allow(&link.caller, Action::Receive, &queue)?;
    check_range("credit", frame.credit.into(), 0, limits::CREDIT_MAX.into())?;
    check_range("per_session", frame.per_session.into(), 1, limits::RECEIVE_BATCH_MAX as u64)?;
    check_lock(frame.lock_ms)?;
    let hold = parse_token(frame.session_token.as_deref())?;
    link.consumers.lock().check_new(frame.consumer, link.api.limits.consumers_max)?;
    let consume = Consume {
        queue: queue.clone(),
        wants: hold.map_or(Wants::Any { per_session: frame.per_session }, Wants::Held),
        credit: Consumers::first_credit(frame.credit),
        take: frame.mode == ReceiveMode::Delete,
        lock_ms: frame.lock_ms,
        free_standing: false,
    };
    let (engine_id, attached) = link.connection.attaching(consume);
    link.consumers.lock().attached(frame.consumer, engine_id, queue, frame.credit);
    let attached = attached.await;
    if attached.is_err() {
        link.consumers.lock().refused(engine_id);
    }
    Ok(attached?)
}

async fn credit(link: &Link, frame: CreditFrame) -> Result<(), Problem> {
    check_range("credit", frame.credit.into(), 0, limits::CREDIT_MAX.into())?;
    let told = link.consumers.lock().credit(frame.consumer, frame.credit, frame.replace)?;
    if let Some((engine_id, credit)) = told {
        link.connection.credit(engine_id, credit, frame.replace).await?;
    }
    Ok(())
}

async fn detach(link: &Link, frame: DetachFrame) -> Result<(), Problem> {
    let engine_id = link.consumers.lock().detach(frame.consumer)?;
    Ok(link.connection.detach(engine_id).await?)
}

/// Every other frame, on its own. Its command is with the engine once this was polled for the first time: no waiting
/// may stand before the engine's call, so that frames keep their order.
pub(super) async fn handle(link: Arc<Link>, frame: ClientFrame, permit: Permit) {
    let link = &*link;
    match frame {
        ClientFrame::ReceiveDeferred(frame) => {
            link.reply(Some(frame.id), deferred(link, frame).await).await
        }
        ClientFrame::Settle(frame) => link.reply(Some(frame.id), settle(link, frame).await).await,
        ClientFrame::Renew(frame) => link.reply(Some(frame.id), renew(link, frame).await).await,
        ClientFrame::Accept(frame) => link.reply(Some(frame.id), accept(link, frame).await).await,
        ClientFrame::Release(frame) => link.reply(Some(frame.id), release(link, frame).await).await,
        ClientFrame::GetState(frame) => {
            link.reply(Some(frame.id), get_state(link, frame).await).await
        }
        ClientFrame::SetState(frame) => {
            link.reply(Some(frame.id), set_state(link, frame).await).await
        }
        ClientFrame::ListSessions(frame) => {
            link.reply(Some(frame.id), list_sessions(link, frame).await).await
        }
        ClientFrame::Depth(frame) => link.reply(Some(frame.id), depth(link, frame).await).await,
        ClientFrame::Ping(frame) => link.reply(Some(frame.id), Ok(EmptyReply {})).await,
        ClientFrame::Resume(frame) => {
            let why = "resume must be the first frame of a new connection";
            link.reply::<EmptyReply>(Some(frame.id), Err(Problem::new(Code::ResumeRefused, why)))
                .await;
        }
        // These have lanes of their own.
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

fn queue_for(link: &Link, name: &str, action: Action) -> Result<QueueName, Problem> {
    let queue = QueueName::new(name)?;
    link.api.allow(&link.caller, action, &queue)?;
    Ok(queue)
}

async fn deferred(link: &Link, frame: DeferredFrame) -> Result<ReceivedBatch, Problem> {
    let queue = queue_for(link, &frame.queue, Action::Receive)?;
    check_list("seqs", frame.seqs.len(), limits::RECEIVE_BATCH_MAX)?;
    let seqs = frame.seqs.into_iter().map(Seq).collect();
    let hold = parse_token(frame.session_token.as_deref())?;
    let take = frame.mode == ReceiveMode::Delete;
    let deliveries = link.connection.receive_deferred(queue, seqs, hold, take).await?;
    let now = link.api.engine.now();
    for delivery in &deliveries {
        if let Some(lease) = delivery.lease {
            link.leases.lock().insert(lease, delivery.until, now);
        }
    }
    let out = |delivery| convert::delivered_message(delivery, link.encoding);
    Ok(ReceivedBatch { messages: deliveries.into_iter().map(out).collect() })
}

async fn settle(link: &Link, frame: SettleFrame) -> Result<LeaseResults, Problem> {
    let queue = queue_for(link, &frame.queue, Action::Receive)?;
    check_list("items", frame.items.len(), limits::SETTLE_BATCH_MAX)?;
    link.leases.lock().settled(frame.items.iter().flat_map(|item| &item.leases));
    let texts: Vec<Vec<String>> = frame.items.iter().map(|item| item.leases.clone()).collect();
    // All are handed over at once and stand in one commit.
    let each = futures_util::future::join_all(
        frame.items.into_iter().map(|item| settle_leases(&link.api, &queue, item)),
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

async fn renew(link: &Link, frame: RenewFrame) -> Result<LeaseResults, Problem> {
    let queue = queue_for(link, &frame.queue, Action::Receive)?;
    renew_leases(&link.api, &queue, RenewRequest { leases: frame.leases, lock_ms: frame.lock_ms })
        .await
}

async fn accept(link: &Link, frame: AcceptFrame) -> Result<impl Serialize + use<>, Problem> {
    let queue = queue_for(link, &frame.queue, Action::Receive)?;
    check_range("wait_ms", frame.wait_ms, 0, limits::ACCEPT_WAIT_MS_MAX)?;
    check_lock(frame.lock_ms)?;
    let session = frame.session.as_deref().map(SessionId::new).transpose()?;
    let waiting = link.connection.accept(queue.clone(), session, frame.wait_ms, frame.lock_ms);
    let held = link.api.while_allowed(&link.caller, Action::Receive, &queue, waiting).await??;
    if let Some(held) = &held {
        link.leases.lock().hold(held.hold, held.until, link.api.engine.now());
    }
    Ok(AcceptedSession { held: held.map(convert::held_session) })
}

async fn release(link: &Link, frame: ReleaseFrame) -> Result<EmptyReply, Problem> {
    let queue = queue_for(link, &frame.queue, Action::Receive)?;
    let hold = frame.token.parse()?;
    link.api.engine.release_session(Some(&queue), hold).await?;
    link.leases.lock().released(hold);
    Ok(EmptyReply {})
}

async fn get_state(link: &Link, frame: GetStateFrame) -> Result<SessionStateReply, Problem> {
    let hold: Option<LeaseToken> = parse_token(frame.token.as_deref())?;
    if hold.is_some() {
        return read_state(link, &frame, hold).await;
    }
    let detail = format!("get_state session={}", frame.session);
    let pending = link.begin_audit(AuditAction::ReadState, (&frame.queue, &detail));
    let state = read_state(link, &frame, None).await;
    pending.end(outcome(&state));
    state
}

/// Without a hold it is an operator who looks.
async fn read_state(
    link: &Link,
    frame: &GetStateFrame,
    hold: Option<LeaseToken>,
) -> Result<SessionStateReply, Problem> {
    let action = if hold.is_some() { Action::Receive } else { Action::Manage };
    let queue = queue_for(link, &frame.queue, action)?;
    let session = SessionId::new(&frame.session)?;
    let state = link.api.engine.get_state(queue, session, hold).await?;
    Ok(match link.encoding {
        Encoding::Json => {
            SessionStateReply { state: None, state_base64: state.map(|state| to_base64(&state)) }
        }
        Encoding::MessagePack => {
            SessionStateReply { state: state.map(BodyContent::Bytes), state_base64: None }
        }
    })
}

async fn list_sessions(link: &Link, frame: ListSessionsFrame) -> Result<SessionList, Problem> {
    let queue = QueueName::new(&frame.queue)?;
    link.api.allow_look(&link.caller, &queue)?;
    let page = SessionsQuery { after: frame.after, max: frame.max };
    let (from, max) = sessions_page(&page)?;
    let (sessions, next) = link.api.engine.sessions(queue, from, max).await?;
    let sessions = sessions.into_iter().map(convert::session_info).collect();
    Ok(SessionList { sessions, next: next.map(|next| next.to_string()) })
}

async fn set_state(link: &Link, frame: SetStateFrame) -> Result<EmptyReply, Problem> {
    let queue = queue_for(link, &frame.queue, Action::Receive)?;
    link.api.engine.set_state(Some(&queue), state_change(frame.change)?).await?;
    Ok(EmptyReply {})
}

async fn depth(link: &Link, frame: DepthFrame) -> Result<impl Serialize + use<>, Problem> {
    let queue = QueueName::new(&frame.queue)?;
    link.api.allow_look(&link.caller, &queue)?;
    let facts = link.api.engine.describe(queue).await?;
    Ok(DepthReply { depth: convert::queue_depth(&facts, link.api.engine.now()) })
}

/// The leases that a resuming client knows of.
pub(super) fn known(leases: Vec<String>) -> Result<Vec<LeaseToken>, Refusal> {
    parse_tokens(leases).into_iter().map(|(_, token)| token).collect()
}
