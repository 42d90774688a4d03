//! A broker that only one process can have: that process is the whole shop, with its producers and its worker. It is
//! killed with SIGKILL and started again, and goes on where it was.

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

use crate::checks::Books;
use crate::order::{Fate, Plan, QUEUE};
use crate::trouble::{CALM, PATIENCE, signal};
use crate::{Args, producers, worker};

const LOOK: Duration = Duration::from_millis(50);
/// What was sent and not noted is sent again under the same id: the queue takes it once.
const DEDUP: Dedup = Dedup { window_ms: 3_600_000, per_session: false, content: false };

/// Runs the shop, kills it so many times, and checks.
pub async fn run(args: &Args, url: &str, home: &Path) -> anyhow::Result<ExitCode> {
    let path = home.join("shop.db");
    let db = worker::database(&path)?;
    let shop = Malote::connect(url).await?;
    worker::declare(&shop, Some(DEDUP)).await?;
    let plan = Plan::new(args.orders, args.customers, shop.broker().capabilities(), false, true);
    shop.close().await?;
    println!("{} orders of {} customers, one process, on {url}", args.orders, args.customers);

    let wanted = plan.with(Fate::Applied).count();
    let applied = "select count(distinct id) from applied";
    let (mut killed, mut ended) = (0, 0);
    let (mut before, mut moved) = (0, Instant::now());
    let shop = loop {
        let mut child = start(url, &path, args)?;
        let born = Instant::now();
        loop {
            let now: u32 = db.run(|db| db.query_row(applied, [], |row| row.get(0))).await?;
            let now = now as usize;
            if now != before {
                (before, moved) = (now, Instant::now());
            }
            ensure!(moved.elapsed() < PATIENCE, "it stands still: {now} of {wanted} applied");
            if child.try_wait()?.is_some() {
                ended += 1;
                break;
            }
            if killed < args.kills && born.elapsed() >= CALM && now < wanted {
                child.kill().await?;
                killed += 1;
                break;
            }
            if now == wanted && born.elapsed() >= CALM {
                signal(&child, Signal::TERM)?;
                let status = child.wait().await?;
                // One that had not come so far yet is started again.
                let early = status.signal() == Some(Signal::TERM.as_raw());
                ensure!(
                    early || status.success(),
                    "the shop that was asked to stop failed: {status}"
                );
                break;
            }
            tokio::time::sleep(LOOK).await;
        }
        let shop = Malote::connect(url).await?;
        let dead = shop.broker().depth(&QueueName::new(QUEUE)?.dead_letters()).await?.ready;
        if before + usize::try_from(dead)? >= plan.len() {
            break shop;
        }
        shop.close().await?;
    };
    ensure!(ended == 0, "the process ended {ended} times by itself");
    println!("the process, with its broker, was killed {killed} times with SIGKILL");
    let right = Books::open(db, shop.clone(), plan).check().await?;
    shop.close().await?;
    Ok(if right { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn start(url: &str, db: &Path, args: &Args) -> anyhow::Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--orders", &args.orders.to_string()]);
    command.args(["--customers", &args.customers.to_string()]);
    command.args(["shop", url]).arg(db).kill_on_drop(true);
    command.spawn().context("the shop does not start")
}

/// The shop: sends what was not sent, and works until SIGTERM.
pub async fn shop(url: &str, db: &Path, orders: usize, customers: usize) -> anyhow::Result<()> {
    let malote = Malote::connect(url).await?;
    let plan = Plan::new(orders, customers, malote.broker().capabilities(), false, true);
    let (books, shop) = (worker::database(db)?, malote.clone());
    let sending = tokio::spawn(producers::send_on(shop, books, plan));
    worker::of(&malote, worker::database(db)?).run_until_signal().await?;
    sending.await??;
    Ok(malote.close().await?)
}
