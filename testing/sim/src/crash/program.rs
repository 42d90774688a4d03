//! Clients in a program of their own: those of a protocol whose official client is written in another language.
//!
//! It tells what happens as lines of JSON, in the order in which it happened; they become part of the history.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::thread::{JoinHandle, spawn};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::clients::Shared;
use super::history::{Got, History};

/// A running program.
pub(crate) struct Program {
    child: Child,
    stdin: ChildStdin,
    reader: JoinHandle<Result<()>>,
}

impl Program {
    pub(crate) fn start(path: &Path, amqp: SocketAddr, shared: &Arc<Shared>) -> Result<Program> {
        let mut child = Command::new(path)
            .env("MALOTE_AMQP_AT", format!("localhost:{}", amqp.port()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {}", path.display()))?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let (stdin, stdout) = stdin.zip(stdout).context("the program has no pipes")?;
        let shared = shared.clone();
        let reader = spawn(move || {
            for line in BufReader::new(stdout).lines() {
                let line = line.context("the program cannot be read")?;
                let told: Value = serde_json::from_str(&line).context("the program speaks JSON")?;
                note(&mut shared.history(), &told)
                    .with_context(|| format!("`{line}` is not understood"))?;
            }
            Ok(())
        });
        Ok(Program { child, stdin, reader })
    }

    /// Senders pause.
    pub(crate) fn quiet(&mut self) -> Result<()> {
        self.say("quiet")
    }

    fn say(&mut self, word: &str) -> Result<()> {
        writeln!(self.stdin, "{word}").context("the program does not listen")
    }

    /// It stops, and everything that it told is part of the history.
    pub(crate) fn finish(mut self) -> Result<()> {
        self.say("done")?;
        let status = self.child.wait().context("the program does not end")?;
        match self.reader.join() {
            Ok(read) => read?,
            Err(_) => bail!("the reader of the program panicked"),
        }
        if !status.success() {
            bail!("the program failed: {status}");
        }
        Ok(())
    }
}

fn note(history: &mut History, told: &Value) -> Option<()> {
    let number = |name: &str| told[name].as_u64().unwrap_or(0);
    let (holder, now) = (number("holder"), number("now"));
    let ids = || told["ids"].as_array()?.iter().map(Value::as_str).collect::<Option<Vec<&str>>>();
    let messages = || told["messages"].as_array()?.iter().map(got).collect::<Option<Vec<Got>>>();
    match told["what"].as_str()? {
        "sending" => {
            for one in messages()? {
                history.sending(&one.id, one.session.as_deref(), one.number);
            }
        }
        "acknowledged" => ids()?.into_iter().for_each(|id| history.acknowledged(id)),
        "received" => {
            let bound = told["bound"].as_bool().unwrap_or(false);
            history.received(holder, bound, number("asked"), now, &messages()?);
        }
        "completing" => {
            for id in ids()? {
                history.completing(id, now);
            }
        }
        "completed" => {
            let yes = told["yes"].as_bool().unwrap_or(false);
            ids()?.into_iter().for_each(|id| history.completed(id, yes, now));
        }
        "released" => history.release(holder),
        _ => return None,
    }
    Some(())
}

fn got(told: &Value) -> Option<Got> {
    Some(Got {
        id: told["id"].as_str()?.to_owned(),
        seq: told["seq"].as_u64().unwrap_or(0),
        session: told["session"].as_str().map(str::to_owned),
        // A body that was not what was sent has none: it is told as changed.
        number: told["number"].as_u64().unwrap_or(u64::MAX),
        lease: told["lease"].as_str().unwrap_or_default().to_owned(),
        until: told["until"].as_u64().unwrap_or(0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn told(lines: &[Value]) -> History {
        let mut history = History::default();
        for line in lines {
            note(&mut history, line).expect("a line that is understood");
        }
        history
    }

    fn received(holder: u64, id: &str, number: u64, epoch: u32) -> Value {
        let lease = format!("{epoch:08x}{:024x}", 7);
        let one = json!({ "id": id, "session": "s", "number": number, "seq": number, "lease": lease, "until": 5000 });
        json!({ "what": "received", "holder": holder, "bound": true, "asked": 50, "now": 100, "messages": [one] })
    }

    fn two_sent() -> Vec<Value> {
        let one = |id: &str, number: u64| json!({ "id": id, "session": "s", "number": number });
        vec![
            json!({ "what": "sending", "messages": [one("a", 1), one("b", 2)] }),
            json!({ "what": "acknowledged", "ids": ["a", "b"] }),
        ]
    }

    #[test]
    fn two_holders_of_one_start_are_found() {
        let mut lines = two_sent();
        lines.extend([received(1, "a", 1, 1), received(2, "b", 2, 1)]);
        let history = told(&lines);
        assert!(history.violations.contains_key("two holders"));
        assert!(history.violations.contains_key("out of order"));
    }

    #[test]
    fn what_a_dead_server_said_is_no_hold() {
        let mut lines = two_sent();
        // The first is told late, by a server that is no more, after the next one has begun.
        lines.extend([received(1, "a", 1, 1), received(2, "a", 1, 2), received(1, "b", 2, 1)]);
        assert!(told(&lines).violations.is_empty());
    }

    #[test]
    fn what_nobody_completes_is_lost() {
        let mut lines = two_sent();
        lines.push(json!({ "what": "completing", "ids": ["a"], "now": 120 }));
        assert_eq!(told(&lines).missing(), ["b"]);
    }

    #[test]
    fn what_is_not_understood_is_told() {
        assert!(note(&mut History::default(), &json!({ "what": "else" })).is_none());
        assert!(note(&mut History::default(), &json!({ "what": "acknowledged" })).is_none());
    }
}
