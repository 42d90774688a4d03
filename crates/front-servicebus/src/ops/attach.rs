//! What a link wants, and whether it may have it: addresses → queues, topics, sessions, desks.

use malote_engine::{
    Connection, Consume, ConsumerId, Engine, EngineError, Held, QueueFacts, Wants,
};
use malote_model::{Action, Address, QueueName, Refusal, TopicName};
use malote_wire_amqp::performative::{
    AmqpError, AnyTarget, Attach, Role, SenderSettleMode, condition,
};
use malote_wire_amqp::types::{Described, Map, Symbol, Value};
use tokio_util::sync::CancellationToken;

use super::claims::Claims;
use crate::Front;
use crate::limits;
use crate::refusal::{Lock, error_of, of_refusal, servicebus};
use crate::wire::address::{Node, Path};
use crate::wire::session::{session_of, session_text};
use crate::wire::{ticks, value::string};

const SESSION_FILTER: &str = "com.microsoft:session-filter";
const TIMEOUT: &str = "com.microsoft:timeout";
const LOCKED_UNTIL: &str = "com.microsoft:locked-until-utc";
const NO_SESSIONS: &str =
    "A sessionful message receiver cannot be created on an entity that does not require sessions.";

/// What a client wants of a link.
pub(crate) struct Wish {
    node: Node,
    role: Role,
    take: bool,
    /// The outer option: whether a session is wanted. The inner: which.
    session: Option<Option<String>>,
    wait_ms: u64,
}

/// A queue or topic that was found.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Entity {
    Queue(QueueName),
    Topic(TopicName),
    /// Where an entity of this name would have what could not be forwarded.
    Transfer(String),
}

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
    },
    /// A receiver to which nothing will ever come.
    Nothing,
    Coordinator,
    ClaimsRequests,
    ClaimsAnswers,
    Requests(Entity),
    Answers(Entity),
}

impl Wish {
    pub fn of(attach: &Attach) -> Result<Wish, AmqpError> {
        let address = match (attach.role, &attach.source, &attach.target) {
            (Role::Receiver, Some(source), _) => source.address.as_ref(),
            (Role::Sender, _, Some(AnyTarget::Target(target))) => target.address.as_ref(),
            _ => None,
        };
        if let (Role::Sender, Some(AnyTarget::Coordinator(_))) = (attach.role, &attach.target) {
            let (node, role) = (Node::Coordinator, Role::Sender);
            return Ok(Wish { node, role, take: false, session: None, wait_ms: 0 });
        }
        let Some(address) = address.and_then(Value::as_str) else {
            let text = "a link needs the address of an entity";
            return Err(AmqpError::new(condition::INVALID_FIELD, text));
        };
        let session = match session_filter(attach).map(plain) {
            None => None,
            Some(Value::Null) => Some(None),
            Some(value) => match value.as_str() {
                Some(id) => Some(Some(id.to_owned())),
                None => {
                    let text = "a session filter is a string or null";
                    return Err(AmqpError::new(condition::INVALID_FIELD, text));
                }
            },
        };
        let wait_ms = attach.properties.as_ref().and_then(|map| map.get(TIMEOUT)?.as_i64());
        Ok(Wish {
            node: Node::parse(address),
            role: attach.role,
            take: attach.snd_settle_mode == SenderSettleMode::Settled,
            session,
            wait_ms: wait_ms.and_then(|ms| ms.try_into().ok()).unwrap_or(limits::ACCEPT_WAIT_MS),
        })
    }
}

fn session_filter(attach: &Attach) -> Option<&Value> {
    attach.source.as_ref()?.filter.as_ref()?.get(SESSION_FILTER)
}

/// The value inside of a described one: some clients describe the filter, some do not.
fn plain(value: &Value) -> &Value {
    match value {
        Value::Described(described) => &described.value,
        value => value,
    }
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
    let path = match (&wish.node, wish.role) {
        (Node::Coordinator, _) => return Some(Ok(Found::Coordinator)),
        (Node::Cbs, Role::Sender) => return Some(Ok(Found::ClaimsRequests)),
        (Node::Cbs, Role::Receiver) => return Some(Ok(Found::ClaimsAnswers)),
        (Node::Management(path) | Node::Entity(path), _) => path,
    };
    // Permission before existence: names cannot be guessed.
    if let Err(error) = claims.check(front, wish_action(&wish), path) {
        return Some(Err(error));
    }
    let found = match find(&front.engine, path).await {
        Ok(found) => found,
        Err(error) if is_not_found(&error) => return Some(Err(not_found(host, path))),
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
        (_, Role::Receiver, Place::Transfer(_)) => Some(Ok(Found::Nothing)),
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
        (_, Role::Receiver, Place::Topic(_)) => {
            Some(Err(not_allowed("messages are received from a subscription, not from its topic")))
        }
        (_, Role::Receiver, Place::Queue(facts)) => receiver(engine, &wish, *facts, give_up).await,
    }
}

impl Wish {
    /// What a link that was granted needs a token for, as long as it lasts.
    pub fn claim(&self) -> Option<(Action, Path)> {
        match &self.node {
            Node::Entity(path) => Some((wish_action(self)?, path.clone())),
            Node::Cbs | Node::Coordinator | Node::Management(_) => None,
        }
    }
}

