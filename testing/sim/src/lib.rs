//! Seeded simulation of the engine on a faulty disk, and tests of the built binary.
#![allow(missing_docs)] // test code; names say enough
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
pub mod model;
pub mod rng;
pub mod seeds;
pub mod sim;
pub mod situations;
pub mod stepped;
pub mod supervision;
pub mod world;
