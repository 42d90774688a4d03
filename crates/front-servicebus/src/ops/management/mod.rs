//! `$management`: requests to the management node of an entity.
//!
//! | operation `com.microsoft:` | where |
//! |---|---|
//! | `peek-message` | `peek.rs` |
//! | `renew-lock`, `update-disposition` | `locks.rs` |
//! | `receive-by-sequence-number` | `deferred.rs` |
//! | `schedule-message`, `cancel-scheduled-message` | `schedule.rs` |
//! | `renew-session-lock`, `get-session-state`, `set-session-state`, `get-message-sessions` | `sessions.rs` |
//! | `add-rule`, `remove-rule`, `enumerate-rules` | `rules.rs` |
//! | `batch-delete-messages` | `delete.rs` |

mod deferred;
mod delete;
mod locks;
mod peek;
mod rules;
mod schedule;
mod sessions;

use bytes::Bytes;
use malote_engine::Connection;
use malote_model::{Action, AuditAction, LeaseToken, QueueName, SessionId};
use malote_wire_amqp::message::{Draft, Message, Properties};
use malote_wire_amqp::performative::{AmqpError, condition};
use malote_wire_amqp::types::{DecodeError, Map, Symbol, Value};

use super::claims::Claims;
use super::resolve::Entity;
use crate::Front;
use crate::refusal::{LockKind, audit_outcome, engine_error, servicebus, status_of};
use crate::wire::session::session_of;
use crate::wire::value::string;

pub(crate) struct ManagementRequest {
    entity: Entity,
    operation: String,
    message_id: Option<Value>,
    /// The name of the link that the request refers to, if it is given.
    link_name: Option<String>,
    body: Map,
}

/// The body of the reply; none for "no content".
type OperationResult = Result<Option<Map>, AmqpError>;

/// What the operations need.
struct ManagementContext<'a> {
    front: &'a Front,
    engine: &'a Connection,
    entity: &'a Entity,
    body: &'a Map,
    /// The session that the request refers to, if this connection holds its lock.
    session_lock: Option<(SessionId, LeaseToken)>,
}

impl ManagementRequest {
    pub fn read(
        message: &Message,
        properties: Properties,
        entity: Entity,
    ) -> Result<ManagementRequest, DecodeError> {
        let names = message.application_properties()?;
        let operation = names.get("operation").and_then(Value::as_str).unwrap_or_default();
        let body = match message.value()? {
            Some(Value::Map(map)) => map,
            _ => Map::default(),
        };
        let operation = operation.to_owned();
        let link_name = names.get("associated-link-name").and_then(Value::as_str);
        let link_name = link_name.map(str::to_owned);
        Ok(ManagementRequest {
            entity,
            operation,
            message_id: properties.message_id,
            link_name,
            body,
        })
    }

    /// Whether the reply contains messages.
    pub fn is_peek(&self) -> bool {
        self.operation == "com.microsoft:peek-message"
    }

    /// The session that the request refers to: by its id, or by the name of the link that holds it. Some clients send
    /// only the latter.
    pub fn session_ref(&self) -> Option<(&QueueName, SessionRef<'_>)> {
        let Entity::Queue(queue) = &self.entity else { return None };
        let session_ref = match self.body.get("session-id").and_then(Value::as_str) {
            Some(id) => SessionRef::Session(session_of(id).ok()?),
            None => SessionRef::Link(self.link_name.as_deref()?),
        };
        Some((queue, session_ref))
    }
}

/// How a request names a session.
pub(crate) enum SessionRef<'a> {
    Session(SessionId),
    Link(&'a str),
}

/// Runs the operation and encodes its reply.
pub(crate) async fn answer(
    front: &Front,
    engine: &Connection,
    claims: &Claims,
    session_lock: Option<(SessionId, LeaseToken)>,
    request: ManagementRequest,
) -> Bytes {
    let ManagementRequest { entity, operation, message_id, body, .. } = request;
    let context = ManagementContext { front, engine, entity: &entity, body: &body, session_lock };
    let answered = match operation.strip_prefix("com.microsoft:") {
        Some(operation) => {
            let pending = audit_action(operation)
                .map(|action| (action, required_action(operation)))
                .map(|what| claims.begin_audit(front, what, &entity, operation));
            let answered = run(&context, claims, operation).await;
            if let Some(pending) = pending {
                pending.end(audit_outcome(answered.as_ref().err()));
            }
            answered
        }
        None => Err(unknown_operation(&operation)),
    };
    encode(answered, &operation, message_id)
}

/// The reply to a request that is not run.
pub(crate) fn refuse(request: ManagementRequest, error: AmqpError) -> Bytes {
    encode(Err(error), &request.operation, request.message_id)
}

fn encode(answered: OperationResult, operation: &str, message_id: Option<Value>) -> Bytes {
    let (status, text, failure, body) = match answered {
        Ok(Some(body)) => (200, "OK".to_owned(), None, Value::Map(body)),
        Ok(None) => (204, "No Content".to_owned(), None, Value::Map(Map::default())),
        Err(error) => {
            tracing::debug!(%error, operation, "request refused");
            let text = error.description.as_deref().unwrap_or_default().to_owned();
            (status_of(&error), text, Some(error.condition), Value::Null)
        }
    };
    let mut properties = Map::default()
        .with_string("statusCode", status)
        .with_string("statusDescription", string(&text));
    if let Some(condition) = failure {
        properties = properties.with_string("errorCondition", Value::Symbol(condition));
    }
    Draft {
        properties: Some(Properties { correlation_id: message_id, ..Properties::default() }),
        application_properties: properties,
        ..Draft::value(body)
    }
    .to_bytes()
}

