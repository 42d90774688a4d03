//! Wall-clock time and CPU time. Benchmarks may read the clock because nothing is replayed from them.

use std::time::{Duration, Instant};

/// Measures elapsed wall-clock time.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch(Instant);

impl Stopwatch {
    /// Starts the measurement.
    #[allow(clippy::disallowed_methods)] // a benchmark measures real time
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// Time since the start.
    pub fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}

/// Measures the CPU time of this process.
pub struct ProcessCpu(Duration);

impl ProcessCpu {
    /// Starts the measurement.
    pub fn start() -> Self {
        Self(Self::used())
    }

    /// CPU time used since the start.
    pub fn elapsed(&self) -> Duration {
        Self::used().saturating_sub(self.0)
    }

    fn used() -> Duration {
        let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        Duration::new(used.tv_sec as u64, used.tv_nsec as u32)
    }
}

/// CPU time that a process has used so far. The kernel counts it in hundredths of a second.
pub fn cpu_time_of(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The process name can contain spaces; it ends at the last parenthesis. User and system time are fields 12 and 13
    // after it.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let ticks = |n| fields.split_whitespace().nth(n).and_then(|field| field.parse::<u64>().ok());
    Duration::from_millis((ticks(11).unwrap_or(0) + ticks(12).unwrap_or(0)) * 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_time_of_this_process_grows() {
        let (cpu, before) = (ProcessCpu::start(), cpu_time_of(std::process::id()));
        let mut sum = 0_u64;
        while cpu.elapsed() < Duration::from_millis(60) {
            sum = sum.wrapping_add(std::hint::black_box(1));
        }
        assert!(cpu_time_of(std::process::id()) > before, "{sum}");
    }
}
