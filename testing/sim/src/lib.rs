//! Seeded simulation: everything that can go wrong with a disk, replayable to the byte.
#![allow(missing_docs)] // a test's fields are named for what they are
pub mod alloc;
pub mod clients;
pub mod crash;
pub mod decide;
pub mod disk;
pub mod full;
pub mod fuzz;
pub mod met;
pub mod model;
pub mod rng;
pub mod sim;
pub mod world;
