//! Builds the attach that answers an attach.
//!
//! A client may ask for anything: filters, durable termini, node properties, capabilities. The reply tells it what it
//! gets, so it contains only what is implemented and is never copied from the request. Exceptions are the client's own
//! end of the link, and the settle modes, which SDKs compare with their request.

use malote_model::QueueName;
use malote_wire_amqp::performative::{
    AnyTarget, Attach, Coordinator, DeliveryState, Role, SenderSettleMode, Source, Symbols, Target,
};
use malote_wire_amqp::types::{Described, Map, Symbol, Value};

use super::link::ResolvedLink;
use super::request::SESSION_FILTER;
use crate::wire::selector::is_selector;
use crate::wire::session::session_text;
use crate::wire::{ticks, value::string};

const LOCKED_UNTIL: &str = "com.microsoft:locked-until-utc";
/// Messages may have a delivery time (`x-opt-delivery-time`, `x-opt-delivery-delay`).
const DELAYED_DELIVERY: &str = "DELAYED_DELIVERY";
const OUTCOMES: [&str; 4] =
    ["amqp:accepted:list", "amqp:rejected:list", "amqp:released:list", "amqp:modified:list"];
/// Capabilities of a coordinator.
const TRANSACTIONS: [&str; 3] =
    ["amqp:local-transactions", "amqp:multi-txns-per-ssn", "amqp:multi-ssns-per-txn"];
const LINK_DETACH: Symbol = Symbol::from_static("link-detach");
const LIFETIME_POLICY: &str = "lifetime-policy";
const DELETE_ON_CLOSE: u64 = 0x2b;

/// Requested connection capabilities that are implemented.
pub(crate) fn offered(desired: &Symbols) -> Symbols {
    carried_out(desired, &[DELAYED_DELIVERY])
}

/// Builds the reply.
pub(crate) fn granted(wanted: &Attach, resolved: &ResolvedLink) -> Attach {
    let (resolved, temporary) = match resolved {
        ResolvedLink::Temporary { queue, resolved } => (&**resolved, Some(queue)),
        resolved => (resolved, None),
    };
    let role = wanted.role.opposite();
    let (source, target) = match wanted.role {
        Role::Receiver => (
            wanted.source.as_ref().map(|asked| source(asked, resolved, temporary)),
            wanted.target.clone(),
        ),
        Role::Sender => {
            (wanted.source.clone(), wanted.target.as_ref().map(|asked| target(asked, temporary)))
        }
    };
    let mut answer = Attach {
        name: wanted.name.clone(),
        role,
        snd_settle_mode: wanted.snd_settle_mode,
        // The Go client fails unless this equals its request, also for senders. Its messages are nevertheless settled
        // in one step, as in the service.
        rcv_settle_mode: wanted.rcv_settle_mode,
        source,
        target,
        initial_delivery_count: (role == Role::Sender).then_some(0),
        ..Attach::default()
    };
    match resolved {
        ResolvedLink::Sender { message_bytes_max, .. } => {
            answer.max_message_size = Some(*message_bytes_max);
            answer.offered_capabilities = offered(&wanted.desired_capabilities);
        }
        // Browsed messages are not settled.
        ResolvedLink::Browser { .. } => answer.snd_settle_mode = SenderSettleMode::Settled,
        ResolvedLink::Receiver { session: Some(held), .. } => {
            answer.properties = Some(Map::default().with(LOCKED_UNTIL, ticks(held.until)));
        }
        ResolvedLink::Receiver { session: None, .. }
        | ResolvedLink::Temporary { .. }
        | ResolvedLink::Empty(_)
        | ResolvedLink::Coordinator
        | ResolvedLink::CbsRequests
        | ResolvedLink::CbsReplies
        | ResolvedLink::ManagementRequests(_)
        | ResolvedLink::ManagementReplies(_) => {}
    }
    answer
}

