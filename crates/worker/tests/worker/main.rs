//! Workers on the engine in memory: outcomes, sessions, ends.
#![allow(clippy::unwrap_used, clippy::expect_used)] // a test

mod batches;
mod breaker;
mod ends;
mod far;
mod native;
mod outcomes;
mod sessions;
mod slots;
#[cfg(feature = "sqlite")]
mod sqlite;
