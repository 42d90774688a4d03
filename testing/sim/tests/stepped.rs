//! The whole engine, stepwise and deterministic, in every `cargo test`; `malote-sim sim` runs many more seeds.

use malote_sim::met::Met;
use malote_sim::{alloc, seeds, sim};

#[global_allocator]
static ALLOCATOR: alloc::Counting = alloc::Counting;

#[test]
fn the_whole_engine_keeps_its_promises_and_the_same_seed_twice_is_the_same_run() {
    let mut met = Met::default();
    let new = seeds::new_base();
    println!("new seeds: `cargo xtask sim --from {new} --seeds 2 --steps 500` runs them again");
    for seed in (0..6).chain(new..new + 2) {
        let run = || sim::run_stepped(seed, 500, false).unwrap_or_else(|story| panic!("{story}"));
        let (once, again) = (run(), run());
        assert_eq!(once.hash, again.hash, "seed {seed}");
        met.add(&once.met);
    }
    let rare = [
        "stepped: sent",
        "stepped: completed",
        "stepped: given up",
        "stepped: clock set back",
        "stepped: clock set forward",
        "stepped: power lost",
        "stepped: stopped",
        "stepped: taken",
    ];
    let missing: Vec<_> = rare.iter().filter(|what| met.of(what) == 0).collect();
    assert!(missing.is_empty(), "{missing:?} did not happen:\n{met}");
}
