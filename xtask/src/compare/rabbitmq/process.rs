//! Processor time and memory of a process and its children, from `/proc`.
#![allow(clippy::disallowed_methods, reason = "no file of the engine's")]

use anyhow::{Context, Result};

/// The kernel counts in hundredths of a second.
const TICKS_PER_SECOND: f64 = 100.0;

/// Processor time since the start.
pub(super) fn cpu_seconds(pid: u32) -> Result<f64> {
    let mut ticks = 0;
    for pid in with_children(pid) {
        let path = format!("/proc/{pid}/stat");
        // A child may have ended.
        let Ok(stat) = std::fs::read_to_string(&path) else { continue };
        ticks += ticks_of(&stat).with_context(|| format!("{path} has no times"))?;
    }
    Ok(ticks as f64 / TICKS_PER_SECOND)
}

/// The resident memory of a process.
pub(super) fn memory_bytes(pid: u32) -> Result<u64> {
    let mut bytes = 0;
    for pid in with_children(pid) {
        let path = format!("/proc/{pid}/status");
        let Ok(status) = std::fs::read_to_string(&path) else { continue };
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
        bytes += kib.unwrap_or(0) << 10;
    }
    Ok(bytes)
}

/// User and system time.
fn ticks_of(stat: &str) -> Option<u64> {
    // The name of the program may contain spaces; it ends with the last parenthesis.
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut times = fields.split(' ').skip(11).map(str::parse::<u64>);
    Some(times.next()?.ok()? + times.next()?.ok()?)
}

/// The process and everything below it: a start script may not be the broker itself.
fn with_children(pid: u32) -> Vec<u32> {
    let mut all = vec![pid];
    let mut index = 0;
    while let Some(pid) = all.get(index) {
        let path = format!("/proc/{pid}/task/{pid}/children");
        let text = std::fs::read_to_string(path).unwrap_or_default();
        all.extend(text.split_whitespace().filter_map(|child| child.parse::<u32>().ok()));
        index += 1;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_found_behind_the_name() {
        let stat = "7 (a (b) c) S 1 7 7 0 -1 4194560 100 0 0 0 250 50 0 0 20 0";
        assert_eq!(ticks_of(stat), Some(300));
    }

    #[test]
    fn this_process_uses_memory() {
        assert!(memory_bytes(std::process::id()).unwrap() > 0);
        assert!(cpu_seconds(std::process::id()).unwrap() >= 0.0);
    }
}
