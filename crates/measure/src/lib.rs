//! What `malote bench engine` and the protocol benchmarks (`testing/bench`) share: time, latencies and the report.

mod latency;
mod report;
mod time;

pub use latency::Latency;
pub use report::{BenchReport, Row, thousands};
pub use time::{ProcessCpu, Stopwatch, cpu_time_of};
