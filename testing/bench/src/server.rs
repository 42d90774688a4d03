//! A server in its own process, so that its CPU time and the client's are measured separately.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use anyhow::{Context as _, bail, ensure};

/// A running server. Dropping it kills it.
pub(crate) struct Server {
    child: Child,
    /// The address of each service, by the name that the server prints.
    addresses: Vec<(String, String)>,
    /// Open until the end: the server would fail to write to a closed pipe.
    output: BufReader<ChildStdout>,
}

impl Server {
    /// Starts a server with these arguments and waits until it has printed the addresses of these services.
    pub(crate) fn start(data: &Path, args: &[&str], services: &[&str]) -> anyhow::Result<Self> {
        let program = std::env::current_exe()?.with_file_name("malote");
        ensure!(
            program.exists(),
            "{} does not exist: `cargo xtask bench` builds it",
            program.display()
        );
        let mut command = Command::new(program);
        command.arg("serve").arg("--data").arg(data).args(["--log", "error"]).args(args);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let output = child.stdout.take().context("the server has no standard output")?;
        let mut server = Self { child, addresses: Vec::new(), output: BufReader::new(output) };
        let mut line = String::new();
        while server.addresses.len() < services.len() {
            line.clear();
            if server.output.read_line(&mut line)? == 0 {
                bail!("the server ended before it was ready");
            }
            let address = services.iter().find_map(|service| {
                let address = line.trim_start().strip_prefix(service)?.split_whitespace().next()?;
                Some(((*service).to_owned(), address.trim_start_matches("http://").to_owned()))
            });
            server.addresses.extend(address);
        }
        Ok(server)
    }

    /// Host and port of a service, and the path after them if the server printed one.
    pub(crate) fn address(&self, service: &str) -> anyhow::Result<&str> {
        let found = self.addresses.iter().find(|(name, _)| name == service);
        Ok(&found.with_context(|| format!("the server has no {service}"))?.1)
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
