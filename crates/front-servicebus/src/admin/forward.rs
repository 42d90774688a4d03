//! Where messages and dead letters go on to: addresses as clients write them ↔ entities.

use malote_model::{Action, Address, DeadLetterTarget, QueueSpec};

use super::description::{Given, Telling};
use super::error::{AdminError, Answer};
use super::{Call, atom::Place};
use crate::ops::attach;
use crate::wire::address::Node;

/// The header with the caller's right to send to where messages go on to.
pub(super) const FORWARD_RIGHTS: &str = "ServiceBusSupplementaryAuthorization";
/// The same for dead letters.
pub(super) const DEAD_LETTER_RIGHTS: &str = "ServiceBusDlqSupplementaryAuthorization";

/// Whoever takes forwarding away leaves it out: what is not said is none.
pub(super) async fn change(call: &Call<'_>, given: &Given<'_>, spec: &mut QueueSpec) -> Answer<()> {
    let to = target(call, given, "ForwardTo", FORWARD_RIGHTS, spec.forward_to.as_ref()).await?;
    spec.forward_to = to;
    let name = "ForwardDeadLetteredMessagesTo";
    let is = dead_letters_to(spec);
    spec.dead_letter = match target(call, given, name, DEAD_LETTER_RIGHTS, is.as_ref()).await? {
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
    call.check_rights(rights, Action::Send, &path.name)?;
    let found = attach::find(&call.admin.front.engine, &path).await;
    let found = found.map_err(|_| {
        AdminError::property(property, text, "a queue or topic that exists: make it first")
    })?;
    Ok(Some(match found.entity() {
        attach::Entity::Queue(queue) => Address::Queue(queue),
        attach::Entity::Topic(topic) => Address::Topic(topic),
    }))
}

fn name_of(address: &Address) -> &str {
    match address {
        Address::Queue(queue) => queue.as_str(),
        Address::Topic(topic) => topic.as_str(),
    }
}

fn link(place: &Place, to: &Address) -> String {
    format!("sb://{}/{}", place.host, name_of(to))
}

pub(super) fn tell(place: &Place, spec: &QueueSpec, telling: &mut Telling<'_>) {
    if let Some(to) = &spec.forward_to {
        telling.text("ForwardTo", &link(place, to));
    }
    if let Some(to) = dead_letters_to(spec) {
        telling.text("ForwardDeadLetteredMessagesTo", &link(place, &to));
    }
}
