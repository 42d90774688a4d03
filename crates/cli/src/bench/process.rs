//! CPU time and memory of this process.

use std::time::Duration;

/// Measures the CPU time of the engine's background threads: snapshots, compaction and spare segments.
pub(super) struct BackgroundCpu(Duration);

impl BackgroundCpu {
    pub(super) fn start() -> Self {
        Self(Self::used())
    }

    pub(super) fn elapsed(&self) -> Duration {
        Self::used().saturating_sub(self.0)
    }

    fn used() -> Duration {
        let mut used_ns = 0;
        for thread in std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
            let read = |name: &str| std::fs::read_to_string(thread.path().join(name));
            let name = read("comm").unwrap_or_default();
            if matches!(name.trim_end(), "housekeeping" | "spares") {
                let schedstat = read("schedstat").unwrap_or_default();
                let ns = schedstat.split(' ').next().and_then(|ns| ns.parse::<u64>().ok());
                used_ns += ns.unwrap_or(0);
            }
        }
        Duration::from_nanos(used_ns)
    }
}

/// Resident memory of this process.
pub(super) fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = statm.split(' ').nth(1).and_then(|n| n.parse().ok()).unwrap_or(0);
    pages * rustix::param::page_size() as u64
}
