//! Reads messages for the core, which reads no disk: those that a topic must look at before it can route them, and
//! those under so many records that they should be stored anew.

use crate::codec::{Stored, read_whole};
use crate::command::{Command, ToRoute};
use crate::core::{Copied, Relocation, Resident, Whose};
use crate::event::QueueId;
use crate::journal::Segments;
use crate::mailbox::{Mailbox, ToRead};

/// Reads what was asked for and tells the core.
pub(crate) fn bring(what: ToRead, segments: &Segments, mailbox: &Mailbox) {
    mailbox.tell(match what {
        ToRead::Route(topic, items) => route(topic, items, segments),
        ToRead::Rewrite(items) => rewrite(items, segments),
    });
}

/// Topics' messages with what they say.
pub fn route(topic: QueueId, mut items: Vec<ToRoute>, segments: &Segments) -> Command {
    for item in &mut items {
        match Stored::read_now(segments, item.pos) {
            Ok(stored) => item.message = Some(Box::new(stored.message)),
            Err(error) => {
                let pos = item.pos;
                tracing::error!(%pos, %error, "a message cannot be read, and so not be routed");
            }
        }
    }
    Command::Route { topic, items }
}

/// Whole copies. One that cannot be read stays what it is.
pub fn rewrite(items: Vec<Resident>, segments: &Segments) -> Command {
    let copy = |Resident { at: from, of }: Resident| {
        let Whose::Message(message) = of else { return None };
        let mut kept = read_whole(&mut segments.reading(false), from).ok()?;
        kept.places.push(message);
        Some(Relocation { from, copy: Copied::Message(Box::new(kept)) })
    };
    Command::Relocate { items: items.into_iter().filter_map(copy).collect() }
}
