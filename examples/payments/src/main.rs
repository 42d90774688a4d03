//! A payment is an effect outside the database, which no transaction can undo. Each payment is still charged exactly
//! once, while the worker dies between the charge and its record, messages are delivered twice, and the provider loses
//! answers.
//!
//! ```sh
//! cargo run -p payments
//! ```
//!
//! Start with `consumer.rs`: it is all the code that a shop writes. `provider.rs` simulates the bank. The broker runs
//! in the process of the worker. It is killed with the worker, and recovers.

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

/// Every tenth payment is sent twice.
const TWICE_EVERY: u32 = 10;
/// The example fails after this time without progress.
const STALL_TIMEOUT: Duration = Duration::from_secs(120);

#[derive(Parser)]
#[command(
    about = "Every payment charged exactly once, while workers die between the charge and its record"
)]
struct Args {
    #[command(subcommand)]
    role: Option<Role>,
    /// Number of payments
    #[arg(long, default_value_t = 200)]
    payments: u32,
    /// URL of a broker with empty queues `payments` and `receipts` [default: the broker in the process of the worker]
    #[arg(long)]
    url: Option<String>,
}

#[derive(clap::Subcommand)]
enum Role {
    /// A worker (started by this program)
    #[command(hide = true)]
    Work { url: String, directory: PathBuf },
}

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    let args = Args::parse();
    if let Some(Role::Work { url, directory }) = args.role {
        let shop = consumer::database(&directory.join("shop.db"))?;
        let provider = Provider::at(&directory.join("provider.db"))?.that_crashes_workers();
        consumer::work(&url, shop, provider).await?;
        return Ok(ExitCode::SUCCESS);
    }
    let directory = tempfile::tempdir()?;
    let embedded = || format!("embedded:{}", directory.path().join("data").display());
    let url = args.url.clone().unwrap_or_else(embedded);
    // A URL may contain a password, so print only its scheme.
    let name = args.url.as_ref().and_then(|url| url.split(':').next()).unwrap_or(&url);
    println!("{} payments, some of them sent twice, on {name}", args.payments);
    send(&url, args.payments).await?;
    let shop = consumer::database(&directory.path().join("shop.db"))?;
    let provider = Provider::at(&directory.path().join("provider.db"))?;
    let died = work(&url, directory.path(), &shop, args.payments).await?;
    println!("the worker died {died} times, before or after a charge or its record");
    let passed = check(args.payments, died, &shop, &provider).await?;
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Sends all payments. Some are sent twice with the same id, like a client that got no answer.
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

/// Runs a worker, and another one after each crash, until all payments are booked. Returns the number of crashes.
async fn work(url: &str, directory: &Path, shop: &Sqlite, count: u32) -> anyhow::Result<usize> {
    let start = || {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("work").arg(url).arg(directory).kill_on_drop(true);
        anyhow::Ok(command.spawn()?)
    };
    let mut worker = start()?;
    let (mut died, mut before, mut progress_at) = (0, 0, Instant::now());
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
            (before, progress_at) = (booked, Instant::now());
        }
        ensure!(
            progress_at.elapsed() < STALL_TIMEOUT,
            "no progress: {booked} of {count} payments are booked"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    stop(&mut worker).await?;
    Ok(died)
}

async fn stop(worker: &mut Child) -> anyhow::Result<()> {
    let id = worker.id().and_then(|id| i32::try_from(id).ok());
    kill_process(id.and_then(Pid::from_raw).context("the worker has ended")?, Signal::TERM)?;
    let status = worker.wait().await?;
    ensure!(status.success(), "the worker failed during its shutdown: {status}");
    Ok(())
}

/// Prints the results of all checks. Returns whether they passed.
async fn check(
    count: u32,
    died: usize,
    shop: &Sqlite,
    provider: &Provider,
) -> anyhow::Result<bool> {
    let (charges, charged, calls) = provider.totals().await?;
    let (bookings, booked) = consumer::booked(shop).await?;
    let due: i64 = (0..count).map(cents).sum();
    let mut passed = true;
    let mut line = |what: &str, holds: bool, figures: String| {
        println!("  {}  {what}: {figures}", if holds { "ok    " } else { "FAILED" });
        passed &= holds;
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
        "the provider recognized repeated calls by their key",
        calls > charges,
        format!("{calls} calls for {charges} charges"),
    );
    line("workers died during the run", died > 0, format!("{died} times"));
    Ok(passed)
}
