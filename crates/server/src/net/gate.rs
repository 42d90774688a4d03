//! How many connections there may be at once, over all ports.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Counts connections and refuses those beyond the limit.
///
/// At the limit a connection is accepted and closed at once: left in the backlog it would wait
/// in silence, and its peer could not tell a full server from a slow one.
#[derive(Debug)]
pub struct Gate {
    places: Arc<Semaphore>,
    connections_max: usize,
    accepted: AtomicU64,
    refused: AtomicU64,
    full: AtomicBool,
}

/// The right to be connected; given back when dropped.
#[derive(Debug)]
pub struct Pass {
    /// Number of the connection, from 1, unique within the process.
    pub conn: u64,
    _place: OwnedSemaphorePermit,
}

/// What the gate has seen, for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GateCounts {
    /// Open now.
    pub open: usize,
    /// Let in since the start.
    pub accepted: u64,
    /// Closed at once since the start.
    pub refused: u64,
}

impl Gate {
    /// A gate for this many connections.
    pub fn new(connections_max: usize) -> Arc<Gate> {
        let connections_max = connections_max.min(Semaphore::MAX_PERMITS);
        Arc::new(Gate {
            places: Arc::new(Semaphore::new(connections_max)),
            connections_max,
            accepted: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            full: AtomicBool::new(false),
        })
    }

    /// Lets a connection in, or counts it as refused.
    pub fn enter(&self) -> Option<Pass> {
        match Arc::clone(&self.places).try_acquire_owned() {
            Ok(place) => {
                self.full.store(false, Ordering::Relaxed);
                let conn = self.accepted.fetch_add(1, Ordering::Relaxed) + 1;
                Some(Pass { conn, _place: place })
            }
            Err(_) => {
                self.refused.fetch_add(1, Ordering::Relaxed);
                // Once per time that it fills up, not once per connection of a flood.
                if !self.full.swap(true, Ordering::Relaxed) {
                    tracing::warn!(
                        connections_max = self.connections_max,
                        "the connection limit is reached: new connections are closed at once; \
                         `limits.connections` raises it"
                    );
                }
                None
            }
        }
    }

    /// What has been seen so far.
    pub fn counts(&self) -> GateCounts {
        GateCounts {
            open: self.connections_max - self.places.available_permits(),
            accepted: self.accepted.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
        }
    }
}

/// Raises the soft limit of open files to the hard one, and says what it is now. Shells hand out
/// 1,024, which is less than the connections that we promise.
pub fn raise_file_limit() -> Option<u64> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => limit.maximum,
        Err(_) => limit.current,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_comes_back_when_its_pass_is_dropped() {
        let gate = Gate::new(2);
        let first = gate.enter().unwrap();
        let _second = gate.enter().unwrap();
        assert!(gate.enter().is_none());
        drop(first);
        assert_eq!(gate.enter().unwrap().conn, 3);
        assert_eq!(gate.counts(), GateCounts { open: 1, accepted: 3, refused: 1 });
    }
}
