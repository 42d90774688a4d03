//! Supervision is about threads, which worlds do not have: it is checked on a real engine, once per run.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use malote_engine::Engine;
use malote_engine::chance::Chance;
use malote_engine::clock::{Clock, ManualClock};
use malote_engine::disk::MemoryDisk;
use malote_engine::journal::Options;
use malote_model::Timestamp;

/// How long a panic may take to be noticed on the slowest machine, in milliseconds.
const NOTICED_MS: u64 = 10_000;

/// A clock that panics on the core thread.
struct Trap(ManualClock, Arc<AtomicBool>);

impl Clock for Trap {
    fn now(&self) -> Timestamp {
        let core = std::thread::current().name() == Some("core");
        assert!(!core || !self.1.load(Ordering::SeqCst), "the core panics");
        self.0.now()
    }
}

/// A core that panics leaves a poisoned engine.
pub fn check() -> Result<(), String> {
    let set = Arc::new(AtomicBool::new(false));
    let disk = Arc::new(MemoryDisk::new());
    let opened = Engine::open_at(disk, &Options::default(), Chance::of_system(), |floor| {
        Arc::new(Trap(ManualClock::starting_at(floor), set.clone()))
    });
    let (engine, running) = opened.map_err(|error| error.to_string())?;
    set.store(true, Ordering::SeqCst);
    for _ in 0..NOTICED_MS {
        // Nobody is woken who does not sleep yet.
        engine.wake();
        if running.is_poisoned() {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Err("the core thread panicked, and the engine does not know".to_owned())
}
