//! The brokers that the programs run against: the built binary, or Debian's RabbitMQ. Both can be killed and started
//! again with their data.

use super::Against;
use crate::cargo::{self, target};
use anyhow::{Context, Result, bail};
use malote_services::RabbitMq;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Virtual hosts of our own server, as many as the contract tests of the connector use.
const VHOSTS: usize = 48;
const POLLS_MAX: usize = 1200;
const POLL_INTERVAL: Duration = Duration::from_millis(50);

pub(super) enum Broker {
    Malote(Malote),
    RabbitMq(RabbitMq),
}

impl Broker {
    pub(super) fn start(against: Against) -> Result<Self> {
        Ok(match against {
            Against::Malote => Self::Malote(Malote::start()?),
            Against::RabbitMq => {
                Self::RabbitMq(RabbitMq::start(1).context("the real RabbitMQ does not start")?)
            }
        })
    }

    pub(super) fn url(&self) -> String {
        match self {
            Self::Malote(malote) => malote.url(),
            Self::RabbitMq(real) => real.url(0),
        }
    }

    /// Kills the broker with SIGKILL, starts it again with its data and waits until it accepts connections.
    pub(super) fn kill_and_restart(&mut self) -> Result<()> {
        match self {
            Self::Malote(malote) => malote.kill_and_restart(),
            Self::RabbitMq(real) => {
                real.kill(0);
                real.restart(0).context("the killed RabbitMQ does not start again")
            }
        }
    }
}

/// A running server of ours, killed when it is no longer needed.
pub(super) struct Malote {
    child: Child,
    /// Gone with the server.
    data: PathBuf,
    pub(super) port: u16,
    management_port: u16,
}

impl Malote {
    pub(super) fn start() -> Result<Self> {
        let (port, management_port) = (cargo::free_port()?, cargo::free_port()?);
        let data = target().join(format!("conformance/rabbitmq-data-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&data);
        let child = serve(&data, port, management_port)?;
        let broker = Self { child, data, port, management_port };
        broker.wait_until_listening()?;
        Ok(broker)
    }

    fn kill_and_restart(&mut self) -> Result<()> {
        self.child.kill().context("cannot kill the server")?;
        self.child.wait().context("cannot wait for the killed server")?;
        self.child = serve(&self.data, self.port, self.management_port)?;
        self.wait_until_listening()
    }

    fn wait_until_listening(&self) -> Result<()> {
        for _ in 0..POLLS_MAX {
            let opened = |port| std::net::TcpStream::connect(("127.0.0.1", port)).is_ok();
            if opened(self.port) && opened(self.management_port) {
                return Ok(());
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        bail!("the server does not listen");
    }

    pub(super) fn management_url(&self) -> String {
        format!("http://guest:guest@127.0.0.1:{}", self.management_port)
    }

    pub(super) fn url(&self) -> String {
        format!("amqp://guest:guest@127.0.0.1:{}/%2F", self.port)
    }
}

fn serve(data: &PathBuf, port: u16, management_port: u16) -> Result<Child> {
    let binary = target().join("release/malote");
    let vhosts: Vec<_> = (0..VHOSTS).map(|number| number.to_string()).collect();
    let mut serve = Command::new(&binary);
    // A setting of the checks, which the server would refuse.
    serve.env_remove("MALOTE_TRACE").env("MALOTE_RABBITMQ_VHOSTS", vhosts.join(","));
    serve.args(["serve", "--http", "off", "--sqs", "off", "--servicebus-admin", "off"]);
    serve.args(["--rabbitmq-management", &management_port.to_string()]);
    serve.args(["--amqp", &port.to_string(), "--log", "error", "--data"]).arg(data);
    let child = serve.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
    child.with_context(|| format!("cannot start {}", binary.display()))
}

impl Drop for Malote {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.data);
    }
}
