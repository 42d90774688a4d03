//! What a link wants, and whether it may have it: addresses → queues, topics, sessions, desks.

use malote_engine::{Connection, Consume, ConsumerId, Held, QueueFacts, Wants};
use malote_model::{Address, QueueName, Resource, SessionId, SqlFilter};
use malote_wire_amqp::performative::{AmqpError, Role, condition};
use tokio_util::sync::CancellationToken;

use super::request::Wish;
use super::temporary;
use crate::Front;
use crate::ops::claims::Claims;
use crate::ops::resolve::{Entity, Place, Resolved, not_found, resolve};
use crate::refusal::{Lock, error_of, of_denied, of_refusal, of_unknown, servicebus};
use crate::wire::address::Node;
use crate::wire::selector;
use crate::wire::session::session_of;

const NO_SESSIONS: &str =
    "A sessionful message receiver cannot be created on an entity that does not require sessions.";

/// What was found for a link.
pub(crate) enum Found {
    Sender {
        to: Address,
        message_bytes_max: u64,
    },
    Receiver {
        consumer: ConsumerId,
        queue: QueueName,
        ttl_ms: Option<u64>,
        take: bool,
        session: Option<Held>,
        /// Locks end with the link.
        bound: bool,
        /// It is a subscription of the link's own.
        topic: bool,
    },
    /// A receiver that looks and leaves everything where it is.
    Browser {
        queue: QueueName,
        ttl_ms: Option<u64>,
        session: Option<SessionId>,
        filter: Option<SqlFilter>,
    },
    /// One of the others, at a queue that was made for it and goes with it.
    Temporary {
        queue: QueueName,
        found: Box<Found>,
    },
    /// A receiver to which nothing will ever come.
    Nothing(Entity),
    Coordinator,
    ClaimsRequests,
    ClaimsAnswers,
    Requests(Entity),
    Answers(Entity),
}

/// Finds what a link wants. None once nobody waits for it any more.
pub(crate) async fn attach(
    front: &Front,
    engine: &Connection,
    claims: &Claims,
    host: &str,
    wish: Wish,
    give_up: CancellationToken,
) -> Option<Result<Found, AmqpError>> {
    // Before a caller is known it costs no look-up and holds nothing.
    if wish.node != Node::Cbs && !claims.is_known(front) {
        return Some(Err(of_unknown()));
    }
    let path = match (&wish.node, wish.role) {
        (Node::Coordinator, _) => return Some(Ok(Found::Coordinator)),
        (Node::Cbs, Role::Sender) => return Some(Ok(Found::ClaimsRequests)),
        (Node::Cbs, Role::Receiver) => return Some(Ok(Found::ClaimsAnswers)),
        (Node::Temporary, _) => {
            return temporary::queue(front, engine, claims, &wish, give_up).await;
        }
        (Node::Management(path) | Node::Entity(path), _) => path,
    };
    let may = |on: Resource<'_>| claims.may_any(front, wish.actions(), path, on);
    let found = match resolve(&front.engine, path, may).await {
        Ok(Resolved::Found(found)) => found,
        Ok(Resolved::Missing) => return Some(Err(not_found(host, path))),
        Ok(Resolved::Denied(denied)) => return Some(Err(of_denied(&denied))),
        Err(error) => return Some(Err(error_of(error, Lock::Message))),
    };
    match (&wish.node, wish.role, found) {
        (Node::Management(_), Role::Sender, found) => Some(Ok(Found::Requests(found.entity()))),
        (Node::Management(_), Role::Receiver, found) => Some(Ok(Found::Answers(found.entity()))),
        (_, Role::Sender, Place::Transfer(_)) => {
            Some(Err(not_allowed("messages cannot be sent to dead letters")))
        }
        (_, Role::Sender, Place::Queue(facts)) if facts.name.is_dead_letters() => {
            Some(Err(not_allowed("messages cannot be sent to dead letters")))
        }
        (_, Role::Receiver, Place::Transfer(_)) if wish.session.is_some() => {
            Some(Err(not_allowed(NO_SESSIONS)))
        }
        (_, Role::Receiver, Place::Transfer(of)) => Some(Ok(Found::Nothing(Entity::Transfer(of)))),
        (_, Role::Sender, Place::Queue(facts)) if facts.name.subscription_of().is_some() => {
            Some(Err(not_allowed("messages are sent to a topic, not to its subscription")))
        }
        (_, Role::Sender, Place::Queue(facts)) => {
            let message_bytes_max = facts.spec.message_bytes_max;
            Some(Ok(Found::Sender { to: Address::Queue(facts.name), message_bytes_max }))
        }
        (_, Role::Sender, Place::Topic(name)) => {
            let message_bytes_max = malote_model::limits::MESSAGE_BYTES_DEFAULT;
            Some(Ok(Found::Sender { to: Address::Topic(name), message_bytes_max }))
        }
        (_, Role::Receiver, Place::Topic(name)) if wish.topic => {
            temporary::subscription(front, engine, claims, &wish, name, give_up).await
        }
        (_, Role::Receiver, Place::Topic(_)) => {
            Some(Err(not_allowed("messages are received from a subscription, not from its topic")))
        }
        (_, Role::Receiver, Place::Queue(facts)) if wish.browse => Some(browser(&wish, *facts)),
        (_, Role::Receiver, Place::Queue(_)) if wish.selector.is_some() => Some(Err(no_selector())),
        (_, Role::Receiver, Place::Queue(facts)) => receiver(engine, &wish, *facts, give_up).await,
    }
}

