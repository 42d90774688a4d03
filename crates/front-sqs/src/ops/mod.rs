//! Every action and the function that answers it.

pub mod attributes;
pub mod batch;
pub mod labels;
pub mod metrics;
pub mod moves;
pub mod queues;
pub mod receive;
pub mod send;
pub mod settle;
pub mod spec;

use axum::body::Body;
use axum::http::Response;
use malote_engine::{EngineError, QueueFacts};
use malote_model::{Action, AuditAction, QueueName, Refusal};

use crate::Sqs;
use crate::listen::Call;
use crate::refusal::{Code, SqsError};
use crate::wire::name;

macro_rules! actions {
    (@audit) => { None };
    (@audit $audit:ident) => { Some(AuditAction::$audit) };
    ($($name:literal $([$audit:ident])? => $answer:path;)+) => {
        /// Every action, and what the audit log calls it if it is an administrative one.
        pub const ACTIONS: &[(&str, Option<AuditAction>)] =
            &[$(($name, actions!(@audit $($audit)?)),)+];

        /// Does what a call asks for.
        pub async fn answer(sqs: &Sqs, call: &Call) -> Result<Response<Body>, SqsError> {
            match call.action.as_str() {
                $($name => {
                    let asked = call.protocol.decode(&call.body)?;
                    let result = $answer(sqs, call, asked).await?;
                    call.protocol.encode($name, &result, &call.request_id)
                })+
                unknown => Err(SqsError::new(
                    Code::UnknownOperation,
                    format!("The action {unknown} is not valid for this endpoint."),
                )),
            }
        }
    };
}

actions! {
    "CreateQueue" [Declare] => queues::create;
    "GetQueueUrl" => queues::url;
    "ListQueues" => queues::list;
    "DeleteQueue" [Delete] => queues::delete;
    "PurgeQueue" [Purge] => queues::purge;
    "GetQueueAttributes" => attributes::get;
    "SetQueueAttributes" [Update] => attributes::set;
    "TagQueue" [Update] => labels::tag;
    "UntagQueue" [Update] => labels::untag;
    "ListQueueTags" => labels::tags;
    "AddPermission" [Update] => labels::add_permission;
    "RemovePermission" [Update] => labels::remove_permission;
    "SendMessage" => send::send;
    "SendMessageBatch" => send::send_batch;
    "ReceiveMessage" => receive::receive;
    "DeleteMessage" => settle::delete;
    "DeleteMessageBatch" => settle::delete_batch;
    "ChangeMessageVisibility" => settle::visibility;
    "ChangeMessageVisibilityBatch" => settle::visibility_batch;
    "ListDeadLetterSourceQueues" [Read] => moves::sources;
    "StartMessageMoveTask" [MoveStart] => moves::start;
    "ListMessageMoveTasks" => moves::list;
    "CancelMessageMoveTask" [MoveCancel] => moves::cancel;
    "GetMetricStatistics" => metrics::statistics;
    "GetMetricData" => metrics::data;
    "ListMetrics" => metrics::list;
}

/// A queue that the caller may use.
pub struct Found {
    /// What the engine knows of it.
    pub facts: QueueFacts,
    /// What the caller calls it.
    pub shown: String,
}

impl Found {
    /// Whether message groups order it.
    pub fn fifo(&self) -> bool {
        self.facts.spec.sessions.required()
    }

    /// Its name in the engine.
    pub fn name(&self) -> &QueueName {
        &self.facts.name
    }
}

impl Call {
    /// The queue that the request names, if the caller may do this to it.
    pub(crate) async fn queue(
        &self,
        sqs: &Sqs,
        url: Option<&str>,
        action: Action,
    ) -> Result<Found, SqsError> {
        let url = match url {
            Some(url) => url,
            None if self.path.len() > 1 => &self.path,
            None => return Err(SqsError::missing("QueueUrl")),
        };
        self.named(sqs, name::of_url(url)?, &[action]).await
    }

    /// A queue by name, if the caller may do any of these to it.
    ///
    /// A queue with sessions that another protocol made answers under its own name and as a FIFO queue's.
    pub(crate) async fn named(
        &self,
        sqs: &Sqs,
        shown: &str,
        actions: &[Action],
    ) -> Result<Found, SqsError> {
        let plain = shown.strip_suffix(".fifo");
        let mut denied = None;
        for (name, any) in [(Some(shown), true), (plain, false)] {
            let Some(name) = name.filter(|name| name::is_name(name)) else { continue };
            let name = QueueName::new(name)?;
            if let Err(error) = self.allow(sqs, &name, actions) {
                denied.get_or_insert(error);
                continue;
            }
            match sqs.0.engine.describe(name).await {
                Ok(facts) if any || facts.spec.sessions.required() => {
                    return Ok(Found { facts, shown: shown.to_owned() });
                }
                Ok(_) | Err(EngineError::Refused(Refusal::QueueNotFound { .. })) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(denied.unwrap_or_else(SqsError::no_queue))
    }

    /// Whether the caller may do any of these to the queue.
    pub(crate) fn allow(
        &self,
        sqs: &Sqs,
        queue: &QueueName,
        actions: &[Action],
    ) -> Result<(), SqsError> {
        if actions == [Action::Manage] {
            self.audited_on(queue.as_str());
        }
        let mut last = Ok(());
        for &action in actions {
            last = sqs.0.access.check(&self.caller, action, queue.into());
            if last.is_ok() {
                return Ok(());
            }
        }
        Ok(last?)
    }

    /// Waits for something on a queue as long as the caller may: permission is checked again when it may have changed.
    pub(crate) async fn while_allowed<T>(
        &self,
        sqs: &Sqs,
        queue: &Found,
        action: Action,
        work: impl Future<Output = T>,
    ) -> Result<T, SqsError> {
        let mut work = std::pin::pin!(work);
        loop {
            let seen = sqs.0.access.version();
            self.allow(sqs, queue.name(), &[action])?;
            tokio::select! {
                biased;
                done = &mut work => return Ok(done),
                _ = sqs.0.access.changed(seen) => {}
            }
        }
    }
}

/// A number within its range, or its default.
pub fn ranged(
    value: Option<i64>,
    parameter: &str,
    range: std::ops::RangeInclusive<i64>,
    rule: &str,
) -> Result<Option<u64>, SqsError> {
    match value {
        None => Ok(None),
        Some(value) if range.contains(&value) => Ok(u64::try_from(value).ok()),
        Some(value) => Err(SqsError::invalid(value, parameter, rule)),
    }
}
