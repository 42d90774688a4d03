//! Dead letters: group, list, purge, redrive, resend.

mod groups;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json as Answer};
use malote_engine::{DeadLetterSelection, Peek};
use malote_model::{Action, QueueName, Refusal, Seq, limits};
use malote_wire_native::dead_letter::{RedriveRequest, RedriveResult, ResendRequest};
use malote_wire_native::message::SentMessage;
use malote_wire_native::overview::{DeadLetterGroups, DeadLetterGroupsQuery};
use malote_wire_native::queue::RemovedCount;
use malote_wire_native::receive::PeekQuery;

use self::groups::Groups;
use super::send::prepare;
use crate::audit::NoChange;
use crate::extract::{Caller, Json, JsonMessages, Query, Queue, Sequence};
use crate::limits::PAGE_MAX;
use crate::problem::{Code, Problem};
use crate::requests::{check_list, check_range, page_length};
use crate::{Api, convert};

/// Dead letters of one read, for groups: their bodies are in memory.
const GROUP_STEP: usize = 64;
/// Messages of one redrive by default.
const REDRIVE_DEFAULT: u64 = 1000;
/// Messages of one redrive at most.
const REDRIVE_MAX: u64 = 1_000_000;

/// Dead letters of all queues, grouped by queue, reason and text.
pub async fn groups(
    State(api): State<Api>,
    Caller(caller): Caller,
    Query(query): Query<DeadLetterGroupsQuery>,
) -> Result<Answer<DeadLetterGroups>, Problem> {
    api.allow_lists(&caller)?;
    let only = query.queue.as_deref().map(QueueName::new).transpose()?;
    let max = page_length(Some(query.max.unwrap_or(PAGE_MAX as u64)))?;
    let snapshot = match &only {
        Some(queue) => {
            api.allow(&caller, Action::Receive, queue)?;
            vec![(queue.clone(), api.engine.describe(queue.clone()).await?.dead_lettered)]
        }
        None => {
            let snapshot = api.watch.snapshot(&api.engine, &api.history).await?;
            let seen = snapshot.queues.iter().filter(|queue| queue.counts.dead_lettered > 0);
            let seen = seen.filter(|queue| api.allow_view(&caller, &queue.name).is_ok());
            seen.map(|queue| (queue.name.clone(), queue.counts.dead_lettered)).collect()
        }
    };
    let may_read = |queue: &QueueName| api.allow(&caller, Action::Receive, queue).is_ok();
    let (readable, hidden): (Vec<_>, Vec<_>) = snapshot
        .into_iter()
        .filter(|(_, count)| *count > 0)
        .partition(|(queue, _)| may_read(queue));
    let mut answer = DeadLetterGroups {
        total: readable.iter().map(|(_, count)| count).sum(),
        hidden_queues: hidden.len() as u64,
        ..DeadLetterGroups::default()
    };
    let mut groups = Groups::default();
    let _place = super::peek::place(&api).await?;
    for (place, (queue, _)) in readable.iter().enumerate() {
        // Every queue gets its share of the page, so that one with many dead letters does not hide the others.
        let share = (max - groups.read) / (readable.len() - place);
        if share == 0 {
            continue;
        }
        let mut from = Some(Seq(0));
        let until = groups.read + share;
        while let Some(at) = from.filter(|_| groups.read < until) {
            let dead = queue.dead_letters();
            let max = (until - groups.read).min(GROUP_STEP);
            let peek = Peek { queue: dead, from: at, max, session: None, state: None };
            let (messages, next, _) = super::peek::read(&api, peek).await?;
            from = next.filter(|_| !messages.is_empty());
            messages.iter().for_each(|message| groups.add(queue, message));
        }
    }
    answer.read = groups.read as u64;
    answer.groups = groups.finish();
    Ok(Answer(answer))
}

/// Lists dead letters in order, with reason, text and counts.
pub async fn list(
    State(api): State<Api>,
    Caller(caller): Caller,
    Queue(queue): Queue,
    Query(query): Query<PeekQuery>,
) -> Result<Response, Problem> {
    api.allow(&caller, Action::Receive, &queue)?;
    super::peek::look(&api, queue.dead_letters(), query).await
}

