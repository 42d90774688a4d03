//! `cargo xtask bench sqs`: a server over the SQS protocol, with persistent connections as SDKs have them.
//!
//! The server runs on the same machine. With `--at` it is any other server that speaks SQS.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, bail};
use bytes::Bytes;
use http_body_util::Full;
use hyper::{Method, Request};
use malote_http::{ClientConnection, read_body};
use malote_measure::{BenchReport, Latency, Stopwatch, cpu_time_of};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::results::ServerResult;
use crate::server::Server;

/// Measure a server over the SQS protocol
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Directory for the data; a temporary directory is created in it and removed afterwards
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// Measure another server, as host:port
    #[arg(long, value_name = "HOST:PORT")]
    at: Option<String>,
    /// Process id of the other server, for its CPU time
    #[arg(long, requires = "at")]
    pid: Option<u32>,
    /// Seconds for each measurement
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Number of connections
    #[arg(long, value_delimiter = ',', default_value = "1,16,64")]
    connections: Vec<usize>,
    /// Run only measurements whose name contains this text
    #[arg(long)]
    only: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

const BATCH: usize = 10;
const BODY_BYTES: usize = 1024;

/// Time between two requests to the HTTP API during a measurement.
const PROBE_EVERY: Duration = Duration::from_millis(10);

/// The largest response that is read.
const RESPONSE_BYTES_MAX: usize = 16 << 20;

/// The operation that each connection repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Send,
    SendBatch,
    /// Send, receive and delete, each in batches.
    EndToEnd,
}

impl Operation {
    /// Each operation with its name and its goal in messages per second, 0 for none.
    const ALL: [(Operation, &str, f64); 3] = [
        (Operation::Send, "send, one by one", 0.0),
        (Operation::SendBatch, "send in batches of 10", 20_000.0),
        (Operation::EndToEnd, "send, receive, delete in batches of 10", 10_000.0),
    ];
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.worker_threads(2).enable_all().build()?.block_on(measure(args))
}

async fn measure(args: Args) -> anyhow::Result<()> {
    let dir = tempfile::Builder::new().prefix("malote-bench-").tempdir_in(&args.dir);
    let dir = dir.context("cannot create a directory for the data")?;
    let own = match &args.at {
        Some(_) => None,
        None => {
            let ports = ["--http", "127.0.0.1:0", "--sqs", "127.0.0.1:0", "--amqp", "off"];
            let ports = [ports.as_slice(), &["--servicebus-admin", "off"]].concat();
            Some(Server::start(&dir.path().join("data"), &ports, &["HTTP API", "SQS"])?)
        }
    };
    let (at, api) = match (&own, &args.at) {
        (Some(server), _) => (server.address("SQS")?.to_owned(), Some(server.address("HTTP API")?)),
        (None, Some(at)) => (at.clone(), None),
        (None, None) => bail!("no server to measure"),
    };
    let pid = own.as_ref().map(Server::pid).or(args.pid);
    let mut report = BenchReport::new(dir.path(), "in another process on the same cores");
    for (operation, name, goal) in Operation::ALL {
        for &connections in &args.connections {
            let what = format!("{name}, {connections} connections");
            if args.only.as_ref().is_some_and(|only| !what.contains(only.as_str())) {
                continue;
            }
            let queue = format!("bench-{connections}-{operation:?}");
            let mut first = Client::connect(&at).await?;
            first.call("CreateQueue", &json!({ "QueueName": queue })).await?;
            let url = format!("http://{at}/000000000000/{queue}");
            let time = Duration::from_secs_f64(args.seconds);
            let load = run_load(&at, &url, operation, connections, time, pid);
            let mut result = match api {
                Some(api) => {
                    let (host, path) = api.split_once('/').unwrap_or((api, "api/v1"));
                    let path = format!("/{path}/queues/{queue}");
                    let (result, api_latency) = tokio::join!(load, probe(host, &path, time));
                    ServerResult { api_latency: Some(api_latency?), ..result? }
                }
                None => load.await?,
            };
            result.what = what;
            // A single connection is limited by the latency of the disk, so it has no goal.
            result.goal = (connections > 1).then_some(goal).filter(|&goal| goal > 0.0);
            report.push(result.into());
            first.call("DeleteQueue", &json!({ "QueueUrl": url })).await?;
        }
    }
    Ok(report.print(args.json)?)
}

