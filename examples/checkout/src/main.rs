//! A checkout must send a mail, and the mail provider takes eight seconds. In the first version the customer waits for
//! the mail. In the second version the mail is in a queue on disk when the answer is sent. A worker sends address most
//! the fifty mails a second that the provider allows. While the provider is down, the worker pauses, and no mail is
//! lost.
//!
//! ```sh
//! cargo run --release -p checkout
//! ```
//!
//! Start with `shop.rs`: it is all the code that a shop writes.

mod load;
mod provider;
mod shop;

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Context;
use clap::Parser;
use malote::{Malote, Worker};
use tokio::net::TcpListener;
use tokio::time::Instant;

use load::LoadResult;
use provider::Provider;
use shop::{MAILS, MAILS_PER_SECOND, Mail, Shop};

/// Concurrent customers of the version without a queue.
const BEFORE: usize = 20;

#[derive(Parser)]
#[command(about = "A checkout that does not wait for a slow mail provider")]
struct Args {
    /// Milliseconds that the provider needs for a mail
    #[arg(long, default_value_t = 8000)]
    provider_ms: u64,
    /// Milliseconds of load
    #[arg(long, default_value_t = 5000)]
    load_ms: u64,
    /// Milliseconds for which the provider is down
    #[arg(long, default_value_t = 3000)]
    down_ms: u64,
    /// Number of customers that order at the same time
    #[arg(long, default_value_t = 64)]
    customers: usize,
    /// URL of a broker without a queue `mails` [default: the broker in this process]
    #[arg(long)]
    url: Option<String>,
}

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    let args = Args::parse();
    let directory = tempfile::tempdir()?;
    let embedded = || format!("embedded:{}", directory.path().join("data").display());
    let malote = Malote::connect(&args.url.clone().unwrap_or_else(embedded)).await?;
    let takes = Duration::from_millis(args.provider_ms);
    let provider = Provider::with_latency(takes);
    let shop = Shop::open(malote.clone(), provider.clone()).await?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let routes = shop.routes();
    let serving = tokio::spawn(async move { axum::serve(listener, routes).await });

    println!("the provider needs {takes:?} for a mail and allows {MAILS_PER_SECOND} a second");
    let before = load::run(address, "/before", BEFORE, Duration::ZERO).await?;
    print("without a queue, the customer waits for the mail", &before);
    let orders_before = shop.orders();

    let mailer = shop.mailer().await?;
    let begun = Instant::now();
    let calls_before = provider.calls();
    let time = Duration::from_millis(args.load_ms);
    let after = load::run(address, "/checkout", args.customers, time).await?;
    print("with a queue, the mail is on disk", &after);
    provider.set_down(true);
    let down = Duration::from_millis(args.down_ms);
    let while_down = load::run(address, "/checkout", args.customers, down).await?;
    print("while the provider is down", &while_down);
    provider.set_down(false);
    // The provider is up again: wait for the next mail.
    let sent_before = provider.sent().await.len();
    while provider.sent().await.len() <= sent_before {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    mailer.stop();
    let ended = mailer.ended().await?;
    let (calls, elapsed) = (provider.calls() - calls_before, begun.elapsed());
    let waiting = take_waiting(&malote).await?;
    serving.abort();
    malote.close().await?;

    let mut passed = true;
    let mut line = |what: &str, holds: bool, figures: String| {
        println!("  {}  {what}: {figures}", if holds { "ok    " } else { "FAILED" });
        passed &= holds;
    };
    let sent: BTreeSet<u64> = provider.sent().await.into_iter().collect();
    let orders = shop.orders();
    let kept: BTreeSet<u64> = sent.union(&waiting).copied().collect();
    line(
        "the mail of every order was sent or waits",
        kept.len() as u64 == orders && kept.last().is_none_or(|last| *last < orders),
        format!("{} sent, {} waiting, of {orders} orders", sent.len(), waiting.len()),
    );
    line(
        "no mail was sent and waits as well",
        sent.is_disjoint(&waiting),
        format!("{} in both", sent.intersection(&waiting).count()),
    );
    let most = (elapsed.as_secs_f64() + 1.0) * f64::from(MAILS_PER_SECOND);
    line(
        "the rate limit of the provider was kept",
        calls as f64 <= most,
        format!("{calls} calls in {:.1} s", elapsed.as_secs_f64()),
    );
    line(
        "customers did not wait for the provider",
        after.quantile(0.99) < takes && while_down.quantile(0.99) < takes,
        format!("99 % within {:.1?} and {:.1?}", after.quantile(0.99), while_down.quantile(0.99)),
    );
    line(
        "no mail was dead-lettered while the provider was down",
        ended.counts.dead == 0,
        format!("{} failed attempts, {} dead letters", ended.counts.retried, ended.counts.dead),
    );
    line(
        "all customers without a queue got their mail",
        orders_before == BEFORE as u64,
        format!("{orders_before} orders"),
    );
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn print(what: &str, result: &LoadResult) {
    println!(
        "{what}: {} orders, {:.0} a second, 50 % of the answers within {:.1?}, 99 % within {:.1?}",
        result.latencies.len(),
        result.per_second(),
        result.quantile(0.5),
        result.quantile(0.99)
    );
}

/// Removes and returns the waiting orders.
async fn take_waiting(malote: &Malote) -> anyhow::Result<BTreeSet<u64>> {
    type Orders = Arc<Mutex<BTreeSet<u64>>>;
    async fn record(mail: Mail, orders: malote::State<Orders>) {
        if let Ok(mut orders) = orders.lock() {
            orders.insert(mail.order);
        }
    }
    let orders = Orders::default();
    let worker = Worker::new(malote, MAILS).handle(record).slots(64).state(orders.clone());
    let running = worker.start().await?;
    // Delayed retries arrive within this time.
    let mut idle_since = Instant::now();
    let mut done = 0;
    while idle_since.elapsed() < IDLE_TIME {
        tokio::time::sleep(Duration::from_millis(20)).await;
        if running.counts().done != done {
            (done, idle_since) = (running.counts().done, Instant::now());
        }
    }
    running.stop();
    running.ended().await?;
    let orders = orders.lock().ok().context("a handler panicked")?;
    Ok(orders.clone())
}

/// Longer than the delay of a retry after a short outage.
const IDLE_TIME: Duration = Duration::from_secs(8);
