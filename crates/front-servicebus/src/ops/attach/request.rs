//! Parses an attach.

use malote_model::Action;
use malote_wire_amqp::performative::{
    AmqpError, AnyTarget, Attach, Role, SenderSettleMode, Source, Symbols, condition,
};
use malote_wire_amqp::types::Value;

use super::link::ResolvedLink;
use crate::limits;
use crate::ops::resolve::Entity;
use crate::wire::address::Node;
use crate::wire::selector;

pub(super) const SESSION_FILTER: &str = "com.microsoft:session-filter";
const TIMEOUT: &str = "com.microsoft:timeout";

/// What a client asks for when it attaches a link.
pub(crate) struct AttachRequest {
    pub(super) node: Node,
    pub(super) role: Role,
    pub(super) receive_and_delete: bool,
    /// The outer option tells whether a session is requested, the inner one which.
    pub(super) session: Option<Option<String>>,
    pub(super) session_wait_ms: u64,
    /// Messages are read and not removed (`distribution-mode: copy`).
    pub(super) browse: bool,
    /// A JMS selector.
    pub(super) selector: Option<String>,
    /// The client sets a default outcome, so locks are released with the link. Clients of Service Bus set none, and
    /// expect locks to outlive the link.
    pub(super) release_on_detach: bool,
    /// The address may be a topic, for which the link wants its own subscription.
    pub(super) wants_subscription: bool,
    /// The subscription is durable or shared.
    pub(super) durable_subscription: bool,
}

impl AttachRequest {
    pub fn of(attach: &Attach) -> Result<AttachRequest, AmqpError> {
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
                let text = "a selector must be a string";
                return Err(AmqpError::new(condition::INVALID_FIELD, text));
            }
        };
        let session = match session_filter(attach).map(plain) {
            None => None,
            Some(Value::Null) => Some(None),
            Some(value) => match value.as_str() {
                Some(id) => Some(Some(id.to_owned())),
                None => {
                    let text = "a session filter must be a string or null";
                    return Err(AmqpError::new(condition::INVALID_FIELD, text));
                }
            },
        };
        let wait_ms = attach.properties.as_ref().and_then(|map| map.get(TIMEOUT)?.as_i64());
        let wants_subscription = source.is_some_and(|source| source.capabilities.contains("topic"));
        let copy = |source: &Source| source.distribution_mode.as_ref().is_some_and(|m| m == "copy");
        Ok(AttachRequest {
            node,
            role: attach.role,
            receive_and_delete: attach.snd_settle_mode == SenderSettleMode::Settled,
            session,
            session_wait_ms: wait_ms
                .and_then(|ms| ms.try_into().ok())
                .unwrap_or(limits::ACCEPT_WAIT_MS),
            // Every subscriber of a topic gets a copy; JMS sets the mode for durable subscriptions.
            browse: !wants_subscription && source.is_some_and(copy),
            selector,
            release_on_detach: source.is_some_and(|source| source.default_outcome.is_some()),
            wants_subscription,
            durable_subscription: source.is_some_and(|source| {
                source.durable > 0
                    || source.expiry_policy == "never"
                    || source.capabilities.contains("shared")
            }),
        })
    }

    /// Whether the link needs a temporary queue.
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
        // JMS clients look for a durable subscription this way, to resume or delete it.
        (Role::Receiver, None, _) => {
            let text = "A receiver without a source resumes a durable subscription, which links cannot create.";
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

/// The value inside a described value. Some clients describe the filter, others do not.
fn plain(value: &Value) -> &Value {
    match value {
        Value::Described(described) => &described.value,
        value => value,
    }
}

impl AttachRequest {
    /// Any one of these permissions is sufficient.
    pub(super) fn actions(&self) -> &'static [Action] {
        match (&self.node, self.role) {
            (Node::Cbs | Node::Coordinator, _) => &[],
            // Each request to `$management` is checked separately.
            (Node::Management(_), _) => &Action::ALL,
            (Node::Temporary, Role::Sender) => &[Action::Manage],
            (Node::Entity(_), Role::Sender) => &[Action::Send],
            (Node::Entity(_) | Node::Temporary, Role::Receiver) => &[Action::Receive],
        }
    }

    /// The permissions and the entity that the link needs for as long as it is attached.
    pub fn claim(&self, resolved: &ResolvedLink) -> Option<(&'static [Action], Entity)> {
        let entity = match resolved {
            ResolvedLink::Sender { to, .. } => to.into(),
            ResolvedLink::Receiver { queue, .. }
            | ResolvedLink::Browser { queue, .. }
            | ResolvedLink::Temporary { queue, .. } => Entity::Queue(queue.clone()),
            ResolvedLink::Empty(entity)
            | ResolvedLink::ManagementRequests(entity)
            | ResolvedLink::ManagementReplies(entity) => entity.clone(),
            ResolvedLink::Coordinator | ResolvedLink::CbsRequests | ResolvedLink::CbsReplies => {
                return None;
            }
        };
        Some((self.actions(), entity))
    }
}
