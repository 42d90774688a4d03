//! Brokers that a worker can reach, each behind its own feature.

#[cfg(feature = "servicebus")]
pub mod servicebus;
