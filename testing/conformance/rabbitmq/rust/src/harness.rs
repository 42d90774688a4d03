//! What the checks share: connections, names of their own, waiting, and the errors that a broker closes with.

use std::future::Future;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use futures_util::StreamExt as _;
use lapin::message::{BasicGetMessage, Delivery};
use lapin::options::*;
use lapin::types::{AMQPValue, FieldTable, LongString, ShortString};
use lapin::{
    BasicProperties, Channel, Connection, ConnectionProperties, Consumer, ErrorKind, ExchangeKind,
    PublisherConfirm,
};

/// The longest that a correct broker may take on a slow machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A broker by its URL, and how many checks passed and failed.
pub struct Broker {
    url: String,
    passed: u32,
    failed: u32,
}

impl Broker {
    pub fn new(url: String) -> Self {
        Self { url, passed: 0, failed: 0 }
    }

    /// Runs a check and says how it ended.
    pub async fn check<F: Future<Output = Result<()>>>(
        &mut self,
        name: &str,
        check: impl FnOnce(Broker) -> F,
    ) {
        let ended = within(check(Broker::new(self.url.clone()))).await.and_then(|ended| ended);
        match ended {
            Ok(()) => {
                println!("ok {name}");
                self.passed += 1;
            }
            Err(why) => {
                let text = format!("FAILED {name}: {why:#}").replace('\n', " ");
                println!("{text}");
                eprintln!("{text}");
                self.failed += 1;
            }
        }
    }

    /// Whether all passed.
    pub fn summary(&self) -> bool {
        println!("{} passed, {} failed", self.passed, self.failed);
        self.failed == 0
    }

    pub async fn connect(&self) -> lapin::Result<Connection> {
        Connection::connect(&self.url, ConnectionProperties::default()).await
    }

    pub async fn connect_with_password(&self, password: &str) -> lapin::Result<Connection> {
        let (before, after) = self.url.split_once('@').expect("the URL has a user");
        let (user, _) = before.rsplit_once(':').expect("the URL has a password");
        let url = format!("{user}:{password}@{after}");
        Connection::connect(&url, ConnectionProperties::default()).await
    }

    /// A channel on a connection of its own, which ends with it.
    pub async fn channel(&self) -> lapin::Result<Channel> {
        self.connect().await?.create_channel().await
    }
}

pub async fn within<T>(future: impl Future<Output = T>) -> Result<T> {
    tokio::time::timeout(PATIENCE, future).await.map_err(|_| anyhow!("nothing happened"))
}

/// It must have failed, with this code and a text that has this part.
pub fn is_refused(result: lapin::Result<()>, code: u16, text: &str) -> Result<()> {
    let error = result.err().context("it was not refused")?;
    let ErrorKind::ProtocolError(reply) = error.kind() else {
        bail!("{code} expected, not {error}")
    };
    ensure!(reply.get_id() == code, "{code} expected, not {reply}");
    ensure!(reply.get_message().as_str().contains(text), "{text:?} is not in {reply}");
    Ok(())
}

/// Different in every run, too: names are not used twice on a broker.
pub fn name(kind: &str) -> ShortString {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let salt = now.map_or(0, |since| since.as_nanos() as u64) ^ u64::from(std::process::id());
    format!("{kind}-{salt:x}-{}", COUNT.fetch_add(1, Ordering::Relaxed)).into()
}

pub fn text(text: &str) -> AMQPValue {
    AMQPValue::LongString(LongString::from(text))
}

pub async fn queue(channel: &Channel, arguments: FieldTable) -> Result<ShortString> {
    let options = QueueDeclareOptions { exclusive: true, ..Default::default() };
    let declared = channel.queue_declare(name("q"), options, arguments).await?;
    Ok(declared.name().clone())
}

pub async fn exchange(
    channel: &Channel,
    kind: ExchangeKind,
    arguments: FieldTable,
) -> Result<ShortString> {
    let x = name("x");
    let options = ExchangeDeclareOptions { auto_delete: true, ..Default::default() };
    channel.exchange_declare(x.clone(), kind, options, arguments).await?;
    Ok(x)
}

pub async fn publish(
    channel: &Channel,
    exchange: impl std::fmt::Display,
    key: impl std::fmt::Display,
    body: &str,
    properties: BasicProperties,
) -> Result<PublisherConfirm> {
    let (exchange, key) = (exchange.to_string().into(), key.to_string().into());
    let options = BasicPublishOptions::default();
    Ok(channel.basic_publish(exchange, key, options, body.as_bytes(), properties).await?)
}

pub async fn depth(channel: &Channel, queue: &ShortString) -> Result<u32> {
    let passive = QueueDeclareOptions { passive: true, ..Default::default() };
    let declared = channel.queue_declare(queue.clone(), passive, FieldTable::default()).await?;
    Ok(declared.message_count())
}

/// The next message, as soon as there is one.
pub async fn get(channel: &Channel, queue: &ShortString, no_ack: bool) -> Result<BasicGetMessage> {
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        if let Some(got) = channel.basic_get(queue.clone(), BasicGetOptions { no_ack }).await? {
            return Ok(got);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    bail!("nothing came")
}

pub async fn body(channel: &Channel, queue: &ShortString) -> Result<String> {
    Ok(String::from_utf8(get(channel, queue, true).await?.delivery.data)?)
}

pub async fn next(consumer: &mut Consumer) -> Result<Delivery> {
    Ok(within(consumer.next()).await?.context("the consumer ended")??)
}

/// Queue, reason and count of each entry of `x-death`.
pub fn deaths(properties: &BasicProperties) -> Vec<String> {
    let headers = properties.headers().clone().unwrap_or_default();
    let Some(AMQPValue::FieldArray(deaths)) = headers.inner().get("x-death") else { return vec![] };
    let entry = |death: &AMQPValue| {
        let AMQPValue::FieldTable(death) = death else { return format!("{death:?}") };
        let string = |name: &str| match death.inner().get(name) {
            Some(AMQPValue::LongString(text)) => text.to_string(),
            other => format!("{other:?}"),
        };
        let count = match death.inner().get("count") {
            Some(AMQPValue::LongLongInt(count)) => count.to_string(),
            other => format!("{other:?}"),
        };
        format!("{} {} {count}", string("queue"), string("reason"))
    };
    deaths.as_slice().iter().map(entry).collect()
}
