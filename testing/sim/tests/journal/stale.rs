//! Frames of earlier runs are never replayed.

use malote_engine::disk::Disk;
use malote_engine::journal::HEADER_BYTES;
use malote_sim::disk::SimDisk;

use crate::toy::UNIFORM;
use crate::world::World;

/// A crash kept a segment's frames but lost its header. The file becomes a spare, and the next run may use it at
/// once, with frames of the same size at the same offsets.
#[test]
fn frames_of_a_segment_without_header_are_never_replayed() {
    let mut world = World::open(SimDisk::new()).unwrap();
    world.next_id = UNIFORM;
    while world.journal.pool.spares() < 3 {
        world.journal.spare_maker.step().unwrap();
    }
    let first = world.journal.report.generation;
    let mut rolled = 0;
    while rolled < 20 {
        let place = world.append_group(1, None, false).unwrap();
        rolled += u64::from(place.start.generation() > first);
        // Written but not synced: the header is erased below.
        world.take();
        while world.unwritten() > 0 {
            world.write_one().unwrap();
        }
    }

    let disk = world.disk.killed();
    let newest = disk.list().unwrap().into_iter().find(|entry| {
        let mut frame = [0; 16];
        let file = disk.open(&entry.name).unwrap();
        let got = file.read_at(&mut frame, HEADER_BYTES as u64).unwrap();
        got == 16 && u32::from_le_bytes(frame[8..12].try_into().unwrap()) as u64 == first + 1
    });
    let newest = disk.open(&newest.unwrap().name).unwrap();
    newest.write_at(&[0; HEADER_BYTES], 0).unwrap();
    newest.sync_all().unwrap();

    let mut second = world.reopen(disk).unwrap();
    world.check_next(&second);
    for _ in 0..3 {
        second.append_group(1, None, false).unwrap();
        second.flush().unwrap();
    }
    let third = second.reopen(second.disk.killed()).unwrap();
    second.check_next(&third);
}

/// A pinned segment remains readable after any number of snapshots.
#[test]
fn a_pinned_segment_is_not_recycled() {
    let mut world = World::open(SimDisk::new()).unwrap();
    let place = world.append_group(2, None, false).unwrap();
    world.flush().unwrap();
    let pin = world.journal.segments.pin(place.start).unwrap();
    let before = world.journal.segments.read(place.start).unwrap();
    world.append_group(1, Some(1), false).unwrap();
    churn(&mut world);
    assert!(world.recycled > 3);
    assert_eq!(world.journal.segments.read(place.start).unwrap(), before);
    drop(pin);
    churn(&mut world);
    assert!(world.journal.segments.read(place.start).is_err());
}

fn churn(world: &mut World) {
    for _ in 0..4 {
        for _ in 0..300 {
            let oldest = world.core.live.keys().next().copied();
            world.append_group(2, oldest, false).unwrap();
            world.flush().unwrap();
        }
        world.snapshot();
    }
}
