//! Operations on topics.

use axum::Json as Answer;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use malote_model::{Action, Seq, TopicSpec, limits};
use malote_wire_native::queue::ListQuery;
use malote_wire_native::receive::{CancelRequest, CancelledCount};
use malote_wire_native::topic::{TopicInfo, TopicList, TopicSettings};

use crate::extract::{Caller, Json, Query, Topic};
use crate::problem::{Code, Problem};
use crate::requests::check_list;
use crate::{Api, convert};

/// Lists the topics that the caller may see.
pub async fn list(
    State(api): State<Api>,
    Caller(caller): Caller,
    Query(query): Query<ListQuery>,
) -> Result<Answer<TopicList>, Problem> {
    api.allow_lists(&caller)?;
    let max = query.max.unwrap_or(usize::MAX);
    if max == 0 {
        return Err(Problem::new(Code::BadQuery, "`max` must be at least 1"));
    }
    let mut facts = api.engine.topics().await?;
    facts.retain(|facts| {
        let name = facts.name.as_str();
        query.prefix.as_deref().is_none_or(|prefix| name.starts_with(prefix))
            && query.after.as_deref().is_none_or(|after| name > after)
            && api.allow_view_of(&caller, &facts.name.clone().into()).is_ok()
    });
    let more = facts.len() > max;
    facts.truncate(max);
    let next = facts.last().filter(|_| more).map(|last| last.name.as_str().to_owned());
    Ok(Answer(TopicList { topics: facts.into_iter().map(convert::topic_info).collect(), next }))
}

/// Creates the topic. It is no error if it exists with the same settings.
pub async fn declare(
    State(api): State<Api>,
    Caller(caller): Caller,
    Topic(topic): Topic,
    Json(spec): Json<TopicSettings>,
) -> Result<Response, Problem> {
    api.allow_topic(&caller, Action::Manage, &topic)?;
    let created =
        api.engine.declare_topic(topic.clone(), spec.apply_to(TopicSpec::default())?).await?;
    let status = if created { StatusCode::CREATED } else { StatusCode::OK };
    if created {
        tracing::info!(%topic, front = "http", "topic created");
    }
    let facts = api.engine.topic(topic).await?;
    Ok((status, Answer(convert::topic_info(facts))).into_response())
}

/// Changes the given settings. The kind cannot be changed.
pub async fn update(
    State(api): State<Api>,
    Caller(caller): Caller,
    Topic(topic): Topic,
    Json(spec): Json<TopicSettings>,
) -> Result<Answer<TopicInfo>, Problem> {
    api.allow_topic(&caller, Action::Manage, &topic)?;
    let before = api.engine.topic(topic.clone()).await?.spec;
    api.engine.update_topic(topic.clone(), spec.apply_to(before)?).await?;
    Ok(Answer(convert::topic_info(api.engine.topic(topic).await?)))
}

/// Describes the topic.
pub async fn describe(
    State(api): State<Api>,
    Caller(caller): Caller,
    Topic(topic): Topic,
) -> Result<Answer<TopicInfo>, Problem> {
    api.allow_view_of(&caller, &topic.clone().into())?;
    Ok(Answer(convert::topic_info(api.engine.topic(topic).await?)))
}

/// Deletes the topic and its subscriptions. Bound queues stay.
pub async fn delete(
    State(api): State<Api>,
    Caller(caller): Caller,
    Topic(topic): Topic,
) -> Result<StatusCode, Problem> {
    api.allow_topic(&caller, Action::Manage, &topic)?;
    api.engine.delete_topic(topic.clone()).await?;
    tracing::info!(%topic, front = "http", "topic deleted");
    Ok(StatusCode::NO_CONTENT)
}

/// Cancels scheduled messages.
pub async fn cancel(
    State(api): State<Api>,
    Caller(caller): Caller,
    Topic(topic): Topic,
    Json(asked): Json<CancelRequest>,
) -> Result<Answer<CancelledCount>, Problem> {
    api.allow_topic(&caller, Action::Send, &topic)?;
    check_list("seqs", asked.seqs.len(), limits::RECEIVE_BATCH_MAX)?;
    let seqs = asked.seqs.into_iter().map(Seq).collect();
    Ok(Answer(CancelledCount { cancelled: api.engine.cancel(topic, seqs).await? }))
}
