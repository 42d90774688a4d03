//! Prints failures to standard error in programs without a `tracing` subscriber.
//!
//! Without a subscriber, `tracing` events are lost, and a worker whose handler fails would look idle.

use std::fmt::Display;
use std::io::Write;

use crate::incoming::Incoming;

/// Prints a line unless the program has a `tracing` subscriber, which has received the event.
pub(crate) fn print(line: impl Display) {
    if !tracing::dispatcher::has_been_set() {
        // A closed standard error must not stop a worker.
        let _ = writeln!(std::io::stderr(), "malote: {line}");
    }
}

/// Prints what happened to a message, and the message's queue, id, sequence number, session and attempt.
pub(crate) fn print_about(incoming: &Incoming, what: impl Display) {
    let message = incoming.message();
    let id = message.message_id.as_deref().unwrap_or("-");
    let session = message.session.as_ref().map_or("-", |session| session.as_str());
    print(format_args!(
        "{what} (queue {}, message {id}, sequence {}, session {session}, attempt {})",
        incoming.queue(),
        incoming.delivery.seq.0,
        incoming.attempt(),
    ));
}
