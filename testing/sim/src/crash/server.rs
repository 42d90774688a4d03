//! The process under test.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::wire::Http;

/// Enough for a debug build to recover a journal of some hundred megabytes.
const START_MAX: Duration = Duration::from_secs(60);

/// The built binary, on a data directory and a port.
pub(crate) struct Server {
    binary: PathBuf,
    data: PathBuf,
    pub(crate) at: SocketAddr,
    /// Address of the AMQP listener, if any.
    amqp: Option<SocketAddr>,
    env: Vec<(&'static str, &'static str)>,
    child: Option<Child>,
}

impl Server {
    /// Picks a free port. The process is not started yet.
    pub(crate) fn new(binary: &Path, data: &Path) -> Result<Server> {
        let (binary, data) = (binary.to_owned(), data.to_owned());
        Ok(Server { binary, data, at: free_address()?, amqp: None, env: Vec::new(), child: None })
    }

    /// Sets an environment variable for the next start.
    #[cfg(feature = "protocols")]
    pub(crate) fn set(&mut self, name: &'static str, value: &'static str) {
        self.env.push((name, value));
    }

    #[cfg(feature = "protocols")]
    pub(crate) fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Enables AMQP from the next start, always on the same port.
    pub(crate) fn listen_amqp(&mut self) -> Result<SocketAddr> {
        Ok(*self.amqp.insert(free_address()?))
    }

    pub(crate) fn start(&mut self) -> Result<()> {
        let amqp = self.amqp.map_or("off".to_owned(), |at| at.to_string());
        let child = Command::new(&self.binary)
            .arg("serve")
            .args(["--data".as_ref(), self.data.as_os_str()])
            .args([
                "--http",
                &self.at.to_string(),
                "--sqs",
                "off",
                "--amqp",
                &amqp,
                "--servicebus-admin",
                "off",
            ])
            .envs(self.env.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {}", self.binary.display()))?;
        let child = self.child.insert(child);
        // The log is read so that the server never blocks on it. Its text is printed if the server ends.
        let stderr = child.stderr.take();
        let log = spawn(move || {
            let mut text = Vec::new();
            if let Some(mut stderr) = stderr {
                let _ = io::Read::read_to_end(&mut stderr, &mut text);
            }
            text
        });
        let begun = Instant::now();
        while begun.elapsed() < START_MAX {
            if let Some(status) = child.try_wait()? {
                let text = log.join().unwrap_or_default();
                bail!("the server ended with {status}: {}", String::from_utf8_lossy(&text));
            }
            let ready = Http::connect(self.at)
                .and_then(|mut http| http.request("GET", "/readyz", &Value::Null));
            if ready.is_ok_and(|(status, _)| status == 200) {
                return Ok(());
            }
            sleep(Duration::from_millis(10));
        }
        bail!("the server was not ready within {} s", START_MAX.as_secs())
    }

    pub(crate) fn kill(&mut self) -> Result<()> {
        if let Some(mut child) = self.child.take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }
}

fn free_address() -> Result<SocketAddr> {
    TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).context("cannot find a free port")
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}
