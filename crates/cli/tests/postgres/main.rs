//! Commands on a real PostgreSQL, which each test starts and stops.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)] // a test

mod bridge;
#[path = "../bridge/carried.rs"]
mod carried;
#[path = "../common/mod.rs"]
mod common;
mod saga;
