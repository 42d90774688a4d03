//! A few short worlds in every `cargo test`; `malote-sim sim` runs many long ones, and knows what those must meet.

use malote_sim::met::Met;
use malote_sim::{alloc, seeds, sim};

#[global_allocator]
static ALLOCATOR: alloc::Counting = alloc::Counting;

#[test]
fn a_core_that_panics_leaves_a_poisoned_engine() {
    malote_sim::supervision::check().unwrap();
}

#[test]
fn worlds_live_and_die_as_the_model_says_and_the_same_seed_twice_is_the_same_run() {
    let mut met = Met::default();
    let new = seeds::new_base();
    println!("new seeds: `cargo xtask sim --from {new} --seeds 2 --steps 500` runs them again");
    for seed in (9000..9004).chain(new..new + 2) {
        let run = || sim::run(seed, 500, false).unwrap_or_else(|story| panic!("{story}"));
        let (once, again) = (run(), run());
        assert_eq!(once.hash, again.hash, "seed {seed}");
        met.add(&once.met);
    }
    assert!(met.of("crashes") > 10, "{met} proves nothing");
    let rare =
        ["expired", "overflowed", "duplicates", "committed", "published", "routed", "forwarded"];
    let missing: Vec<_> = rare.iter().filter(|what| met.of(what) == 0).collect();
    assert!(missing.is_empty(), "{missing:?} did not happen:\n{met}");
}

#[test]
fn a_world_that_grows_without_end_fails_instead_of_taking_all_memory() {
    let large: Vec<u8> = Vec::with_capacity(alloc::WORLD_BYTES_MAX as usize + 1);
    let failed = std::panic::catch_unwind(alloc::check_world);
    assert!(failed.is_err(), "{} bytes were not too much", large.capacity());
    drop(large);
    alloc::check_world();
}
