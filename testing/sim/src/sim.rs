//! Runs worlds, seed after seed, and tells which seed failed and how it came to that.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::met::Met;
use crate::world::World;

/// How long a seed's world lives, unless told otherwise.
pub const STEPS: u64 = 1500;

/// The result of one seed.
pub struct Ran {
    pub met: Met,
    pub hash: u64,
}

/// Runs one seed to its end. The error is the story of the failure.
pub fn run(seed: u64, steps: u64, verbose: bool) -> Result<Ran, String> {
    let mut world = None;
    let done = catch_unwind(AssertUnwindSafe(|| {
        let world = world.insert(World::new(seed, verbose));
        for _ in 0..steps {
            world.step();
        }
        world.flush();
        world.turn(Vec::new());
        world.check_all();
        Ran { met: world.met.clone(), hash: world.hash() }
    }));
    done.map_err(|panic| {
        let why = panic.downcast_ref::<String>().cloned();
        let why = why.or_else(|| panic.downcast_ref::<&str>().map(|&s| s.to_owned()));
        let mut story: Vec<String> = Vec::new();
        if let Some(world) = &world {
            story.extend(world.last_steps().cloned());
        }
        story.push(format!("seed {seed} failed: {}", why.unwrap_or_default()));
        story.join("\n")
    })
}
