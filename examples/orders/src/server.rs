//! A server of our own, with its data in a temporary directory, or one that is there already.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::Context;
use malote_server::settings::{Environment, RawSettings, Settings};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

/// What `malote serve --http 127.0.0.1:0 --amqp 127.0.0.1:0 …` does.
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

/// Where producers and workers find the broker.
pub struct Server {
    pub url: String,
    /// For people: another broker's URL may hold a password.
    pub name: String,
    addresses: Addresses,
    /// Killed when this is dropped.
    _child: Option<Child>,
}

/// One address for each kind of producer, where the broker has it.
#[derive(Clone)]
pub struct Addresses {
    pub url: String,
    pub http: Option<String>,
    pub servicebus: Option<String>,
}

impl Server {
    /// A broker that is there already: all producers use it as the library does; over HTTP, too, if it is Malote.
    pub fn elsewhere(url: &str) -> Self {
        let http = url.strip_prefix("malote://").filter(|rest| !rest.contains('@'));
        let http = http.map(|address| address.trim_end_matches('/').to_owned());
        let addresses = Addresses { url: url.to_owned(), http, servicebus: None };
        let name = url.split(':').next().unwrap_or_default().to_owned();
        Self { url: url.to_owned(), name, addresses, _child: None }
    }

    /// Starts one, and reads from its greeting where it listens.
    pub async fn start(home: &Path) -> anyhow::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("serve").arg(home.join("data")).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().context("the server does not start")?;
        let stdout = child.stdout.take().context("the server says nothing")?;
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
        // Whoever writes to a closed pipe is told so: it is read to the end.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        let http = http.context("the server has no HTTP")?;
        let amqp = amqp.context("the server has no AMQP")?;
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
