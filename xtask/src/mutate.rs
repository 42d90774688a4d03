//! The test of the tests: a build with one safety taken out must be caught by the simulation.
//!
//! Each mutation is a cargo feature of the engine. A mutation counts as caught only when it
//! builds, when the same simulation passes without it, and when it fails with it.

use crate::cargo;
use crate::steps::{Outcome, Step};
use anyhow::{Context, Result, bail};

const MUTATIONS: [&str; 17] = [
    "mutate-no-fsync",
    "mutate-no-crc",
    "mutate-no-generation",
    "mutate-no-fencing",
    "mutate-early-recycle",
    "mutate-torn-groups",
    "mutate-forget-keys",
    "mutate-forget-way",
    "mutate-live-differs",
    "mutate-skip-clock-step",
    "mutate-miscounted-keys",
    "mutate-reversed-timers",
    "mutate-no-supervision",
    "mutate-no-numbering",
    "mutate-skip-sync",
    "mutate-no-pinning",
    "mutate-release-written",
];

/// Away from the normal build, so that the two do not evict each other; without the front ends and without link-time
/// optimisation, because every mutation is built anew.
const APART: [&str; 5] = [
    "--target-dir",
    "target/mutate",
    "--no-default-features",
    "--config",
    "profile.release.lto=\"off\"",
];

/// Enough for every mutation to be hit.
const SIM_DEFAULT: &[&str] = &["--seeds", "200"];

/// One control run, then one step per mutation.
pub(crate) fn steps(args: &[String]) -> Vec<Step> {
    let mut sim: Vec<String> = args.to_vec();
    if sim.is_empty() {
        sim = SIM_DEFAULT.iter().map(|&arg| arg.to_owned()).collect();
    }
    let control = sim.clone();
    let mut steps = vec![Step::new("without mutation", move || {
        if !simulate(&control, None)? {
            bail!("the simulation fails without any mutation, so catching one means nothing");
        }
        Ok(Outcome::one())
    })];
    steps.extend(MUTATIONS.map(|feature| {
        let sim = sim.clone();
        Step::new(feature, move || mutation(feature, &sim))
    }));
    steps
}

fn mutation(feature: &str, sim: &[String]) -> Result<Outcome> {
    let manifest = cargo::root().join("crates/engine/Cargo.toml");
    let text = std::fs::read_to_string(&manifest)
        .with_context(|| format!("cannot read {}", manifest.display()))?;
    if !text.lines().any(|line| line.split('=').next().map(str::trim) == Some(feature)) {
        bail!("the engine has no feature `{feature}`");
    }
    let features = format!("malote-engine/{feature}");
    let mut build = vec!["build", "--release", "-p", "malote-sim", "--features", &features];
    build.extend(APART);
    cargo::run(&build)?;
    if simulate(sim, Some(&features))? {
        bail!("the simulation passes with `{feature}`: it would not notice that this is broken");
    }
    println!("{feature}: caught");
    Ok(Outcome::one())
}

fn simulate(args: &[String], features: Option<&str>) -> Result<bool> {
    let mut extra = APART.to_vec();
    if let Some(features) = features {
        extra.extend(["--features", features]);
    }
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    Ok(cargo::sim_apart("sim", &args, &extra)?.success())
}
