//! Which seeds are run: those that found something once, a range that is always the same, and new ones every time.

use std::hash::{BuildHasher, Hasher, RandomState};

/// Seeds that failed once, with what they showed. A seed that fails joins them together with what mends it.
pub const FOUND: &[u64] = &[
    // A time to live was set that ended between the asking and the doing, when only the engine knew which of the
    // messages without a time of their own were over.
    695,
    11425,
    1548,
    11128,
    21562,
    // The copy of a message that a queue may have known was taken for that of the next one in the same command.
    872,
    // A message larger than its queue may be went round through dead letters and forwarding without end.
    21031,
    // More expired messages than one turn does away with were taken for forgotten ones.
    3,
    // A key that was forgotten before its window grew was known again after a restart.
    13754,
    199,
    747,
    // A delivery that reached its client after its lease had ended was taken for the newest one.
    843759805276,
    100155,
];

/// Where a range of new seeds begins. Nothing else in the simulation is left to chance.
pub fn new_base() -> u64 {
    // Small enough to be read out, and beyond what anybody runs in order.
    (1 << 32) + RandomState::new().build_hasher().finish() % (1 << 40)
}
