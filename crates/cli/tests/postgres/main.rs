//! Commands on a real PostgreSQL, which is started for each test and gone with it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)] // a test

mod bridge;
#[path = "../bridge/carried.rs"]
mod carried;
#[path = "../common/mod.rs"]
mod common;
mod saga;
