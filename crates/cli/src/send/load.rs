//! Generated messages: the sessions take turns, and each body has its number, so that the order can be checked.

use malote_wire_native::body::BodyContent;
use malote_wire_native::message::NewMessage;

/// The messages of `malote send --generate`: sessions in turn, numbered bodies.
pub(crate) struct GeneratedLoad {
    template: NewMessage,
    /// `None`: messages without sessions.
    sessions: Option<u32>,
    total: u64,
    generated: u64,
    size: Option<u64>,
}

impl GeneratedLoad {
    pub(super) fn new(
        template: NewMessage,
        sessions: Option<u32>,
        per_session: u32,
        count: Option<u64>,
        size: Option<u64>,
    ) -> Self {
        let total = match sessions {
            Some(sessions) => u64::from(sessions) * u64::from(per_session),
            None => count.unwrap_or(1000),
        };
        Self { template, sessions, total, generated: 0, size }
    }

    pub(super) fn total(&self) -> u64 {
        self.total
    }

    pub(super) fn has_sessions(&self) -> bool {
        self.sessions.is_some() || self.template.session.is_some()
    }

    /// The first message of every session, then the second of every session, and so on.
    pub(super) fn next(&mut self) -> Option<NewMessage> {
        if self.generated == self.total {
            return None;
        }
        let at = self.generated;
        self.generated += 1;
        let mut message = self.template.clone();
        let mut text = match self.sessions {
            Some(sessions) => {
                let session = format!("session-{}", at % u64::from(sessions) + 1);
                let text = format!(
                    r#"{{"session":"{session}","number":{}}}"#,
                    at / u64::from(sessions) + 1
                );
                message.session = Some(session);
                text
            }
            None => format!(r#"{{"number":{}}}"#, at + 1),
        };
        if let Some(size) = self.size {
            let fill = (size as usize).saturating_sub(text.len() + r#","fill":"""#.len());
            text.pop();
            text.push_str(&format!(r#","fill":"{}"}}"#, "x".repeat(fill)));
        }
        message.body = Some(BodyContent::text(text));
        message.content_type.get_or_insert_with(|| "application/json".to_owned());
        if let Some(id) = &self.template.id {
            message.id = Some(format!("{id}-{}", at + 1));
        }
        Some(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(mut load: GeneratedLoad) -> Vec<NewMessage> {
        std::iter::from_fn(|| load.next()).collect()
    }

    #[test]
    fn sessions_take_turns_and_count_up() {
        let load = GeneratedLoad::new(NewMessage::default(), Some(2), 2, None, None);
        assert_eq!(load.total(), 4);
        let bodies: Vec<_> =
            all(load).into_iter().map(|m| m.body.unwrap().as_text().unwrap().to_owned()).collect();
        assert_eq!(bodies[0], r#"{"session":"session-1","number":1}"#);
        assert_eq!(bodies[1], r#"{"session":"session-2","number":1}"#);
        assert_eq!(bodies[3], r#"{"session":"session-2","number":2}"#);
    }

    #[test]
    fn a_size_is_met() {
        let load = GeneratedLoad::new(NewMessage::default(), None, 1, Some(1), Some(200));
        let body = all(load).pop().and_then(|m| m.body).unwrap();
        let text = body.as_text().unwrap();
        assert_eq!(text.len(), 200);
        serde_json::from_str::<serde_json::Value>(text).unwrap();
    }
}
