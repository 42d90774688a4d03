//! What the server's errors mean to a worker.

use crate::broker::BrokerError;

/// Classes of errors, the first two letters of a code, after which the same may work on another connection or a little
/// later: connections, memory and disk, operators, the system.
const AWAY: [&str; 4] = ["08", "53", "57", "58"];
/// Two transactions stood in each other's way: the server ended one of them.
const CONFLICT: &str = "40";
/// A server that was the primary and is none any more.
const READ_ONLY: &str = "25006";

/// What the server said, and not only that it said something.
pub(super) fn text(error: &tokio_postgres::Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

/// The transaction was undone by the server and may be tried again at once.
pub(super) fn is_conflict(error: &tokio_postgres::Error) -> bool {
    error.code().is_some_and(|code| code.code().starts_with(CONFLICT))
}

/// The connection is of no use any more.
pub(super) fn is_away(error: &tokio_postgres::Error) -> bool {
    error.code().is_none_or(|code| {
        code.code() == READ_ONLY || AWAY.iter().any(|class| code.code().starts_with(class))
    })
}

impl From<tokio_postgres::Error> for BrokerError {
    fn from(error: tokio_postgres::Error) -> Self {
        let text = text(&error);
        match error.code() {
            _ if is_conflict(&error) => Self::Busy { text },
            _ if is_away(&error) => Self::Unreachable { text },
            Some(code) => Self::Refused { code: format!("postgres_{}", code.code()), text },
            None => Self::Unreachable { text },
        }
    }
}

/// A row that is not what this version writes.
pub(super) fn unreadable(what: impl std::fmt::Display) -> BrokerError {
    BrokerError::Refused {
        code: "unreadable".into(),
        text: format!("a row cannot be read: {what}"),
    }
}
