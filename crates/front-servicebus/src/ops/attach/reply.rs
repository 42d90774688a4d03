//! The answer to an attach, made of what was understood and is carried out.
//!
//! A client may ask for anything in an attach: filters, durable termini, node properties, capabilities. AMQP has it read
//! in the answer what it gets, so nothing here is copied from the request because it stood there. The exceptions are the
//! client's own end of the link, which is its own business, and settle modes that SDKs compare with what they asked.

use malote_model::QueueName;
use malote_wire_amqp::performative::{
    AnyTarget, Attach, Coordinator, DeliveryState, Role, SenderSettleMode, Source, Symbols, Target,
};
use malote_wire_amqp::types::{Described, Map, Symbol, Value};

use super::link::Found;
use super::request::SESSION_FILTER;
use crate::wire::selector::is_selector;
use crate::wire::session::session_text;
use crate::wire::{ticks, value::string};

const LOCKED_UNTIL: &str = "com.microsoft:locked-until-utc";
/// Messages may say when they are to be delivered (`x-opt-delivery-time`, `x-opt-delivery-delay`).
const DELAYED_DELIVERY: &str = "DELAYED_DELIVERY";
/// Outcomes that a receiver may choose.
const OUTCOMES: [&str; 4] =
    ["amqp:accepted:list", "amqp:rejected:list", "amqp:released:list", "amqp:modified:list"];
/// What a coordinator can do.
const TRANSACTIONS: [&str; 3] =
    ["amqp:local-transactions", "amqp:multi-txns-per-ssn", "amqp:multi-ssns-per-txn"];
const LINK_DETACH: Symbol = Symbol::from_static("link-detach");
const LIFETIME_POLICY: &str = "lifetime-policy";
const DELETE_ON_CLOSE: u64 = 0x2b;

/// Capabilities of the connection that a client wishes for and gets.
pub(crate) fn offered(desired: &Symbols) -> Symbols {
    carried_out(desired, &[DELAYED_DELIVERY])
}

/// The answer to an attach for which this was found.
pub(crate) fn granted(wanted: &Attach, found: &Found) -> Attach {
    let (found, temporary) = match found {
        Found::Temporary { queue, found } => (&**found, Some(queue)),
        found => (found, None),
    };
    let role = wanted.role.opposite();
    let (source, target) = match wanted.role {
        Role::Receiver => (
            wanted.source.as_ref().map(|asked| source(asked, found, temporary)),
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
        // The Go client fails unless it reads here what it asked for, also as a sender; its messages are settled in one
        // step all the same, as the service does.
        rcv_settle_mode: wanted.rcv_settle_mode,
        source,
        target,
        initial_delivery_count: (role == Role::Sender).then_some(0),
        ..Attach::default()
    };
    match found {
        Found::Sender { message_bytes_max, .. } => {
            answer.max_message_size = Some(*message_bytes_max);
            answer.offered_capabilities = offered(&wanted.desired_capabilities);
        }
        // There is nothing to settle: the messages stay where they are.
        Found::Browser { .. } => answer.snd_settle_mode = SenderSettleMode::Settled,
        Found::Receiver { session: Some(held), .. } => {
            answer.properties = Some(Map::default().with(LOCKED_UNTIL, ticks(held.until)));
        }
        Found::Receiver { session: None, .. }
        | Found::Temporary { .. }
        | Found::Nothing(_)
        | Found::Coordinator
        | Found::ClaimsRequests
        | Found::ClaimsAnswers
        | Found::Requests(_)
        | Found::Answers(_) => {}
    }
    answer
}

/// The broker's end of a link on which the client receives. Clients compare the address with their own, byte for byte.
fn source(asked: &Source, found: &Found, temporary: Option<&QueueName>) -> Source {
    let (bound, kind) = match found {
        Found::Receiver { topic: true, bound, .. } => (*bound, "topic"),
        Found::Receiver { bound, .. } => {
            (*bound, if temporary.is_some() { "temporary-queue" } else { "queue" })
        }
        Found::Browser { .. } => (false, "queue"),
        _ => (false, ""),
    };
    let mode = match found {
        Found::Browser { .. } => Symbol::from_static("copy"),
        _ => Symbol::from_static("move"),
    };
    let filter = asked.filter.as_ref().map(|asked| filters(asked, found));
    Source {
        address: address(asked.address.as_ref(), temporary),
        expiry_policy: expiry(&asked.expiry_policy, &Source::default().expiry_policy),
        dynamic: temporary.is_some(),
        dynamic_node_properties: temporary.map(|_| delete_on_close()),
        distribution_mode: asked.distribution_mode.as_ref().map(|_| mode),
        filter: filter.filter(|filter| !filter.is_empty()),
        // What is unsettled when the link ends comes back uncounted.
        default_outcome: bound.then_some(DeliveryState::Released),
        outcomes: carried_out(&asked.outcomes, &OUTCOMES),
        capabilities: carried_out(&asked.capabilities, &[kind]),
        ..Source::default()
    }
}

/// The broker's end of a link on which the client sends.
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

/// Nothing of a terminus is kept once its link is detached. A client that says nothing about it is told nothing.
fn expiry(asked: &Symbol, default: &Symbol) -> Symbol {
    if asked == default { default.clone() } else { LINK_DETACH }
}

fn delete_on_close() -> Map {
    let policy =
        Described { descriptor: Value::Ulong(DELETE_ON_CLOSE), value: Value::List(Vec::new()) };
    Map::default().with(LIFETIME_POLICY, policy)
}

/// The filters that are applied, each in the form in which it came: described or not.
fn filters(asked: &Map, found: &Found) -> Map {
    let session = match found {
        Found::Receiver { session: Some(held), .. } => Some(&held.session),
        Found::Browser { session, .. } => session.as_ref(),
        _ => None,
    };
    let selects = match found {
        Found::Browser { filter, .. } => filter.is_some(),
        Found::Receiver { topic, .. } => *topic,
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

/// Those of the wishes that are carried out.
fn carried_out(wishes: &Symbols, carried_out: &[&str]) -> Symbols {
    wishes.0.iter().filter(|wish| carried_out.contains(&wish.as_str())).cloned().collect()
}