/// The permission that an operation needs.
fn required_action(operation: &str) -> Action {
    match operation {
        "schedule-message" | "cancel-scheduled-message" => Action::Send,
        "add-rule" | "remove-rule" => Action::Manage,
        _ => Action::Receive,
    }
}

/// The action in the audit log, for administrative operations.
fn audit_action(operation: &str) -> Option<AuditAction> {
    match operation {
        "add-rule" => Some(AuditAction::Bind),
        "remove-rule" => Some(AuditAction::Unbind),
        "batch-delete-messages" => Some(AuditAction::Purge),
        _ => None,
    }
}

async fn run(context: &ManagementContext<'_>, claims: &Claims, operation: &str) -> OperationResult {
    claims.check(context.front, required_action(operation), context.entity)?;
    match operation {
        // The transfer queue is always empty.
        "peek-message" | "batch-delete-messages"
            if matches!(context.entity, Entity::Transfer(_)) =>
        {
            Ok(None)
        }
        "peek-message" => peek::peek(context).await,
        "renew-lock" => locks::renew(context).await,
        "update-disposition" => locks::update_disposition(context).await,
        "receive-by-sequence-number" => deferred::receive(context).await,
        "batch-delete-messages" => delete::batch(context).await,
        "schedule-message" => schedule::schedule(context).await,
        "cancel-scheduled-message" => schedule::cancel(context).await,
        "renew-session-lock" => sessions::renew(context).await,
        "get-session-state" => sessions::get_state(context).await,
        "set-session-state" => sessions::set_state(context).await,
        "get-message-sessions" => sessions::list(context).await,
        "add-rule" => rules::add(context).await,
        "remove-rule" => rules::remove(context).await,
        "enumerate-rules" => rules::list(context).await,
        other => Err(unknown_operation(other)),
    }
}

fn unknown_operation(operation: &str) -> AmqpError {
    let shown: String = operation.chars().take(64).collect();
    let text = format!("unknown operation `{shown}`");
    AmqpError::new(condition::NOT_IMPLEMENTED, text)
}

impl ManagementContext<'_> {
    /// The queue or subscription; other entities have no messages.
    fn queue(&self) -> Result<&QueueName, AmqpError> {
        match self.entity {
            Entity::Queue(queue) => Ok(queue),
            Entity::Topic(_) => {
                let text = "a topic has no messages; use one of its subscriptions";
                Err(AmqpError::new(condition::NOT_ALLOWED, text))
            }
            Entity::Transfer(_) => {
                let text = "the transfer dead-letter queue is empty";
                Err(AmqpError::new(servicebus::MESSAGE_NOT_FOUND, text))
            }
        }
    }

    /// Time-to-live of the queue.
    async fn ttl_ms(&self, queue: &QueueName) -> Result<Option<u64>, AmqpError> {
        let facts = self.front.engine.describe(queue.clone()).await;
        let facts = facts.map_err(|error| engine_error(error, LockKind::Message))?;
        // Dead letters do not expire.
        Ok(facts.spec.ttl_ms.filter(|_| !queue.is_dead_letters()))
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.body.get(name).and_then(Value::as_str)
    }

    fn number(&self, name: &str) -> Option<i64> {
        self.body.get(name).and_then(Value::as_i64)
    }

    fn flag(&self, name: &str) -> bool {
        self.body.get(name).and_then(Value::as_bool).unwrap_or_default()
    }

    fn items(&self, name: &'static str) -> Result<&[Value], AmqpError> {
        let items = self.body.get(name).and_then(Value::as_items);
        items.ok_or_else(|| argument_error(format!("the request must contain a list `{name}`")))
    }

    /// Lock tokens, as UUIDs in network order.
    fn lock_tokens(&self) -> Result<Vec<LeaseToken>, AmqpError> {
        let token = |item: &Value| match item {
            Value::Uuid(bytes) => Ok(LeaseToken::from_bytes(*bytes)),
            _ => Err(argument_error("a lock token must be a UUID".to_owned())),
        };
        self.items("lock-tokens")?.iter().map(token).collect()
    }

    fn sequence_numbers(&self) -> Result<Vec<malote_model::Seq>, AmqpError> {
        let seq = |item: &Value| {
            let seq = item.as_i64().and_then(|seq| u64::try_from(seq).ok());
            seq.map(malote_model::Seq)
                .ok_or_else(|| argument_error("a sequence number must be a long".to_owned()))
        };
        self.items("sequence-numbers")?.iter().map(seq).collect()
    }

    /// The session lock that the request refers to; an error if this connection does not hold it.
    fn require_session_lock(&self) -> Result<(SessionId, LeaseToken), AmqpError> {
        if let Some(held) = &self.session_lock {
            return Ok(held.clone());
        }
        let id = self
            .text("session-id")
            .ok_or_else(|| argument_error("`session-id` is missing".to_owned()))?;
        let text = format!(
            "The session lock on session `{id}` has expired or is not held by this connection."
        );
        Err(AmqpError::new(servicebus::SESSION_LOCK_LOST, text))
    }
}

fn argument_error(text: String) -> AmqpError {
    AmqpError {
        condition: Symbol::from_static(servicebus::ARGUMENT_ERROR),
        description: Some(text.into()),
        info: None,
    }
}