/// The source of a link on which the client receives. Clients compare the address byte for byte.
fn source(asked: &Source, resolved: &ResolvedLink, temporary: Option<&QueueName>) -> Source {
    let (release_on_detach, kind) = match resolved {
        ResolvedLink::Receiver { own_subscription: true, release_on_detach, .. } => {
            (*release_on_detach, "topic")
        }
        ResolvedLink::Receiver { release_on_detach, .. } => {
            (*release_on_detach, if temporary.is_some() { "temporary-queue" } else { "queue" })
        }
        ResolvedLink::Browser { .. } => (false, "queue"),
        _ => (false, ""),
    };
    let mode = match resolved {
        ResolvedLink::Browser { .. } => Symbol::from_static("copy"),
        _ => Symbol::from_static("move"),
    };
    let filter = asked.filter.as_ref().map(|asked| filters(asked, resolved));
    Source {
        address: address(asked.address.as_ref(), temporary),
        expiry_policy: expiry(&asked.expiry_policy, &Source::default().expiry_policy),
        dynamic: temporary.is_some(),
        dynamic_node_properties: temporary.map(|_| delete_on_close()),
        distribution_mode: asked.distribution_mode.as_ref().map(|_| mode),
        filter: filter.filter(|filter| !filter.is_empty()),
        // Messages that are unsettled when the link ends are released.
        default_outcome: release_on_detach.then_some(DeliveryState::Released),
        outcomes: carried_out(&asked.outcomes, &OUTCOMES),
        capabilities: carried_out(&asked.capabilities, &[kind]),
        ..Source::default()
    }
}

/// The target of a link on which the client sends.
fn target(asked: &AnyTarget, temporary: Option<&QueueName>) -> AnyTarget {
    let asked = match asked {
        AnyTarget::Target(target) => target,
        AnyTarget::Coordinator(asked) => {
            let capabilities = carried_out(&asked.capabilities, &TRANSACTIONS);
            return AnyTarget::Coordinator(Coordinator { capabilities });
        }
    };
    let kinds = if temporary.is_some() { &["temporary-queue"][..] } else { &["queue", "topic"] };
    Target {
        address: address(asked.address.as_ref(), temporary),
        expiry_policy: expiry(&asked.expiry_policy, &Target::default().expiry_policy),
        dynamic: temporary.is_some(),
        dynamic_node_properties: temporary.map(|_| delete_on_close()),
        capabilities: carried_out(&asked.capabilities, kinds),
        ..Target::default()
    }
    .into()
}

fn address(asked: Option<&Value>, temporary: Option<&QueueName>) -> Option<Value> {
    temporary.map(|queue| string(queue.as_str())).or_else(|| asked.cloned())
}

/// A terminus expires when its link is detached. The default is not written.
fn expiry(asked: &Symbol, default: &Symbol) -> Symbol {
    if asked == default { default.clone() } else { LINK_DETACH }
}

fn delete_on_close() -> Map {
    let policy =
        Described { descriptor: Value::Ulong(DELETE_ON_CLOSE), value: Value::List(Vec::new()) };
    Map::default().with(LIFETIME_POLICY, policy)
}

/// The filters that are applied, each described or not, as in the request.
fn filters(asked: &Map, resolved: &ResolvedLink) -> Map {
    let session = match resolved {
        ResolvedLink::Receiver { session: Some(held), .. } => Some(&held.session),
        ResolvedLink::Browser { session, .. } => session.as_ref(),
        _ => None,
    };
    let selects = match resolved {
        ResolvedLink::Browser { filter, .. } => filter.is_some(),
        ResolvedLink::Receiver { own_subscription, .. } => *own_subscription,
        _ => false,
    };
    let applied = |(key, value): &(Value, Value)| {
        if key.as_str() == Some(SESSION_FILTER) {
            let id = string(session_text(session?));
            let value = match value {
                Value::Described(described) => {
                    let descriptor = described.descriptor.clone();
                    Described { descriptor, value: id }.into()
                }
                _ => id,
            };
            return Some((key.clone(), value));
        }
        (selects && is_selector(value)).then(|| (key.clone(), value.clone()))
    };
    Map(asked.0.iter().filter_map(applied).collect())
}

fn carried_out(wishes: &Symbols, carried_out: &[&str]) -> Symbols {
    wishes.0.iter().filter(|request| carried_out.contains(&request.as_str())).cloned().collect()
}
