//! How messages are shown.

use malote_wire_native::PropertyMap;
use malote_wire_native::body::BodyContent;
use malote_wire_native::dead_letter::RedriveResult;
use malote_wire_native::message::SentMessage;
use malote_wire_native::queue::RemovedCount;
use malote_wire_native::received::ReceivedMessage;
use serde_json::Value;

use crate::output::{Facts, Format, Output, Row};
use crate::when;

/// A body in a table is cut here. `--raw` and `-o json` write all of it.
const BODY_CHARS_MAX: usize = 60;

/// The flag of commands that write messages.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Raw {
    /// Write only the bodies, each followed by a newline
    #[arg(long, conflicts_with = "output")]
    raw: bool,
}

impl Raw {
    /// Writes a part of a list.
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

    /// Writes a complete list.
    pub(crate) fn list(self, out: &mut Output, messages: &[ReceivedMessage]) -> anyhow::Result<()> {
        if self.raw || out.format() != Format::Json {
            self.more(out, messages)
        } else {
            out.list(messages)
        }
    }
}

/// The body on one line. A binary body that is UTF-8 is shown as text: Service Bus clients send text as bytes.
fn body_line(message: &ReceivedMessage, chars_max: usize) -> String {
    if message.damaged {
        return "(damaged on disk)".to_owned();
    }
    let bytes = message.body_bytes();
    let is_text = message.body.as_ref().and_then(BodyContent::as_text).is_some();
    let text = match std::str::from_utf8(&bytes) {
        Ok(text) if is_text || !text.contains(is_binary) => text,
        _ => return format!("({} of binary)", when::bytes(bytes.len() as u64)),
    };
    let mut shown: String =
        text.chars().take(chars_max).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.chars().nth(chars_max).is_some() {
        shown.push('…');
    }
    shown
}

/// Control characters that do not occur in text.
fn is_binary(c: char) -> bool {
    c.is_control() && !matches!(c, '\n' | '\r' | '\t')
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
            body_line(self, BODY_CHARS_MAX),
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
                facts.push((name, when::format_time(at)));
            }
        }
        if let Some(dead) = &self.dead_letter {
            facts.push(("reason", dead.reason.clone()));
            facts.push(("error", dead.text.clone()));
            facts.push(("dead since", when::format_time(dead.at)));
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
            let value = readable(serde_json::from_str(&value).unwrap_or_default());
            match (name, value) {
                ("malote-history", Value::Array(attempts)) => {
                    facts.extend(attempts.iter().map(|one| ("attempt", attempt(one))));
                }
                (_, value) => facts.push(("property", format!("{name} = {value}"))),
            }
        }
        facts.push(("body", body_line(self, usize::MAX)));
        facts
    }

    fn name(&self) -> String {
        Row::name(self)
    }
}

/// A property without type annotations, and with times that people can read.
fn readable(value: Value) -> Value {
    match value {
        Value::Array(items) => items.into_iter().map(readable).collect(),
        Value::Object(mut fields) => match (fields.get("$type"), fields.get("value")) {
            (Some(kind), Some(Value::Number(ms))) if kind == "timestamp" => ms
                .as_u64()
                .map_or_else(|| Value::from(ms.clone()), |ms| when::format_time(ms).into()),
            (Some(_), Some(_)) => readable(fields.remove("value").unwrap_or_default()),
            _ => fields.into_iter().map(|(name, value)| (name, readable(value))).collect(),
        },
        value => value,
    }
}

/// One entry of the history that a worker writes.
fn attempt(entry: &Value) -> String {
    let text = |name: &str| entry[name].as_str().unwrap_or("-").to_owned();
    format!(
        "{} at {}, {} ms, worker {}: {}",
        entry["attempt"],
        text("at"),
        entry["took_ms"],
        text("worker"),
        text("error")
    )
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
    fn the_history_of_a_message_is_readable() {
        let line = r#"{"seq":1,"receives":1,"failed":1,"properties":{"malote-history":[{"attempt":1,"at":{"$type":"timestamp","value":1700000000123},"took_ms":5,"worker":"w","error":"no"}],"small":{"$type":"i8","value":2}}}"#;
        let message: ReceivedMessage = serde_json::from_str(line).unwrap();
        let facts = Facts::facts(&message);
        let attempt = facts.iter().find(|(name, _)| *name == "attempt").unwrap();
        assert_eq!(attempt.1, "1 at 2023-11-14T22:13:20Z, 5 ms, worker w: no");
        assert!(facts.contains(&("property", "small = 2".to_owned())), "{facts:?}");
    }

    #[test]
    fn a_body_is_one_line_and_ends() {
        let body = |text: &str| ReceivedMessage {
            body: Some(BodyContent::text(text)),
            ..ReceivedMessage::default()
        };
        assert_eq!(body_line(&body("a\nb\tc"), 10), "a b c");
        assert_eq!(body_line(&body("ééééé"), 3), "ééé…");
        let binary =
            ReceivedMessage { body_base64: Some("AP8=".into()), ..ReceivedMessage::default() };
        assert_eq!(
            (body_line(&binary, 10), &binary.body_bytes()[..]),
            ("(2 B of binary)".into(), &[0, 255][..])
        );
        let text =
            ReceivedMessage { body_base64: Some("aGVsbG8=".into()), ..ReceivedMessage::default() };
        assert_eq!(body_line(&text, 10), "hello", "UTF-8 from a Service Bus client");
        assert_eq!(
            body_line(&ReceivedMessage { damaged: true, ..ReceivedMessage::default() }, 5),
            "(damaged on disk)"
        );
    }
}
