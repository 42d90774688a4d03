//! Seeded simulation: everything that can go wrong with a disk, replayable to the byte.
pub mod disk;
pub mod rng;
