//! Entities that a link creates for itself: a temporary queue (a dynamic node), or a subscription to a topic.
//!
//! Both need the permission to manage the new name, besides the one to use it. A temporary queue belongs to its
//! connection and is deleted with the link that created it. A subscription is deleted with its only consumer. After a
//! restart, the queue is gone; the subscription is deleted after an idle time.

use malote_engine::Connection;
use malote_model::{
    Action, Address, AuditAction, Durability, Filter, QueueName, QueueSpec, Refusal, Rule,
    TopicName,
};
use malote_wire_amqp::performative::{AmqpError, Role, condition};
use tokio_util::sync::CancellationToken;

use super::link::{ResolvedLink, receiver};
use super::request::AttachRequest;
use crate::Front;
use crate::entity;
use crate::limits;
use crate::ops::claims::Claims;
use crate::ops::resolve::Entity;
use crate::refusal::{LockKind, audit_outcome, engine_error, refusal_error};
use crate::wire::selector;

/// First segment of the names of temporary queues, so that a grant can cover all of them.
const TEMPORARY: &str = "temporary";

/// Creates a temporary queue and attaches the link to it.
pub(super) async fn queue(
    front: &Front,
    engine: &Connection,
    claims: &Claims,
    request: &AttachRequest,
    give_up: CancellationToken,
) -> Option<Result<ResolvedLink, AmqpError>> {
    let made = create_queue(front, engine, claims, request).await;
    let queue = match made {
        Ok(queue) => queue,
        Err(error) => return Some(Err(error)),
    };
    let resolved = match request.role {
        Role::Sender => {
            let message_bytes_max = QueueSpec::default().message_bytes_max;
            Ok(ResolvedLink::Sender { to: Address::Queue(queue.clone()), message_bytes_max })
        }
        Role::Receiver => consume(front, engine, request, &queue, give_up).await?,
    };
    Some(resolved.map(|resolved| ResolvedLink::Temporary { queue, resolved: Box::new(resolved) }))
}

async fn create_queue(
    front: &Front,
    engine: &Connection,
    claims: &Claims,
    request: &AttachRequest,
) -> Result<QueueName, AmqpError> {
    let name = format!("{TEMPORARY}/{}", front.engine.new_id().simple());
    let name =
        QueueName::new(&name).map_err(|refusal| refusal_error(&refusal, LockKind::Message))?;
    let entity = Entity::Queue(name.clone());
    let pending = claims.begin_audit(
        front,
        (AuditAction::Declare, Action::Manage),
        &entity,
        "temporary queue",
    );
    let made = async {
        check(front, claims, request, &name)?;
        let spec =
            QueueSpec { exclusive: true, durability: Durability::Relaxed, ..entity::queue_spec() };
        let made = engine.declare(name.clone(), spec).await;
        made.map_err(|error| engine_error(error, LockKind::Message))
    };
    let made = made.await;
    pending.end(audit_outcome(made.as_ref().err()));
    made.map(|_| name)
}

/// Subscribes to a topic for the lifetime of the link. A selector becomes the rule of the subscription.
pub(super) async fn subscription(
    front: &Front,
    engine: &Connection,
    claims: &Claims,
    request: &AttachRequest,
    topic: TopicName,
    give_up: CancellationToken,
) -> Option<Result<ResolvedLink, AmqpError>> {
    let queue = match create_subscription(front, claims, request, &topic).await {
        Ok(queue) => queue,
        Err(error) => return Some(Err(error)),
    };
    let resolved = consume(front, engine, request, &queue, give_up).await;
    if !matches!(resolved, Some(Ok(_))) {
        // Without a consumer, it would never be deleted.
        let _ = front.engine.delete(queue).await;
    }
    resolved
}

async fn create_subscription(
    front: &Front,
    claims: &Claims,
    request: &AttachRequest,
    topic: &TopicName,
) -> Result<QueueName, AmqpError> {
    if request.durable_subscription {
        let text = format!(
            "A link cannot create a durable or shared subscription. Create a subscription of `{topic}` with the \
             administration API, and receive from `{topic}/Subscriptions/NAME` as from a queue."
        );
        return Err(AmqpError::new(condition::NOT_IMPLEMENTED, text));
    }
    let refused = |refusal: Refusal| refusal_error(&refusal, LockKind::Message);
    let id = format!("link-{}", front.engine.new_id().simple());
    let name = QueueName::subscription(topic, &id).map_err(refused)?;
    let entity = Entity::Queue(name.clone());
    let detail = "temporary subscription";
    let pending =
        claims.begin_audit(front, (AuditAction::Subscribe, Action::Manage), &entity, detail);
    let made = subscribe(front, claims, request, &name).await;
    pending.end(audit_outcome(made.as_ref().err()));
    made.map(|()| name)
}

async fn subscribe(
    front: &Front,
    claims: &Claims,
    request: &AttachRequest,
    name: &QueueName,
) -> Result<(), AmqpError> {
    check(front, claims, request, name)?;
    let filter = match &request.selector {
        Some(selector) => Filter::Sql(selector::rule(selector).map_err(bad_selector)?),
        None => Filter::All,
    };
    let spec = QueueSpec {
        auto_delete: true,
        idle_ms_max: Some(limits::TEMPORARY_IDLE_MS),
        durability: Durability::Relaxed,
        ..entity::queue_spec()
    };
    let rules = vec![Rule { name: "selector".to_owned(), filter, action: None }];
    let made = front.engine.subscribe(name.clone(), spec, Some(rules)).await;
    made.map_err(|error| engine_error(error, LockKind::Message)).map(drop)
}

pub(super) fn bad_selector(refusal: Refusal) -> AmqpError {
    AmqpError::new(condition::INVALID_FIELD, format!("The selector cannot be applied: {refusal}."))
}

fn check(
    front: &Front,
    claims: &Claims,
    request: &AttachRequest,
    name: &QueueName,
) -> Result<(), AmqpError> {
    let entity = Entity::Queue(name.clone());
    claims.check(front, Action::Manage, &entity)?;
    match request.role {
        Role::Receiver => claims.check(front, Action::Receive, &entity),
        Role::Sender => Ok(()),
    }
}

async fn consume(
    front: &Front,
    engine: &Connection,
    request: &AttachRequest,
    queue: &QueueName,
    give_up: CancellationToken,
) -> Option<Result<ResolvedLink, AmqpError>> {
    match front.engine.describe(queue.clone()).await {
        Ok(facts) => receiver(engine, request, facts, give_up).await,
        Err(error) => Some(Err(engine_error(error, LockKind::Message))),
    }
}
