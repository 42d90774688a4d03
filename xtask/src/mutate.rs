//! Tests the tests: the simulation must detect a build with one defect.
//!
//! Each mutation is a cargo feature of the engine. It counts as caught only if it builds, if the same simulation
//! passes without it, and if the simulation fails with it.

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
    "mutate-forget-path",
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

/// A separate target folder, so that this build and the normal one do not evict each other. The build excludes the
/// front ends and link-time optimisation, because every mutation is built anew.
const SEPARATE_BUILD: [&str; 5] = [
    "--target-dir",
    "target/mutate",
    "--no-default-features",
    "--config",
    "profile.release.lto=\"off\"",
];

/// Enough seeds to detect every mutation.
const SIM_DEFAULT: &[&str] = &["--seeds", "200"];

/// A run without mutation, then one step per mutation.
pub(crate) fn steps(args: &[String]) -> Vec<Step> {
    let mut sim: Vec<String> = args.to_vec();
    if sim.is_empty() {
        sim = SIM_DEFAULT.iter().map(|&arg| arg.to_owned()).collect();
    }
    let control = sim.clone();
    let mut steps = vec![Step::new("without mutation", move || {
        if !simulate(&control, None)? {
            bail!("the simulation fails without a mutation, so it cannot show that it detects one");
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
    build.extend(SEPARATE_BUILD);
    cargo::run(&build)?;
    if simulate(sim, Some(&features))? {
        bail!("the simulation passes with `{feature}`, so it does not detect this defect");
    }
    println!("{feature}: caught");
    Ok(Outcome::one())
}

fn simulate(args: &[String], features: Option<&str>) -> Result<bool> {
    let mut extra = SEPARATE_BUILD.to_vec();
    if let Some(features) = features {
        extra.extend(["--features", features]);
    }
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    Ok(cargo::sim_separately("sim", &args, &extra)?.success())
}
