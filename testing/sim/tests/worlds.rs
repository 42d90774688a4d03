//! Runs a few short worlds; `malote-sim sim` runs many long ones and checks which situations they reach.

use malote_sim::situations::Situations;
use malote_sim::{alloc, seeds, sim};

#[global_allocator]
static ALLOCATOR: alloc::CountingAllocator = alloc::CountingAllocator;

#[test]
fn a_panic_of_the_core_poisons_the_engine() {
    malote_sim::supervision::check().unwrap();
}

#[test]
fn worlds_match_the_model_and_the_same_seed_gives_the_same_run() {
    let mut met = Situations::default();
    let new = seeds::new_base();
    println!("new seeds: `cargo xtask sim --from {new} --seeds 2 --steps 500` runs them again");
    for seed in (9000..9004).chain(new..new + 2) {
        let run = || sim::run(seed, 500, false).unwrap_or_else(|report| panic!("{report}"));
        let (once, again) = (run(), run());
        assert_eq!(once.hash, again.hash, "seed {seed}");
        met.add(&once.met);
    }
    assert!(met.of("crashes") > 10, "too few crashes:\n{met}");
    let rare =
        ["expired", "overflowed", "duplicates", "committed", "published", "routed", "forwarded"];
    let missing: Vec<_> = rare.iter().filter(|what| met.of(what) == 0).collect();
    assert!(missing.is_empty(), "{missing:?} did not happen:\n{met}");
}

#[test]
fn a_world_that_grows_without_bound_fails() {
    // With a margin: this thread may have freed memory of another one, which its counter does not know.
    let large: Vec<u8> = Vec::with_capacity(alloc::WORLD_BYTES_MAX as usize + (1 << 20));
    let failed = std::panic::catch_unwind(alloc::check_memory);
    assert!(failed.is_err(), "{} bytes were accepted", large.capacity());
    drop(large);
    alloc::check_memory();
}
