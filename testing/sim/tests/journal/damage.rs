//! Flipped bits are reported or harmless. No group is ever silently wrong or missing.

use std::io::ErrorKind;

use malote_engine::disk::Disk;
use malote_engine::journal::{RecoverError, verify};
use malote_sim::disk::SimDisk;
use malote_sim::rng::Rng;

use crate::for_seeds;
use crate::toy;
use crate::world::World;

/// A journal with snapshots and recycled segments, all known to be durable.
pub fn settled_world(rng: &mut Rng) -> World {
    let mut world = World::open(SimDisk::new()).unwrap();
    for _ in 0..300 + rng.below(900) {
        world.step(rng);
    }
    // The second mark records that the first, and everything before it, is durable.
    for _ in 0..2 {
        world.flush().unwrap();
        world.journal.appender.mark();
    }
    world.flush().unwrap();
    world
}

#[test]
fn a_flipped_bit_is_reported_or_harmless() {
    for_seeds(40, |seed| {
        let mut rng = Rng::new(seed);
        let world = settled_world(&mut rng);
        for _ in 0..40 {
            flip(&world, &mut rng);
        }
    });
}

fn flip(world: &World, rng: &mut Rng) {
    let disk = world.disk.killed();
    let files = disk.list().unwrap();
    let file = &files[rng.below(files.len() as u64) as usize];
    let byte = rng.below(file.len.max(1));
    disk.flip_bit(&file.name, byte, rng.below(8) as u8);
    let context = format!("{} byte {byte}", file.name);

    let seen = disk.state_hash();
    let verified = verify(&disk).unwrap();
    assert_eq!(disk.state_hash(), seen, "verifying changed the disk");

    let mut next = world.reopen(disk).unwrap();
    assert_eq!(verified.recovery.damaged, next.report().damaged, "{context}");
    let missing = missing(&world.core.order, &next.core.order);
    assert!(missing.len() <= 1, "{context}: one bit lost {missing:?}");
    assert!(
        missing.is_empty() || !next.report().damaged.is_empty(),
        "{context}: {missing:?} was lost without a report"
    );
    check_bodies(&next, &context);

    // Snapshots and recycling keep the damaged segment, and it is not reported as new damage.
    let Some(damage) = next.report().damaged.first().cloned() else { return };
    let before = next.core.order.clone();
    for _ in 0..300 {
        next.step(rng);
    }
    next.flush().unwrap();
    next.snapshot();
    let last = next.reopen(next.disk.crashed(rng)).unwrap();
    assert_eq!(last.core.order[..before.len()], before, "{context}");
    assert_eq!(last.core.order, next.core.order, "{context}");
    let kept = last.disk.list().unwrap().into_iter().any(|entry| entry.name == damage.file);
    assert!(
        kept && last.journal.segments.pin(damage.from).is_ok(),
        "{context}: the damaged segment was removed"
    );
}

/// The ids of `all` that are not in `found`, which must contain no others.
fn missing(all: &[u64], found: &[u64]) -> Vec<u64> {
    assert!(found.iter().all(|id| all.binary_search(id).is_ok()), "replayed an unknown group");
    all.iter().copied().filter(|id| found.binary_search(id).is_err()).collect()
}

fn check_bodies(world: &World, context: &str) {
    let mut bad = 0;
    for (&id, &pos) in &world.core.live {
        match world.journal.segments.read(pos) {
            Ok((_, body)) => assert_eq!(toy::parse(&body).0, id),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::InvalidData, "{context}: {error}");
                bad += 1;
            }
        }
    }
    assert!(bad <= 1, "{context}: one bit lost {bad} bodies");
}

/// Flips a bit in the middle of every snapshot that `which` selects, newest first.
fn spoil_snapshots(disk: &SimDisk, which: impl Fn(usize) -> bool) {
    let names = disk.list().unwrap().into_iter().filter(|entry| entry.name.ends_with(".snap"));
    for (index, entry) in names.rev().enumerate() {
        if which(index) {
            disk.flip_bit(&entry.name, entry.len / 2, 3);
        }
    }
}

/// A world with two snapshots and, optionally, recycled segments.
fn with_snapshots(recycled: bool) -> World {
    let mut world = World::open(SimDisk::new()).unwrap();
    for _ in 0..if recycled { 8 } else { 1 } {
        for _ in 0..100 {
            let oldest = world.core.live.keys().next().copied();
            world.append_group(2, oldest, false).unwrap();
            world.flush().unwrap();
        }
        world.snapshot();
    }
    assert_eq!(world.recycled > 0, recycled);
    world
}

#[test]
fn a_damaged_snapshot_falls_back_to_the_older_one() {
    let world = with_snapshots(true);
    let disk = world.disk.killed();
    spoil_snapshots(&disk, |index| index == 0);
    let mut next = world.reopen(disk).unwrap();
    assert_eq!(next.report().invalid_snapshots.len(), 1);
    world.check_next(&next);
    // The next snapshot replaces it.
    for _ in 0..100 {
        next.append_group(2, None, false).unwrap();
        next.flush().unwrap();
    }
    next.snapshot();
    let last = next.reopen(next.disk.killed()).unwrap();
    assert!(last.report().snapshot > next.report().snapshot);
    next.check_next(&last);
}

#[test]
fn without_snapshots_the_whole_journal_is_read_or_recovery_fails() {
    let whole = with_snapshots(false);
    let disk = whole.disk.killed();
    spoil_snapshots(&disk, |_| true);
    let next = whole.reopen(disk).unwrap();
    assert_eq!(next.report().snapshot, None);
    whole.check_next(&next);

    let recycled = with_snapshots(true);
    let disk = recycled.disk.killed();
    spoil_snapshots(&disk, |_| true);
    let seen = disk.state_hash();
    let refused = recycled.reopen(disk.clone()).err().expect("a part of the journal is missing");
    assert!(matches!(refused, RecoverError::Gap { .. }), "{refused}");
    assert_eq!(disk.state_hash(), seen, "a refusal changes nothing");
}

#[test]
fn a_missing_segment_fails_recovery() {
    let mut world = World::open(SimDisk::new()).unwrap();
    while world.journal.segments.count() < 4 {
        world.append_group(2, None, false).unwrap();
        world.flush().unwrap();
    }
    let disk = world.disk.killed();
    disk.remove("segment-000002.log").unwrap();
    assert!(matches!(world.reopen(disk).err(), Some(RecoverError::Gap { .. })));
}
