//! The table of actions, and what they share.

pub mod batch;
pub mod change_visibility;
pub mod create_queue;
pub mod dead_letter_sources;
pub mod delete_message;
pub mod delete_queue;
pub mod get_queue_url;
pub mod list_queues;
pub mod metrics;
pub mod move_tasks;
pub mod permissions;
pub mod purge_queue;
pub mod queue_attributes;
pub mod queue_spec;
pub mod receive_attempts;
pub mod receive_message;
pub mod send_message;
pub mod tags;

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
        /// Every action, with its name in the audit log if it is administrative.
        pub const ACTIONS: &[(&str, Option<AuditAction>)] =
            &[$(($name, actions!(@audit $($audit)?)),)+];

        /// Runs the action of a request.
        pub async fn answer(sqs: &Sqs, call: &Call) -> Result<Response<Body>, SqsError> {
            match call.action.as_str() {
                $($name => {
                    let request = call.protocol.decode(&call.body)?;
                    let result = $answer(sqs, call, request).await?;
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
    "CreateQueue" [Declare] => create_queue::create_queue;
    "GetQueueUrl" => get_queue_url::get_queue_url;
    "ListQueues" => list_queues::list_queues;
    "DeleteQueue" [Delete] => delete_queue::delete_queue;
    "PurgeQueue" [Purge] => purge_queue::purge_queue;
    "GetQueueAttributes" => queue_attributes::get;
    "SetQueueAttributes" [Update] => queue_attributes::set;
    "TagQueue" [Update] => tags::tag_queue;
    "UntagQueue" [Update] => tags::untag_queue;
    "ListQueueTags" => tags::list_queue_tags;
    "AddPermission" [Update] => permissions::add_permission;
    "RemovePermission" [Update] => permissions::remove_permission;
    "SendMessage" => send_message::send_message;
    "SendMessageBatch" => send_message::send_message_batch;
    "ReceiveMessage" => receive_message::receive_message;
    "DeleteMessage" => delete_message::delete_message;
    "DeleteMessageBatch" => delete_message::delete_message_batch;
    "ChangeMessageVisibility" => change_visibility::change_visibility;
    "ChangeMessageVisibilityBatch" => change_visibility::change_visibility_batch;
    "ListDeadLetterSourceQueues" [Read] => dead_letter_sources::list_sources;
    "StartMessageMoveTask" [MoveStart] => move_tasks::start;
    "ListMessageMoveTasks" => move_tasks::list;
    "CancelMessageMoveTask" [MoveCancel] => move_tasks::cancel;
    "GetMetricStatistics" => metrics::statistics;
    "GetMetricData" => metrics::data;
    "ListMetrics" => metrics::list;
}

/// Any one of these permissions lets a caller see that a queue exists.
pub const VIEW_ACTIONS: &[Action] = &[Action::Manage, Action::Send, Action::Receive];

/// A queue that the caller may use.
pub struct SqsQueue {
    pub facts: QueueFacts,
    /// The name that the caller uses.
    pub sqs_name: String,
}

impl SqsQueue {
    /// Whether it is ordered by message groups.
    pub fn fifo(&self) -> bool {
        self.facts.spec.sessions.required()
    }

    /// Its name in the engine.
    pub fn name(&self) -> &QueueName {
        &self.facts.name
    }
}

impl Call {
    /// The queue that the request names, if the caller has the permission.
    pub(crate) async fn queue(
        &self,
        sqs: &Sqs,
        url: Option<&str>,
        action: Action,
    ) -> Result<SqsQueue, SqsError> {
        let url = match url {
            Some(url) => url,
            None if self.path.len() > 1 => &self.path,
            None => return Err(SqsError::missing("QueueUrl")),
        };
        self.queue_by_name(sqs, name::of_url(url)?, &[action]).await
    }

    /// A queue by name, if the caller has one of the permissions.
    ///
    /// A queue with sessions that was created by another protocol is found under its own name and with the suffix
    /// `.fifo`.
    pub(crate) async fn queue_by_name(
        &self,
        sqs: &Sqs,
        sqs_name: &str,
        actions: &[Action],
    ) -> Result<SqsQueue, SqsError> {
        let plain = sqs_name.strip_suffix(".fifo");
        let mut denied = None;
        for (name, any) in [(Some(sqs_name), true), (plain, false)] {
            let Some(name) = name.filter(|name| name::is_name(name)) else { continue };
            let name = QueueName::new(name)?;
            if let Err(error) = self.check_permission(sqs, &name, actions) {
                denied.get_or_insert(error);
                continue;
            }
            match sqs.0.engine.describe(name).await {
                Ok(facts) if any || facts.spec.sessions.required() => {
                    return Ok(SqsQueue { facts, sqs_name: sqs_name.to_owned() });
                }
                Ok(_) | Err(EngineError::Refused(Refusal::QueueNotFound { .. })) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(denied.unwrap_or_else(SqsError::no_queue))
    }

    /// Checks that the caller has one of the permissions on a queue.
    pub(crate) fn check_permission(
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

    /// Waits for `work`. The permission is checked again whenever permissions change.
    pub(crate) async fn wait_while_permitted<T>(
        &self,
        sqs: &Sqs,
        queue: &SqsQueue,
        action: Action,
        work: impl Future<Output = T>,
    ) -> Result<T, SqsError> {
        let mut work = std::pin::pin!(work);
        loop {
            let seen = sqs.0.access.version();
            self.check_permission(sqs, queue.name(), &[action])?;
            tokio::select! {
                biased;
                done = &mut work => return Ok(done),
                _ = sqs.0.access.changed(seen) => {}
            }
        }
    }
}

/// Checks that a number is in its range.
pub fn check_range(
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
