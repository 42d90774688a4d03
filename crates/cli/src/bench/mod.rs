//! Benchmarks: each figure beside what the machine itself can do, in the same run.

mod bare;
pub(crate) mod engine;
mod measure;
mod report;

/// What the machine was doing when the run began.
#[allow(clippy::disallowed_methods)] // a line for people, read once
fn load_average() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().unwrap_or("unknown").to_owned()
}
