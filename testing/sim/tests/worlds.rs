//! A few short worlds in every `cargo test`; `malote-sim sim` runs many long ones.

use malote_sim::sim;

#[test]
fn worlds_live_and_die_as_the_model_says_and_the_same_seed_twice_is_the_same_run() {
    let mut crashes = 0;
    for seed in 9000..9004 {
        let run = || sim::run(seed, 500, false).unwrap_or_else(|story| panic!("{story}"));
        let (once, again) = (run(), run());
        assert_eq!(once.hash, again.hash, "seed {seed}");
        crashes += once.met.crashes;
    }
    assert!(crashes > 10, "{crashes} crashes prove nothing");
}
