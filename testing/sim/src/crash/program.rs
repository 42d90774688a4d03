//! Clients in a separate program, for protocols whose official client library is written in another language.
//!
//! The program prints events as JSON lines, in the order in which they happened. They become part of the history.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::thread::{JoinHandle, spawn};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::clients::Shared;
use super::history::{History, ReceivedMessage};

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
        let (stdin, stdout) = stdin.zip(stdout).context("the program has no stdin or stdout")?;
        let shared = shared.clone();
        let reader = spawn(move || {
            for line in BufReader::new(stdout).lines() {
                let line = line.context("cannot read from the program")?;
                let event: Value =
                    serde_json::from_str(&line).context("the program printed invalid JSON")?;
                record(&mut shared.history(), &event)
                    .with_context(|| format!("unknown event `{line}`"))?;
            }
            Ok(())
        });
        Ok(Program { child, stdin, reader })
    }

    /// Pauses the senders.
    pub(crate) fn pause(&mut self) -> Result<()> {
        self.send_command("pause")
    }

    fn send_command(&mut self, command: &str) -> Result<()> {
        writeln!(self.stdin, "{command}").context("cannot write to the program")
    }

    /// Stops the program and waits until all its events are in the history.
    pub(crate) fn finish(mut self) -> Result<()> {
        self.send_command("stop")?;
        let status = self.child.wait().context("cannot wait for the program")?;
        match self.reader.join() {
            Ok(read) => read?,
            Err(_) => bail!("the thread that reads from the program panicked"),
        }
        if !status.success() {
            bail!("the program failed: {status}");
        }
        Ok(())
    }
}

fn record(history: &mut History, event: &Value) -> Option<()> {
    let number = |name: &str| event[name].as_u64().unwrap_or(0);
    let (holder, now) = (number("holder"), number("now"));
    let ids = || event["ids"].as_array()?.iter().map(Value::as_str).collect::<Option<Vec<&str>>>();
    let messages = || {
        event["messages"]
            .as_array()?
            .iter()
            .map(parse_message)
            .collect::<Option<Vec<ReceivedMessage>>>()
    };
    match event["what"].as_str()? {
        "sending" => {
            for one in messages()? {
                history.sending(&one.id, one.session.as_deref(), one.number);
            }
        }
        "acknowledged" => ids()?.into_iter().for_each(|id| history.acknowledged(id)),
        "received" => {
            let bound = event["bound"].as_bool().unwrap_or(false);
            history.received(holder, bound, number("asked"), now, &messages()?);
        }
        "completing" => {
            for id in ids()? {
                history.completing(id, now);
            }
        }
        "completed" => {
            let yes = event["yes"].as_bool().unwrap_or(false);
            ids()?.into_iter().for_each(|id| history.completed(id, yes, now));
        }
        "released" => history.release_all(holder),
        _ => return None,
    }
    Some(())
}

fn parse_message(event: &Value) -> Option<ReceivedMessage> {
    Some(ReceivedMessage {
        id: event["id"].as_str()?.to_owned(),
        seq: event["seq"].as_u64().unwrap_or(0),
        session: event["session"].as_str().map(str::to_owned),
        // A body that differs from the one sent has no number, and is reported as changed.
        number: event["number"].as_u64().unwrap_or(u64::MAX),
        lease: event["lease"].as_str().unwrap_or_default().to_owned(),
        until: event["until"].as_u64().unwrap_or(0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn event(lines: &[Value]) -> History {
        let mut history = History::default();
        for line in lines {
            record(&mut history, line).expect("a known event");
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
        let history = event(&lines);
        assert!(history.violations.contains_key("two holders"));
        assert!(history.violations.contains_key("out of order"));
    }

    #[test]
    fn leases_of_a_killed_server_are_ignored() {
        let mut lines = two_sent();
        // The first delivery is reported late, after the next server has started.
        lines.extend([received(1, "a", 1, 1), received(2, "a", 1, 2), received(1, "b", 2, 1)]);
        assert!(event(&lines).violations.is_empty());
    }

    #[test]
    fn uncompleted_messages_are_lost() {
        let mut lines = two_sent();
        lines.push(json!({ "what": "completing", "ids": ["a"], "now": 120 }));
        assert_eq!(event(&lines).missing(), ["b"]);
    }

    #[test]
    fn unknown_events_are_refused() {
        assert!(record(&mut History::default(), &json!({ "what": "else" })).is_none());
        assert!(record(&mut History::default(), &json!({ "what": "acknowledged" })).is_none());
    }
}
