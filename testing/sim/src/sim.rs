//! Runs the two worlds of a seed: the core beside its reference model, and the whole engine with clients. Tells which
//! seed failed, with the steps that led there.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::met::Met;
use crate::stepped::Stepped;
use crate::world::World;

/// How long a seed's world lives, unless told otherwise.
pub const STEPS: u64 = 1500;

/// A step of the whole engine is smaller than one of the core's world: so many for each.
const STEPPED_TIMES: u64 = 4;

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
    let trace = || world.iter().flat_map(|world| world.last_steps().cloned()).collect();
    let mut ran = done.map_err(|panic| story(seed, trace(), &*panic))?;
    let whole = run_stepped(seed, steps, verbose)?;
    ran.met.add(&whole.met);
    ran.hash ^= whole.hash.rotate_left(1);
    Ok(ran)
}

/// Runs the whole engine of a seed.
pub fn run_stepped(seed: u64, steps: u64, verbose: bool) -> Result<Ran, String> {
    let mut world = None;
    let done = catch_unwind(AssertUnwindSafe(|| {
        let world = world.insert(Stepped::new(seed, verbose));
        for _ in 0..steps * STEPPED_TIMES {
            world.step();
        }
        world.finish();
        Ran { met: world.take_met(), hash: world.hash() }
    }));
    let trace = || world.as_ref().map(Stepped::last_steps).unwrap_or_default();
    done.map_err(|panic| story(seed, trace(), &*panic))
}

fn story(seed: u64, mut steps: Vec<String>, panic: &(dyn Any + Send)) -> String {
    let why = panic.downcast_ref::<String>().cloned();
    let why = why.or_else(|| panic.downcast_ref::<&str>().map(|&s| s.to_owned()));
    steps.push(format!("seed {seed} failed: {}", why.unwrap_or_default()));
    steps.join("\n")
}
