//! `malote bench sqs`: a server of SQS's own protocol, driven as SDKs do, over connections that are kept open.
//!
//! The server is a process of its own on the same machine; with `--url` it is any other that speaks SQS.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, bail};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1::SendRequest;
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::net::TcpStream;

use super::measure::{Latency, Watch};
use super::report::{Report, Served};
use super::server::{Server, cpu_of};

/// Measures a server by SQS's own protocol
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Where to put the data; a temporary directory beside it is made and removed
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// Another server to measure, as host:port
    #[arg(long, value_name = "HOST:PORT")]
    at: Option<String>,
    /// The process of that other server, for its processor time
    #[arg(long, requires = "at")]
    pid: Option<u32>,
    /// Seconds for each measurement
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Connections at once
    #[arg(long, value_delimiter = ',', default_value = "1,16,64")]
    connections: Vec<usize>,
    /// Only measurements whose name contains this
    #[arg(long)]
    only: Option<String>,
    /// For programs
    #[arg(long)]
    json: bool,
}

const BATCH: usize = 10;
const BODY_BYTES: usize = 1024;

/// How often the HTTP API is asked while the rest goes on.
const PROBE_EVERY: Duration = Duration::from_millis(10);

/// What a connection does again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    Send,
    SendBatch,
    /// Send, receive and delete, each in batches.
    EndToEnd,
}

impl Work {
    const ALL: [(Work, &str, f64); 3] = [
        (Work::Send, "send, one by one", 0.0),
        (Work::SendBatch, "send in batches of 10", 20_000.0),
        (Work::EndToEnd, "send, receive, delete in batches of 10", 10_000.0),
    ];
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.worker_threads(2).enable_all().build()?.block_on(measure(args))
}

async fn measure(args: Args) -> anyhow::Result<()> {
    let dir = tempfile::Builder::new().prefix("malote-bench-").tempdir_in(&args.dir);
    let dir = dir.context("no directory for the data")?;
    let own = match &args.at {
        Some(_) => None,
        None => {
            let ports = ["--http", "127.0.0.1:0", "--sqs", "127.0.0.1:0", "--amqp", "off"];
            let ports = [ports.as_slice(), &["--servicebus-admin", "off"]].concat();
            Some(Server::start(&dir.path().join("data"), &ports, &["HTTP API", "SQS"])?)
        }
    };
    let (at, api) = match (&own, &args.at) {
        (Some(server), _) => (server.at("SQS")?.to_owned(), Some(server.at("HTTP API")?)),
        (None, Some(at)) => (at.clone(), None),
        (None, None) => bail!("there is no server"),
    };
    let pid = own.as_ref().map(Server::pid).or(args.pid);
    let mut report = Report::served(dir.path());
    for (work, name, goal) in Work::ALL {
        for &connections in &args.connections {
            let what = format!("{name}, {connections} connections");
            if args.only.as_ref().is_some_and(|only| !what.contains(only.as_str())) {
                continue;
            }
            let queue = format!("bench-{connections}-{work:?}");
            let mut first = Client::connect(&at).await?;
            first.call("CreateQueue", &json!({ "QueueName": queue })).await?;
            let url = format!("http://{at}/000000000000/{queue}");
            let time = Duration::from_secs_f64(args.seconds);
            let busy = load(&at, &url, work, connections, time, pid);
            let (mut served, answers) = match api {
                Some(api) => {
                    let (host, path) = api.split_once('/').unwrap_or((api, "api/v1"));
                    let path = format!("/{path}/queues/{queue}");
                    let (served, answers) = tokio::join!(busy, probe(host, &path, time));
                    (served?, Some(answers?))
                }
                None => (busy.await?, None),
            };
            served.what = what;
            // Goals are for the machine's best, not for a single connection that waits for the disk.
            served.goal = (connections > 1).then_some(goal).filter(|&goal| goal > 0.0);
            report.push_served(served, answers);
            first.call("DeleteQueue", &json!({ "QueueUrl": url })).await?;
        }
    }
    report.print(args.json)
}

