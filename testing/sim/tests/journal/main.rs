//! The journal under crashes, faults and flipped bits. A failure prints its seed;
//! `MALOTE_SEED=n cargo test -p malote-sim --test journal` runs that one alone.

mod toy;
mod world;

use malote_engine::disk::Disk;
use malote_sim::disk::{Faults, SimDisk};
use malote_sim::rng::Rng;
use world::World;

/// Runs `check` for each seed and names the one that failed.
fn for_seeds(count: u64, check: impl Fn(u64)) {
    let one = std::env::var("MALOTE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seeds = one.map_or(0..count, |seed: u64| seed..seed + 1);
    for seed in seeds {
        let run = std::panic::AssertUnwindSafe(|| check(seed));
        if let Err(panic) = std::panic::catch_unwind(run) {
            eprintln!("failed with seed {seed}");
            std::panic::resume_unwind(panic);
        }
    }
}

/// Opens the disk, with crashes and failing syncs during the opening itself.
fn reopen(world: &World, disk: SimDisk, rng: &mut Rng) -> World {
    let mut disk = disk;
    while rng.chance(30) {
        let faults = Faults { sync_fails_in: Some(rng.below(6)), ..Faults::default() };
        disk.set_faults(faults);
        let opened = world.reopen(disk.clone());
        disk = if rng.chance(50) { disk.crashed(rng) } else { disk.killed() };
        if let Ok(next) = opened {
            // Whoever got this far has promised to keep what it found.
            world.check_next(&next);
            let again = next.reopen(disk.clone()).unwrap();
            next.check_next(&again);
            return again;
        }
    }
    disk.set_faults(Faults::default());
    world.reopen(disk).unwrap()
}

/// Several lives of one journal; the hash of all the disks that were left behind.
fn lives(seed: u64) -> u64 {
    let mut rng = Rng::new(seed);
    let mut world = World::open(SimDisk::new()).unwrap();
    let mut hash = 0u64;
    for _ in 0..1 + rng.below(6) {
        if rng.chance(30) {
            let sync_fails_in = Some(rng.below(60));
            world.disk.set_faults(Faults { sync_fails_in, ..Faults::default() });
        }
        for _ in 0..rng.below(400) {
            world.step(&mut rng);
        }
        let disk = if rng.chance(75) { world.disk.crashed(&mut rng) } else { world.disk.killed() };
        hash = hash.rotate_left(7) ^ disk.state_hash();
        let next = reopen(&world, disk, &mut rng);
        world.check_next(&next);
        world = next;
    }
    hash
}

#[test]
fn what_was_durable_survives_and_nothing_else_appears() {
    for_seeds(700, |seed| drop(lives(seed)));
}

#[test]
fn the_same_seed_gives_the_same_bytes() {
    for_seeds(20, |seed| assert_eq!(lives(seed), lives(seed)));
}
