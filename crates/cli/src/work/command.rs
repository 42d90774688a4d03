//! A shell command as a handler.

use std::process::Stdio;
use std::time::Duration;

use malote::model::Value;
use malote::{Failure, Meta, Outcome, State};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;

/// As BSD's sysexits name them.
const DATA_ERROR: i32 = 65;
const UNAVAILABLE: i32 = 69;
const TEMPORARY: i32 = 75;
/// When a message that was not tried comes again.
const LATER: Duration = Duration::from_secs(5);
/// As much of what a command says on standard error as a message's history keeps.
const ERROR_BYTES_MAX: u64 = 4096;

/// What a breaker calls that which a command needs.
pub(super) const DEPENDENCY: &str = "command";

/// What to run.
pub(super) struct Line(pub String);

pub(super) async fn run(line: State<Line>, meta: Meta) -> Result<Outcome, Failure> {
    let message = meta.message();
    let mut command = Command::new("sh");
    command.args(["-c", &line.0]).stdin(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let texts = [
        ("MALOTE_MESSAGE_ID", message.message_id.as_deref()),
        ("MALOTE_SESSION", message.session.as_ref().map(|session| session.as_str())),
        ("MALOTE_SUBJECT", message.subject.as_deref()),
        ("MALOTE_CORRELATION_ID", message.correlation_id.as_deref()),
        ("MALOTE_CONTENT_TYPE", message.content_type.as_deref()),
        ("MALOTE_REPLY_TO", message.reply_to.as_deref()),
        // As OpenTelemetry hands a trace on to a process.
        ("TRACEPARENT", meta.traceparent()),
        ("TRACESTATE", meta.tracestate()),
    ];
    for (name, text) in texts {
        if let Some(text) = text.filter(|text| !text.contains('\0')) {
            command.env(name, text);
        }
    }
    command.env("MALOTE_ATTEMPT", meta.attempt().to_string());
    command.env("MALOTE_SEQ", meta.delivery().seq.0.to_string());
    for (name, value) in message.properties.iter() {
        if let Some((name, text)) = variable(name, value) {
            command.env(name, text);
        }
    }
    let mut child = command.spawn()?;
    let (input, errors) = (child.stdin.take(), child.stderr.take());
    let body = message.body.bytes.clone();
    let write = async move {
        if let Some(mut input) = input {
            // A command that does not read its input closes it: that is its right.
            let _ = input.write_all(&body).await;
        }
    };
    let read = async move {
        let mut said = Vec::new();
        if let Some(mut errors) = errors {
            let _ = (&mut errors).take(ERROR_BYTES_MAX).read_to_end(&mut said).await;
            // The rest is read and dropped, or the command would wait for ever.
            let _ = tokio::io::copy(&mut errors, &mut tokio::io::sink()).await;
        }
        said
    };
    let (status, (), said) = tokio::join!(child.wait(), write, read);
    let status = status?;
    let said = String::from_utf8_lossy(&said);
    let said = said.trim();
    match status.code() {
        Some(0) => Ok(Outcome::Done),
        Some(TEMPORARY) => Ok(Outcome::Snooze(LATER)),
        Some(DATA_ERROR) => Err(Failure::dead("Rejected", said)),
        Some(UNAVAILABLE) => {
            Err(Failure::of_dependency(DEPENDENCY, format_args!("{status}: {said}")))
        }
        _ => Err(Failure::retry(format_args!("{status}: {said}"))),
    }
}

/// A property as a variable: `order-id` is MALOTE_PROPERTY_ORDER_ID. Lists, maps and bytes are left out.
fn variable(name: &str, value: &Value) -> Option<(String, String)> {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Bool(value) => value.to_string(),
        Value::Time(ms) => ms.to_string(),
        value => match (value.as_int(), value.as_float()) {
            (Some(number), _) => number.to_string(),
            (None, Some(number)) => number.to_string(),
            (None, None) => return None,
        },
    };
    let upper = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' };
    let name: String = name.chars().map(upper).collect();
    (!text.contains('\0')).then(|| (format!("MALOTE_PROPERTY_{name}"), text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn properties_become_variables() {
        let text = Value::String("web".into());
        let named = |name: &str| Some((name.to_owned(), "web".to_owned()));
        assert_eq!(variable("from", &text), named("MALOTE_PROPERTY_FROM"));
        assert_eq!(variable("order-id.x", &text), named("MALOTE_PROPERTY_ORDER_ID_X"));
        assert_eq!(variable("n", &Value::I8(-1)).unwrap().1, "-1");
        assert_eq!(variable("n", &Value::List(vec![])), None);
        assert_eq!(variable("n", &Value::String("a\0b".into())), None);
    }
}