/// Repeats the operation on all connections until the time is over.
async fn run_load(
    at: &str,
    url: &str,
    operation: Operation,
    connections: usize,
    time: Duration,
    pid: Option<u32>,
) -> anyhow::Result<ServerResult> {
    let mut clients = Vec::with_capacity(connections);
    for _ in 0..connections {
        clients.push(Client::connect(at).await?);
    }
    let (cpu, watch) = (pid.map(cpu_time_of), Stopwatch::start());
    let tasks: Vec<_> = clients
        .into_iter()
        .map(|mut client| {
            let url = url.to_owned();
            tokio::spawn(async move {
                let (mut latency, mut messages) = (Latency::default(), 0);
                while watch.elapsed() < time {
                    let begun = Stopwatch::start();
                    messages += client.run(operation, &url).await?;
                    latency.record(begun.elapsed());
                }
                anyhow::Ok((latency, messages))
            })
        })
        .collect();
    let (mut latency, mut messages) = (Latency::default(), 0);
    for task in tasks {
        let (one, n) = task.await??;
        latency.add(one);
        messages += n;
    }
    let elapsed = watch.elapsed();
    let cpu = pid.zip(cpu).map(|(pid, before)| cpu_time_of(pid).saturating_sub(before));
    let (what, goal, api_latency) = (String::new(), None, None);
    Ok(ServerResult { what, messages, elapsed, latency, cpu, goal, api_latency })
}

/// Measures the latency of a request for the details of the queue over the HTTP API.
async fn probe(host: &str, path: &str, time: Duration) -> anyhow::Result<Latency> {
    let mut client = Client::connect(host).await?;
    let (watch, mut latency) = (Stopwatch::start(), Latency::default());
    while watch.elapsed() < time {
        let begun = Stopwatch::start();
        client.exchange(Method::GET, path, None, Bytes::new()).await?;
        latency.record(begun.elapsed());
        tokio::time::sleep(PROBE_EVERY).await;
    }
    Ok(latency)
}

/// A client with one persistent connection.
struct Client {
    connection: ClientConnection,
    host: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ReceiveResponse {
    #[serde(default)]
    messages: Vec<Message>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Message {
    receipt_handle: String,
}

impl Client {
    async fn connect(address: &str) -> anyhow::Result<Self> {
        let (host, port) = address.rsplit_once(':').context("the address is not host:port")?;
        let port = port.parse().context("the address is not host:port")?;
        let connection = ClientConnection::connect(host, port).await;
        let connection = connection.with_context(|| format!("no server at {address}"))?;
        Ok(Self { connection, host: address.to_owned() })
    }

    async fn exchange(
        &mut self,
        method: Method,
        path: &str,
        action: Option<&str>,
        body: Bytes,
    ) -> anyhow::Result<Bytes> {
        let mut request =
            Request::builder().method(method).uri(path).header("host", self.host.as_str());
        if let Some(action) = action {
            // Some servers require a signature even if they do not verify it.
            let signed = "AWS4-HMAC-SHA256 Credential=x/20260101/eu-west-1/sqs/aws4_request, \
                          SignedHeaders=host, Signature=x";
            request = request
                .header("x-amz-target", format!("AmazonSQS.{action}"))
                .header("content-type", "application/x-amz-json-1.0")
                .header("authorization", signed);
        }
        let answer = self.connection.send(request.body(Full::new(body))?).await?;
        let status = answer.status();
        let body = read_body(answer.into_body(), RESPONSE_BYTES_MAX).await;
        let body = body.map_err(|error| anyhow::anyhow!(error))?;
        if !status.is_success() {
            bail!("{} answered {status}: {}", self.host, String::from_utf8_lossy(&body));
        }
        Ok(body)
    }

    async fn call(&mut self, action: &str, input: &Value) -> anyhow::Result<Bytes> {
        let body = Bytes::from(serde_json::to_vec(input)?);
        self.exchange(Method::POST, "/", Some(action), body).await
    }

    /// Runs the operation once. Returns the number of messages.
    async fn run(&mut self, operation: Operation, url: &str) -> anyhow::Result<u64> {
        let text = "x".repeat(BODY_BYTES);
        if operation == Operation::Send {
            let input = json!({ "QueueUrl": url, "MessageBody": text });
            self.call("SendMessage", &input).await?;
            return Ok(1);
        }
        let entry = |n| json!({ "Id": format!("{n}"), "MessageBody": text });
        let entries: Vec<_> = (0..BATCH).map(entry).collect();
        self.call("SendMessageBatch", &json!({ "QueueUrl": url, "Entries": entries })).await?;
        if operation == Operation::SendBatch {
            return Ok(BATCH as u64);
        }
        let input = json!({ "QueueUrl": url, "MaxNumberOfMessages": BATCH });
        let received: ReceiveResponse =
            serde_json::from_slice(&self.call("ReceiveMessage", &input).await?)?;
        if received.messages.is_empty() {
            return Ok(0);
        }
        let entry = |(n, message): (usize, &Message)| json!({ "Id": format!("{n}"), "ReceiptHandle": message.receipt_handle });
        let entries: Vec<_> = received.messages.iter().enumerate().map(entry).collect();
        self.call("DeleteMessageBatch", &json!({ "QueueUrl": url, "Entries": entries })).await?;
        Ok(received.messages.len() as u64)
    }
}
