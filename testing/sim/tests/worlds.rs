//! A few short worlds in every `cargo test`; `malote-sim sim` runs many long ones.

use malote_sim::sim;
use malote_sim::world::Met;

#[test]
fn worlds_live_and_die_as_the_model_says_and_the_same_seed_twice_is_the_same_run() {
    let mut met = Met::default();
    for seed in 9000..9004 {
        let run = || sim::run(seed, 500, false).unwrap_or_else(|story| panic!("{story}"));
        let (once, again) = (run(), run());
        assert_eq!(once.hash, again.hash, "seed {seed}");
        met.add(&once.met);
    }
    assert!(met.crashes > 10, "{met:?} proves nothing");
    let rare = [met.expired, met.overflowed, met.duplicates, met.committed, met.went];
    assert!(rare.iter().all(|&times| times > 0), "{met:?} proves nothing");
}
