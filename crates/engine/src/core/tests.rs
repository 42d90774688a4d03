//! State transitions as scripts with expected output. Only `World` uses the core's API: a new case is a new script.

mod digest;
mod exchanges;
mod fair;
mod fillable;
mod found;
mod limits;
mod many_consumers;
mod onward;
mod plain;
mod removal;
mod room;
mod script;
mod sessions;
mod slices;
mod status;
mod time;
mod together;
mod topics;
mod world;

use expect_test::Expect;

use crate::journal::SEGMENT_BYTES_MAX;

/// Runs a script, one step per line, and compares the output.
fn check(script: &str, expect: Expect) {
    check_in(SEGMENT_BYTES_MAX, script, expect);
}

/// The same, in a journal with small segments.
fn check_in(segment_bytes: u64, script: &str, expect: Expect) {
    let mut world = world::World::new(segment_bytes);
    for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
        world.step(line);
    }
    expect.assert_eq(world.said.trim_end());
}