/// Many connections at work for that long.
async fn load(
    at: &str,
    url: &str,
    work: Work,
    connections: usize,
    time: Duration,
    pid: Option<u32>,
) -> anyhow::Result<Served> {
    let mut clients = Vec::with_capacity(connections);
    for _ in 0..connections {
        clients.push(Client::connect(at).await?);
    }
    let (cpu, watch) = (pid.map(cpu_of), Watch::start());
    let tasks: Vec<_> = clients
        .into_iter()
        .map(|mut client| {
            let url = url.to_owned();
            tokio::spawn(async move {
                let (mut latency, mut messages) = (Latency::new(), 0);
                while watch.elapsed() < time {
                    let begun = Watch::start();
                    messages += client.work(work, &url).await?;
                    latency.record(begun.elapsed());
                }
                anyhow::Ok((latency, messages))
            })
        })
        .collect();
    let (mut latency, mut messages) = (Latency::new(), 0);
    for task in tasks {
        let (one, n) = task.await??;
        latency.add(one);
        messages += n;
    }
    let elapsed = watch.elapsed();
    let cpu = pid.zip(cpu).map(|(pid, before)| cpu_of(pid).saturating_sub(before));
    Ok(Served { what: String::new(), messages, elapsed, latency, cpu, goal: None })
}

/// How long the HTTP API takes to tell of a queue meanwhile.
async fn probe(host: &str, path: &str, time: Duration) -> anyhow::Result<Latency> {
    let mut client = Client::connect(host).await?;
    let (watch, mut latency) = (Watch::start(), Latency::new());
    while watch.elapsed() < time {
        let begun = Watch::start();
        client.exchange(Method::GET, path, None, Bytes::new()).await?;
        latency.record(begun.elapsed());
        tokio::time::sleep(PROBE_EVERY).await;
    }
    Ok(latency)
}

/// One connection that is kept open.
struct Client {
    sender: SendRequest<Full<Bytes>>,
    host: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Received {
    #[serde(default)]
    messages: Vec<Message>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Message {
    receipt_handle: String,
}

impl Client {
    async fn connect(host: &str) -> anyhow::Result<Self> {
        let stream =
            TcpStream::connect(host).await.with_context(|| format!("no answer at {host}"))?;
        stream.set_nodelay(true)?;
        let (sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        Ok(Self { sender, host: host.to_owned() })
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
            // Nobody checks it where there are no credentials; some servers want to see one.
            let signed = "AWS4-HMAC-SHA256 Credential=x/20260101/eu-west-1/sqs/aws4_request, \
                          SignedHeaders=host, Signature=x";
            request = request
                .header("x-amz-target", format!("AmazonSQS.{action}"))
                .header("content-type", "application/x-amz-json-1.0")
                .header("authorization", signed);
        }
        let answer = self.sender.send_request(request.body(Full::new(body))?).await?;
        let status = answer.status();
        let body = answer.into_body().collect().await?.to_bytes();
        if !status.is_success() {
            bail!("{} answers {status}: {}", self.host, String::from_utf8_lossy(&body));
        }
        Ok(body)
    }

    async fn call(&mut self, action: &str, input: &Value) -> anyhow::Result<Bytes> {
        let body = Bytes::from(serde_json::to_vec(input)?);
        self.exchange(Method::POST, "/", Some(action), body).await
    }

    /// Does it once; says how many messages that were.
    async fn work(&mut self, work: Work, url: &str) -> anyhow::Result<u64> {
        let text = "x".repeat(BODY_BYTES);
        if work == Work::Send {
            let input = json!({ "QueueUrl": url, "MessageBody": text });
            self.call("SendMessage", &input).await?;
            return Ok(1);
        }
        let entry = |n| json!({ "Id": format!("{n}"), "MessageBody": text });
        let entries: Vec<_> = (0..BATCH).map(entry).collect();
        self.call("SendMessageBatch", &json!({ "QueueUrl": url, "Entries": entries })).await?;
        if work == Work::SendBatch {
            return Ok(BATCH as u64);
        }
        let input = json!({ "QueueUrl": url, "MaxNumberOfMessages": BATCH });
        let received: Received =
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
