//! `$management`: requests to an entity's own desk.
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
use crate::refusal::{Lock, audit_outcome, error_of, servicebus, status_of};
use crate::wire::session::session_of;
use crate::wire::value::string;

/// A request, taken apart.
pub(crate) struct Request {
    entity: Entity,
    operation: String,
    message_id: Option<Value>,
    /// The name of the link that it is about, if the client says it.
    link_name: Option<String>,
    body: Map,
}

/// What a request brings: a body, or nothing to tell.
type Answered = Result<Option<Map>, AmqpError>;

/// What operations hold.
struct Context<'a> {
    front: &'a Front,
    engine: &'a Connection,
    entity: &'a Entity,
    body: &'a Map,
    /// The session that the request is about, if this connection has it.
    held: Option<(SessionId, LeaseToken)>,
}

impl Request {
    pub fn read(
        message: &Message,
        properties: Properties,
        entity: Entity,
    ) -> Result<Request, DecodeError> {
        let names = message.application_properties()?;
        let operation = names.get("operation").and_then(Value::as_str).unwrap_or_default();
        let body = match message.value()? {
            Some(Value::Map(map)) => map,
            _ => Map::default(),
        };
        let operation = operation.to_owned();
        let link_name = names.get("associated-link-name").and_then(Value::as_str);
        let link_name = link_name.map(str::to_owned);
        Ok(Request { entity, operation, message_id: properties.message_id, link_name, body })
    }

    /// Whether its answer is messages.
    pub fn is_peek(&self) -> bool {
        self.operation == "com.microsoft:peek-message"
    }

    /// Whose session it is about: one that it names, else that of the link that it names, because some clients say
    /// no more than that.
    pub fn about(&self) -> Option<(&QueueName, About<'_>)> {
        let Entity::Queue(queue) = &self.entity else { return None };
        let about = match self.body.get("session-id").and_then(Value::as_str) {
            Some(id) => About::Session(session_of(id).ok()?),
            None => About::Link(self.link_name.as_deref()?),
        };
        Some((queue, about))
    }
}

/// How a request says which session it is about.
pub(crate) enum About<'a> {
    Session(SessionId),
    Link(&'a str),
}

/// Does what is asked, and tells how it went.
pub(crate) async fn answer(
    front: &Front,
    engine: &Connection,
    claims: &Claims,
    held: Option<(SessionId, LeaseToken)>,
    request: Request,
) -> Bytes {
    let Request { entity, operation, message_id, body, .. } = request;
    let context = Context { front, engine, entity: &entity, body: &body, held };
    let answered = match operation.strip_prefix("com.microsoft:") {
        Some(operation) => {
            let pending = administrative(operation)
                .map(|action| (action, needs(operation)))
                .map(|what| claims.begin_audit(front, what, &entity, operation));
            let answered = run(&context, claims, operation).await;
            if let Some(pending) = pending {
                pending.end(audit_outcome(answered.as_ref().err()));
            }
            answered
        }
        None => Err(unknown(&operation)),
    };
    encode(answered, &operation, message_id)
}

/// The answer to a request that is not carried out now.
pub(crate) fn refuse(request: Request, error: AmqpError) -> Bytes {
    encode(Err(error), &request.operation, request.message_id)
}

fn encode(answered: Answered, operation: &str, message_id: Option<Value>) -> Bytes {
    let (status, text, failure, body) = match answered {
        Ok(Some(body)) => (200, "OK".to_owned(), None, Value::Map(body)),
        Ok(None) => (204, "No Content".to_owned(), None, Value::Map(Map::default())),
        Err(error) => {
            tracing::debug!(%error, operation, "a request was refused");
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
fn needs(operation: &str) -> Action {
    match operation {
        "schedule-message" | "cancel-scheduled-message" => Action::Send,
        "add-rule" | "remove-rule" => Action::Manage,
        _ => Action::Receive,
    }
}

/// What the audit log calls an operation, if it is an administrative one.
fn administrative(operation: &str) -> Option<AuditAction> {
    match operation {
        "add-rule" => Some(AuditAction::Bind),
        "remove-rule" => Some(AuditAction::Unbind),
        "batch-delete-messages" => Some(AuditAction::Purge),
        _ => None,
    }
}

async fn run(context: &Context<'_>, claims: &Claims, operation: &str) -> Answered {
    claims.check(context.front, needs(operation), context.entity)?;
    match operation {
        // Nothing to see.
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
        other => Err(unknown(other)),
    }
}

fn unknown(operation: &str) -> AmqpError {
    let shown: String = operation.chars().take(64).collect();
    let text = format!("operation `{shown}` is not known here");
    AmqpError::new(condition::NOT_IMPLEMENTED, text)
}

impl Context<'_> {
    /// Operations on messages are for queues and subscriptions.
    fn queue(&self) -> Result<&QueueName, AmqpError> {
        match self.entity {
            Entity::Queue(queue) => Ok(queue),
            Entity::Topic(_) => {
                let text = "a topic has no messages of its own: ask one of its subscriptions";
                Err(AmqpError::new(condition::NOT_ALLOWED, text))
            }
            Entity::Transfer(_) => {
                let text = "there is nothing here that could not be forwarded";
                Err(AmqpError::new(servicebus::MESSAGE_NOT_FOUND, text))
            }
        }
    }

    /// How long messages live there.
    async fn ttl_ms(&self, queue: &QueueName) -> Result<Option<u64>, AmqpError> {
        let facts = self.front.engine.describe(queue.clone()).await;
        let facts = facts.map_err(|error| error_of(error, Lock::Message))?;
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
        items.ok_or_else(|| bad(format!("the request needs a list `{name}`")))
    }

    /// Lock tokens, as uuids in network order.
    fn lock_tokens(&self) -> Result<Vec<LeaseToken>, AmqpError> {
        let token = |item: &Value| match item {
            Value::Uuid(bytes) => Ok(LeaseToken::from_bytes(*bytes)),
            _ => Err(bad("a lock token is a uuid".to_owned())),
        };
        self.items("lock-tokens")?.iter().map(token).collect()
    }

    fn sequence_numbers(&self) -> Result<Vec<malote_model::Seq>, AmqpError> {
        let seq = |item: &Value| {
            let seq = item.as_i64().and_then(|seq| u64::try_from(seq).ok());
            seq.map(malote_model::Seq).ok_or_else(|| bad("a sequence number is a long".to_owned()))
        };
        self.items("sequence-numbers")?.iter().map(seq).collect()
    }

    /// The session that the request is about, and proof that this connection has it.
    fn held(&self) -> Result<(SessionId, LeaseToken), AmqpError> {
        if let Some(held) = &self.held {
            return Ok(held.clone());
        }
        let id =
            self.text("session-id").ok_or_else(|| bad("`session-id` is missing".to_owned()))?;
        let text = format!("The session lock on session `{id}` has expired or is not held here.");
        Err(AmqpError::new(servicebus::SESSION_LOCK_LOST, text))
    }
}

fn bad(text: String) -> AmqpError {
    AmqpError {
        condition: Symbol::from_static(servicebus::ARGUMENT_ERROR),
        description: Some(text.into()),
        info: None,
    }
}
