//! Three ways to use queues, each in its own file. They run one after the other and check their results:
//!
//! ```sh
//! cargo run -p patterns               # or: fan-out, work-queue, request-reply
//! ```
//!
//! | pattern | file |
//! |---|---|
//! | one event for several queues, all of them or none | `fan_out.rs` |
//! | many workers on one queue, each job done once | `work_queue.rs` |
//! | a request and its reply | `request_reply.rs` |
//!
//! The broker runs in this process, with its data in a temporary directory. `--url malote://HOST:PORT` uses a server.

mod fan_out;
mod request_reply;
mod work_queue;

use std::process::ExitCode;

use clap::Parser;
use malote::Malote;

#[derive(Parser)]
#[command(about = "Fan-out, work queue, request and reply")]
struct Args {
    /// Run only this pattern
    pattern: Option<Pattern>,
    /// URL of a broker without queues of these names [default: the broker in this process]
    #[arg(long)]
    url: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Pattern {
    FanOut,
    WorkQueue,
    RequestReply,
}

/// Prints the results of checks.
pub struct Checks {
    passed: bool,
}

impl Checks {
    /// Prints one check.
    pub fn check(&mut self, what: &str, holds: bool, figures: String) {
        println!("  {}  {what}: {figures}", if holds { "ok    " } else { "FAILED" });
        self.passed &= holds;
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    let args = Args::parse();
    let directory = tempfile::tempdir()?;
    let embedded = || format!("embedded:{}", directory.path().display());
    let malote = Malote::connect(&args.url.unwrap_or_else(embedded)).await?;
    let wanted = |pattern| args.pattern.is_none_or(|only| only == pattern);
    let mut checks = Checks { passed: true };
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
    Ok(if checks.passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
