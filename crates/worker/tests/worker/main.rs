//! Workers on the engine in memory: outcomes, sessions, ends.

mod ends;
mod native;
mod outcomes;
mod sessions;
#[cfg(feature = "sqlite")]
mod sqlite;
