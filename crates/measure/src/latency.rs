//! A histogram of latencies.

use std::time::Duration;

use hdrhistogram::Histogram;

/// Latencies in nanoseconds, with three significant digits.
pub struct Latency(Histogram<u64>);

impl Default for Latency {
    fn default() -> Self {
        Self(Histogram::new(3).expect("three digits are supported"))
    }
}

impl Latency {
    /// Adds one latency.
    pub fn record(&mut self, latency: Duration) {
        self.0.record(latency.as_nanos() as u64).expect("the histogram grows as needed");
    }

    /// Adds all latencies of another histogram.
    pub fn add(&mut self, other: Self) {
        self.0.add(other.0).expect("both have three digits and grow");
    }

    /// The latency at a quantile, in microseconds.
    pub fn micros(&self, quantile: f64) -> f64 {
        self.0.value_at_quantile(quantile) as f64 / 1000.0
    }

    /// The latency at a quantile, in milliseconds.
    pub fn millis(&self, quantile: f64) -> f64 {
        self.micros(quantile) / 1000.0
    }

    /// Number of recorded latencies.
    pub fn count(&self) -> u64 {
        self.0.len()
    }
}
