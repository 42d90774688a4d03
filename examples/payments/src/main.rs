//! A payment is an effect outside of the database: no transaction of ours can take it back. Each is charged exactly
//! once all the same, while the worker dies between the charge and its record, messages come twice, and the provider
//! is down now and then.
//!
//! ```sh
//! cargo run -p payments
//! ```
//!
//! Read `consumer.rs` first: it is all that a shop would write. `provider.rs` plays the bank and counts. The broker is
//! the engine in the worker's own process: it is killed with it, and recovers with it.

mod consumer;
mod provider;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::Parser;
use malote::Malote;
use malote::once::sqlite::Sqlite;
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use tokio::time::Instant;

use consumer::Payment;
use provider::Provider;

/// One payment of so many is sent twice.
const TWICE_EVERY: u32 = 10;
/// If nothing moves for so long, something is wrong.
const PATIENCE: Duration = Duration::from_secs(120);

#[derive(Parser)]
#[command(
    about = "Every payment charged exactly once, while workers die between the charge and its record"
)]
struct Args {
    #[command(subcommand)]
    role: Option<Role>,
    /// Payments in all
    #[arg(long, default_value_t = 200)]
    payments: u32,
    /// A broker with empty queues `payments` and `receipts`; the engine in the worker's process unless it is given
    #[arg(long)]
    url: Option<String>,
}

#[derive(clap::Subcommand)]
enum Role {
    /// A worker (started by this program)
    #[command(hide = true)]
    Work { url: String, home: PathBuf },
}

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    let args = Args::parse();
    if let Some(Role::Work { url, home }) = args.role {
        let shop = consumer::database(&home.join("shop.db"))?;
        let provider = Provider::at(&home.join("provider.db"))?.that_ends_workers();
        consumer::work(&url, shop, provider).await?;
        return Ok(ExitCode::SUCCESS);
    }
    let home = tempfile::tempdir()?;
    let embedded = || format!("embedded:{}", home.path().join("data").display());
    let url = args.url.clone().unwrap_or_else(embedded);
    // Another broker's URL may hold a password.
    let name = args.url.as_ref().and_then(|url| url.split(':').next()).unwrap_or(&url);
    println!("{} payments, some of them sent twice, on {name}", args.payments);
    send(&url, args.payments).await?;
    let shop = consumer::database(&home.path().join("shop.db"))?;
    let provider = Provider::at(&home.path().join("provider.db"))?;
    let died = work(&url, home.path(), &shop, args.payments).await?;
    println!("the worker died {died} times, right before or right after a charge or its record");
    let right = check(args.payments, died, &shop, &provider).await?;
    Ok(if right { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Sends all payments. Somebody who hears no answer sends again, under the same id.
async fn send(url: &str, count: u32) -> anyhow::Result<()> {
    let malote = Malote::connect(url).await?;
    consumer::declare(&malote).await?;
    for nth in 0..count {
        let payment = Payment { customer: format!("customer-{}", nth % 7), cents: cents(nth) };
        for _ in 0..=usize::from(nth % TWICE_EVERY == 0) {
            malote.send(consumer::PAYMENTS, &payment).id(format!("payment-{nth}")).await?;
        }
    }
    Ok(malote.close().await?)
}

fn cents(nth: u32) -> i64 {
    100 + i64::from(nth)
}

/// Runs a worker, and another one each time it died, until all is booked. How often it died.
async fn work(url: &str, home: &Path, shop: &Sqlite, count: u32) -> anyhow::Result<usize> {
    let start = || {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("work").arg(url).arg(home).kill_on_drop(true);
        anyhow::Ok(command.spawn()?)
    };
    let mut worker = start()?;
    let (mut died, mut before, mut moved) = (0, 0, Instant::now());
    loop {
        if worker.try_wait()?.is_some() {
            died += 1;
            worker = start()?;
        }
        let booked = consumer::booked(shop).await?.0;
        if booked >= count {
            break;
        }
        if booked != before {
            (before, moved) = (booked, Instant::now());
        }
        ensure!(moved.elapsed() < PATIENCE, "it stands still: {booked} of {count} are booked");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    stop(&mut worker).await?;
    Ok(died)
}

async fn stop(worker: &mut Child) -> anyhow::Result<()> {
    let id = worker.id().and_then(|id| i32::try_from(id).ok());
    kill_process(id.and_then(Pid::from_raw).context("the worker is gone")?, Signal::TERM)?;
    let status = worker.wait().await?;
    ensure!(status.success(), "a worker that was asked to stop failed: {status}");
    Ok(())
}

/// Prints what was checked. Whether all is right.
async fn check(
    count: u32,
    died: usize,
    shop: &Sqlite,
    provider: &Provider,
) -> anyhow::Result<bool> {
    let (charges, charged, calls) = provider.totals().await?;
    let (bookings, booked) = consumer::booked(shop).await?;
    let due: i64 = (0..count).map(cents).sum();
    let mut right = true;
    let mut line = |what: &str, so: bool, figures: String| {
        println!("  {}  {what}: {figures}", if so { "ok   " } else { "WRONG" });
        right &= so;
    };
    line(
        "every payment was charged exactly once",
        charges == count && charged == due,
        format!("{charges} of {count} payments, {charged} of {due} cents"),
    );
    line(
        "every charge was booked exactly once",
        bookings == count && booked == due,
        format!("{bookings} of {count} bookings, {booked} of {due} cents"),
    );
    line(
        "it was asked more often than it charged: repeats were known by their key",
        calls > charges,
        format!("{calls} calls"),
    );
    line("workers died on the way", died > 0, format!("{died} times"));
    Ok(right)
}
