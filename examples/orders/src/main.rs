//! Orders arrive from the web, from phones and from a partner, and several workers apply them. Each order takes effect
//! exactly once, in order for each customer. Meanwhile workers are killed with SIGKILL and frozen with SIGSTOP, and
//! some orders always fail.
//!
//! ```sh
//! cargo run -p orders
//! ```
//!
//! Start with `worker.rs`: it is all the code that a shop writes. `producers.rs` sends over three protocols,
//! `faults.rs` kills and freezes workers, and `checks.rs` checks the result. The exit code is 1 if a check fails. The
//! server, each worker and this program are separate processes of the same binary. On `embedded:DIR`, which only one
//! process can open, worker and producers are one process: `single_process.rs`.

mod checks;
mod faults;
mod order;
mod producers;
mod server;
mod single_process;
mod worker;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

#[derive(Parser)]
#[command(about = "Orders, applied exactly once while workers are killed and frozen")]
struct Args {
    #[command(subcommand)]
    role: Option<Role>,
    /// Number of orders, from three producers
    #[arg(long, default_value_t = 1500)]
    orders: usize,
    /// Number of customers; the orders of each are applied in order
    #[arg(long, default_value_t = 40)]
    customers: usize,
    /// Number of worker processes
    #[arg(long, default_value_t = 3)]
    workers: usize,
    /// Workers to kill with SIGKILL while it runs
    #[arg(long, default_value_t = 5)]
    kills: usize,
    /// Workers to freeze with SIGSTOP for longer than their locks
    #[arg(long, default_value_t = 2)]
    freezes: usize,
    /// URL of a broker [default: a new server with its data in a temporary directory]. If the broker cannot declare
    /// queues, it needs an empty queue `orders`
    #[arg(long)]
    url: Option<String>,
}

#[derive(clap::Subcommand)]
enum Role {
    /// The server (started by this program)
    #[command(hide = true)]
    Serve { data: PathBuf },
    /// A worker (started by this program)
    #[command(hide = true)]
    Work { url: String, db: PathBuf },
    /// Everything in one process (started by this program)
    #[command(hide = true)]
    Shop { url: String, db: PathBuf },
}

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    let args = Args::parse();
    match args.role {
        Some(Role::Serve { data }) => server::serve(data).await?,
        Some(Role::Work { url, db }) => worker::work(&url, &db).await?,
        Some(Role::Shop { url, db }) => {
            single_process::shop(&url, &db, args.orders, args.customers).await?;
        }
        None => return run(args).await,
    }
    Ok(ExitCode::SUCCESS)
}

async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let directory = tempfile::tempdir()?;
    if let Some(url) = args.url.as_deref().filter(|url| url.starts_with("embedded:")) {
        return single_process::run(&args, url, directory.path()).await;
    }
    let server = match &args.url {
        Some(url) => server::Server::existing(url),
        None => server::Server::start(directory.path()).await?,
    };
    println!(
        "{} orders of {} customers, {} workers, on {}",
        args.orders, args.customers, args.workers, server.name
    );
    let shop = malote::Malote::connect(&server.url).await?;
    worker::declare(&shop, None).await?;
    let path = directory.path().join("shop.db");
    let db = worker::database(&path)?;
    let to = server.addresses();
    let can = shop.broker().capabilities();
    let plan = order::Plan::new(args.orders, args.customers, can, to.http.is_some(), false);
    let results = checks::Results::open(db, shop.clone(), plan.clone());

    let mut workers = faults::Workers::start(args.workers, &server.url, &path)?;
    let sending = tokio::spawn(producers::send_all(to, plan));
    workers.inject_faults(args.kills, args.freezes, &results).await?;
    sending.await??;
    workers.finish(&results).await?;

    println!("{workers}");
    let passed = results.check().await?;
    shop.close().await?;
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
