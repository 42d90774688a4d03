//! How messages are shown.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use crate::api::words::{Received, Redriven, Removed, SentOne};
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
    pub(crate) fn more(self, out: &mut Output, messages: &[Received]) -> anyhow::Result<()> {
        if !self.raw {
            return out.more(messages);
        }
        for message in messages {
            out.bytes(&message.bytes())?;
            out.bytes(b"\n")?;
        }
        Ok(())
    }

    /// Writes a complete list.
    pub(crate) fn list(self, out: &mut Output, messages: &[Received]) -> anyhow::Result<()> {
        if self.raw || out.format() != Format::Json {
            self.more(out, messages)
        } else {
            out.list(messages)
        }
    }
}

impl Received {
    pub(crate) fn bytes(&self) -> Cow<'_, [u8]> {
        match (&self.body, &self.body_base64) {
            (Some(text), _) => Cow::Borrowed(text.as_bytes()),
            (None, Some(text)) => Cow::Owned(STANDARD.decode(text).unwrap_or_default()),
            (None, None) => Cow::Borrowed(&[]),
        }
    }

    /// The body on one line. A binary body that is UTF-8 is shown as text: Service Bus clients send text as bytes.
    fn body_line(&self, chars_max: usize) -> String {
        if self.damaged {
            return "(damaged on disk)".to_owned();
        }
        let bytes = self.bytes();
        let text = match std::str::from_utf8(&bytes) {
            Ok(text) if self.body.is_some() || !text.contains(is_binary) => text,
            _ => return format!("({} of binary)", when::bytes(bytes.len() as u64)),
        };
        let mut shown: String =
            text.chars().take(chars_max).map(|c| if c.is_control() { ' ' } else { c }).collect();
        if text.chars().nth(chars_max).is_some() {
            shown.push('…');
        }
        shown
    }
}

/// Control characters that do not occur in text.
fn is_binary(c: char) -> bool {
    c.is_control() && !matches!(c, '\n' | '\r' | '\t')
}

fn or_dash(text: &Option<String>) -> String {
    text.clone().unwrap_or_else(|| "-".to_owned())
}

impl Row for Received {
    const HEAD: &'static [&'static str] = &["SEQ", "ID", "SESSION", "STATE", "FAILED", "BODY"];

    fn row(&self) -> Vec<String> {
        let state = match (&self.state, &self.lease) {
            (Some(state), _) => state.clone(),
            (None, Some(_)) => "leased".to_owned(),
            (None, None) => "-".to_owned(),
        };
        vec![
            self.seq.to_string(),
            or_dash(&self.id),
            or_dash(&self.session),
            state,
            self.failed.to_string(),
            self.body_line(BODY_CHARS_MAX),
        ]
    }

    fn name(&self) -> String {
        self.id.clone().unwrap_or_else(|| self.seq.to_string())
    }
}

impl Facts for Received {
    fn facts(&self) -> Vec<(&'static str, String)> {
        let mut facts = vec![("seq", self.seq.to_string())];
        let texts = [
            ("id", &self.id),
            ("session", &self.session),
            ("state", &self.state),
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
        for (name, value) in self.properties.iter().flat_map(|properties| &properties.0) {
            let value = readable(serde_json::from_str(value.get()).unwrap_or_default());
            match (name.as_str(), value) {
                ("malote-history", Value::Array(attempts)) => {
                    facts.extend(attempts.iter().map(|one| ("attempt", attempt(one))));
                }
                (_, value) => facts.push(("property", format!("{name} = {value}"))),
            }
        }
        facts.push(("body", self.body_line(usize::MAX)));
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
            (Some(kind), Some(Value::Number(ms))) if kind == "timestamp" => {
                ms.as_u64().map_or_else(|| Value::from(ms.clone()), |ms| when::shown(ms).into())
            }
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

impl Row for SentOne {
    const HEAD: &'static [&'static str] = &["SEQ", "ID"];

    fn row(&self) -> Vec<String> {
        vec![self.seq.to_string(), self.id.clone()]
    }

    fn name(&self) -> String {
        self.id.clone()
    }
}

impl Facts for SentOne {
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

impl Facts for Removed {
    fn facts(&self) -> Vec<(&'static str, String)> {
        vec![("removed", self.removed.to_string())]
    }

    fn name(&self) -> String {
        self.removed.to_string()
    }
}

impl Facts for Redriven {
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
        let message: Received = serde_json::from_str(line).unwrap();
        let facts = Facts::facts(&message);
        let attempt = facts.iter().find(|(name, _)| *name == "attempt").unwrap();
        assert_eq!(attempt.1, "1 at 2023-11-14T22:13:20Z, 5 ms, worker w: no");
        assert!(facts.contains(&("property", "small = 2".to_owned())), "{facts:?}");
    }

    #[test]
    fn a_body_is_one_line_and_ends() {
        let body = |text: &str| Received { body: Some(text.into()), ..Received::default() };
        assert_eq!(body("a\nb\tc").body_line(10), "a b c");
        assert_eq!(body("ééééé").body_line(3), "ééé…");
        let binary = Received { body_base64: Some("AP8=".into()), ..Received::default() };
        assert_eq!(
            (binary.body_line(10), &binary.bytes()[..]),
            ("(2 B of binary)".into(), &[0, 255][..])
        );
        let text = Received { body_base64: Some("aGVsbG8=".into()), ..Received::default() };
        assert_eq!(text.body_line(10), "hello", "UTF-8 from a Service Bus client");
        assert_eq!(
            Received { damaged: true, ..Received::default() }.body_line(5),
            "(damaged on disk)"
        );
    }
}
