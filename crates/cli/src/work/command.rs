//! A shell command as a handler.

use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::time::Duration;

use anyhow::Context as _;
use malote::model::Value;
use malote::{Meta, Outcome, State};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;

use crate::failure::Failure;

/// As BSD's sysexits name them.
const DATA_ERROR: i32 = 65;
const UNAVAILABLE: i32 = 69;
const TEMPORARY: i32 = 75;
/// Delay of a message that was not tried.
const LATER: Duration = Duration::from_secs(5);
/// How much of standard error is kept in the history of a message.
const ERROR_BYTES_MAX: u64 = 4096;

/// The name of the breaker.
pub(super) const DEPENDENCY: &str = "command";

/// What to run.
pub(super) struct CommandLine(pub String);

/// Refuses a line that the shell cannot parse, and a program that does not exist.
pub(super) fn check(line: &str) -> anyhow::Result<()> {
    let refused = |why: &str| Failure::Usage(format!("--exec {line}: {why}"));
    if line.trim().is_empty() {
        return Err(refused("the command is empty").into());
    }
    let shell =
        |args: &[&str]| std::process::Command::new("sh").args(args).stdin(Stdio::null()).output();
    let parsed = shell(&["-n", "-c", line]).context("cannot run sh")?;
    if !parsed.status.success() {
        let errors = String::from_utf8_lossy(&parsed.stderr);
        return Err(refused(&format!("the shell cannot parse it: {}", errors.trim())).into());
    }
    let Some(program) = program(line) else { return Ok(()) };
    if program.contains('/') {
        let path = std::path::Path::new(program);
        return match path.metadata() {
            Ok(file) if file.is_file() && file.permissions().mode() & 0o111 != 0 => Ok(()),
            Ok(_) => Err(refused(&format!("`{program}` is not an executable file")).into()),
            Err(_) => Err(refused(&format!("`{program}` does not exist")).into()),
        };
    }
    let found = shell(&["-c", "command -v -- \"$1\"", "sh", program]).context("cannot run sh")?;
    match found.status.success() {
        true => Ok(()),
        false => Err(refused(&format!("`{program}` does not exist")).into()),
    }
}

/// The program that a line starts, unless the shell has to compute its name.
fn program(line: &str) -> Option<&str> {
    let is_assignment = |word: &str| {
        word.split_once('=').is_some_and(|(name, _)| {
            !name.is_empty()
                && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        })
    };
    // Quotes may contain spaces: such a line is left to the shell.
    let first = line.split_whitespace().find(|word| !is_assignment(word))?;
    let has_quotes_before =
        line.split(first).next().is_some_and(|start| start.contains(['\'', '"']));
    let word = first.trim_end_matches(';');
    let is_plain =
        !word.is_empty() && !word.contains(|c: char| "$`'\"\\(){}[]*?<>|&;!~#".contains(c));
    (is_plain && !has_quotes_before).then_some(word)
}

pub(super) async fn run(line: State<CommandLine>, meta: Meta) -> Result<Outcome, malote::Failure> {
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
        // As OpenTelemetry passes a trace to a process.
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
            // A command may close its input without reading it.
            let _ = input.write_all(&body).await;
        }
    };
    let read = async move {
        let mut said = Vec::new();
        if let Some(mut errors) = errors {
            let _ = (&mut errors).take(ERROR_BYTES_MAX).read_to_end(&mut said).await;
            // The rest is read and dropped, so that the command does not block.
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
        Some(DATA_ERROR) => Err(malote::Failure::dead("Rejected", said)),
        Some(UNAVAILABLE) => {
            Err(malote::Failure::of_dependency(DEPENDENCY, format_args!("{status}: {said}")))
        }
        _ => Err(malote::Failure::retry(format_args!("{status}: {said}"))),
    }
}

/// A property as a variable: `order-id` is MALOTE_PROPERTY_ORDER_ID. Lists, maps and bytes have none.
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
    fn the_program_of_a_line_is_found_where_it_is_plain() {
        for (line, expected) in [
            ("./missing", Some("./missing")),
            ("cat >> log", Some("cat")),
            ("A=1 B_2=x run --now", Some("run")),
            ("read -r body || true", Some("read")),
            ("exit; true", Some("exit")),
            ("$HANDLER", None),
            ("'my program' x", None),
            ("A='b c' run", None),
            ("{ true; }", None),
        ] {
            assert_eq!(program(line), expected, "{line}");
        }
        for good in
            ["true", "cat >/dev/null; exit 75", "if true; then exit 0; fi", "A='b c' sh -c x"]
        {
            check(good).unwrap();
        }
        assert!(check("./missing arg").unwrap_err().to_string().contains("does not exist"));
        assert!(check("/etc").unwrap_err().to_string().contains("not an executable"));
        assert!(check("echo 'a").unwrap_err().to_string().contains("cannot parse"));
        assert!(check(" ").is_err());
    }

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
