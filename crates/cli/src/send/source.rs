//! Sources of messages to send.

use std::io::BufRead;
use std::path::Path;

use anyhow::Context;
use malote_wire_native::message::NewMessage;

use super::load::GeneratedLoad;
use crate::failure::Failure;
use crate::files;

/// A source of messages.
pub(crate) enum MessageSource {
    /// The same message several times.
    Copies {
        message: Box<NewMessage>,
        count: u64,
        given: u64,
    },
    /// One message per line of JSON.
    Lines {
        reader: Box<dyn BufRead + Send>,
        from: String,
        number: u64,
    },
    Generated(Box<GeneratedLoad>),
}

impl MessageSource {
    /// One body, sent `count` times.
    pub(crate) fn body(
        mut message: NewMessage,
        bytes: &[u8],
        count: Option<u64>,
    ) -> anyhow::Result<Self> {
        message.set_body(bytes);
        Ok(Self::Copies { message: Box::new(message), count: count.unwrap_or(1), given: 0 })
    }

    pub(crate) fn lines(path: &Path) -> anyhow::Result<Self> {
        let from = path.display().to_string();
        Ok(Self::Lines { reader: files::lines(path)?, from, number: 0 })
    }

    pub(crate) fn generated(
        message: NewMessage,
        sessions: Option<u32>,
        per_session: u32,
        count: Option<u64>,
        size: Option<u64>,
    ) -> Self {
        Self::Generated(Box::new(GeneratedLoad::new(message, sessions, per_session, count, size)))
    }

    /// The number of messages, if known in advance.
    pub(crate) fn total(&self) -> Option<u64> {
        match self {
            Self::Copies { count, .. } => Some(*count),
            Self::Lines { .. } => None,
            Self::Generated(load) => Some(load.total()),
        }
    }

    /// Whether the messages need a queue with sessions.
    pub(crate) fn has_sessions(&self) -> bool {
        match self {
            Self::Copies { message, .. } => message.session.is_some(),
            Self::Lines { .. } => false,
            Self::Generated(load) => load.has_sessions(),
        }
    }

    /// The next messages; an empty list at the end.
    pub(crate) fn take(&mut self, max: usize) -> anyhow::Result<Vec<NewMessage>> {
        let mut batch = Vec::with_capacity(max.min(4096));
        while batch.len() < max {
            match self.next()? {
                Some(message) => batch.push(message),
                None => break,
            }
        }
        Ok(batch)
    }

    fn next(&mut self) -> anyhow::Result<Option<NewMessage>> {
        match self {
            Self::Copies { count, given, .. } if given == count => Ok(None),
            Self::Copies { message, count, given } => {
                *given += 1;
                let mut copy = (**message).clone();
                if *count > 1 {
                    copy.id = copy.id.map(|id| format!("{id}-{given}"));
                }
                Ok(Some(copy))
            }
            Self::Lines { reader, from, number } => loop {
                let mut line = String::new();
                *number += 1;
                let place = || format!("{from}, line {number}");
                if reader.read_line(&mut line).with_context(place)? == 0 {
                    return Ok(None);
                }
                if line.trim().is_empty() {
                    continue;
                }
                let wrong = |error| {
                    let why = format!("{}: {error}; write {{\"body\": …}} on each line", place());
                    Failure::Usage(why)
                };
                return Ok(Some(NewMessage::from_line(&line).map_err(wrong)?));
            },
            Self::Generated(load) => Ok(load.next()),
        }
    }
}
