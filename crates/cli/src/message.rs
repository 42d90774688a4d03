//! How messages are shown, wherever they come from.

use malote_wire_native::PropertyMap;
use malote_wire_native::body::BodyContent;
use malote_wire_native::dead_letter::RedriveResult;
use malote_wire_native::message::{ReceivedMessage, SentMessage};
use malote_wire_native::queue::RemovedCount;

use crate::output::{Facts, Format, Output, Row};
use crate::when;

/// A body in a table ends here; `--raw` and `-o json` have all of it.
const BODY_CHARS_MAX: usize = 60;

/// The flag of everything that writes messages.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Raw {
    /// Write only the bodies, each with a newline after it
    #[arg(long, conflicts_with = "output")]
    raw: bool,
}

impl Raw {
    /// Writes some messages of a list that goes on.
    pub(crate) fn more(self, out: &mut Output, messages: &[ReceivedMessage]) -> anyhow::Result<()> {
        if !self.raw {
            return out.more(messages);
        }
        for message in messages {
            out.bytes(&message.body_bytes())?;
            out.bytes(b"\n")?;
        }
        Ok(())
    }

    /// Writes a whole list.
    pub(crate) fn list(self, out: &mut Output, messages: &[ReceivedMessage]) -> anyhow::Result<()> {
        if self.raw || out.format() != Format::Json {
            self.more(out, messages)
        } else {
            out.list(messages)
        }
    }
}

/// The body on one line.
fn shown_body(message: &ReceivedMessage, chars_max: usize) -> String {
    if message.damaged {
        return "(damaged on disk)".to_owned();
    }
    let Some(text) = message.body.as_ref().and_then(BodyContent::as_text) else {
        return format!("({} of binary)", when::bytes(message.body_bytes().len() as u64));
    };
    let mut shown: String =
        text.chars().take(chars_max).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.chars().nth(chars_max).is_some() {
        shown.push('…');
    }
    shown
}

fn or_dash(text: &Option<String>) -> String {
    text.clone().unwrap_or_else(|| "-".to_owned())
}

impl Row for ReceivedMessage {
    const HEAD: &'static [&'static str] = &["SEQ", "ID", "SESSION", "STATE", "FAILED", "BODY"];

    fn row(&self) -> Vec<String> {
        let state = match (&self.state, &self.lease) {
            (Some(state), _) => state.to_string(),
            (None, Some(_)) => "leased".to_owned(),
            (None, None) => "-".to_owned(),
        };
        vec![
            self.seq.to_string(),
            or_dash(&self.id),
            or_dash(&self.session),
            state,
            self.failed.to_string(),
            shown_body(self, BODY_CHARS_MAX),
        ]
    }

    fn name(&self) -> String {
        self.id.clone().unwrap_or_else(|| self.seq.to_string())
    }
}

impl Facts for ReceivedMessage {
    fn facts(&self) -> Vec<(&'static str, String)> {
        let mut facts = vec![("seq", self.seq.to_string())];
        let texts = [
            ("id", &self.id),
            ("session", &self.session),
            ("key", &self.key),
            ("subject", &self.subject),
            ("to", &self.to),
            ("reply to", &self.reply_to),
            ("correlation id", &self.correlation_id),
            ("content type", &self.content_type),
            ("lease", &self.lease),
        ];
        for (name, text) in texts {
            if let Some(text) = text {
                facts.push((name, text.clone()));
            }
            if name == "session"
                && let Some(state) = &self.state
            {
                facts.push(("state", state.to_string()));
            }
        }
        let times = [("sent", self.enqueued_at), ("due", self.due), ("lease ends", self.until)];
        for (name, at) in times {
            if let Some(at) = at {
                facts.push((name, when::shown(at)));
            }
        }
        if let Some(dead) = &self.dead_letter {
            facts.push(("reason", dead.reason.clone()));
            facts.push(("error", dead.text.clone()));
            facts.push(("dead since", when::shown(dead.at)));
            facts.push(("came from", format!("{} as {}", dead.from, dead.from_seq)));
            facts
                .push(("attempts", format!("{} delivered, {} failed", dead.receives, dead.failed)));
        } else {
            facts
                .push(("attempts", format!("{} delivered, {} failed", self.receives, self.failed)));
        }
        for death in &self.deaths {
            let times = when::count(death.count.into(), "time");
            facts.push(("died", format!("{} in {}, {times}", death.reason, death.from)));
        }
        for (name, value) in self.properties.iter().flat_map(PropertyMap::json_texts) {
            facts.push(("property", format!("{name} = {value}")));
        }
        facts.push(("body", shown_body(self, usize::MAX)));
        facts
    }

    fn name(&self) -> String {
        Row::name(self)
    }
}

impl Row for SentMessage {
    const HEAD: &'static [&'static str] = &["SEQ", "ID"];

    fn row(&self) -> Vec<String> {
        vec![self.seq.to_string(), self.id.clone()]
    }

    fn name(&self) -> String {
        self.id.clone()
    }
}

impl Facts for SentMessage {
    fn facts(&self) -> Vec<(&'static str, String)> {
        let mut facts = vec![("seq", self.seq.to_string()), ("id", self.id.clone())];
        if let Some(copies) = self.copies {
            facts.push(("copies", copies.to_string()));
        }
        facts
    }

    fn name(&self) -> String {
        self.id.clone()
    }
}

impl Facts for RemovedCount {
    fn facts(&self) -> Vec<(&'static str, String)> {
        vec![("removed", self.removed.to_string())]
    }

    fn name(&self) -> String {
        self.removed.to_string()
    }
}

impl Facts for RedriveResult {
    fn facts(&self) -> Vec<(&'static str, String)> {
        vec![("moved", self.moved.to_string()), ("left", self.left.to_string())]
    }

    fn name(&self) -> String {
        self.moved.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_one_line_and_ends() {
        let body = |text: &str| ReceivedMessage {
            body: Some(BodyContent::text(text)),
            ..ReceivedMessage::default()
        };
        assert_eq!(shown_body(&body("a\nb\tc"), 10), "a b c");
        assert_eq!(shown_body(&body("ééééé"), 3), "ééé…");
        let binary =
            ReceivedMessage { body_base64: Some("AP8=".into()), ..ReceivedMessage::default() };
        assert_eq!(
            (shown_body(&binary, 10), &binary.body_bytes()[..]),
            ("(2 B of binary)".into(), &[0, 255][..])
        );
        assert_eq!(
            shown_body(&ReceivedMessage { damaged: true, ..ReceivedMessage::default() }, 5),
            "(damaged on disk)"
        );
    }
}