/// Deletes all dead letters that are not leased.
pub async fn purge(
    State(api): State<Api>,
    Caller(caller): Caller,
    Queue(queue): Queue,
) -> Result<Answer<RemovedCount>, Problem> {
    api.allow(&caller, Action::Manage, &queue)?;
    Ok(Answer(RemovedCount { removed: api.engine.purge(queue.dead_letters()).await? }))
}

/// Moves dead letters back to their origin, or to another destination.
pub async fn redrive(
    State(api): State<Api>,
    Caller(caller): Caller,
    Queue(queue): Queue,
    Json(asked): Json<RedriveRequest>,
) -> Result<Response, Problem> {
    api.allow(&caller, Action::Manage, &queue)?;
    let to = asked.to.as_deref().map(QueueName::new).transpose()?;
    // Without a destination, they go back to their origin, usually this queue.
    api.allow(&caller, Action::Send, to.as_ref().unwrap_or(&queue))?;
    if asked.seqs.is_some() && asked.limit.is_some() {
        return Err(Problem::new(Code::BadField, "give `seqs` or `limit`, not both"));
    }
    let limit = asked.limit.unwrap_or(REDRIVE_DEFAULT);
    check_range("limit", limit, 1, REDRIVE_MAX)?;
    let which = match asked.seqs {
        Some(seqs) => {
            check_list("seqs", seqs.len(), limits::RECEIVE_BATCH_MAX)?;
            DeadLetterSelection::Seqs(seqs.into_iter().map(Seq).collect())
        }
        None => DeadLetterSelection::Oldest(limit as usize),
    };
    if asked.dry_run {
        let there = api.engine.describe(queue.clone()).await?.dead_lettered;
        let moved = match which {
            DeadLetterSelection::Oldest(_) => there.min(limit),
            DeadLetterSelection::Seqs(seqs) => {
                for &seq in &seqs {
                    dead_letter(&api, &queue, seq).await?;
                }
                seqs.len() as u64
            }
        };
        let out = RedriveResult { moved, left: there.saturating_sub(moved) };
        return Ok((Extension(NoChange), Answer(out)).into_response());
    }
    let may_send = |to: &QueueName| api.allow(&caller, Action::Send, to).is_ok();
    let moved = api.engine.redrive_permitted(queue.clone(), which, to, may_send).await?;
    let left = api.engine.describe(queue).await?.dead_lettered;
    Ok(Answer(RedriveResult { moved, left }).into_response())
}

/// The origin of a dead letter.
async fn dead_letter(api: &Api, queue: &QueueName, seq: Seq) -> Result<Option<QueueName>, Problem> {
    let from = queue.dead_letters();
    let peek = Peek { queue: from.clone(), from: seq, max: 1, session: None, state: None };
    let (seen, _) = api.engine.peek(peek).await?;
    let missing = Refusal::MessageNotFound { queue: from, seq, what: "dead-lettered" };
    let seen = seen.into_iter().find(|seen| seen.seq == seq).ok_or(missing)?;
    Ok(seen.dead().map(|dead| dead.from.clone()))
}

/// Replaces a dead letter by a corrected message, atomically.
pub async fn resend(
    State(api): State<Api>,
    Caller(caller): Caller,
    Queue(queue): Queue,
    Sequence(seq): Sequence,
    JsonMessages(asked, _share): JsonMessages<ResendRequest>,
) -> Result<(StatusCode, Answer<SentMessage>), Problem> {
    api.allow(&caller, Action::Manage, &queue)?;
    let to = match asked.to.as_deref() {
        Some(to) => QueueName::new(to)?,
        None => {
            let home = dead_letter(&api, &queue, seq).await?;
            let owner = || queue.owner().map(QueueName::new).transpose();
            home.map_or_else(owner, |home| Ok(Some(home)))?.unwrap_or_else(|| queue.clone())
        }
    };
    api.allow(&caller, Action::Send, &to)?;
    if asked.message.queue.is_some() || asked.message.topic.is_some() {
        return Err(Problem::new(
            Code::BadField,
            "`queue` and `topic` are not allowed here: use `to`",
        ));
    }
    let message = prepare(&api, &to.clone().into(), asked.message).await?;
    let sent = api.engine.resend(queue.dead_letters(), seq, to, message).await?;
    Ok((StatusCode::CREATED, Answer(convert::sent_message(sent))))
}
