//! Workers as processes of their own, on the built server: killed, frozen, aborted, replaced one after the other.
//!
//! A worker process is this test program again, told to run `child::run` (see `child.rs`). What happened stands in one
//! log that all of them append to.
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
