//! The `malote` command: the server, and everything one does to it by hand.
//!
//! One module for each noun or verb; [`api`] speaks HTTP, [`output`] writes, [`failure`] knows the exit codes. Data
//! goes to standard output and nothing else does. The doc comment of an argument is its help text.

mod api;
mod args;
mod ask;
mod audit;
mod backup;
mod bench;
mod bridge;
mod completions;
mod config;
mod dlq;
mod failure;
mod files;
mod health;
mod key;
mod message;
mod output;
mod pages;
mod peek;
mod queue;
mod receive;
mod request;
mod restore;
mod rule;
mod saga;
mod send;
mod serve;
mod session;
mod settings;
mod settle;
mod subscription;
mod tail;
mod token;
mod topic;
mod topology;
mod user;
mod verify;
mod version;
mod when;
mod work;

use std::process::ExitCode;

use clap::Parser;

use crate::args::Cli;

/// The system's allocator gives memory of a busy broker back late and takes a lock on the way.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let cli = Cli::parse();
    match cli.command.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if failure::is_broken_pipe(&error) => ExitCode::SUCCESS,
        // Whoever pressed Ctrl-C knows.
        Err(error) if failure::is_interrupt(&error) => failure::exit_code(&error),
        Err(error) => {
            let fix = error.downcast_ref::<api::ApiError>().and_then(api::ApiError::fix);
            output::error(format_args!("{}", failure::sentence(&error)), fix.as_deref());
            failure::exit_code(&error)
        }
    }
}
