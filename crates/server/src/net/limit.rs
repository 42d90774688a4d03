//! The limit of concurrent connections over all ports.
//!
//! | connections | when the limit is reached |
//! |---|---|
//! | all: `limits.connections` | the oldest unauthenticated one is closed; if there is none, the new one is closed, or may ask for the health only |
//! | not authenticated yet: [`UNKNOWN_CONNECTIONS_MAX`] | the oldest one of the address with the most is closed |
//! | health checks at a full server: [`HEALTH_CONNECTIONS_MAX`] | the same |

use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// Connections whose peer has not authenticated. Each may hold a header or frame of 64 KiB, which is 64 MiB in total.
pub const UNKNOWN_CONNECTIONS_MAX: usize = 1024;

/// Connections beyond the limit that may ask for the health, so that a full server is not taken for a dead one.
pub const HEALTH_CONNECTIONS_MAX: usize = 32;

/// Lower bound of the limit for unauthenticated connections.
const UNKNOWN_CONNECTIONS_MIN: usize = 16;

/// How long a new connection waits for an evicted one to close. Only a starved process needs more than a moment.
const EVICTION_TIME_MAX: Duration = Duration::from_secs(5);

/// Counts connections and refuses those beyond the limit.
///
/// A connection beyond the limit is accepted and closed. In the backlog, it would wait, and its peer could not
/// distinguish a full server from a slow one.
#[derive(Debug)]
pub struct ConnectionLimit {
    slots: Arc<Semaphore>,
    connections_max: usize,
    unknown: EvictableConnections,
    health: EvictableConnections,
    accepted: AtomicU64,
    refused: AtomicU64,
    full: AtomicBool,
}

/// A counted connection; dropping it frees its slot.
#[derive(Debug)]
pub struct ConnectionPermit {
    /// Number of the connection, from 1, unique within the process.
    pub conn: u64,
    /// Set once the peer has authenticated, or does not need to.
    pub known: Arc<AtomicBool>,
    /// The server is full: this connection may only ask for the health.
    pub health_only: bool,
    /// Cancelled when the connection is evicted.
    pub evicted: CancellationToken,
    _slot: Option<OwnedSemaphorePermit>,
}

impl Drop for ConnectionPermit {
    /// Marks the connection as no longer evictable; the list removes it later.
    fn drop(&mut self) {
        self.known.store(true, Ordering::Relaxed);
    }
}

/// Connections that may be evicted, oldest first. Peers that authenticate quickly leave the list, so mostly idle ones
/// are evicted.
#[derive(Debug)]
struct EvictableConnections {
    max: usize,
    all: Mutex<VecDeque<EvictableConnection>>,
}

#[derive(Debug)]
struct EvictableConnection {
    address: IpAddr,
    known: Arc<AtomicBool>,
    evicted: CancellationToken,
}

impl EvictableConnections {
    fn new(max: usize) -> EvictableConnections {
        EvictableConnections { max, all: Mutex::default() }
    }

    fn add(&self, address: IpAddr) -> (Arc<AtomicBool>, CancellationToken) {
        let (known, evicted) = (Arc::new(AtomicBool::new(false)), CancellationToken::new());
        let mut all = self.all.lock();
        if all.len() >= self.max {
            all.retain(|one| !one.known.load(Ordering::Relaxed));
        }
        if all.len() >= self.max {
            evict_oldest(&mut all);
        }
        all.push_back(EvictableConnection {
            address,
            known: known.clone(),
            evicted: evicted.clone(),
        });
        (known, evicted)
    }

    /// Evicts one connection; false if none is evictable.
    fn evict_one(&self) -> bool {
        let mut all = self.all.lock();
        all.retain(|one| !one.known.load(Ordering::Relaxed));
        evict_oldest(&mut all)
    }
}

/// Evicts the oldest connection of the address with the most; false if there is none.
fn evict_oldest(all: &mut VecDeque<EvictableConnection>) -> bool {
    let mut counts: HashMap<IpAddr, usize> = HashMap::new();
    all.iter().for_each(|one| *counts.entry(one.address).or_default() += 1);
    let most = counts.into_iter().max_by_key(|(_, count)| *count);
    let oldest = all.iter().position(|one| most.is_some_and(|most| one.address == most.0));
    let evicted = oldest.and_then(|at| all.remove(at));
    evicted.inspect(|oldest| oldest.evicted.cancel()).is_some()
}

/// Counters for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionCounts {
    pub open: usize,
    /// Since the start.
    pub accepted: u64,
    /// Since the start.
    pub refused: u64,
}

impl ConnectionLimit {
    pub fn new(connections_max: usize) -> Arc<ConnectionLimit> {
        let connections_max = connections_max.min(Semaphore::MAX_PERMITS);
        Arc::new(ConnectionLimit {
            slots: Arc::new(Semaphore::new(connections_max)),
            connections_max,
            unknown: EvictableConnections::new(
                (connections_max / 2).clamp(UNKNOWN_CONNECTIONS_MIN, UNKNOWN_CONNECTIONS_MAX),
            ),
            health: EvictableConnections::new(HEALTH_CONNECTIONS_MAX),
            accepted: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            full: AtomicBool::new(false),
        })
    }

