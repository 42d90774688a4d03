//! The path and query of a call; names are percent-encoded, so that a slash in a queue's name stays one name.

use std::fmt::{Display, Write};

use malote_model::{QueueName, SessionId, TopicName};

/// A path that grows part by part.
#[derive(Clone, Debug)]
pub(super) struct Path {
    text: String,
    has_query: bool,
}

impl Path {
    /// The root of the server.
    pub(super) fn root() -> Self {
        Self { text: String::new(), has_query: false }
    }

    /// The root of the API.
    pub(super) fn api() -> Self {
        Self { text: "/api/v1".to_owned(), has_query: false }
    }

    /// One queue.
    pub(super) fn queue(queue: &QueueName) -> Self {
        Self::api().part("queues").part(queue.as_str())
    }

    /// One topic.
    pub(super) fn topic(topic: &TopicName) -> Self {
        Self::api().part("topics").part(topic.as_str())
    }

    /// One session.
    pub(super) fn session(queue: &QueueName, session: &SessionId) -> Self {
        Self::queue(queue).part("sessions").part(session.as_str())
    }

    /// One part deeper.
    pub(super) fn part(mut self, part: &str) -> Self {
        self.text.push('/');
        self.encode(part);
        self
    }

    /// With a parameter.
    pub(super) fn query(mut self, name: &str, value: impl Display) -> Self {
        self.text.push(if self.has_query { '&' } else { '?' });
        self.has_query = true;
        self.text.push_str(name);
        self.text.push('=');
        self.encode(&value.to_string());
        self
    }

    /// With a parameter, if there is one.
    pub(super) fn query_opt(self, name: &str, value: Option<impl Display>) -> Self {
        match value {
            Some(value) => self.query(name, value),
            None => self,
        }
    }

    /// As it stands in a request.
    pub(super) fn as_str(&self) -> &str {
        &self.text
    }

    /// Everything but what RFC 3986 §2.3 calls unreserved.
    fn encode(&mut self, text: &str) {
        for byte in text.bytes() {
            match byte {
                b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                    self.text.push(char::from(byte));
                }
                _ => write!(self.text, "%{byte:02X}").expect("a String takes everything"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_one_part_whatever_is_in_them() {
        let queue = QueueName::new("eu/orders é").unwrap();
        let path = Path::queue(&queue).part("messages").query("from", 3).query("session", "a&b");
        assert_eq!(
            path.as_str(),
            "/api/v1/queues/eu%2Forders%20%C3%A9/messages?from=3&session=a%26b"
        );
    }
}
