//! Maps errors of the server to broker errors.

use crate::broker::BrokerError;

/// Error classes (the first two characters of a code) after which a retry may succeed on another connection or later:
/// connection errors, resources, operator intervention, system errors.
const AWAY: [&str; 4] = ["08", "53", "57", "58"];
/// The class of serialization failures and deadlocks.
const CONFLICT: &str = "40";
/// The server is a standby, for example after a failover.
const READ_ONLY: &str = "25006";

/// The error with all its causes.
pub(super) fn text(error: &tokio_postgres::Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

/// Whether the server rolled back the transaction because of a conflict. It can be repeated at once.
pub(super) fn is_conflict(error: &tokio_postgres::Error) -> bool {
    error.code().is_some_and(|code| code.code().starts_with(CONFLICT))
}

/// Whether the connection must not be used any more.
pub(super) fn is_disconnect(error: &tokio_postgres::Error) -> bool {
    error.code().is_none_or(|code| {
        code.code() == READ_ONLY || AWAY.iter().any(|class| code.code().starts_with(class))
    })
}

impl From<tokio_postgres::Error> for BrokerError {
    fn from(error: tokio_postgres::Error) -> Self {
        let text = text(&error);
        match error.code() {
            _ if is_conflict(&error) => Self::Busy { text },
            _ if is_disconnect(&error) => Self::Unreachable { text },
            Some(code) => Self::Refused { code: format!("postgres_{}", code.code()), text },
            None => Self::Unreachable { text },
        }
    }
}

/// The error for a row that this version cannot read.
pub(super) fn unreadable(what: impl std::fmt::Display) -> BrokerError {
    BrokerError::Refused {
        code: "unreadable".into(),
        text: format!("a row of the schema `malote` cannot be read: {what}"),
    }
}
