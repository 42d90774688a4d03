//! A new server with its data in a temporary directory, or an existing broker.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::Context;
use malote_server::settings::{Environment, RawSettings, Settings};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

/// Runs a server, like `malote serve --http 127.0.0.1:0 --amqp 127.0.0.1:0 …`.
pub async fn serve(data: PathBuf) -> anyhow::Result<()> {
    let free = || Some("127.0.0.1:0".to_owned());
    let off = || Some("off".to_owned());
    let flags = RawSettings {
        http: free(),
        amqp: free(),
        sqs: off(),
        servicebus_admin: off(),
        data: Some(data.display().to_string()),
        ..RawSettings::default()
    };
    let settings = Settings::load(None, flags, &Environment::default())?;
    malote_server::run(settings, |greeting| println!("{greeting}")).await?;
    Ok(())
}

/// The broker of producers and workers.
pub struct Server {
    pub url: String,
    /// For output. A URL may contain a password, so this is only the scheme of an existing broker.
    pub name: String,
    addresses: Addresses,
    /// Killed when it is dropped.
    _child: Option<Child>,
}

/// The addresses of the broker by protocol.
#[derive(Clone)]
pub struct Addresses {
    pub url: String,
    pub http: Option<String>,
    pub servicebus: Option<String>,
}

impl Server {
    /// An existing broker. All producers use the library; one uses HTTP if the broker is a Malote server.
    pub fn existing(url: &str) -> Self {
        let http = url.strip_prefix("malote://").filter(|rest| !rest.contains('@'));
        let http = http.map(|address| address.trim_end_matches('/').to_owned());
        let addresses = Addresses { url: url.to_owned(), http, servicebus: None };
        let name = url.split(':').next().unwrap_or_default().to_owned();
        Self { url: url.to_owned(), name, addresses, _child: None }
    }

    /// Starts a server, and reads its addresses from its output.
    pub async fn start(directory: &Path) -> anyhow::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("serve").arg(directory.join("data")).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().context("cannot start the server")?;
        let stdout = child.stdout.take().context("the server has no standard output")?;
        let mut lines = BufReader::new(stdout).lines();
        let (mut http, mut amqp) = (None, None);
        while http.is_none() || amqp.is_none() {
            let line = lines.next_line().await?.context("the server ended before it was ready")?;
            let mut words = line.split_whitespace();
            match (words.next(), words.next(), words.next()) {
                (Some("HTTP"), Some("API"), Some(url)) => http = host_of(url),
                (Some("AMQP"), Some(address), _) => amqp = Some(address.to_owned()),
                _ => {}
            }
        }
        // Read to the end, because writing to a closed pipe would be an error in the server.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        let http = http.context("the server has no HTTP address")?;
        let amqp = amqp.context("the server has no AMQP address")?;
        let url = format!("malote://{http}");
        let servicebus = format!(
            "servicebus://Endpoint=sb://{amqp};SharedAccessKeyName=any;SharedAccessKey=any;UseDevelopmentEmulator=true"
        );
        let servicebus = Some(servicebus);
        let addresses = Addresses { url: url.clone(), http: Some(http), servicebus };
        Ok(Self { name: url.clone(), url, addresses, _child: Some(child) })
    }

    pub fn addresses(&self) -> Addresses {
        self.addresses.clone()
    }
}

fn host_of(url: &str) -> Option<String> {
    Some(url.strip_prefix("http://")?.split('/').next()?.to_owned())
}
