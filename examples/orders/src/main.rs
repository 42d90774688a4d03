//! Orders arrive from the web, from phones and from a partner; several workers share the work; each order takes effect
//! exactly once, in order for each customer, whatever fails. To prove it, workers are killed with SIGKILL and frozen
//! with SIGSTOP while it runs, and some orders are poison.
//!
//! ```sh
//! cargo run -p orders
//! ```
//!
//! Read `worker.rs` first: it is all that a shop would write. `producers.rs` sends over three protocols, `trouble.rs`
//! kills and freezes, `checks.rs` tells whether all went well: a violation is an exit code of 1. The server, each
//! worker and this program are processes of their own, all of them this binary. On `embedded:DIR`, which one process at a
//! time can have, worker and producers are one process: `alone.rs`.

mod alone;
mod checks;
mod order;
mod producers;
mod server;
mod trouble;
mod worker;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

#[derive(Parser)]
#[command(about = "Orders, applied exactly once while workers are killed and frozen")]
struct Args {
    #[command(subcommand)]
    role: Option<Role>,
    /// Orders in all, from three producers
    #[arg(long, default_value_t = 1500)]
    orders: usize,
    /// Customers: orders of one are applied in order
    #[arg(long, default_value_t = 40)]
    customers: usize,
    /// Worker processes
    #[arg(long, default_value_t = 3)]
    workers: usize,
    /// Workers to kill with SIGKILL while it runs
    #[arg(long, default_value_t = 5)]
    kills: usize,
    /// Workers to freeze with SIGSTOP for longer than their locks
    #[arg(long, default_value_t = 2)]
    freezes: usize,
    /// A broker, with an empty queue `orders` where queues are made with its own tools; a server of its own in a temporary
    /// directory unless it is given
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
            alone::shop(&url, &db, args.orders, args.customers).await?;
        }
        None => return run(args).await,
    }
    Ok(ExitCode::SUCCESS)
}

async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let home = tempfile::tempdir()?;
    if let Some(url) = args.url.as_deref().filter(|url| url.starts_with("embedded:")) {
        return alone::run(&args, url, home.path()).await;
    }
    let server = match &args.url {
        Some(url) => server::Server::elsewhere(url),
        None => server::Server::start(home.path()).await?,
    };
    println!(
        "{} orders of {} customers, {} workers, on {}",
        args.orders, args.customers, args.workers, server.name
    );
    let shop = malote::Malote::connect(&server.url).await?;
    worker::declare(&shop, None).await?;
    let path = home.path().join("shop.db");
    let db = worker::database(&path)?;
    let to = server.addresses();
    let can = shop.broker().capabilities();
    let plan = order::Plan::new(args.orders, args.customers, can, to.http.is_some(), false);
    let books = checks::Books::open(db, shop.clone(), plan.clone());

    let mut workers = trouble::Workers::start(args.workers, &server.url, &path)?;
    let sending = tokio::spawn(producers::send_all(to, plan));
    workers.trouble(args.kills, args.freezes, &books).await?;
    sending.await??;
    workers.finish(&books).await?;

    println!("{workers}");
    let right = books.check().await?;
    shop.close().await?;
    Ok(if right { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
