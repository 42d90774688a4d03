//! Workers on the engine in memory: outcomes, sessions, ends.
#![allow(clippy::unwrap_used, clippy::expect_used)] // a test

mod batches;
mod breaker;
mod ends;
mod far;
mod native;
mod outcomes;
mod requests;
mod sagas;
mod sagas_killed;
mod sessions;
#[cfg(feature = "sqlite")]
mod sqlite;
