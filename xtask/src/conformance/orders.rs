//! The example `orders` on every broker that a worker supports, one after the other. Processes are killed on each,
//! and the program checks its own results. The table at the end lists its figures.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use malote_services::{Postgres, RabbitMq};

use crate::steps::{Outcome, Step};
use crate::{cargo, postgres, rabbitmq};

pub(super) fn steps() -> Vec<Step> {
    vec![Step::new("orders on five brokers", all)]
}

/// The figures of one broker.
struct Row {
    broker: &'static str,
    figures: Vec<String>,
}

/// Lines of the program that become columns: their beginning, and the column's title.
const COLUMNS: [(&str, &str); 3] = [
    ("every order was applied exactly once: ", "applied once"),
    ("each customer's orders were applied in the order of sending: ", "in order"),
    ("there are no other dead letters: ", "dead letters"),
];

fn all() -> Result<Outcome> {
    cargo::run(&["build", "--package", "orders"])?;
    let mut rows = Vec::new();
    let mut skipped = Vec::new();
    let data = data("embedded")?;
    rows.push(orders("embedded:", &format!("embedded:{}", data.display()))?);
    {
        let server = Server::start("malote")?;
        rows.push(orders("malote://", &format!("malote://{}", server.http))?);
    }
    {
        let server = Server::start("servicebus")?;
        server.make_queue()?;
        let url = format!(
            "servicebus://Endpoint=sb://{};SharedAccessKeyName=any;SharedAccessKey=any;UseDevelopmentEmulator=true",
            server.amqp
        );
        rows.push(orders("servicebus://", &url)?);
    }
    match rabbitmq::skip_if_missing()? {
        Some(_) => skipped.push("amqp://"),
        None => {
            let server = RabbitMq::start(1).map_err(anyhow::Error::msg)?;
            rows.push(orders("amqp://", &server.url(0))?);
        }
    }
    match postgres::skip_if_missing()? {
        Some(_) => skipped.push("postgres://"),
        None => {
            let server = Postgres::start().map_err(anyhow::Error::msg)?;
            rows.push(orders("postgres://", &server.url("postgres"))?);
        }
    }
    table(&rows);
    for broker in skipped {
        println!("{broker} was skipped: it is not installed");
    }
    Ok(Outcome { passed: u32::try_from(rows.len())?, ..Outcome::default() })
}

fn table(rows: &[Row]) {
    let titles = COLUMNS.map(|(_, title)| title).join(" | ");
    println!("\n| broker | {titles} | kills |\n|---|---|---|---|---|");
    for Row { broker, figures } in rows {
        println!("| `{broker}` | {} |", figures.join(" | "));
    }
}

/// Creates an empty folder.
fn data(name: &str) -> Result<std::path::PathBuf> {
    let data = cargo::target().join("conformance/orders").join(name);
    if data.exists() {
        std::fs::remove_dir_all(&data)?;
    }
    std::fs::create_dir_all(&data)?;
    Ok(data)
}

fn program() -> Command {
    Command::new(cargo::target().join("debug/orders"))
}

/// Runs the program on a broker and extracts the figures from its output.
fn orders(broker: &'static str, url: &str) -> Result<Row> {
    println!("{broker}");
    let mut command = program();
    command.args(["--url", url]).stdout(Stdio::piped());
    let mut child = command.spawn().context("cannot start the example")?;
    let output = child.stdout.take().context("the example has no stdout")?;
    let (mut figures, mut kills) = (vec!["?".to_owned(); COLUMNS.len()], String::new());
    for line in BufReader::new(output).lines() {
        let line = line.context("cannot read the output of the example")?;
        println!("{line}");
        for (figure, (begins, _)) in figures.iter_mut().zip(COLUMNS) {
            if let Some((_, rest)) = line.split_once(begins) {
                *figure = rest.to_owned();
            }
        }
        if line.contains("SIGKILL") {
            kills = line;
        }
    }
    figures.push(kills);
    let status = child.wait()?;
    ensure!(status.success(), "orders on {broker} failed: {status}");
    Ok(Row { broker, figures })
}

/// A Malote server, started by the example itself.
struct Server {
    child: Child,
    http: String,
    amqp: String,
}

impl Server {
    fn start(name: &str) -> Result<Self> {
        let mut command = program();
        command.arg("serve").arg(data(name)?).stdout(Stdio::piped());
        let mut child = command.spawn().context("cannot start the server")?;
        let output = child.stdout.take().context("the server has no stdout")?;
        let mut server = Self { child, http: String::new(), amqp: String::new() };
        let mut lines = BufReader::new(output).lines();
        while server.http.is_empty() || server.amqp.is_empty() {
            let line = lines.next().context("the server ended before it was ready")??;
            let mut words = line.split_whitespace();
            match (words.next(), words.next(), words.next()) {
                (Some("HTTP"), Some("API"), Some(url)) => {
                    let at = url.trim_start_matches("http://").split('/').next();
                    server.http = at.unwrap_or_default().to_owned();
                }
                (Some("AMQP"), Some(at), _) => server.amqp = at.to_owned(),
                _ => {}
            }
        }
        // Read to the end, because writing to a closed pipe would fail in the server.
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
        Ok(server)
    }

    /// Creates a queue with sessions, with the worker's lock time and without a limit of attempts, which the worker
    /// counts itself.
    fn make_queue(&self) -> Result<()> {
        let body = r#"{"sessions": "dynamic", "lock_ms": 4000, "failed_max": null}"#;
        let mut stream = TcpStream::connect(&self.http)?;
        write!(
            stream,
            "PUT /api/v1/queues/orders HTTP/1.1\r\nhost: {}\r\nconnection: close\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n{body}",
            self.http,
            body.len()
        )?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        if !answer.starts_with("HTTP/1.1 20") {
            bail!("cannot create the queue: {answer}");
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended already
        let _ = self.child.wait();
    }
}
