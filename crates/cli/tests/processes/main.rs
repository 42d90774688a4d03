//! Worker processes with the built server: killed, stopped, crashed, replaced one after the other.
//!
//! A worker process is this test program, which runs `child::run` (see `child.rs`). All processes append to one log.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)] // a test

mod aborted;
mod child;
#[path = "../common/mod.rs"]
mod common;
mod frozen;
mod killed;
mod lab;
mod restarted;
mod scaled;
