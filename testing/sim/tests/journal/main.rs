//! The journal under crashes, faults and flipped bits. A failure prints its seed.
//! `MALOTE_SEED=n cargo test -p malote-sim --test journal` runs only that seed.
//! `MALOTE_SEEDS_TIMES=40 cargo test --release …` multiplies the number of seeds.
#![allow(clippy::unwrap_used)] // test code

mod damage;
mod scrub;
mod space;
mod stale;
mod threads;
mod toy;
mod world;

use std::cell::Cell;

use malote_sim::disk::{Faults, SimDisk};
use malote_sim::rng::Rng;
use world::World;

/// Runs `check` for each seed, and prints the seed that failed.
fn for_seeds(count: u64, check: impl Fn(u64)) {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seeds = match number("MALOTE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..count * number("MALOTE_SEEDS_TIMES").unwrap_or(1),
    };
    for seed in seeds {
        let run = std::panic::AssertUnwindSafe(|| check(seed));
        if let Err(panic) = std::panic::catch_unwind(run) {
            eprintln!("failed with seed {seed}");
            std::panic::resume_unwind(panic);
        }
    }
}

/// Opens the disk, with crashes and faults while it is being opened.
fn reopen(world: &World, disk: SimDisk, rng: &mut Rng) -> World {
    let mut disk = disk;
    while rng.chance(30) {
        let mut faults = Faults::default();
        match rng.below(6) {
            4..6 => faults.power_fails_in = Some(rng.below(12)),
            0 => faults.read_fails_in = Some(rng.below(20)),
            1 => faults.write_fails_in = Some(rng.below(6)),
            _ => faults.sync_fails_in = Some(rng.below(6)),
        }
        disk.set_faults(faults);
        let opened = world.reopen(disk.clone());
        disk.set_faults(Faults::default());
        disk = if rng.chance(50) { disk.crashed(rng) } else { disk.killed() };
        if let Ok(next) = opened {
            // A successful recovery must keep what it found.
            world.check_next(&next);
            let again = next.reopen(disk.clone()).unwrap();
            next.check_next(&again);
            return again;
        }
    }
    disk.set_faults(Faults::default());
    world.reopen(disk).unwrap()
}

/// Counts the situations that a test reached; a test that reaches nothing proves nothing.
#[derive(Default, Debug)]
struct Counts {
    crashes: Cell<u64>,
    discarded: Cell<u64>,
    snapshots: Cell<u64>,
    recycled: Cell<u64>,
}

fn add(counter: &Cell<u64>, more: u64) {
    counter.set(counter.get() + more);
}

/// Several runs of one journal. Returns the hash of all disks after crashes.
fn lives(seed: u64, counts: &Counts) -> u64 {
    let mut rng = Rng::new(seed);
    let mut world = World::open(SimDisk::new()).unwrap();
    let mut hash = 0u64;
    for _ in 0..1 + rng.below(6) {
        if rng.chance(30) {
            let (sync_fails_in, write_fails_in) = match rng.below(3) {
                0 => (None, Some(rng.below(90))),
                _ => (Some(rng.below(60)), None),
            };
            world.disk.set_faults(Faults { sync_fails_in, write_fails_in, ..Faults::default() });
        }
        for _ in 0..rng.below(400) {
            world.step(&mut rng);
        }
        let disk = if rng.chance(75) { world.disk.crashed(&mut rng) } else { world.disk.killed() };
        hash = hash.rotate_left(7) ^ disk.state_hash();
        let next = reopen(&world, disk, &mut rng);
        world.check_next(&next);
        add(&counts.crashes, 1);
        add(&counts.discarded, next.report().discarded_frames.min(1));
        world = next;
    }
    add(&counts.snapshots, world.snapshots);
    add(&counts.recycled, world.recycled);
    hash
}

#[test]
fn durable_groups_survive_and_no_others_appear() {
    let counts = Counts::default();
    for_seeds(450, |seed| _ = lives(seed, &counts));
    println!("{counts:?}");
    if std::env::var("MALOTE_SEED").is_err() {
        assert!(counts.crashes.get() > 1400 && counts.discarded.get() > 100, "{counts:?}");
        assert!(counts.snapshots.get() > 1000 && counts.recycled.get() > 1000, "{counts:?}");
    }
}

/// The power fails at every call that changes or syncs something, also in snapshots and during recovery.
#[test]
fn power_may_fail_at_any_call() {
    for_seeds(8, |seed| {
        for last in 0.. {
            let mut rng = Rng::new(seed);
            let mut world = World::open(SimDisk::new()).unwrap();
            let power_fails_in = Some(last);
            world.disk.set_faults(Faults { power_fails_in, ..Faults::default() });
            let before = world.disk.calls();
            for _ in 0..400 {
                world.step(&mut rng);
            }
            let calls = world.disk.calls() - before;
            let next = world.reopen(world.disk.crashed(&mut rng)).unwrap();
            world.check_next(&next);
            if last > calls {
                break;
            }
        }
    });
}

#[test]
fn the_same_seed_gives_the_same_bytes() {
    for_seeds(10, |seed| {
        assert_eq!(lives(seed, &Counts::default()), lives(seed, &Counts::default()))
    });
}
