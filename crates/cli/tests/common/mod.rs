//! Runs the built binary as a command and as a server on a free port.
#![allow(dead_code, missing_docs)] // each test file uses its own part

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use tempfile::TempDir;

/// The command with an empty environment.
pub fn malote(home: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_malote"));
    command.env_clear().env("HOME", home).env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command.stdin(Stdio::null());
    command
}

/// Output and exit code of a command.
pub struct CommandOutput {
    pub out: String,
    pub err: String,
    pub code: i32,
}

impl From<Output> for CommandOutput {
    fn from(output: Output) -> Self {
        Self {
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
            code: output.status.code().unwrap_or(-1),
        }
    }
}

impl std::fmt::Display for CommandOutput {
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

/// A server with its own directory. Dropping it kills it.
pub struct Server {
    child: Child,
    pub url: String,
    pub home: TempDir,
    /// Open until the end: the server would fail to write to a closed pipe.
    stdout: Option<BufReader<std::process::ChildStdout>>,
}

impl Server {
    pub fn start() -> Self {
        Self::start_with(tempfile::tempdir().unwrap(), &[])
    }

    /// Starts it on a free port, which the server prints.
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
        Self { child, url, home, stdout: Some(stdout) }
    }

    /// Runs a command against it. Words are separated by spaces; quotes keep them together.
    pub fn run(&self, line: &str) -> CommandOutput {
        self.run_with(line, "")
    }

    pub fn run_with(&self, line: &str, stdin: &str) -> CommandOutput {
        let mut command = malote(self.home.path());
        command.args(words(line)).env("MALOTE_URL", &self.url);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // A command may close standard input without reading it.
        let _ = child.stdin.take().unwrap().write_all(stdin.as_bytes());
        child.wait_with_output().unwrap().into()
    }

    /// Runs a command that must succeed. Returns its standard output.
    pub fn ok(&self, line: &str) -> String {
        let said = self.run(line);
        assert_eq!(said.code, 0, "malote {line}\n{said}");
        said.out
    }
}

impl Server {
    pub fn resident_mib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() >> 10
    }

    /// A TCP connection to the HTTP port.
    pub fn connect(&self) -> std::net::TcpStream {
        std::net::TcpStream::connect(self.url.strip_prefix("http://").unwrap()).unwrap()
    }

    /// The address of the AMQP port, which the server prints after the HTTP port.
    pub fn amqp(&mut self) -> String {
        let stdout = self.stdout.as_mut().unwrap();
        loop {
            let mut line = String::new();
            assert!(stdout.read_line(&mut line).unwrap() > 0, "the server printed no AMQP address");
            if let Some((_, rest)) = line.split_once("AMQP") {
                return rest.split_whitespace().next().unwrap().to_owned();
            }
        }
    }

    /// Kills the server. Its directory stays.
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
pub fn local(home: &Path, line: &str) -> CommandOutput {
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
