//! How many connections there may be at once, over all ports.
//!
//! | connections | at the bound |
//! |---|---|
//! | of all peers: `limits.connections` | a new one is closed at once, or answered about health only |
//! | of peers that are not authenticated yet: [`UNKNOWN_CONNECTIONS_MAX`] | the oldest one of the address with the most is closed |
//! | about health, at a full server: [`HEALTH_CONNECTIONS_MAX`] | the same |

use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

/// Connections whose peer is not authenticated yet. Each may hold one head or frame of 64 KiB: together 64 MiB.
pub const UNKNOWN_CONNECTIONS_MAX: usize = 1024;

/// Connections beyond the limit that are asked about health, so that a full server is not taken for a dead one.
pub const HEALTH_CONNECTIONS_MAX: usize = 32;

/// However few connections are allowed, so many may be new.
const UNKNOWN_CONNECTIONS_MIN: usize = 16;

/// Counts connections and refuses those beyond the limit.
///
/// At the limit a connection is accepted and closed at once: left in the backlog it would wait
/// in silence, and its peer could not tell a full server from a slow one.
#[derive(Debug)]
pub struct Gate {
    places: Arc<Semaphore>,
    connections_max: usize,
    unknown: Newcomers,
    health: Newcomers,
    accepted: AtomicU64,
    refused: AtomicU64,
    full: AtomicBool,
}

/// The right to be connected; given back when dropped.
#[derive(Debug)]
pub struct Pass {
    /// Number of the connection, from 1, unique within the process.
    pub conn: u64,
    /// To be set once the peer is authenticated, or needs not be.
    pub known: Arc<AtomicBool>,
    /// The server is full: this connection may ask about health, and nothing else.
    pub health_only: bool,
    /// Cancelled when the connection has to make room for another one.
    pub evicted: CancellationToken,
    _place: Option<OwnedSemaphorePermit>,
}

impl Drop for Pass {
    /// It is nobody's place any more; the list notices.
    fn drop(&mut self) {
        self.known.store(true, Ordering::Relaxed);
    }
}

/// Connections that may be closed to make room, the oldest first. Slow peers grow old here and quick ones do not, so
/// that those who hold connections without a word lose them to those who have something to say.
#[derive(Debug)]
struct Newcomers {
    max: usize,
    all: Mutex<VecDeque<Newcomer>>,
}

#[derive(Debug)]
struct Newcomer {
    address: IpAddr,
    known: Arc<AtomicBool>,
    evicted: CancellationToken,
}

impl Newcomers {
    fn new(max: usize) -> Newcomers {
        Newcomers { max, all: Mutex::default() }
    }

    fn add(&self, address: IpAddr) -> (Arc<AtomicBool>, CancellationToken) {
        let (known, evicted) = (Arc::new(AtomicBool::new(false)), CancellationToken::new());
        let mut all = self.all.lock();
        if all.len() >= self.max {
            all.retain(|one| !one.known.load(Ordering::Relaxed));
        }
        if all.len() >= self.max {
            let mut counts: HashMap<IpAddr, usize> = HashMap::new();
            all.iter().for_each(|one| *counts.entry(one.address).or_default() += 1);
            let most = counts.into_iter().max_by_key(|(_, count)| *count);
            let oldest = all.iter().position(|one| most.is_some_and(|most| one.address == most.0));
            if let Some(oldest) = oldest.and_then(|at| all.remove(at)) {
                oldest.evicted.cancel();
            }
        }
        all.push_back(Newcomer { address, known: known.clone(), evicted: evicted.clone() });
        (known, evicted)
    }
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
            unknown: Newcomers::new(
                (connections_max / 2).clamp(UNKNOWN_CONNECTIONS_MIN, UNKNOWN_CONNECTIONS_MAX),
            ),
            health: Newcomers::new(HEALTH_CONNECTIONS_MAX),
            accepted: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            full: AtomicBool::new(false),
        })
    }

    /// Lets a connection beyond the limit in to ask about health.
    pub fn enter_for_health(&self, address: IpAddr) -> Pass {
        let conn = self.accepted.fetch_add(1, Ordering::Relaxed) + 1;
        let (known, evicted) = self.health.add(address);
        Pass { conn, known, health_only: true, evicted, _place: None }
    }

    /// Lets a connection in, or counts it as refused.
    pub fn enter(&self, address: IpAddr) -> Option<Pass> {
        match Arc::clone(&self.places).try_acquire_owned() {
            Ok(place) => {
                self.full.store(false, Ordering::Relaxed);
                let conn = self.accepted.fetch_add(1, Ordering::Relaxed) + 1;
                let (known, evicted) = self.unknown.add(address);
                Some(Pass { conn, known, health_only: false, evicted, _place: Some(place) })
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

    const HOME: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    #[test]
    fn a_place_comes_back_when_its_pass_is_dropped() {
        let gate = Gate::new(2);
        let first = gate.enter(HOME).unwrap();
        let _second = gate.enter(HOME).unwrap();
        assert!(gate.enter(HOME).is_none());
        drop(first);
        assert_eq!(gate.enter(HOME).unwrap().conn, 3);
        assert_eq!(gate.counts(), GateCounts { open: 1, accepted: 3, refused: 1 });
    }

    #[test]
    fn the_oldest_unknown_connection_of_the_busiest_address_makes_room() {
        let gate = Gate::new(40);
        let (busy, quiet) = (HOME, IpAddr::from([10, 0, 0, 1]));
        let quiet_one = gate.enter(quiet).unwrap();
        let known = gate.enter(busy).unwrap();
        known.known.store(true, Ordering::Relaxed);
        let many: Vec<Pass> = (0..18).map(|_| gate.enter(busy).unwrap()).collect();
        // 20 may be unknown: nobody had to go yet.
        assert!(many.iter().all(|pass| !pass.evicted.is_cancelled()));
        let more: Vec<Pass> = (0..3).map(|_| gate.enter(busy).unwrap()).collect();
        let gone: Vec<bool> = many.iter().map(|pass| pass.evicted.is_cancelled()).collect();
        assert_eq!(gone.iter().filter(|gone| **gone).count(), 2);
        assert!(gone[0] && gone[1]);
        for kept in [&quiet_one, &known].into_iter().chain(&more) {
            assert!(!kept.evicted.is_cancelled());
        }
    }

    #[test]
    fn a_full_server_lets_the_newest_ask_about_health() {
        let gate = Gate::new(1);
        let _only = gate.enter(HOME).unwrap();
        assert!(gate.enter(HOME).is_none());
        let asking: Vec<Pass> =
            (0..=HEALTH_CONNECTIONS_MAX).map(|_| gate.enter_for_health(HOME)).collect();
        assert!(asking[0].evicted.is_cancelled() && asking.iter().all(|pass| pass.health_only));
        assert!(!asking[HEALTH_CONNECTIONS_MAX].evicted.is_cancelled());
        assert_eq!(gate.counts().open, 1);
    }
}
