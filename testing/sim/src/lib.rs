//! Seeded simulation: everything that can go wrong with a disk, replayable to the byte.
#![allow(missing_docs)] // a test's fields are named for what they are
pub mod alloc;
#[cfg(feature = "protocols")]
pub mod attack;
pub mod clients;
pub mod crash;
pub mod decide;
pub mod disk;
pub mod full;
#[cfg(feature = "protocols")]
pub mod fuzz;
pub mod met;
pub mod model;
pub mod rng;
pub mod seeds;
pub mod sim;
pub mod stepped;
pub mod supervision;
pub mod world;
