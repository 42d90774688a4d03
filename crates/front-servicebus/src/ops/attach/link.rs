//! Resolves an attach: finds the entity, checks the permission, accepts the session and starts the consumer.

use malote_engine::{AcceptedSession, Connection, Consume, ConsumerId, QueueFacts, Wants};
use malote_model::{Address, QueueName, Resource, SessionId, SqlFilter};
use malote_wire_amqp::performative::{AmqpError, Role, condition};
use tokio_util::sync::CancellationToken;

use super::request::AttachRequest;
use super::temporary;
use crate::Front;
use crate::ops::claims::Claims;
use crate::ops::resolve::{Entity, EntityFacts, Resolved, not_found, resolve};
use crate::refusal::{
    LockKind, denied_error, engine_error, refusal_error, servicebus, unauthenticated,
};
use crate::wire::address::Node;
use crate::wire::selector;
use crate::wire::session::session_of;

const NO_SESSIONS: &str =
    "A sessionful message receiver cannot be created on an entity that does not require sessions.";

/// The node that a link was resolved to.
pub(crate) enum ResolvedLink {
    Sender {
        to: Address,
        message_bytes_max: u64,
    },
    Receiver {
        consumer: ConsumerId,
        queue: QueueName,
        ttl_ms: Option<u64>,
        receive_and_delete: bool,
        session: Option<AcceptedSession>,
        /// Locks are released when the link is detached.
        release_on_detach: bool,
        /// The queue is a subscription created for this link.
        own_subscription: bool,
    },
    /// A receiver that reads messages without removing them.
    Browser {
        queue: QueueName,
        ttl_ms: Option<u64>,
        session: Option<SessionId>,
        filter: Option<SqlFilter>,
    },
    /// A link to a temporary queue that was created for it and is deleted with it.
    Temporary {
        queue: QueueName,
        resolved: Box<ResolvedLink>,
    },
    /// A receiver from a node that is always empty.
    Empty(Entity),
    Coordinator,
    CbsRequests,
    CbsReplies,
    ManagementRequests(Entity),
    ManagementReplies(Entity),
}

/// Resolves an attach. None if it was cancelled.
pub(crate) async fn attach(
    front: &Front,
    engine: &Connection,
    claims: &Claims,
    host: &str,
    request: AttachRequest,
    give_up: CancellationToken,
) -> Option<Result<ResolvedLink, AmqpError>> {
    // An unauthenticated caller causes no look-ups and holds no resources.
    if request.node != Node::Cbs && !claims.is_authenticated(front) {
        return Some(Err(unauthenticated()));
    }
    let path = match (&request.node, request.role) {
        (Node::Coordinator, _) => return Some(Ok(ResolvedLink::Coordinator)),
        (Node::Cbs, Role::Sender) => return Some(Ok(ResolvedLink::CbsRequests)),
        (Node::Cbs, Role::Receiver) => return Some(Ok(ResolvedLink::CbsReplies)),
        (Node::Temporary, _) => {
            return temporary::queue(front, engine, claims, &request, give_up).await;
        }
        (Node::Management(path) | Node::Entity(path), _) => path,
    };
    let may = |on: Resource<'_>| claims.may_any(front, request.actions(), path, on);
    let resolved = match resolve(&front.engine, path, may).await {
        Ok(Resolved::Found(resolved)) => resolved,
        Ok(Resolved::Missing) => return Some(Err(not_found(host, path))),
        Ok(Resolved::Denied(denied)) => return Some(Err(denied_error(&denied))),
        Err(error) => return Some(Err(engine_error(error, LockKind::Message))),
    };
    match (&request.node, request.role, resolved) {
        (Node::Management(_), Role::Sender, resolved) => {
            Some(Ok(ResolvedLink::ManagementRequests(resolved.entity())))
        }
        (Node::Management(_), Role::Receiver, resolved) => {
            Some(Ok(ResolvedLink::ManagementReplies(resolved.entity())))
        }
        (_, Role::Sender, EntityFacts::Transfer(_)) => {
            Some(Err(not_allowed("messages cannot be sent to a dead-letter queue")))
        }
        (_, Role::Sender, EntityFacts::Queue(facts)) if facts.name.is_dead_letters() => {
            Some(Err(not_allowed("messages cannot be sent to a dead-letter queue")))
        }
        (_, Role::Receiver, EntityFacts::Transfer(_)) if request.session.is_some() => {
            Some(Err(not_allowed(NO_SESSIONS)))
        }
        (_, Role::Receiver, EntityFacts::Transfer(of)) => {
            Some(Ok(ResolvedLink::Empty(Entity::Transfer(of))))
        }
        (_, Role::Sender, EntityFacts::Queue(facts)) if facts.name.subscription_of().is_some() => {
            Some(Err(not_allowed("messages cannot be sent to a subscription; send to its topic")))
        }
        (_, Role::Sender, EntityFacts::Queue(facts)) => {
            let message_bytes_max = facts.spec.message_bytes_max;
            Some(Ok(ResolvedLink::Sender { to: Address::Queue(facts.name), message_bytes_max }))
        }
        (_, Role::Sender, EntityFacts::Topic(name)) => {
            let message_bytes_max = malote_model::limits::MESSAGE_BYTES_DEFAULT;
            Some(Ok(ResolvedLink::Sender { to: Address::Topic(name), message_bytes_max }))
        }
        (_, Role::Receiver, EntityFacts::Topic(name)) if request.wants_subscription => {
            temporary::subscription(front, engine, claims, &request, name, give_up).await
        }
        (_, Role::Receiver, EntityFacts::Topic(_)) => Some(Err(not_allowed(
            "messages cannot be received from a topic; receive from one of its subscriptions",
        ))),
        (_, Role::Receiver, EntityFacts::Queue(facts)) if request.browse => {
            Some(browser(&request, *facts))
        }
        (_, Role::Receiver, EntityFacts::Queue(_)) if request.selector.is_some() => {
            Some(Err(no_selector()))
        }
        (_, Role::Receiver, EntityFacts::Queue(facts)) => {
            receiver(engine, &request, *facts, give_up).await
        }
    }
}

