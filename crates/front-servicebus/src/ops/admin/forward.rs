//! Where messages and dead letters go on to: addresses as clients write them ↔ entities.

use malote_model::{Address, DeadLetterTarget, QueueSpec};

use super::description::{Given, Telling};
use super::error::{AdminError, Answer};
use super::{Call, atom::Place};
use crate::ops::resolve::Entity;
use crate::wire::address::{Node, path_of};

/// The header with the caller's right to send to where messages go on to.
pub(super) const FORWARD_RIGHTS: &str = "ServiceBusSupplementaryAuthorization";
/// The same for dead letters.
pub(super) const DEAD_LETTER_RIGHTS: &str = "ServiceBusDlqSupplementaryAuthorization";
/// Where messages go on to.
const FORWARD: &str = "ForwardTo";
/// Where dead letters do.
const FORWARD_DEAD: &str = "ForwardDeadLetteredMessagesTo";

/// Whoever takes forwarding away leaves it out: what is not said is none.
pub(super) async fn change(call: &Call<'_>, given: &Given<'_>, spec: &mut QueueSpec) -> Answer<()> {
    let to = target(call, given, FORWARD, FORWARD_RIGHTS, spec.forward_to.as_ref()).await?;
    spec.forward_to = to;
    let is = dead_letters_to(spec);
    let to = target(call, given, FORWARD_DEAD, DEAD_LETTER_RIGHTS, is.as_ref()).await?;
    for name in [FORWARD, FORWARD_DEAD] {
        match given.text(name).filter(|text| text.contains("://")) {
            Some(text) => spec.labels.insert(written(name), text.to_owned()),
            None => spec.labels.remove(&written(name)),
        };
    }
    spec.dead_letter = match to {
        to if to == is => return Ok(()),
        None => DeadLetterTarget::Own,
        Some(Address::Queue(queue)) => DeadLetterTarget::Queue(queue),
        Some(Address::Topic(topic)) => DeadLetterTarget::Topic { topic, key: None },
    };
    Ok(())
}

fn dead_letters_to(spec: &QueueSpec) -> Option<Address> {
    match &spec.dead_letter {
        DeadLetterTarget::Own | DeadLetterTarget::Drop => None,
        DeadLetterTarget::Queue(queue) => Some(Address::Queue(queue.clone())),
        DeadLetterTarget::Topic { topic, .. } => Some(Address::Topic(topic.clone())),
    }
}

async fn target(
    call: &Call<'_>,
    given: &Given<'_>,
    property: &'static str,
    rights: &'static str,
    is: Option<&Address>,
) -> Answer<Option<Address>> {
    let Some(text) = given.text(property) else { return Ok(None) };
    let Node::Entity(path) = Node::parse(text) else {
        return Err(AdminError::property(property, text, "the address of a queue or topic"));
    };
    if is.is_some_and(|is| name_of(is) == path.name) {
        return Ok(is.cloned());
    }
    let found = call.target(rights, &path).await?.ok_or_else(|| {
        AdminError::property(property, text, "a queue or topic that exists: make it first")
    })?;
    match found.entity() {
        Entity::Queue(queue) => Ok(Some(Address::Queue(queue))),
        Entity::Topic(topic) => Ok(Some(Address::Topic(topic))),
        Entity::Transfer(_) => {
            Err(AdminError::property(property, text, "a queue or topic, not its dead letters"))
        }
    }
}

fn name_of(address: &Address) -> &str {
    match address {
        Address::Queue(queue) => queue.as_str(),
        Address::Topic(topic) => topic.as_str(),
    }
}

/// The label with an address as it was written.
fn written(property: &str) -> String {
    format!("servicebus-written:{property}")
}

/// The address as it was written, if it still is that one.
fn link(place: &Place, spec: &QueueSpec, property: &str, to: &Address) -> String {
    let written = spec.labels.get(&written(property));
    let same = |text: &&String| path_of(text).eq_ignore_ascii_case(name_of(to));
    match written.filter(same) {
        Some(text) => text.clone(),
        None => format!("sb://{}/{}", place.host, name_of(to)),
    }
}

pub(super) fn tell(place: &Place, spec: &QueueSpec, telling: &mut Telling<'_>) {
    if let Some(to) = &spec.forward_to {
        telling.text(FORWARD, &link(place, spec, FORWARD, to));
    }
    if let Some(to) = dead_letters_to(spec) {
        telling.text(FORWARD_DEAD, &link(place, spec, FORWARD_DEAD, &to));
    }
}
