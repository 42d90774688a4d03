//! On a broker that only one process can open, producers and worker run in that process. It is killed with SIGKILL and
//! started again.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, ensure};
use malote::model::Dedup;
use malote::{Malote, QueueName};
use rustix::process::Signal;
use tokio::process::{Child, Command};
use tokio::time::Instant;

use crate::checks::Results;
use crate::faults::{PAUSE, STALL_TIMEOUT, signal};
use crate::order::{Expected, Plan, QUEUE};
use crate::{Args, producers, worker};

const POLL: Duration = Duration::from_millis(50);
/// Unrecorded sends are repeated with the same id, and the queue drops the duplicates.
const DEDUP: Dedup = Dedup { window_ms: 3_600_000, per_session: false, content: false };

/// Runs the shop, kills it several times, and checks the result.
pub async fn run(args: &Args, url: &str, directory: &Path) -> anyhow::Result<ExitCode> {
    let path = directory.join("shop.db");
    let db = worker::database(&path)?;
    let shop = Malote::connect(url).await?;
    worker::declare(&shop, Some(DEDUP)).await?;
    let plan = Plan::new(args.orders, args.customers, shop.broker().capabilities(), false, true);
    shop.close().await?;
    println!("{} orders of {} customers, one process, on {url}", args.orders, args.customers);

    let wanted = plan.with(Expected::Applied).count();
    let applied = "select count(distinct id) from applied";
    let (mut killed, mut ended) = (0, 0);
    let (mut before, mut progress_at) = (0, Instant::now());
    let shop = loop {
        let mut child = start(url, &path, args)?;
        let started = Instant::now();
        loop {
            let now: u32 = db.run(|db| db.query_row(applied, [], |row| row.get(0))).await?;
            let now = now as usize;
            if now != before {
                (before, progress_at) = (now, Instant::now());
            }
            ensure!(
                progress_at.elapsed() < STALL_TIMEOUT,
                "no progress: {now} of {wanted} orders applied"
            );
            if child.try_wait()?.is_some() {
                ended += 1;
                break;
            }
            if killed < args.kills && started.elapsed() >= PAUSE && now < wanted {
                child.kill().await?;
                killed += 1;
                break;
            }
            if now == wanted && started.elapsed() >= PAUSE {
                signal(&child, Signal::TERM)?;
                let status = child.wait().await?;
                // SIGTERM ended it before it installed its signal handlers.
                let not_ready = status.signal() == Some(Signal::TERM.as_raw());
                ensure!(
                    not_ready || status.success(),
                    "the shop failed during its shutdown: {status}"
                );
                break;
            }
            tokio::time::sleep(POLL).await;
        }
        let shop = Malote::connect(url).await?;
        let dead = shop.broker().depth(&QueueName::new(QUEUE)?.dead_letters()).await?.ready;
        if before + usize::try_from(dead)? >= plan.len() {
            break shop;
        }
        shop.close().await?;
    };
    ensure!(ended == 0, "the process crashed {ended} times by itself");
    println!("the process with worker and broker was killed {killed} times with SIGKILL");
    let passed = Results::open(db, shop.clone(), plan).check().await?;
    shop.close().await?;
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn start(url: &str, db: &Path, args: &Args) -> anyhow::Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--orders", &args.orders.to_string()]);
    command.args(["--customers", &args.customers.to_string()]);
    command.args(["shop", url]).arg(db).kill_on_drop(true);
    command.spawn().context("cannot start the shop")
}

/// The shop: sends the remaining orders, and works until SIGTERM.
pub async fn shop(url: &str, db: &Path, orders: usize, customers: usize) -> anyhow::Result<()> {
    let malote = Malote::connect(url).await?;
    let plan = Plan::new(orders, customers, malote.broker().capabilities(), false, true);
    let (progress, shop) = (worker::database(db)?, malote.clone());
    let sending = tokio::spawn(producers::send_remaining(shop, progress, plan));
    worker::shop_worker(&malote, worker::database(db)?).run_until_signal().await?;
    sending.await??;
    Ok(malote.close().await?)
}