fn not_allowed(text: &str) -> AmqpError {
    AmqpError::new(condition::NOT_ALLOWED, text)
}

/// A consumer that passes over what does not fit would look at the whole backlog again for every message that it takes.
fn no_selector() -> AmqpError {
    let text = "Selectors are not implemented for consumers of a queue. Send to a topic, and receive from a \
        subscription with a rule; a browser may have a selector.";
    AmqpError::new(condition::NOT_IMPLEMENTED, text)
}

fn browser(wish: &Wish, facts: QueueFacts) -> Result<Found, AmqpError> {
    let session = match &wish.session {
        None => None,
        Some(Some(id)) => Some(session_of(id).map_err(|no| of_refusal(&no, Lock::Session))?),
        Some(None) => {
            let text =
                "A browser takes no session: name the one to look at, or leave the filter out.";
            return Err(AmqpError::new(condition::NOT_IMPLEMENTED, text));
        }
    };
    let filter = wish.selector.as_deref().map(selector::browsed).transpose();
    let filter = filter.map_err(temporary::bad_selector)?;
    let ttl_ms = facts.spec.ttl_ms.filter(|_| !facts.name.is_dead_letters());
    Ok(Found::Browser { queue: facts.name, ttl_ms, session, filter })
}

pub(super) async fn receiver(
    engine: &Connection,
    wish: &Wish,
    facts: QueueFacts,
    give_up: CancellationToken,
) -> Option<Result<Found, AmqpError>> {
    let queue = facts.name;
    if facts.spec.forward_to.is_some() && !queue.is_dead_letters() {
        return Some(Err(not_allowed(
            "Cannot create a message receiver on an entity with auto-forwarding enabled.",
        )));
    }
    let sessions = facts.spec.sessions.required() && !queue.is_dead_letters();
    let session = match (&wish.session, sessions) {
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
                Err(refusal) => return Some(Err(of_refusal(&refusal, Lock::Session))),
            };
            // Only the wait can be given up: a session in hand must be given back.
            let accepted = tokio::select! {
                biased;
                accepted = engine.accept(queue.clone(), id, wish.wait_ms, None) => accepted,
                () = give_up.cancelled() => return None,
            };
            match accepted {
                Ok(Some(held)) => Some(held),
                Ok(None) => {
                    let text = "No session became available before the time-out.";
                    return Some(Err(AmqpError::new(servicebus::TIMEOUT, text)));
                }
                Err(error) => return Some(Err(error_of(error, Lock::Session))),
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
        take: wish.take,
        lock_ms: None,
        free_standing: session.is_none() && !wish.bound,
    };
    let lock = if session.is_some() { Lock::Session } else { Lock::Message };
    let attached = engine.attach(consume).await;
    // Dead letters do not expire.
    let ttl_ms = facts.spec.ttl_ms.filter(|_| !queue.is_dead_letters());
    let (take, bound, topic) = (wish.take, wish.bound, wish.topic && queue.is_subscription());
    let found = attached.map(|consumer| Found::Receiver {
        consumer,
        queue,
        ttl_ms,
        take,
        session,
        bound,
        topic,
    });
    Some(found.map_err(|error| error_of(error, lock)))
}
