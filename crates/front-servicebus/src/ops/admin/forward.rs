//! Forwarding targets of messages and dead letters: addresses as clients write them ↔ entities.

use malote_model::{Address, DeadLetterTarget, QueueSpec};

use super::description::{DescriptionReader, DescriptionWriter};
use super::error::{AdminError, AdminResult};
use super::{AdminCall, atom::BaseUrl};
use crate::ops::resolve::Entity;
use crate::wire::address::{Node, path_of};

/// Header with a token that allows sending to the forwarding target.
pub(super) const FORWARD_RIGHTS: &str = "ServiceBusSupplementaryAuthorization";
/// The same for the target of dead letters.
pub(super) const DEAD_LETTER_RIGHTS: &str = "ServiceBusDlqSupplementaryAuthorization";
const FORWARD: &str = "ForwardTo";
const FORWARD_DEAD: &str = "ForwardDeadLetteredMessagesTo";

/// Applies the forwarding properties. Clients remove forwarding by omitting the property.
pub(super) async fn change(
    call: &AdminCall<'_>,
    reader: &DescriptionReader<'_>,
    spec: &mut QueueSpec,
) -> AdminResult<()> {
    let to = target(call, reader, FORWARD, FORWARD_RIGHTS, spec.forward_to.as_ref()).await?;
    spec.forward_to = to;
    let is = dead_letters_to(spec);
    let to = target(call, reader, FORWARD_DEAD, DEAD_LETTER_RIGHTS, is.as_ref()).await?;
    for name in [FORWARD, FORWARD_DEAD] {
        match reader.text(name).filter(|text| text.contains("://")) {
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
    call: &AdminCall<'_>,
    reader: &DescriptionReader<'_>,
    property: &'static str,
    rights: &'static str,
    is: Option<&Address>,
) -> AdminResult<Option<Address>> {
    let Some(text) = reader.text(property) else { return Ok(None) };
    let Node::Entity(path) = Node::parse(text) else {
        return Err(AdminError::property(property, text, "the address of a queue or topic"));
    };
    if is.is_some_and(|is| name_of(is) == path.name) {
        return Ok(is.cloned());
    }
    let found = call
        .target(rights, &path)
        .await?
        .ok_or_else(|| AdminError::property(property, text, "an existing queue or topic"))?;
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

/// The label that stores an address as the client wrote it.
fn written(property: &str) -> String {
    format!("servicebus-written:{property}")
}

/// The address as the client wrote it, if it still names the same entity.
fn link(base_url: &BaseUrl, spec: &QueueSpec, property: &str, to: &Address) -> String {
    let written = spec.labels.get(&written(property));
    let same = |text: &&String| path_of(text).eq_ignore_ascii_case(name_of(to));
    match written.filter(same) {
        Some(text) => text.clone(),
        None => format!("sb://{}/{}", base_url.host, name_of(to)),
    }
}

pub(super) fn write(base_url: &BaseUrl, spec: &QueueSpec, writer: &mut DescriptionWriter<'_>) {
    if let Some(to) = &spec.forward_to {
        writer.text(FORWARD, &link(base_url, spec, FORWARD, to));
    }
    if let Some(to) = dead_letters_to(spec) {
        writer.text(FORWARD_DEAD, &link(base_url, spec, FORWARD_DEAD, &to));
    }
}
