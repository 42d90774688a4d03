//! An order is reserved, charged and shipped at three companies that know nothing about each other. Either all steps
//! are done, or all effects are compensated. The worker dies before and after each step, answers are lost, and some
//! orders cannot be fulfilled.
//!
//! ```sh
//! cargo run -p saga
//! ```
//!
//! Start with `order.rs`: it is all the code that a shop writes. `services.rs` simulates the companies. The broker runs
//! in the process of the worker. It is killed with the worker, and recovers.

mod order;
mod services;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, ensure};
use clap::Parser;
use malote::saga::StepStatus;
use malote::{Malote, SagaState, SagaStatus};
use tokio::process::Command;

use order::{ORDER, Order};
use services::Services;

#[derive(Parser)]
#[command(
    about = "Orders in three steps, all done or all compensated, while workers die at every point"
)]
struct Args {
    #[command(subcommand)]
    role: Option<Role>,
    /// Number of orders
    #[arg(long, default_value_t = 120)]
    orders: usize,
}

#[derive(clap::Subcommand)]
enum Role {
    /// A worker (started by this program)
    #[command(hide = true)]
    Work { directory: PathBuf, count: usize },
}

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    let args = Args::parse();
    if let Some(Role::Work { directory, count }) = args.role {
        let services = Services::at(&directory.join("services.db"))?.that_crash_workers();
        order::work(&url(&directory), services, count).await?;
        return Ok(ExitCode::SUCCESS);
    }
    let directory = tempfile::tempdir()?;
    println!("{} orders, each started twice, on {}", args.orders, url(directory.path()));
    start(directory.path(), args.orders).await?;
    let died = work(directory.path(), args.orders).await?;
    println!("the worker died {died} times, before or after an effect");
    let passed = check(directory.path(), args.orders, died).await?;
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn url(directory: &Path) -> String {
    format!("embedded:{}", directory.join("data").display())
}

/// The nth order. Some orders cannot be reserved, some not charged, some not shipped.
fn nth_order(nth: usize) -> Order {
    let item = match nth % 12 {
        3 => "sold out",
        9 => "piano",
        _ => "book",
    };
    let cents = if nth % 12 == 6 { 9900 } else { 1000 + nth as i64 };
    Order { item: item.to_owned(), cents, charge: None, parcel: None }
}

/// Starts every order twice, like a client that got no answer. Each is one saga.
async fn start(directory: &Path, count: usize) -> anyhow::Result<()> {
    let malote = Malote::connect(&url(directory)).await?;
    for n in (0..count).chain(0..count) {
        malote.start_saga(ORDER, &format!("order-{n}"), &nth_order(n)).await?;
    }
    Ok(malote.close().await?)
}

/// Runs a worker, and another one after each crash, until all orders are finished. Returns the number of crashes.
async fn work(directory: &Path, count: usize) -> anyhow::Result<usize> {
    let mut died = 0;
    loop {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("work").arg(directory).arg(count.to_string()).kill_on_drop(true);
        let status = command.status().await.context("cannot start the worker")?;
        if status.success() {
            return Ok(died);
        }
        died += 1;
        ensure!(died <= 10 * count, "the worker died {died} times and makes no progress");
    }
}

/// Prints the results of all checks. Returns whether they passed.
async fn check(directory: &Path, count: usize, died: usize) -> anyhow::Result<bool> {
    let totals = Services::at(&directory.join("services.db"))?.totals().await?;
    let malote = Malote::connect(&url(directory)).await?;
    let sagas = order::all(&malote).await?;
    let count_of = |status| sagas.iter().filter(|(_, saga)| saga.status == status).count();
    let (done, compensated) = (count_of(SagaStatus::Done), count_of(SagaStatus::Compensated));
    let fulfillable = (0..count).filter(|n| n % 12 == 0 || n % 3 != 0);
    let expected: Vec<Order> = fulfillable.map(nth_order).collect();
    let due: i64 = expected.iter().map(|order| order.cents).sum();
    let mut passed = true;
    let mut line = |what: &str, holds: bool, figures: String| {
        println!("  {}  {what}: {figures}", if holds { "ok    " } else { "FAILED" });
        passed &= holds;
    };
    line(
        "every order is done, or compensated if it cannot be fulfilled",
        done == expected.len() && done + compensated == count,
        format!("{done} done, {compensated} compensated, of {count}"),
    );
    line(
        "every done order was shipped once and thanked for once",
        totals.shipped == done as i64 && totals.thanked == done as i64,
        format!("{} parcels, {} letters, {done} orders", totals.shipped, totals.thanked),
    );
    let kept = totals.reserved - totals.freed;
    line(
        "only shipped items are still reserved",
        kept == totals.shipped,
        format!("{} reserved, {} freed", totals.reserved, totals.freed),
    );
    let cents = totals.charged_cents - totals.refunded_cents;
    line(
        "the right amount was charged",
        cents == due && totals.refunded_cents > 0,
        format!("{cents} of {due} cents, {} refunded", totals.refunded_cents),
    );
    line("workers died during the run", died > 0, format!("{died} times, {} calls", totals.calls));
    let is_compensated =
        |saga: &SagaState| saga.steps.iter().any(|s| s.status == StepStatus::Compensated);
    if let Some((id, saga)) = sagas.iter().find(|(_, saga)| is_compensated(saga)) {
        let steps: Vec<String> =
            saga.steps.iter().map(|s| format!("{} {}", s.name, s.status.word())).collect();
        println!("{id}: {} ({})", steps.join(", "), saga.error.as_deref().unwrap_or("no error"));
    }
    malote.close().await?;
    Ok(passed)
}
