//! The built binary, a server of it on a free port, and what a shell would see.
#![allow(dead_code, missing_docs)] // each test file uses its own part

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use tempfile::TempDir;

/// The command with nothing of ours in its environment.
pub fn malote(home: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_malote"));
    command.env_clear().env("HOME", home).env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command.stdin(Stdio::null());
    command
}

/// What came of a command.
pub struct Said {
    pub out: String,
    pub err: String,
    pub code: i32,
}

impl From<Output> for Said {
    fn from(output: Output) -> Self {
        Self {
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
            code: output.status.code().unwrap_or(-1),
        }
    }
}

impl std::fmt::Display for Said {
    /// The whole of it, for expected text.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.out)?;
        if !self.err.is_empty() {
            write!(f, "--- stderr\n{}", self.err)?;
        }
        if self.code != 0 {
            writeln!(f, "--- exit {}", self.code)?;
        }
        Ok(())
    }
}

/// A server with a directory of its own. Dropping it kills it.
pub struct Server {
    child: Child,
    pub url: String,
    pub home: TempDir,
    /// Kept open: a server that writes to a closed pipe is told so.
    _stdout: Option<BufReader<std::process::ChildStdout>>,
}

impl Server {
    pub fn start() -> Self {
        Self::start_with(tempfile::tempdir().unwrap(), &[])
    }

    /// On a free port; the port is in what it says when it is ready.
    pub fn start_with(home: TempDir, args: &[&str]) -> Self {
        let mut command = malote(home.path());
        command
            .args([
                "serve",
                "--http",
                "127.0.0.1:0",
                "--sqs",
                "off",
                "--amqp",
                "127.0.0.1:0",
                "--servicebus-admin",
                "127.0.0.1:0",
            ])
            .arg("--data")
            .arg(home.path().join("data"));
        command.args(args).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let url = loop {
            let mut line = String::new();
            assert!(
                stdout.read_line(&mut line).unwrap() > 0,
                "the server ended before it was ready"
            );
            if let Some((_, rest)) = line.split_once("HTTP API") {
                break rest.trim().split("/api/").next().unwrap().to_owned();
            }
        };
        Self { child, url, home, _stdout: Some(stdout) }
    }

    /// Runs a command against it; words are separated by spaces, quotes keep them together.
    pub fn run(&self, line: &str) -> Said {
        self.run_with(line, "")
    }

    pub fn run_with(&self, line: &str, stdin: &str) -> Said {
        let mut command = malote(self.home.path());
        command.args(words(line)).env("MALOTE_URL", &self.url);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // A command that does not read closes the pipe: that is its right.
        let _ = child.stdin.take().unwrap().write_all(stdin.as_bytes());
        child.wait_with_output().unwrap().into()
    }

    /// Runs a command that must succeed; what it wrote to standard output.
    pub fn ok(&self, line: &str) -> String {
        let said = self.run(line);
        assert_eq!(said.code, 0, "malote {line}\n{said}");
        said.out
    }
}

impl Server {
    /// Resident memory now.
    pub fn resident_mib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() >> 10
    }

    /// A bare connection to it.
    pub fn connect(&self) -> std::net::TcpStream {
        std::net::TcpStream::connect(self.url.strip_prefix("http://").unwrap()).unwrap()
    }

    /// Where it speaks AMQP: it says so right after the port of HTTP.
    pub fn amqp(&mut self) -> String {
        let stdout = self._stdout.as_mut().unwrap();
        loop {
            let mut line = String::new();
            assert!(stdout.read_line(&mut line).unwrap() > 0, "it does not say where");
            if let Some((_, rest)) = line.split_once("AMQP") {
                return rest.split_whitespace().next().unwrap().to_owned();
            }
        }
    }

    /// Kills it; its directory stays.
    pub fn stop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Runs a command that needs no server.
pub fn local(home: &Path, line: &str) -> Said {
    malote(home).args(words(line)).output().unwrap().into()
}

pub fn words(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut quoted = false;
    for c in line.chars() {
        match c {
            '\'' => quoted = !quoted,
            ' ' if !quoted => words.push(String::new()),
            c => words.last_mut().unwrap().push(c),
        }
    }
    words
}
