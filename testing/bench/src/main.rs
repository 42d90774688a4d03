//! Benchmarks of protocols and workers: `cargo xtask bench amqp`, `sqs`, `servicebus` or `worker`.
//!
//! Each starts a server in its own process, so that its CPU time and that of the client are measured separately. The
//! server is the program `malote` in the directory of this program. The engine alone is measured by
//! `malote bench engine`.

mod amqp;
mod results;
mod server;
mod servicebus;
mod sqs;
mod worker;

use clap::Parser;

/// The allocator of `malote`, because a worker with an embedded engine runs in this process.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Measure protocols and workers
#[derive(Parser)]
#[command(name = "malote-bench", bin_name = "cargo xtask bench")]
enum Cli {
    Amqp(amqp::Args),
    Sqs(sqs::Args),
    Servicebus(servicebus::Args),
    Worker(worker::Args),
}

fn main() -> anyhow::Result<()> {
    match Cli::parse() {
        Cli::Amqp(args) => amqp::run(args),
        Cli::Sqs(args) => sqs::run(args),
        Cli::Servicebus(args) => servicebus::run(args),
        Cli::Worker(args) => worker::run(args),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_arguments_are_consistent() {
        Cli::command().debug_assert();
    }
}
