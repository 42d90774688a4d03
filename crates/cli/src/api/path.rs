//! Paths and queries of calls. Names are percent-encoded, so that a slash in the name of a queue stays in the name.

use std::fmt::Display;

use malote_model::{QueueName, SessionId, TopicName};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// All characters except the unreserved ones of RFC 3986 §2.3.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Encodes a text as one part of a path, or as the value of a parameter.
pub(crate) fn encode(text: &str) -> impl Display + '_ {
    utf8_percent_encode(text, RESERVED)
}

/// A path that is built part by part.
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

    pub(super) fn queue(queue: &QueueName) -> Self {
        Self::api().part("queues").part(queue.as_str())
    }

    pub(super) fn topic(topic: &TopicName) -> Self {
        Self::api().part("topics").part(topic.as_str())
    }

    pub(super) fn session(queue: &QueueName, session: &SessionId) -> Self {
        Self::queue(queue).part("sessions").part(session.as_str())
    }

    /// Appends a part.
    pub(super) fn part(mut self, part: &str) -> Self {
        self.text.push_str(&format!("/{}", encode(part)));
        self
    }

    /// Appends a parameter to the query.
    pub(super) fn query(mut self, name: &str, value: impl Display) -> Self {
        let separator = if self.has_query { '&' } else { '?' };
        self.has_query = true;
        self.text.push_str(&format!("{separator}{name}={}", encode(&value.to_string())));
        self
    }

    /// Appends a parameter if it has a value.
    pub(super) fn query_opt(self, name: &str, value: Option<impl Display>) -> Self {
        match value {
            Some(value) => self.query(name, value),
            None => self,
        }
    }

    pub(super) fn as_str(&self) -> &str {
        &self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_part_of_the_path() {
        let queue = QueueName::new("eu/orders é").unwrap();
        let path = Path::queue(&queue).part("messages").query("from", 3).query("session", "a&b");
        assert_eq!(
            path.as_str(),
            "/api/v1/queues/eu%2Forders%20%C3%A9/messages?from=3&session=a%26b"
        );
    }
}
