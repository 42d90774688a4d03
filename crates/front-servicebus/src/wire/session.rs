//! Session ids. The service allows an empty id; the model does not.

use malote_model::{Refusal, SessionId};

/// Stands for the empty id in the broker. Every protocol can carry it.
const EMPTY: &str = "\u{2400}";

/// Parses a session id of a client.
pub fn session_of(text: &str) -> Result<SessionId, Refusal> {
    SessionId::new(if text.is_empty() { EMPTY } else { text })
}

/// The session id for clients.
pub fn session_text(session: &SessionId) -> &str {
    match session.as_str() {
        EMPTY => "",
        text => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_empty_session_id_is_supported() {
        for text in ["", "a", " "] {
            assert_eq!(session_text(&session_of(text).unwrap()), text);
        }
        assert_ne!(session_of("").unwrap(), session_of(" ").unwrap());
        assert!(session_of(&"x".repeat(129)).is_err());
    }
}
