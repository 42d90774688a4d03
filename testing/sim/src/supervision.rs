//! Supervision concerns threads, which the simulations do not have, so it is checked on a real engine once per run.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use malote_engine::Engine;
use malote_engine::chance::Chance;
use malote_engine::clock::{Clock, ManualClock};
use malote_engine::disk::MemoryDisk;
use malote_engine::journal::Options;
use malote_model::Timestamp;

/// The most milliseconds until a panic is noticed, on the slowest machine.
const NOTICED_MS: u64 = 10_000;

/// A clock that panics on the core thread.
struct PanickingClock(ManualClock, Arc<AtomicBool>);

impl Clock for PanickingClock {
    fn now(&self) -> Timestamp {
        let core = std::thread::current().name() == Some("core");
        assert!(!core || !self.1.load(Ordering::SeqCst), "the core panics");
        self.0.now()
    }
}

/// Checks that a panic of the core thread poisons the engine.
pub fn check() -> Result<(), String> {
    let set = Arc::new(AtomicBool::new(false));
    let disk = Arc::new(MemoryDisk::new());
    let opened = Engine::open_at(disk, &Options::default(), Chance::of_system(), |floor| {
        Arc::new(PanickingClock(ManualClock::starting_at(floor), set.clone()))
    });
    let (engine, running) = opened.map_err(|error| error.to_string())?;
    set.store(true, Ordering::SeqCst);
    for _ in 0..NOTICED_MS {
        // The core thread may not have slept yet when it was woken before.
        engine.wake();
        if running.is_poisoned() {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Err("the core thread panicked, but the engine is not poisoned".to_owned())
}
