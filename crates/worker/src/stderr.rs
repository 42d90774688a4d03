//! Failures on standard error, in programs that set up no `tracing` subscriber.
//!
//! Without a subscriber, `tracing` events go nowhere, and a worker whose handler fails would look idle.

use std::fmt::Display;
use std::io::Write;

use crate::incoming::Incoming;

/// Prints a line unless the program has a `tracing` subscriber, which got the event already.
pub(crate) fn print(line: impl Display) {
    if !tracing::dispatcher::has_been_set() {
        // A closed standard error must not stop a worker.
        let _ = writeln!(std::io::stderr(), "malote: {line}");
    }
}

/// Prints what happened to a message, with all that is needed to find it.
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
