//! The `malote` command: the server, and the commands that talk to it.
//!
//! There is one module for each noun or verb. [`api`] is the HTTP client, [`output`] writes results and [`failure`] maps
//! errors to exit codes. Only data goes to standard output. The doc comment of an argument is its help text.

mod api;
mod args;
mod ask;
mod audit;
mod backup;
mod bench;
mod bridge;
mod colour;
mod completions;
mod config;
mod context;
mod dlq;
mod failure;
mod files;
mod health;
mod import;
mod key;
mod message;
mod output;
mod overview;
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
mod table;
mod tail;
mod token;
mod topic;
mod topology;
mod user;
mod verify;
mod version;
mod watch;
mod when;
mod work;

use std::process::ExitCode;

use clap::Parser;

use crate::args::Cli;

/// The system allocator returns the memory of a busy broker late, and takes a lock to do so.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let cli = Cli::parse();
    colour::choose(cli.global.color);
    match cli.command.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if failure::is_broken_pipe(&error) => ExitCode::SUCCESS,
        // The user pressed Ctrl-C and needs no message.
        Err(error) if failure::is_interrupt(&error) => failure::exit_code(&error),
        Err(error) => {
            let fix = error.downcast_ref::<api::ApiError>().and_then(api::ApiError::fix);
            output::error(format_args!("{}", failure::sentence(&error)), fix.as_deref());
            failure::exit_code(&error)
        }
    }
}
