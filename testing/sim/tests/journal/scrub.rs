//! Scrubbing finds all damage, and reports nothing else.

use std::collections::BTreeMap;

use malote_engine::disk::Disk;
use malote_engine::journal::{Damage, Pos, SegmentState, verify};
use malote_sim::disk::SimDisk;
use malote_sim::rng::Rng;

use crate::damage::settled_world;
use crate::for_seeds;
use crate::world::World;

/// One round: the bytes read, and the damage found.
fn round(world: &mut World) -> (u64, Vec<Damage>) {
    let (mut bytes, mut found) = (0, Vec::new());
    loop {
        let done = world.journal.scrubber.step().unwrap();
        bytes += done.bytes;
        found.extend(done.damage);
        if done.round {
            return (bytes, found);
        }
    }
}

/// Number of intact frames of each sealed segment that the journal uses.
fn frames(world: &World) -> BTreeMap<String, u64> {
    let current = world.journal.marks.durable().generation();
    let sealed = |generation: u64| {
        generation < current && world.journal.segments.pin(Pos::new(generation, 0)).is_ok()
    };
    let reports = verify(&world.disk).unwrap().segments.into_iter();
    reports
        .filter(|report| matches!(report.state, SegmentState::Used(g) if sealed(g)))
        .map(|report| (report.file, report.frames.values().sum()))
        .collect()
}

fn flip(disk: &SimDisk, rng: &mut Rng) -> String {
    let files = disk.list().unwrap();
    let file = &files[rng.below(files.len() as u64) as usize];
    // Headers are not scrubbed: they are needed only at a start, and are stored twice.
    let byte = 4096 + rng.below(file.len.saturating_sub(4096).max(1));
    disk.flip_bit(&file.name, byte, rng.below(8) as u8);
    file.name.clone()
}

/// The largest number of steps of a round here; a round reads every segment in one step each, and ends.
const STEPS_MAX: usize = 1_000;

#[test]
fn a_round_ends_although_a_segment_was_cut() {
    let cut_short = std::cell::Cell::new(0);
    for_seeds(60, |seed| {
        let mut rng = Rng::new(seed);
        let mut world = settled_world(&mut rng);
        let sealed: Vec<String> = frames(&world).into_keys().collect();
        let Some(file) = sealed.first() else { return };
        // Right after the header, between two frames, or inside one.
        world.disk.cut(file, [4096, 4096 + rng.below(2000) as usize][rng.below(2) as usize]);
        let found = (0..STEPS_MAX).find_map(|_| {
            let done = world.journal.scrubber.step().unwrap();
            cut_short.set(cut_short.get() + u64::from(done.damage.is_some()));
            done.round.then_some(())
        });
        assert!(found.is_some(), "the round does not end: {file} was cut");
    });
    assert!(std::env::var("MALOTE_SEED").is_ok() || cut_short.get() > 5, "{}", cut_short.get());
}

#[test]
fn every_flipped_bit_of_a_sealed_frame_is_found_once() {
    let met = std::cell::Cell::new((0, 0));
    for_seeds(60, |seed| {
        let mut rng = Rng::new(seed);
        let mut world = settled_world(&mut rng);
        if rng.chance(50) {
            // The next process does not know the ends of some segments.
            world = world.reopen(world.disk.killed()).unwrap();
        }
        let (bytes, found) = round(&mut world);
        assert_eq!(found, [], "damage was reported on an intact disk");
        assert!(bytes > 0 || frames(&world).is_empty());
        let before = frames(&world);
        let file = flip(&world.disk, &mut rng);
        let after = frames(&world);
        let hit = before.get(&file) != after.get(&file);
        let (_, found) = round(&mut world);
        if hit {
            assert_eq!(found.len(), 1, "{file}");
            assert_eq!(found[0].file, file);
            let mark = file.replace(".log", ".damaged");
            assert!(world.disk.list().unwrap().iter().any(|entry| entry.name == mark));
            assert_eq!(round(&mut world).1, [], "damage was reported twice");
        } else {
            assert_eq!(found, [], "{file}");
        }
        let (hits, misses) = met.get();
        met.set((hits + u64::from(hit), misses + u64::from(!hit)));
    });
    let (hits, misses) = met.get();
    assert!(std::env::var("MALOTE_SEED").is_ok() || hits > 5 && misses > 5, "{hits} {misses}");
}
