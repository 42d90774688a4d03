//! Three ways to use queues, a file each. All of them run, one after the other, and check themselves:
//!
//! ```sh
//! cargo run -p patterns               # or: fan-out, work-queue, request-reply
//! ```
//!
//! | pattern | file |
//! |---|---|
//! | one event for several queues, all or none | `fan_out.rs` |
//! | many workers, one queue, each job once | `work_queue.rs` |
//! | a question and its answer | `request_reply.rs` |
//!
//! The broker is the engine in this process, with its data in a temporary directory; `--url malote://HOST:PORT` uses a
//! server.

mod fan_out;
mod request_reply;
mod work_queue;

use std::process::ExitCode;

use clap::Parser;
use malote::Malote;

#[derive(Parser)]
#[command(about = "Fan-out, work queue, request and reply")]
struct Args {
    /// Only this one
    pattern: Option<Pattern>,
    /// A broker without queues of these names; the engine in this process unless it is given
    #[arg(long)]
    url: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Pattern {
    FanOut,
    WorkQueue,
    RequestReply,
}

/// What was checked, as it is printed.
pub struct Checks {
    right: bool,
}

impl Checks {
    /// One line of them.
    pub fn line(&mut self, what: &str, so: bool, figures: String) {
        println!("  {}  {what}: {figures}", if so { "ok   " } else { "WRONG" });
        self.right &= so;
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    let args = Args::parse();
    let home = tempfile::tempdir()?;
    let embedded = || format!("embedded:{}", home.path().display());
    let malote = Malote::connect(&args.url.unwrap_or_else(embedded)).await?;
    let wanted = |pattern| args.pattern.is_none_or(|only| only == pattern);
    let mut checks = Checks { right: true };
    if wanted(Pattern::FanOut) {
        println!("fan-out");
        fan_out::run(&malote, &mut checks).await?;
    }
    if wanted(Pattern::WorkQueue) {
        println!("work queue");
        work_queue::run(&malote, &mut checks).await?;
    }
    if wanted(Pattern::RequestReply) {
        println!("request and reply");
        request_reply::run(&malote, &mut checks).await?;
    }
    malote.close().await?;
    Ok(if checks.right { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
