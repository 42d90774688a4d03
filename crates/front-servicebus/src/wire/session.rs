//! Session ids: the service has one that is empty, and the rest of the broker has none.

use malote_model::{Refusal, SessionId};

/// Stands for the empty id in the broker, and for other protocols: one that every one of them can carry.
const EMPTY: &str = "\u{2400}";

/// The session that a client means.
pub fn session_of(text: &str) -> Result<SessionId, Refusal> {
    SessionId::new(if text.is_empty() { EMPTY } else { text })
}

/// What clients call a session.
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
    fn the_empty_id_is_one_like_others() {
        for text in ["", "a", " "] {
            assert_eq!(session_text(&session_of(text).unwrap()), text);
        }
        assert_ne!(session_of("").unwrap(), session_of(" ").unwrap());
        assert!(session_of(&"x".repeat(129)).is_err());
    }
}
