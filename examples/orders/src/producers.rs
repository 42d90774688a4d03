//! Three ways to send an order. Each producer sends its orders one after the other and goes on when one is durable, as
//! a shop does that answers its customer then. Some hear no answer and send again, under the same id.

use std::time::Duration;

use anyhow::{Context, bail, ensure};
use malote::Malote;
use malote::once::sqlite::Sqlite;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::order::{Fate, Order, Plan, QUEUE};
use crate::server::Addresses;

/// A shop is not a benchmark.
const PAUSE: Duration = Duration::from_millis(3);
/// Tries to send an order while the broker cannot be reached, and the time between two.
const TRIES_MAX: usize = 300;
const AGAIN: Duration = Duration::from_millis(200);
/// One order of so many is sent twice.
const TWICE_EVERY: usize = 25;

/// What a producer has to send.
type Orders = (&'static str, Vec<(Order, Fate)>);

/// Sends all orders: each producer on its own, all at the same time.
pub async fn send_all(to: Addresses, plan: Plan) -> anyhow::Result<()> {
    let [web, mobile, partner] = plan.of;
    let one = match to.http {
        Some(at) => tokio::spawn(web_shop(at, web, plan.torn)),
        None => tokio::spawn(library(to.url.clone(), web)),
    };
    let two = tokio::spawn(library(to.servicebus.unwrap_or_else(|| to.url.clone()), mobile));
    let three = tokio::spawn(library(to.url, partner));
    for sent in [one, two, three] {
        sent.await??;
    }
    Ok(())
}

/// Sends all orders of a shop that may have been killed before: each producer goes on after the last that it noted.
pub async fn send_on(malote: Malote, books: Sqlite, plan: Plan) -> anyhow::Result<()> {
    let note = "create table if not exists sent (producer text primary key, orders integer)";
    books.run(move |db| db.execute(note, [])).await?;
    let mut sending = tokio::task::JoinSet::new();
    for (name, orders) in plan.of {
        let (malote, books) = (malote.clone(), books.clone());
        sending.spawn(async move {
            let noted = "select coalesce(max(orders), 0) from sent where producer = ?1";
            let noted: u32 =
                books.run(move |db| db.query_row(noted, [name], |row| row.get(0))).await?;
            for (order, nth) in
                orders.iter().map(|(order, _)| order).zip(1u32..).skip(noted as usize)
            {
                send(&malote, name, order).await?;
                let note = "insert or replace into sent (producer, orders) values (?1, ?2)";
                books.run(move |db| db.execute(note, (name, nth))).await?;
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

/// The web shop knows nothing but HTTP: what `curl -d` does.
async fn web_shop(at: String, (name, orders): Orders, torn: Vec<String>) -> anyhow::Result<()> {
    for id in torn {
        post(&at, name, "customer-0", &id, "{\"id\": ").await?;
    }
    for (order, _) in orders {
        let body = serde_json::to_string(&order)?;
        post(&at, name, &order.customer, &order.id, &body).await?;
        tokio::time::sleep(PAUSE).await;
    }
    Ok(())
}

async fn post(at: &str, by: &str, session: &str, id: &str, body: &str) -> anyhow::Result<()> {
    let mut stream = TcpStream::connect(at).await.context("the web shop finds no server")?;
    let path = format!("/api/v1/queues/{QUEUE}/messages?session={session}&id={id}&subject={by}");
    let length = body.len();
    let request = format!(
        "POST {path} HTTP/1.1\r\nhost: {at}\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    ensure!(answer.starts_with("HTTP/1.1 201"), "the web shop was answered: {answer}");
    Ok(())
}

/// Phones speak Service Bus, the partner the native connection: the same lines, another URL.
async fn library(url: String, (name, orders): Orders) -> anyhow::Result<()> {
    let malote = Malote::connect(&url).await.with_context(|| format!("{name} finds no server"))?;
    for (nth, (order, fate)) in orders.iter().enumerate() {
        let twice = nth % TWICE_EVERY == 3 && *fate == Fate::Applied;
        for _ in 0..=usize::from(twice) {
            send(&malote, name, order).await?;
        }
        tokio::time::sleep(PAUSE).await;
    }
    Ok(malote.close().await?)
}

async fn send(malote: &Malote, name: &str, order: &Order) -> anyhow::Result<()> {
    let mut tries = 0;
    loop {
        let sending = malote.send(QUEUE, order).id(&order.id).session(&order.customer);
        match sending.subject(name).await {
            Ok(_) => return Ok(()),
            // A node of the broker may have died: its clients find another one.
            Err(malote::Error::Broker(error)) if error.is_transient() && tries < TRIES_MAX => {
                tries += 1;
                tokio::time::sleep(AGAIN).await;
            }
            Err(error) => bail!("{name}: {error}"),
        }
    }
}
