//! Transitions as scripts and expected text. `World` is the only code here that knows the core's API: a new case is a
//! new script.

mod found;
mod limits;
mod plain;
mod sessions;
mod time;
mod together;
mod topics;
mod world;

use expect_test::Expect;

/// Runs a script, one step a line, and compares what was said.
fn check(script: &str, expect: Expect) {
    let mut world = world::World::new();
    for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
        world.step(line);
    }
    expect.assert_eq(world.said.trim_end());
}
