//! Reads messages for the core, which does no I/O itself: messages that a topic has to route, and messages with a long
//! chain of overlays that should be stored again.

use crate::codec::{Stored, read_whole};
use crate::command::{Command, InboxItem};
use crate::core::{LiveRecord, RecordCopy, RecordOwner, Relocation};
use crate::event::QueueId;
use crate::journal::Segments;
use crate::mailbox::Mailbox;
use crate::replies::ReadRequest;

/// Reads the messages and sends them to the core.
pub(crate) fn serve(what: ReadRequest, segments: &Segments, mailbox: &Mailbox) {
    mailbox.post(match what {
        ReadRequest::Route(topic, items) => route(topic, items, segments),
        ReadRequest::Rewrite(items) => rewrite(items, segments),
    });
}

/// Reads messages of a topic's inbox.
pub fn route(topic: QueueId, mut items: Vec<InboxItem>, segments: &Segments) -> Command {
    for item in &mut items {
        match Stored::read_now(segments, item.pos) {
            Ok(stored) => item.message = Some(Box::new(stored.message)),
            Err(error) => {
                let pos = item.pos;
                tracing::error!(%pos, %error, "a message cannot be read and is not routed");
            }
        }
    }
    Command::Route { topic, items }
}

/// Reads complete copies of messages. Unreadable ones are left as they are.
pub fn rewrite(items: Vec<LiveRecord>, segments: &Segments) -> Command {
    let copy = |LiveRecord { at: from, of }: LiveRecord| {
        let RecordOwner::Message(message) = of else { return None };
        let mut kept = read_whole(&mut segments.reading(false), from).ok()?;
        kept.places.push(message);
        Some(Relocation { from, copy: RecordCopy::Message(Box::new(kept)) })
    };
    Command::Relocate { items: items.into_iter().filter_map(copy).collect() }
}
