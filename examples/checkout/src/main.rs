//! A customer checks out, and a mail is to be sent by a provider that takes eight seconds. Before: the customer waits for it.
//! After: the mail is in a queue, on disk, when the answer leaves. A worker sends mails at no more than the fifty a second
//! that the provider allows; while the provider is down it sends none, and loses none.
//!
//! ```sh
//! cargo run --release -p checkout
//! ```
//!
//! Read `shop.rs` first: it is all that a shop would write.

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

use load::Seen;
use provider::Provider;
use shop::{MAILS, MAILS_PER_SECOND, Mail, Shop};

/// Customers who check out at the same time before there is a queue.
const BEFORE: usize = 20;

#[derive(Parser)]
#[command(about = "A check-out that does not wait for a slow e-mail provider")]
struct Args {
    /// Milliseconds that the provider takes for a mail
    #[arg(long, default_value_t = 8000)]
    provider_ms: u64,
    /// Milliseconds of load
    #[arg(long, default_value_t = 5000)]
    load_ms: u64,
    /// Milliseconds for which the provider is down
    #[arg(long, default_value_t = 3000)]
    down_ms: u64,
    /// Customers at once
    #[arg(long, default_value_t = 64)]
    customers: usize,
    /// A broker without a queue `mails`; the engine in this process unless it is given
    #[arg(long)]
    url: Option<String>,
}

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    let args = Args::parse();
    let home = tempfile::tempdir()?;
    let embedded = || format!("embedded:{}", home.path().join("data").display());
    let malote = Malote::connect(&args.url.clone().unwrap_or_else(embedded)).await?;
    let takes = Duration::from_millis(args.provider_ms);
    let provider = Provider::that_takes(takes);
    let shop = Shop::open(malote.clone(), provider.clone()).await?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let at = listener.local_addr()?;
    let routes = shop.routes();
    let serving = tokio::spawn(async move { axum::serve(listener, routes).await });

    println!("a provider that takes {takes:?} for a mail and allows {MAILS_PER_SECOND} a second");
    let before = load::run(at, "/before", BEFORE, Duration::ZERO).await?;
    say("before, the customer waits for the mail", &before);
    let by_hand = shop.orders();

    let mailer = shop.mailer().await?;
    let begun = Instant::now();
    let calls_before = provider.calls();
    let time = Duration::from_millis(args.load_ms);
    let after = load::run(at, "/checkout", args.customers, time).await?;
    say("after, the mail is in a queue, on disk", &after);
    provider.set_down(true);
    let down = Duration::from_millis(args.down_ms);
    let while_down = load::run(at, "/checkout", args.customers, down).await?;
    say("while the provider is down", &while_down);
    provider.set_down(false);
    // It is back: mails go out again.
    let sent_before = provider.sent().await.len();
    while provider.sent().await.len() <= sent_before {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    mailer.stop();
    let ended = mailer.ended().await?;
    let (calls, elapsed) = (provider.calls() - calls_before, begun.elapsed());
    let waiting = rest(&malote).await?;
    serving.abort();
    malote.close().await?;

    let mut right = true;
    let mut line = |what: &str, so: bool, figures: String| {
        println!("  {}  {what}: {figures}", if so { "ok   " } else { "WRONG" });
        right &= so;
    };
    let sent: BTreeSet<u64> = provider.sent().await.into_iter().collect();
    let orders = shop.orders();
    let kept: BTreeSet<u64> = sent.union(&waiting).copied().collect();
    line(
        "every order's mail was sent or still waits",
        kept.len() as u64 == orders && kept.last().is_none_or(|last| *last < orders),
        format!("{} sent, {} wait, of {orders} orders", sent.len(), waiting.len()),
    );
    line(
        "none was sent that waits as well",
        sent.is_disjoint(&waiting),
        format!("{} in both", sent.intersection(&waiting).count()),
    );
    let most = (elapsed.as_secs_f64() + 1.0) * f64::from(MAILS_PER_SECOND);
    line(
        "no more left than the provider allows",
        calls as f64 <= most,
        format!("{calls} calls in {:.1} s", elapsed.as_secs_f64()),
    );
    line(
        "an order did not wait for the provider",
        after.quantile(0.99) < takes && while_down.quantile(0.99) < takes,
        format!(
            "99 of 100 within {:.1?} and {:.1?}",
            after.quantile(0.99),
            while_down.quantile(0.99)
        ),
    );
    line(
        "no mail died while the provider was down",
        ended.counts.dead == 0,
        format!("{} tries failed, {} dead letters", ended.counts.retried, ended.counts.dead),
    );
    line("customers of before had theirs", by_hand == BEFORE as u64, format!("{by_hand} orders"));
    Ok(if right { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn say(what: &str, seen: &Seen) {
    println!(
        "{what}: {} orders, {:.0} a second, half of the answers within {:.1?}, 99 of 100 within {:.1?}",
        seen.answers.len(),
        seen.per_second(),
        seen.quantile(0.5),
        seen.quantile(0.99)
    );
}

/// Takes what still waits, to know it.
async fn rest(malote: &Malote) -> anyhow::Result<BTreeSet<u64>> {
    type Orders = Arc<Mutex<BTreeSet<u64>>>;
    async fn note(mail: Mail, orders: malote::State<Orders>) {
        if let Ok(mut orders) = orders.lock() {
            orders.insert(mail.order);
        }
    }
    let orders = Orders::default();
    let worker = Worker::new(malote, MAILS).handle(note).slots(64).state(orders.clone());
    let running = worker.start().await?;
    // Those whose retry is delayed come within its cap.
    let mut quiet_since = Instant::now();
    let mut done = 0;
    while quiet_since.elapsed() < QUIET {
        tokio::time::sleep(Duration::from_millis(20)).await;
        if running.counts().done != done {
            (done, quiet_since) = (running.counts().done, Instant::now());
        }
    }
    running.stop();
    running.ended().await?;
    let orders = orders.lock().ok().context("a handler panicked")?;
    Ok(orders.clone())
}

/// Longer than a mail waits after the tries that a short outage costs it.
const QUIET: Duration = Duration::from_secs(8);
