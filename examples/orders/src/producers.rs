//! Three ways to send an order. Each producer waits until an order is durable before it sends the next one. Some orders
//! are sent twice with the same id, like a client that got no answer.

use std::time::Duration;

use anyhow::{Context, bail, ensure};
use malote::Malote;
use malote::once::sqlite::Sqlite;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::order::{Expected, Order, Plan, QUEUE};
use crate::server::Addresses;

/// The pause between two orders.
const PAUSE: Duration = Duration::from_millis(3);
/// Retries of a send while the broker is unreachable, and the pause between them.
const RETRIES_MAX: usize = 300;
const RETRY_PAUSE: Duration = Duration::from_millis(200);
/// Every 25th order is sent twice.
const TWICE_EVERY: usize = 25;

/// The name of a producer and its orders.
type Orders = (&'static str, Vec<(Order, Expected)>);

/// Sends all orders. The three producers send at the same time.
pub async fn send_all(to: Addresses, plan: Plan) -> anyhow::Result<()> {
    let [web, mobile, partner] = plan.by_producer;
    let one = match to.http {
        Some(address) => tokio::spawn(web_shop(address, web, plan.undecodable)),
        None => tokio::spawn(library(to.url.clone(), web)),
    };
    let two = tokio::spawn(library(to.servicebus.unwrap_or_else(|| to.url.clone()), mobile));
    let three = tokio::spawn(library(to.url, partner));
    for sent in [one, two, three] {
        sent.await??;
    }
    Ok(())
}

/// Sends all orders of a shop that may have been killed before. Each producer continues after its last recorded order.
pub async fn send_remaining(malote: Malote, progress: Sqlite, plan: Plan) -> anyhow::Result<()> {
    let record = "create table if not exists sent (producer text primary key, orders integer)";
    progress.run(move |db| db.execute(record, [])).await?;
    let mut sending = tokio::task::JoinSet::new();
    for (name, orders) in plan.by_producer {
        let (malote, progress) = (malote.clone(), progress.clone());
        sending.spawn(async move {
            let recorded = "select coalesce(max(orders), 0) from sent where producer = ?1";
            let recorded: u32 =
                progress.run(move |db| db.query_row(recorded, [name], |row| row.get(0))).await?;
            for (order, nth) in
                orders.iter().map(|(order, _)| order).zip(1u32..).skip(recorded as usize)
            {
                send(&malote, name, order).await?;
                let record = "insert or replace into sent (producer, orders) values (?1, ?2)";
                progress.run(move |db| db.execute(record, (name, nth))).await?;
                tokio::time::sleep(PAUSE).await;
            }
            anyhow::Ok(())
        });
    }
    while let Some(sent) = sending.join_next().await {
        sent??;
    }
    Ok(())
}

/// The web shop uses plain HTTP, like `curl -d`.
async fn web_shop(
    address: String,
    (name, orders): Orders,
    undecodable: Vec<String>,
) -> anyhow::Result<()> {
    for id in undecodable {
        post(&address, name, "customer-0", &id, "{\"id\": ").await?;
    }
    for (order, _) in orders {
        let body = serde_json::to_string(&order)?;
        post(&address, name, &order.customer, &order.id, &body).await?;
        tokio::time::sleep(PAUSE).await;
    }
    Ok(())
}

async fn post(address: &str, by: &str, session: &str, id: &str, body: &str) -> anyhow::Result<()> {
    let mut stream =
        TcpStream::connect(address).await.context("the web shop cannot connect to the server")?;
    let path = format!("/api/v1/queues/{QUEUE}/messages?session={session}&id={id}&subject={by}");
    let length = body.len();
    let request = format!(
        "POST {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    ensure!(answer.starts_with("HTTP/1.1 201"), "the web shop got the response: {answer}");
    Ok(())
}

/// Phones use the protocol of Service Bus, the partner the native connection. Only the URL differs.
async fn library(url: String, (name, orders): Orders) -> anyhow::Result<()> {
    let malote = Malote::connect(&url)
        .await
        .with_context(|| format!("{name} cannot connect to the server"))?;
    for (nth, (order, expected)) in orders.iter().enumerate() {
        let twice = nth % TWICE_EVERY == 3 && *expected == Expected::Applied;
        for _ in 0..=usize::from(twice) {
            send(&malote, name, order).await?;
        }
        tokio::time::sleep(PAUSE).await;
    }
    Ok(malote.close().await?)
}

async fn send(malote: &Malote, name: &str, order: &Order) -> anyhow::Result<()> {
    let mut retries = 0;
    loop {
        let sending = malote.send(QUEUE, order).id(&order.id).session(&order.customer);
        match sending.subject(name).await {
            Ok(_) => return Ok(()),
            // A node of the broker may be down; the client connects to another one.
            Err(malote::Error::Broker(error)) if error.is_transient() && retries < RETRIES_MAX => {
                retries += 1;
                tokio::time::sleep(RETRY_PAUSE).await;
            }
            Err(error) => bail!("{name}: {error}"),
        }
    }
}
