//! An order is reserved, charged and shipped, at three companies that know nothing of one another. Either all of it
//! happens or nothing of it is left, while the worker dies before and after each of these things, answers are lost, and
//! some orders cannot be fulfilled.
//!
//! ```sh
//! cargo run -p saga
//! ```
//!
//! Read `order.rs` first: it is all that a shop would write. `services.rs` plays the companies. The broker is the engine
//! in the worker's own process: it is killed with it, and recovers with it.

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
    about = "Orders in three steps, all done or all taken back, while workers die at every point"
)]
struct Args {
    #[command(subcommand)]
    role: Option<Role>,
    /// Orders in all
    #[arg(long, default_value_t = 120)]
    orders: usize,
}

#[derive(clap::Subcommand)]
enum Role {
    /// A worker (started by this program)
    #[command(hide = true)]
    Work { home: PathBuf, count: usize },
}

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    let args = Args::parse();
    if let Some(Role::Work { home, count }) = args.role {
        let services = Services::at(&home.join("services.db"))?.that_end_workers();
        order::work(&url(&home), services, count).await?;
        return Ok(ExitCode::SUCCESS);
    }
    let home = tempfile::tempdir()?;
    println!("{} orders, each started twice, on {}", args.orders, url(home.path()));
    start(home.path(), args.orders).await?;
    let died = work(home.path(), args.orders).await?;
    println!("the worker died {died} times, before or after something was done");
    let right = check(home.path(), args.orders, died).await?;
    Ok(if right { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn url(home: &Path) -> String {
    format!("embedded:{}", home.join("data").display())
}

/// Some cannot be had, some cannot be paid, some cannot be shipped.
fn nth(nth: usize) -> Order {
    let item = match nth % 12 {
        3 => "sold out",
        9 => "piano",
        _ => "book",
    };
    let cents = if nth % 12 == 6 { 9900 } else { 1000 + nth as i64 };
    Order { item: item.to_owned(), cents, charge: None, parcel: None }
}

/// Whoever hears no answer starts an order again: it is one saga.
async fn start(home: &Path, count: usize) -> anyhow::Result<()> {
    let malote = Malote::connect(&url(home)).await?;
    for n in (0..count).chain(0..count) {
        malote.start_saga(ORDER, &format!("order-{n}"), &nth(n)).await?;
    }
    Ok(malote.close().await?)
}

/// Runs a worker, and another one each time it died, until all orders are over. How often it died.
async fn work(home: &Path, count: usize) -> anyhow::Result<usize> {
    let mut died = 0;
    loop {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("work").arg(home).arg(count.to_string()).kill_on_drop(true);
        let status = command.status().await.context("the worker does not start")?;
        if status.success() {
            return Ok(died);
        }
        died += 1;
        ensure!(died <= 10 * count, "it dies and does not get on");
    }
}

/// Prints what was checked. Whether all is right.
async fn check(home: &Path, count: usize, died: usize) -> anyhow::Result<bool> {
    let totals = Services::at(&home.join("services.db"))?.totals().await?;
    let malote = Malote::connect(&url(home)).await?;
    let sagas = order::all(&malote).await?;
    let of = |status| sagas.iter().filter(|(_, saga)| saga.status == status).count();
    let (done, back) = (of(SagaStatus::Done), of(SagaStatus::Compensated));
    let fulfillable = (0..count).filter(|n| n % 12 == 0 || n % 3 != 0);
    let expected: Vec<Order> = fulfillable.map(nth).collect();
    let due: i64 = expected.iter().map(|order| order.cents).sum();
    let mut right = true;
    let mut line = |what: &str, so: bool, figures: String| {
        println!("  {}  {what}: {figures}", if so { "ok   " } else { "WRONG" });
        right &= so;
    };
    line(
        "every order that can be fulfilled is, and every other one is taken back",
        done == expected.len() && done + back == count,
        format!("{done} done, {back} compensated, of {count}"),
    );
    line(
        "what was shipped was shipped once, and somebody was thanked for it once",
        totals.shipped == done as i64 && totals.thanked == done as i64,
        format!("{} parcels, {} letters, {done} orders", totals.shipped, totals.thanked),
    );
    let kept = totals.reserved - totals.freed;
    line(
        "nothing stays reserved that was not shipped",
        kept == totals.shipped,
        format!("{} reserved, {} freed", totals.reserved, totals.freed),
    );
    let cents = totals.charged_cents - totals.refunded_cents;
    line(
        "no cent too many and none too few",
        cents == due && totals.refunded_cents > 0,
        format!("{cents} of {due} cents, {} more were given back", totals.refunded_cents),
    );
    line("workers died on the way", died > 0, format!("{died} times, {} calls", totals.calls));
    let is_back = |saga: &SagaState| saga.steps.iter().any(|s| s.status == StepStatus::Compensated);
    if let Some((id, saga)) = sagas.iter().find(|(_, saga)| is_back(saga)) {
        let steps: Vec<String> =
            saga.steps.iter().map(|s| format!("{} {}", s.name, s.status.word())).collect();
        println!("{id}: {} ({})", steps.join(", "), saga.error.as_deref().unwrap_or("no error"));
    }
    malote.close().await?;
    Ok(right)
}
