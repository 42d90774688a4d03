//! What an attach asks for.

use malote_model::Action;
use malote_wire_amqp::performative::{
    AmqpError, AnyTarget, Attach, Role, SenderSettleMode, Source, Symbols, condition,
};
use malote_wire_amqp::types::Value;

use super::link::Found;
use crate::limits;
use crate::ops::resolve::Entity;
use crate::wire::address::Node;
use crate::wire::selector;

pub(super) const SESSION_FILTER: &str = "com.microsoft:session-filter";
const TIMEOUT: &str = "com.microsoft:timeout";

/// What a client wants of a link.
pub(crate) struct Wish {
    pub(super) node: Node,
    pub(super) role: Role,
    pub(super) take: bool,
    /// The outer option: whether a session is wanted. The inner: which.
    pub(super) session: Option<Option<String>>,
    pub(super) wait_ms: u64,
    /// Messages are looked at and stay (`distribution-mode: copy`).
    pub(super) browse: bool,
    /// A condition in the language of JMS.
    pub(super) selector: Option<String>,
    /// The client says what becomes of messages that it leaves unsettled: then locks end with the link. Clients of
    /// Service Bus say nothing, and expect locks to outlast it.
    pub(super) bound: bool,
    /// A topic may be meant, of which the link wants a subscription of its own.
    pub(super) topic: bool,
    /// That subscription is to outlast the link, or to be shared with others.
    pub(super) lasting: bool,
}

impl Wish {
    pub fn of(attach: &Attach) -> Result<Wish, AmqpError> {
        let node = node_of(attach)?;
        let source = attach.source.as_ref().filter(|_| attach.role == Role::Receiver);
        let filters =
            source.and_then(|source| source.filter.as_ref()).map_or(&[][..], |map| &map.0);
        if filters.iter().any(|(_, filter)| selector::is_no_local(filter)) {
            let text = "A filter for messages of other connections (no-local) is not implemented.";
            return Err(AmqpError::new(condition::NOT_IMPLEMENTED, text));
        }
        let selects = filters.iter().find(|(_, filter)| selector::is_selector(filter));
        let selector = match selects.map(|(_, filter)| plain(filter).as_str()) {
            None => None,
            Some(Some(text)) => Some(text.to_owned()).filter(|text| !text.trim().is_empty()),
            Some(None) => {
                let text = "a selector is a string";
                return Err(AmqpError::new(condition::INVALID_FIELD, text));
            }
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
        let topic = source.is_some_and(|source| source.capabilities.contains("topic"));
        let copy = |source: &Source| source.distribution_mode.as_ref().is_some_and(|m| m == "copy");
        Ok(Wish {
            node,
            role: attach.role,
            take: attach.snd_settle_mode == SenderSettleMode::Settled,
            session,
            wait_ms: wait_ms.and_then(|ms| ms.try_into().ok()).unwrap_or(limits::ACCEPT_WAIT_MS),
            // Every subscriber of a topic gets a copy: JMS says so for durable ones.
            browse: !topic && source.is_some_and(copy),
            selector,
            bound: source.is_some_and(|source| source.default_outcome.is_some()),
            topic,
            lasting: source.is_some_and(|source| {
                source.durable > 0
                    || source.expiry_policy == "never"
                    || source.capabilities.contains("shared")
            }),
        })
    }

    /// Whether a queue is to be made for the link.
    pub fn is_temporary(&self) -> bool {
        self.node == Node::Temporary
    }
}

fn node_of(attach: &Attach) -> Result<Node, AmqpError> {
    let no_topic = |capabilities: &Symbols| {
        if !capabilities.contains("temporary-topic") {
            return Ok(Node::Temporary);
        }
        let text =
            "Temporary topics are not implemented: use a temporary queue, or a topic that exists.";
        Err(AmqpError::new(condition::NOT_IMPLEMENTED, text))
    };
    let address = match (attach.role, &attach.source, &attach.target) {
        (Role::Sender, _, Some(AnyTarget::Coordinator(_))) => return Ok(Node::Coordinator),
        (Role::Receiver, Some(source), _) if source.dynamic => {
            return no_topic(&source.capabilities);
        }
        (Role::Sender, _, Some(AnyTarget::Target(target))) if target.dynamic => {
            return no_topic(&target.capabilities);
        }
        (Role::Receiver, Some(source), _) => source.address.as_ref(),
        (Role::Sender, _, Some(AnyTarget::Target(target))) => target.address.as_ref(),
        // So a durable subscription is looked for, to be resumed or ended.
        (Role::Receiver, None, _) => {
            let text =
                "A receiver without a source resumes a durable subscription; links make none here.";
            return Err(AmqpError::new(condition::NOT_FOUND, text));
        }
        _ => None,
    };
    match address.and_then(Value::as_str) {
        Some(address) => Ok(Node::parse(address)),
        None => {
            let text = "A link needs the address of an entity.";
            Err(AmqpError::new(condition::INVALID_FIELD, text))
        }
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

impl Wish {
    /// Any of these lets the link be.
    pub(super) fn actions(&self) -> &'static [Action] {
        match (&self.node, self.role) {
            (Node::Cbs | Node::Coordinator, _) => &[],
            // Each request to a desk is checked by itself.
            (Node::Management(_), _) => &Action::ALL,
            (Node::Temporary, Role::Sender) => &[Action::Manage],
            (Node::Entity(_), Role::Sender) => &[Action::Send],
            (Node::Entity(_) | Node::Temporary, Role::Receiver) => &[Action::Receive],
        }
    }

    /// What a link to this entity needs for as long as it lasts.
    pub fn claim(&self, found: &Found) -> Option<(&'static [Action], Entity)> {
        let entity = match found {
            Found::Sender { to, .. } => to.into(),
            Found::Receiver { queue, .. }
            | Found::Browser { queue, .. }
            | Found::Temporary { queue, .. } => Entity::Queue(queue.clone()),
            Found::Nothing(entity) | Found::Requests(entity) | Found::Answers(entity) => {
                entity.clone()
            }
            Found::Coordinator | Found::ClaimsRequests | Found::ClaimsAnswers => return None,
        };
        Some((self.actions(), entity))
    }
}
