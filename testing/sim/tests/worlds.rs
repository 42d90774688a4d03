//! A few short worlds in every `cargo test`; `malote-sim sim` runs many long ones, and knows what those must meet.

use malote_sim::met::Met;
use malote_sim::sim;

#[test]
fn worlds_live_and_die_as_the_model_says_and_the_same_seed_twice_is_the_same_run() {
    let mut met = Met::default();
    for seed in 9000..9004 {
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
