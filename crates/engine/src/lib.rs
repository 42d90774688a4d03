//! The durable engine.
pub mod disk;
pub mod journal;
