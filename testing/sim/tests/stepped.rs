//! Runs the whole engine, stepwise and deterministic; `malote-sim sim` runs many more seeds.

use malote_sim::situations::Situations;
use malote_sim::{alloc, seeds, sim};

#[global_allocator]
static ALLOCATOR: alloc::CountingAllocator = alloc::CountingAllocator;

#[test]
fn the_whole_engine_is_correct_and_the_same_seed_gives_the_same_run() {
    let mut met = Situations::default();
    let new = seeds::new_base();
    println!("new seeds: `cargo xtask sim --from {new} --seeds 2 --steps 500` runs them again");
    for seed in (0..6).chain(new..new + 2) {
        let run = || sim::run_stepped(seed, 500, false).unwrap_or_else(|report| panic!("{report}"));
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
