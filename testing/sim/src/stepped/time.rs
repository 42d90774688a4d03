//! The clocks of a simulated machine: a monotonic one, and a wall clock that can be set.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use malote_engine::clock::TimeSource;

/// Clones share the clocks.
#[derive(Clone, Default)]
pub(super) struct Clocks(Arc<ClockState>);

#[derive(Default)]
struct ClockState {
    wall_ms: AtomicU64,
    elapsed_ms: AtomicU64,
}

impl Clocks {
    pub(super) fn starting_at(wall_ms: u64) -> Self {
        let clocks = Self::default();
        clocks.0.wall_ms.store(wall_ms, Ordering::Relaxed);
        clocks
    }

    pub(super) fn pass(&self, ms: u64) {
        self.0.wall_ms.fetch_add(ms, Ordering::Relaxed);
        self.0.elapsed_ms.fetch_add(ms, Ordering::Relaxed);
    }

    pub(super) fn set_forward(&self, ms: u64) {
        self.0.wall_ms.fetch_add(ms, Ordering::Relaxed);
    }

    pub(super) fn set_back(&self, ms: u64) {
        self.0.wall_ms.fetch_sub(ms, Ordering::Relaxed);
    }

    pub(super) fn elapsed(&self) -> u64 {
        self.0.elapsed_ms.load(Ordering::Relaxed)
    }
}

impl TimeSource for Clocks {
    fn wall_ms(&self) -> u64 {
        self.0.wall_ms.load(Ordering::Relaxed)
    }

    fn elapsed_ms(&self) -> u64 {
        self.elapsed()
    }
}
