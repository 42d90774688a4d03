//! The seeds to run: recorded ones that failed before, a fixed range, and new ones every time.

use std::hash::{BuildHasher, Hasher, RandomState};

/// Seeds that failed before, with their cause. Add a failing seed together with its fix.
pub const FOUND: &[u64] = &[
    // A new time to live ended between request and processing, and only the engine knew which messages without their
    // own time to live had expired.
    695,
    11425,
    1548,
    11128,
    21562,
    // A possible duplicate was taken for the copy of the next message in the same command.
    872,
    // A message that was too large for its queue was dead-lettered and forwarded in an endless cycle.
    21031,
    // More messages expired than one turn removes; the model took the rest for lost messages.
    3,
    // A de-duplication key that was forgotten before its window grew was known again after a restart.
    13754,
    199,
    747,
    // A delivery that reached its client after its lease had ended was taken for the newest one.
    843759805276,
    100155,
    // A queue was declared again while the record of its deletion was damaged: there were two queues of that name.
    200221,
    // A snapshot that one start could not read was the base of a later replay.
    300323,
    301134,
    // After a forward step of the clock, a restart with a clock set back kept locks for longer.
    301047,
    301417,
    325297,
    325976,
    // A queue over its limit after a crash was trimmed only by the next operation.
    326372,
    // Limits must be enforced after damage, too.
    200444,
    200717,
    // The engine stopped while it located a message that compaction had moved; the next message was delivered.
    1001792,
    // A segment ended before its frames did: its verification read nothing, again and again.
    7000743,
];

/// First seed of a random range. Nothing else in the simulation is random.
pub fn new_base() -> u64 {
    // Short enough to type, and beyond the ranges that are run in order.
    (1 << 32) + RandomState::new().build_hasher().finish() % (1 << 40)
}
