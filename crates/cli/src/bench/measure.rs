//! Wall time, processor time and latencies. Benchmarks may ask the clock: nothing is replayed from them.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

/// A stop watch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watch(Instant);

impl Watch {
    #[allow(clippy::disallowed_methods)] // a benchmark measures real time
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}

/// Processor time of the whole process.
pub(crate) struct Cpu(Duration);

impl Cpu {
    pub(crate) fn start() -> Self {
        Self(Self::now())
    }

    pub(crate) fn elapsed(&self) -> Duration {
        Self::now().saturating_sub(self.0)
    }

    fn now() -> Duration {
        let spent = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        Duration::new(spent.tv_sec as u64, spent.tv_nsec as u32)
    }
}

/// Processor time of the threads that work behind the operations: snapshots, compaction, spare segments.
pub(crate) struct Behind(Duration);

impl Behind {
    pub(crate) fn start() -> Self {
        Self(Self::now())
    }

    pub(crate) fn elapsed(&self) -> Duration {
        Self::now().saturating_sub(self.0)
    }

    #[allow(clippy::disallowed_methods)] // the process looks at itself
    fn now() -> Duration {
        let mut spent_ns = 0;
        for thread in std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
            let read = |name: &str| std::fs::read_to_string(thread.path().join(name));
            let name = read("comm").unwrap_or_default();
            if matches!(name.trim_end(), "housekeeping" | "spares") {
                let spent = read("schedstat").unwrap_or_default();
                let ns = spent.split(' ').next().and_then(|ns| ns.parse::<u64>().ok());
                spent_ns += ns.unwrap_or(0);
            }
        }
        Duration::from_nanos(spent_ns)
    }
}

/// Latencies in nanoseconds.
pub(crate) struct Latency {
    histogram: Histogram<u64>,
    elapsed: Duration,
    cpu: Duration,
}

impl Latency {
    pub(crate) fn new() -> Self {
        let histogram = Histogram::new(3).expect("three digits are few enough");
        Self { histogram, elapsed: Duration::ZERO, cpu: Duration::ZERO }
    }

    pub(crate) fn record(&mut self, one: Duration) {
        self.histogram.record(one.as_nanos() as u64).expect("the histogram grows as needed");
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.histogram.add(other.histogram).expect("both have three digits and grow");
    }

    pub(crate) fn finish(&mut self, elapsed: Duration, cpu: Duration) {
        (self.elapsed, self.cpu) = (elapsed, cpu);
    }

    pub(crate) fn micros(&self, quantile: f64) -> f64 {
        self.histogram.value_at_quantile(quantile) as f64 / 1000.0
    }

    pub(crate) fn count(&self) -> u64 {
        self.histogram.len()
    }

    pub(crate) fn rate(&self) -> f64 {
        self.count() as f64 / self.elapsed.as_secs_f64()
    }

    pub(crate) fn cpu_micros_each(&self) -> f64 {
        self.cpu.as_nanos() as f64 / 1000.0 / self.count().max(1) as f64
    }
}

/// Memory of this process that is not swapped out.
#[allow(clippy::disallowed_methods)] // the process looks at itself
pub(crate) fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = statm.split(' ').nth(1).and_then(|n| n.parse().ok()).unwrap_or(0);
    pages * rustix::param::page_size() as u64
}
