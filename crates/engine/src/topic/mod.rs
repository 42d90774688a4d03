//! Routing of one topic: from a message to the queues that get a copy. This is pure code; the core journals the result.
//!
//! Keys, patterns and correlations are indexed, so that a publish costs the same with 100 rules and with 100,000:
//! `keys` by hash, `patterns` by a trie over words, `correlations` by the values of each set of fields in use. Headers
//! and SQL filters are evaluated one by one. `malote_model::filter` defines each filter.

mod buckets;
mod correlations;
mod ids;
mod keys;
mod patterns;
mod router;
#[cfg(test)]
mod tests;

pub use router::{RouteMatch, TopicRouter};
