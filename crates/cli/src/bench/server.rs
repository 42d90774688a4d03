//! A server of this binary as a process of its own, so that its processor time is told apart from the client's.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};

/// A running server; dropping it ends it.
pub(crate) struct Server {
    child: Child,
    /// Where each part listens, by the word it is announced with.
    at: Vec<(String, String)>,
    /// Kept open: a server that writes to a closed pipe is told so.
    _said: BufReader<ChildStdout>,
}

impl Server {
    /// Starts one with these settings on ports that the system chooses; waits for the parts of these names.
    pub(crate) fn start(data: &Path, args: &[&str], parts: &[&str]) -> anyhow::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("serve").arg("--data").arg(data).args(["--log", "error"]).args(args);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let out = child.stdout.take().context("the server has no output")?;
        let mut server = Self { child, at: Vec::new(), _said: BufReader::new(out) };
        let mut line = String::new();
        while server.at.len() < parts.len() {
            line.clear();
            if server._said.read_line(&mut line)? == 0 {
                bail!("the server ended before it was ready");
            }
            let found = parts.iter().find_map(|part| {
                let at = line.trim_start().strip_prefix(part)?.split_whitespace().next()?;
                Some(((*part).to_owned(), at.trim_start_matches("http://").to_owned()))
            });
            server.at.extend(found);
        }
        Ok(server)
    }

    /// Host and port of a part, with the path that follows them if one was announced.
    pub(crate) fn at(&self, part: &str) -> anyhow::Result<&str> {
        let found = self.at.iter().find(|(name, _)| name == part);
        Ok(&found.with_context(|| format!("the server has no {part}"))?.1)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Processor time that a process has used so far, in the kernel's ticks of a hundredth of a second.
#[allow(clippy::disallowed_methods)] // what the system tells of a process
pub(crate) fn cpu_of(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name, which may hold anything, ends with the last parenthesis; user and system time are 12 words on.
    let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks = |n| rest.split_whitespace().nth(n).and_then(|word| word.parse::<u64>().ok());
    Duration::from_millis((ticks(11).unwrap_or(0) + ticks(12).unwrap_or(0)) * 10)
}
