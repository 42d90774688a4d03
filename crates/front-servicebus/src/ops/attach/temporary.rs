//! What a link makes for itself: a temporary queue (a dynamic node), or a subscription of a topic that lasts as long as
//! the link does.
//!
//! Either needs the permission to manage the name that it gets, beside the one to use it. A temporary queue belongs to
//! its connection; the link that made it takes it along when it closes. A subscription goes with its only consumer. Both
//! are gone after a restart: the queue at once, a subscription after an idle time.

use malote_engine::Connection;
use malote_model::{
    Action, Address, AuditAction, Durability, Filter, QueueName, QueueSpec, Refusal, Rule,
    TopicName,
};
use malote_wire_amqp::performative::{AmqpError, Role, condition};
use tokio_util::sync::CancellationToken;

use super::link::{Found, receiver};
use super::request::Wish;
use crate::Front;
use crate::entity;
use crate::limits;
use crate::ops::claims::Claims;
use crate::ops::resolve::Entity;
use crate::refusal::{Lock, audit_outcome, error_of, of_refusal};
use crate::wire::selector;

/// The first segment of the names of temporary queues: grants can name all of them.
const TEMPORARY: &str = "temporary";

/// Makes a temporary queue, and attaches the link to it.
pub(super) async fn queue(
    front: &Front,
    engine: &Connection,
    claims: &Claims,
    wish: &Wish,
    give_up: CancellationToken,
) -> Option<Result<Found, AmqpError>> {
    let made = make_queue(front, engine, claims, wish).await;
    let queue = match made {
        Ok(queue) => queue,
        Err(error) => return Some(Err(error)),
    };
    let found = match wish.role {
        Role::Sender => {
            let message_bytes_max = QueueSpec::default().message_bytes_max;
            Ok(Found::Sender { to: Address::Queue(queue.clone()), message_bytes_max })
        }
        Role::Receiver => consume(front, engine, wish, &queue, give_up).await?,
    };
    Some(found.map(|found| Found::Temporary { queue, found: Box::new(found) }))
}

async fn make_queue(
    front: &Front,
    engine: &Connection,
    claims: &Claims,
    wish: &Wish,
) -> Result<QueueName, AmqpError> {
    let name = format!("{TEMPORARY}/{}", front.engine.new_id().simple());
    let name = QueueName::new(&name).map_err(|refusal| of_refusal(&refusal, Lock::Message))?;
    let entity = Entity::Queue(name.clone());
    let pending = claims.begin_audit(
        front,
        (AuditAction::Declare, Action::Manage),
        &entity,
        "temporary queue",
    );
    let made = async {
        check(front, claims, wish, &name)?;
        let spec =
            QueueSpec { exclusive: true, durability: Durability::Relaxed, ..entity::queue_spec() };
        let made = engine.declare(name.clone(), spec).await;
        made.map_err(|error| error_of(error, Lock::Message))
    };
    let made = made.await;
    pending.end(audit_outcome(made.as_ref().err()));
    made.map(|_| name)
}

/// Subscribes to a topic for as long as the link lasts. A selector becomes the subscription's rule.
pub(super) async fn subscription(
    front: &Front,
    engine: &Connection,
    claims: &Claims,
    wish: &Wish,
    topic: TopicName,
    give_up: CancellationToken,
) -> Option<Result<Found, AmqpError>> {
    let queue = match make_subscription(front, claims, wish, &topic).await {
        Ok(queue) => queue,
        Err(error) => return Some(Err(error)),
    };
    let found = consume(front, engine, wish, &queue, give_up).await;
    if !matches!(found, Some(Ok(_))) {
        // Nobody consumes from it, so it would stay.
        let _ = front.engine.delete(queue).await;
    }
    found
}

async fn make_subscription(
    front: &Front,
    claims: &Claims,
    wish: &Wish,
    topic: &TopicName,
) -> Result<QueueName, AmqpError> {
    if wish.lasting {
        let text = format!(
            "Durable and shared subscriptions are not made by a link. Create a subscription of `{topic}` by the \
             administration, and receive from `{topic}/Subscriptions/NAME` as from a queue."
        );
        return Err(AmqpError::new(condition::NOT_IMPLEMENTED, text));
    }
    let refused = |refusal: Refusal| of_refusal(&refusal, Lock::Message);
    let id = format!("link-{}", front.engine.new_id().simple());
    let name = QueueName::subscription(topic, &id).map_err(refused)?;
    let entity = Entity::Queue(name.clone());
    let detail = "temporary subscription";
    let pending =
        claims.begin_audit(front, (AuditAction::Subscribe, Action::Manage), &entity, detail);
    let made = subscribe(front, claims, wish, &name).await;
    pending.end(audit_outcome(made.as_ref().err()));
    made.map(|()| name)
}

async fn subscribe(
    front: &Front,
    claims: &Claims,
    wish: &Wish,
    name: &QueueName,
) -> Result<(), AmqpError> {
    check(front, claims, wish, name)?;
    let filter = match &wish.selector {
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
    made.map_err(|error| error_of(error, Lock::Message)).map(drop)
}

/// What the client wrote is at fault.
pub(super) fn bad_selector(refusal: Refusal) -> AmqpError {
    AmqpError::new(condition::INVALID_FIELD, format!("The selector cannot be applied: {refusal}."))
}

fn check(front: &Front, claims: &Claims, wish: &Wish, name: &QueueName) -> Result<(), AmqpError> {
    let entity = Entity::Queue(name.clone());
    claims.check(front, Action::Manage, &entity)?;
    match wish.role {
        Role::Receiver => claims.check(front, Action::Receive, &entity),
        Role::Sender => Ok(()),
    }
}

async fn consume(
    front: &Front,
    engine: &Connection,
    wish: &Wish,
    queue: &QueueName,
    give_up: CancellationToken,
) -> Option<Result<Found, AmqpError>> {
    match front.engine.describe(queue.clone()).await {
        Ok(facts) => receiver(engine, wish, facts, give_up).await,
        Err(error) => Some(Err(error_of(error, Lock::Message))),
    }
}
