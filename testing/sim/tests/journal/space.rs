//! A full disk: publishing stops in time, settling always works, and publishing resumes once there is space.

use malote_engine::disk::Disk;
use malote_engine::journal::SpareStep;
use malote_sim::disk::{Faults, SimDisk};

use crate::world::{World, options};

fn with_capacity(capacity: u64) -> Faults {
    Faults { capacity_bytes: Some(capacity), ..Faults::default() }
}

/// Publishes until it is no longer allowed.
fn fill(world: &mut World) -> u64 {
    let mut published = 0;
    while world.journal.pool.publish_allowed() {
        world.append_group(2, None, false).expect("publishing is allowed");
        world.flush().unwrap();
        world.journal.spare_maker.step().unwrap();
        if world.journal.snapshotter.due() {
            world.snapshot();
        }
        published += 1;
        assert!(published < 100_000, "the disk never fills");
    }
    published
}

#[test]
fn a_full_disk_stops_publishing_and_never_settling() {
    let segment = options().segment_bytes;
    let disk = SimDisk::new();
    disk.set_faults(with_capacity(16 * segment));
    let mut world = World::open(disk).unwrap();
    let published = fill(&mut world);
    assert!(published > 100);
    assert_eq!(world.journal.pool.spares(), options().spares_reserved);

    // Everything can be settled with the reserved segments, which frees space.
    settle_all(&mut world);
    assert!(world.recycled > 0 && world.journal.pool.publish_allowed());
    assert!(fill(&mut world) > 100);

    let next = world.reopen(world.disk.killed()).unwrap();
    world.check_next(&next);
}

/// Settles all groups.
fn settle_all(world: &mut World) {
    while let Some(&oldest) = world.core.live.keys().next() {
        world.append_group(1, Some(oldest), false).expect("settling always has room");
        world.flush().unwrap();
        world.journal.spare_maker.step().unwrap();
        if world.journal.snapshotter.due() {
            world.snapshot();
        }
    }
}

#[test]
fn a_restart_on_a_full_disk_finds_recycled_segments() {
    let segment = options().segment_bytes;
    let disk = SimDisk::new();
    disk.set_faults(with_capacity(16 * segment));
    let mut world = World::open(disk).unwrap();
    // Twice, so that the reserved spares are recycled segments and not blank files.
    for _ in 0..2 {
        fill(&mut world);
        settle_all(&mut world);
    }
    fill(&mut world);
    for _ in 0..3 {
        let killed = world.disk.killed();
        let used: u64 = killed.list().unwrap().iter().map(|entry| entry.len).sum();
        killed.set_faults(with_capacity(used));
        let next = world.reopen(killed).expect("recovery works on a full disk");
        world.check_next(&next);
        world = next;
        assert!(!world.journal.pool.publish_allowed());
    }
    settle_all(&mut world);
    world.disk.set_faults(with_capacity(20 * segment));
    assert_eq!(world.journal.spare_maker.step().unwrap(), SpareStep::Worked);
    assert!(world.journal.pool.publish_allowed());
}

#[test]
fn freed_space_is_noticed() {
    let segment = options().segment_bytes;
    let disk = SimDisk::new();
    disk.set_faults(with_capacity(8 * segment));
    let mut world = World::open(disk.clone()).unwrap();
    fill(&mut world);
    assert_eq!(world.journal.spare_maker.step().unwrap(), SpareStep::Full);
    disk.set_faults(with_capacity(20 * segment));
    assert_eq!(world.journal.spare_maker.step().unwrap(), SpareStep::Worked);
    assert!(world.journal.pool.publish_allowed());
    assert!(fill(&mut world) > 50);
}
