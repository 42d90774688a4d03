//! Runs the two simulations of a seed: the core with its reference model, and the whole engine with clients. A
//! failure is reported with the seed and the last steps.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::situations::Situations;
use crate::stepped::Stepped;
use crate::world::World;

/// Steps per seed (default).
pub const STEPS: u64 = 1500;

/// Steps of the whole engine for each step of the core, because they are smaller.
const STEPPED_TIMES: u64 = 4;

/// The result of one seed.
pub struct RunResult {
    pub met: Situations,
    pub hash: u64,
}

/// Runs one seed. The error is the failure report.
pub fn run(seed: u64, steps: u64, verbose: bool) -> Result<RunResult, String> {
    let mut world = None;
    let done = catch_unwind(AssertUnwindSafe(|| {
        let world = world.insert(World::new(seed, verbose));
        for _ in 0..steps {
            world.step();
        }
        world.flush();
        world.turn(Vec::new());
        world.check_all();
        RunResult { met: world.met.clone(), hash: world.hash() }
    }));
    let trace = || world.iter().flat_map(|world| world.last_steps().cloned()).collect();
    let mut result = done.map_err(|panic| failure_report(seed, trace(), &*panic))?;
    let whole = run_stepped(seed, steps, verbose)?;
    result.met.add(&whole.met);
    result.hash ^= whole.hash.rotate_left(1);
    Ok(result)
}

/// Runs the whole engine with one seed.
pub fn run_stepped(seed: u64, steps: u64, verbose: bool) -> Result<RunResult, String> {
    let mut world = None;
    let done = catch_unwind(AssertUnwindSafe(|| {
        let world = world.insert(Stepped::new(seed, verbose));
        for _ in 0..steps * STEPPED_TIMES {
            world.step();
        }
        world.finish();
        RunResult { met: world.take_met(), hash: world.hash() }
    }));
    let trace = || world.as_ref().map(Stepped::last_steps).unwrap_or_default();
    done.map_err(|panic| failure_report(seed, trace(), &*panic))
}

fn failure_report(seed: u64, mut steps: Vec<String>, panic: &(dyn Any + Send)) -> String {
    let why = panic.downcast_ref::<String>().cloned();
    let why = why.or_else(|| panic.downcast_ref::<&str>().map(|&s| s.to_owned()));
    steps.push(format!("seed {seed} failed: {}", why.unwrap_or_default()));
    steps.join("\n")
}