    /// Accepts a connection beyond the limit for a health check.
    pub fn acquire_for_health(&self, address: IpAddr) -> ConnectionPermit {
        let conn = self.accepted.fetch_add(1, Ordering::Relaxed) + 1;
        let (known, evicted) = self.health.add(address);
        ConnectionPermit { conn, known, health_only: true, evicted, _slot: None }
    }

    /// Accepts a connection, or counts it as refused.
    ///
    /// At the limit, an unauthenticated connection is evicted first. The new one waits until it has closed: a flood of
    /// connections must not outrun the tasks that close the evicted ones.
    pub async fn acquire(&self, address: IpAddr) -> Option<ConnectionPermit> {
        let mut slot = Arc::clone(&self.slots).try_acquire_owned().ok();
        if slot.is_none() && self.unknown.evict_one() {
            let freed = Arc::clone(&self.slots).acquire_owned();
            slot = timeout(EVICTION_TIME_MAX, freed).await.ok().and_then(Result::ok);
        }
        match slot {
            Some(slot) => {
                self.full.store(false, Ordering::Relaxed);
                let conn = self.accepted.fetch_add(1, Ordering::Relaxed) + 1;
                let (known, evicted) = self.unknown.add(address);
                Some(ConnectionPermit {
                    conn,
                    known,
                    health_only: false,
                    evicted,
                    _slot: Some(slot),
                })
            }
            None => {
                self.refused.fetch_add(1, Ordering::Relaxed);
                // Logged once each time the limit is reached, not for every refused connection.
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

    pub fn counts(&self) -> ConnectionCounts {
        ConnectionCounts {
            open: self.connections_max - self.slots.available_permits(),
            accepted: self.accepted.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
        }
    }
}

/// Raises the soft limit of open files to the hard limit, and returns it. The usual default of 1,024 is below the
/// default connection limit.
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

    async fn acquire(limit: &ConnectionLimit, address: IpAddr) -> ConnectionPermit {
        limit.acquire(address).await.expect("below the limit")
    }

    async fn acquire_known(limit: &ConnectionLimit) -> ConnectionPermit {
        let permit = acquire(limit, HOME).await;
        permit.known.store(true, Ordering::Relaxed);
        permit
    }

    #[tokio::test]
    async fn dropping_a_permit_frees_its_slot() {
        let limit = ConnectionLimit::new(2);
        let first = acquire_known(&limit).await;
        let _second = acquire_known(&limit).await;
        assert!(limit.acquire(HOME).await.is_none());
        drop(first);
        assert_eq!(acquire(&limit, HOME).await.conn, 3);
        assert_eq!(limit.counts(), ConnectionCounts { open: 1, accepted: 3, refused: 1 });
    }

    #[tokio::test]
    async fn the_oldest_unauthenticated_connection_of_the_busiest_address_is_evicted() {
        let limit = ConnectionLimit::new(40);
        let (busy, quiet) = (HOME, IpAddr::from([10, 0, 0, 1]));
        let quiet_one = acquire(&limit, quiet).await;
        let known = acquire_known(&limit).await;
        let mut many = Vec::new();
        for _ in 0..18 {
            many.push(acquire(&limit, busy).await);
        }
        // 20 may be unauthenticated, so none was evicted yet.
        assert!(many.iter().all(|permit| !permit.evicted.is_cancelled()));
        let mut more = Vec::new();
        for _ in 0..3 {
            more.push(acquire(&limit, busy).await);
        }
        let gone: Vec<bool> = many.iter().map(|permit| permit.evicted.is_cancelled()).collect();
        assert_eq!(gone.iter().filter(|gone| **gone).count(), 2);
        assert!(gone[0] && gone[1]);
        for kept in [&quiet_one, &known].into_iter().chain(&more) {
            assert!(!kept.evicted.is_cancelled());
        }
    }

    #[tokio::test]
    async fn at_the_limit_an_unauthenticated_connection_makes_room() {
        let limit = ConnectionLimit::new(2);
        let _known = acquire_known(&limit).await;
        let idle = acquire(&limit, HOME).await;
        // The evicted connection closes only later, as in a busy process.
        let closes = tokio::spawn(async move {
            idle.evicted.cancelled().await;
            tokio::task::yield_now().await;
            drop(idle);
        });
        let new = acquire_known(&limit).await;
        closes.await.unwrap();
        assert!(!new.health_only && !new.evicted.is_cancelled());
        assert!(limit.acquire(HOME).await.is_none(), "authenticated connections are not evicted");
    }

    #[tokio::test]
    async fn a_full_server_answers_health_checks() {
        let limit = ConnectionLimit::new(1);
        let _only = acquire_known(&limit).await;
        assert!(limit.acquire(HOME).await.is_none());
        let asking: Vec<ConnectionPermit> =
            (0..=HEALTH_CONNECTIONS_MAX).map(|_| limit.acquire_for_health(HOME)).collect();
        assert!(asking[0].evicted.is_cancelled() && asking.iter().all(|permit| permit.health_only));
        assert!(!asking[HEALTH_CONNECTIONS_MAX].evicted.is_cancelled());
        assert_eq!(limit.counts().open, 1);
    }
}