fn not_allowed(text: &str) -> AmqpError {
    AmqpError::new(condition::NOT_ALLOWED, text)
}

/// A consumer that skips messages would scan the whole backlog for every message.
fn no_selector() -> AmqpError {
    let text = "Selectors are not implemented for consumers of a queue. Send to a topic, and receive from a \
        subscription with a rule; a browser may have a selector.";
    AmqpError::new(condition::NOT_IMPLEMENTED, text)
}

fn browser(request: &AttachRequest, facts: QueueFacts) -> Result<ResolvedLink, AmqpError> {
    let session = match &request.session {
        None => None,
        Some(Some(id)) => Some(session_of(id).map_err(|no| refusal_error(&no, LockKind::Session))?),
        Some(None) => {
            let text = "A browser cannot accept the next session: name the session to browse, or omit the filter.";
            return Err(AmqpError::new(condition::NOT_IMPLEMENTED, text));
        }
    };
    let filter = request.selector.as_deref().map(selector::browsed).transpose();
    let filter = filter.map_err(temporary::bad_selector)?;
    let ttl_ms = facts.spec.ttl_ms.filter(|_| !facts.name.is_dead_letters());
    Ok(ResolvedLink::Browser { queue: facts.name, ttl_ms, session, filter })
}

pub(super) async fn receiver(
    engine: &Connection,
    request: &AttachRequest,
    facts: QueueFacts,
    give_up: CancellationToken,
) -> Option<Result<ResolvedLink, AmqpError>> {
    let queue = facts.name;
    if facts.spec.forward_to.is_some() && !queue.is_dead_letters() {
        return Some(Err(not_allowed(
            "Cannot create a message receiver on an entity with auto-forwarding enabled.",
        )));
    }
    let sessions = facts.spec.sessions.required() && !queue.is_dead_letters();
    let session = match (&request.session, sessions) {
        (None, false) => None,
        (None, true) => {
            return Some(Err(not_allowed(
                "It is not possible for an entity that requires sessions to create a non-sessionful message receiver.",
            )));
        }
        (Some(_), false) => {
            return Some(Err(not_allowed(NO_SESSIONS)));
        }
        (Some(id), true) => {
            let id = match id.as_deref().map(session_of).transpose() {
                Ok(id) => id,
                Err(refusal) => return Some(Err(refusal_error(&refusal, LockKind::Session))),
            };
            // Only the wait can be cancelled: an accepted session must be released.
            let accepted = tokio::select! {
                biased;
                accepted = engine.accept(queue.clone(), id, request.session_wait_ms, None) => accepted,
                () = give_up.cancelled() => return None,
            };
            match accepted {
                Ok(Some(held)) => Some(held),
                Ok(None) => {
                    let text = "No session became available before the time-out.";
                    return Some(Err(AmqpError::new(servicebus::TIMEOUT, text)));
                }
                Err(error) => return Some(Err(engine_error(error, LockKind::Session))),
            }
        }
    };
    let wants = match &session {
        Some(held) => Wants::Held(held.hold),
        None => Wants::Any { per_session: 1 },
    };
    let consume = Consume {
        queue: queue.clone(),
        wants,
        credit: 0,
        take: request.receive_and_delete,
        lock_ms: None,
        free_standing: session.is_none() && !request.release_on_detach,
        priority: 0,
        exclusive: false,
    };
    let lock = if session.is_some() { LockKind::Session } else { LockKind::Message };
    let attached = engine.attach(consume).await;
    // Dead letters do not expire.
    let ttl_ms = facts.spec.ttl_ms.filter(|_| !queue.is_dead_letters());
    let (receive_and_delete, release_on_detach) =
        (request.receive_and_delete, request.release_on_detach);
    let own_subscription = request.wants_subscription && queue.is_subscription();
    let resolved = attached.map(|consumer| ResolvedLink::Receiver {
        consumer,
        queue,
        ttl_ms,
        receive_and_delete,
        session,
        release_on_detach,
        own_subscription,
    });
    Some(resolved.map_err(|error| engine_error(error, lock)))
}