fn wish_action(wish: &Wish) -> Option<Action> {
    match (&wish.node, wish.role) {
        // Each request to a desk is looked at by itself.
        (Node::Cbs | Node::Coordinator | Node::Management(_), _) => None,
        (Node::Entity(_), Role::Sender) => Some(Action::Send),
        (Node::Entity(_), Role::Receiver) => Some(Action::Receive),
    }
}

fn not_allowed(text: &str) -> AmqpError {
    AmqpError::new(condition::NOT_ALLOWED, text)
}

async fn receiver(
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
        free_standing: session.is_none(),
    };
    let lock = if session.is_some() { Lock::Session } else { Lock::Message };
    let attached = engine.attach(consume).await;
    // Dead letters do not expire.
    let ttl_ms = facts.spec.ttl_ms.filter(|_| !queue.is_dead_letters());
    let take = wish.take;
    let found = attached.map(|consumer| Found::Receiver { consumer, queue, ttl_ms, take, session });
    Some(found.map_err(|error| error_of(error, lock)))
}

/// A queue with its facts, or a topic.
pub(crate) enum Place {
    Queue(Box<QueueFacts>),
    Topic(TopicName),
    /// What could not be forwarded, of an entity that is there.
    Transfer(String),
}

impl Place {
    pub fn entity(self) -> Entity {
        match self {
            Place::Queue(facts) => Entity::Queue(facts.name),
            Place::Topic(name) => Entity::Topic(name),
            Place::Transfer(of) => Entity::Transfer(of),
        }
    }
}

/// Whether what was looked for is not there.
pub(crate) fn is_not_found(error: &EngineError) -> bool {
    let EngineError::Refused(refusal) = error else { return false };
    matches!(refusal, Refusal::QueueNotFound { .. } | Refusal::BadName { .. })
}

/// In words that clients look for.
pub(crate) fn not_found(host: &str, path: &Path) -> AmqpError {
    let text =
        format!("The messaging entity 'sb://{host}/{path}' could not be found. status-code: 404");
    AmqpError::new(condition::NOT_FOUND, text)
}

/// An address means the queue of that name, else the topic; exactly, else in another case if there is only one.
pub(crate) async fn find(engine: &Engine, path: &Path) -> Result<Place, EngineError> {
    let name = QueueName::new(&path.name)?;
    let missing = Refusal::QueueNotFound { queue: name.clone() };
    if path.transfer {
        // What cannot be forwarded is refused when it is sent, or lies with the dead letters.
        let owner = Path { name: path.name.clone(), dead_letters: false, transfer: false };
        return match Box::pin(find(engine, &owner)).await? {
            Place::Queue(facts) => Ok(Place::Transfer(facts.name.to_string())),
            Place::Topic(name) => Ok(Place::Transfer(name.to_string())),
            Place::Transfer(_) => Err(missing.into()),
        };
    }
    let of = |name: QueueName| if path.dead_letters { name.dead_letters() } else { name };
    match engine.describe(of(name.clone())).await {
        Ok(facts) => return Ok(Place::Queue(Box::new(facts))),
        Err(EngineError::Refused(Refusal::QueueNotFound { .. })) => {}
        Err(error) => return Err(error),
    }
    let topic = TopicName::new(&path.name).ok().filter(|_| !path.dead_letters);
    if let Some(topic) = topic {
        match engine.topic(topic).await {
            Ok(facts) => return Ok(Place::Topic(facts.name)),
            Err(EngineError::Refused(Refusal::TopicNotFound { .. })) => {}
            Err(error) => return Err(error),
        }
    }
    let alike = |other: &str| other.eq_ignore_ascii_case(&path.name);
    let queues = engine.list().await?;
    let mut queues = queues.into_iter().filter(|facts| alike(facts.name.as_str()));
    match (queues.next(), queues.next()) {
        (Some(only), None) => {
            return Ok(Place::Queue(Box::new(engine.describe(of(only.name)).await?)));
        }
        (None, _) if !path.dead_letters => {}
        _ => return Err(missing.into()),
    }
    let topics = engine.topics().await?;
    let mut topics = topics.into_iter().filter(|facts| alike(facts.name.as_str()));
    match (topics.next(), topics.next()) {
        (Some(only), None) => Ok(Place::Topic(only.name)),
        _ => Err(missing.into()),
    }
}

/// The answer to an attach: as asked, with what was found.
pub(crate) fn granted(wanted: &Attach, found: &Found) -> Attach {
    let mut answer = wanted.answer();
    match found {
        Found::Sender { message_bytes_max, .. } => {
            answer.max_message_size = Some(*message_bytes_max);
        }
        Found::Receiver { session: Some(held), .. } => {
            // The filter in the form in which it came: described or not.
            let id = string(session_text(&held.session));
            if let Some(filter) = answer.source.as_mut().and_then(|source| source.filter.as_mut()) {
                let value = match filter.get(SESSION_FILTER) {
                    Some(Value::Described(described)) => {
                        let descriptor = described.descriptor.clone();
                        Described { descriptor, value: id }.into()
                    }
                    _ => id,
                };
                filter.0.retain(|(key, _)| key.as_str() != Some(SESSION_FILTER));
                filter.0.push((Value::Symbol(Symbol::from_static(SESSION_FILTER)), value));
            }
            answer.properties = Some(Map::default().with(LOCKED_UNTIL, ticks(held.until)));
        }
        Found::Receiver { .. }
        | Found::Nothing
        | Found::Coordinator
        | Found::ClaimsRequests
        | Found::ClaimsAnswers
        | Found::Requests(_)
        | Found::Answers(_) => {}
    }
    answer
}
