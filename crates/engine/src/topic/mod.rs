//! Routing of one topic: from a message to the queues that get a copy. Pure; the core owns it and journals what it says.
//!
//! Keys, patterns and correlations are indexed, so that a publish costs the same with 100 rules and with 100,000:
//! `keys` by hash, `patterns` by a trie over words, `correlations` by the values of each set of fields in use. Headers
//! and SQL filters are asked one by one. What a filter means is said in `malote_model::filter`, for one at a time.

mod correlations;
mod ids;
mod keys;
mod patterns;
mod router;
#[cfg(test)]
mod tests;

pub use router::{Hit, Router};
