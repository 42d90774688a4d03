//! Passwords: argon2id (or an imported hash of RabbitMQ), never on an async thread, and cached once verified.
//!
//! By design, a check needs 20 MiB and about 20 ms, and HTTP clients send their password with every request. Therefore,
//! the last correct password of a user is cached as a keyed hash. The key is created at start and never leaves memory.
//! The stored hash is part of the cached one, so changing the password, in any process, invalidates the cache.
//!
//! Checks are queued: one at a time per name and address, one at a time per address, and addresses take turns. A flood
//! of guesses delays only itself. The number of waiting checks is bounded by the number of connections.

use super::rabbitmq::RabbitmqHash;
use super::random;
use argon2::password_hash::{PasswordHash, PasswordHasher, PasswordVerifier, SaltString};
use argon2::{Algorithm, Argon2, Params, Version};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use subtle::ConstantTimeEq;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Users whose last correct password is cached.
const REMEMBERED_MAX: usize = 1024;

/// Longer passwords are refused before they are hashed.
pub(super) const PASSWORD_BYTES_MAX: usize = 1024;

/// The first recommendation of OWASP for argon2id: 19 MiB, two passes, one lane.
fn argon2id() -> Argon2<'static> {
    Argon2::new(Algorithm::Argon2id, Version::V0x13, Params::default())
}

/// Hashes a new password. Takes about 20 ms, so do not call it on an async thread.
pub(super) fn hash(password: &str) -> String {
    let salt = SaltString::encode_b64(&random::bytes::<16>()).expect("16 bytes make a salt");
    argon2id()
        .hash_password(password.as_bytes(), &salt)
        .expect("the parameters and the length of the password are valid")
        .to_string()
}

fn verify(password: &str, stored: &str) -> bool {
    match RabbitmqHash::parse(stored) {
        None => verify_argon2id(password, stored),
        Some(hash) => {
            // As slow as any other check, so that the time does not reveal which form of hash a user has.
            verify_argon2id(password, decoy());
            hash.verify(password)
        }
    }
}

fn verify_argon2id(password: &str, stored: &str) -> bool {
    PasswordHash::new(stored)
        .is_ok_and(|stored| argon2id().verify_password(password.as_bytes(), &stored).is_ok())
}

/// Checks passwords and caches the correct ones.
pub(super) struct PasswordChecker {
    key: [u8; 32],
    remembered: Mutex<HashMap<Arc<str>, [u8; 32]>>,
    names: FairQueue<(IpAddr, Box<str>)>,
    addresses: FairQueue<IpAddr>,
    /// Concurrent checks, each of which uses one core and 19 MiB.
    workers: Semaphore,
}

/// Runs one check at a time per key.
struct FairQueue<K>(Mutex<HashMap<K, Arc<Semaphore>>>);

/// A turn in a queue; the next one begins when it is dropped.
struct FairQueueTurn<'a, K: Eq + Hash> {
    lanes: &'a FairQueue<K>,
    key: K,
    lane: Arc<Semaphore>,
    permit: Option<OwnedSemaphorePermit>,
}

impl<K: Eq + Hash + Clone> FairQueue<K> {
    async fn turn(&self, key: K) -> FairQueueTurn<'_, K> {
        let one = || Arc::new(Semaphore::new(1));
        let lane = self.0.lock().entry(key.clone()).or_insert_with(one).clone();
        let mut turn = FairQueueTurn { lanes: self, key, lane, permit: None };
        turn.permit = turn.lane.clone().acquire_owned().await.ok();
        turn
    }
}

impl<K: Eq + Hash> Drop for FairQueueTurn<'_, K> {
    fn drop(&mut self) {
        let mut lanes = self.lanes.0.lock();
        self.permit = None;
        // The map and this turn hold the only references, so no check waits.
        if Arc::strong_count(&self.lane) == 2 {
            lanes.remove(&self.key);
        }
    }
}

impl PasswordChecker {
    pub(super) fn new() -> PasswordChecker {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        PasswordChecker {
            key: random::bytes(),
            remembered: Mutex::new(HashMap::new()),
            names: FairQueue(Mutex::default()),
            addresses: FairQueue(Mutex::default()),
            // Half of the cores, so that logins cannot take all of them.
            workers: Semaphore::new((cores / 2).max(1)),
        }
    }

    /// Whether `password` matches `stored`. Without a stored hash (no such user), it takes as long and returns false.
    pub(super) async fn check(
        &self,
        (peer, name): (IpAddr, &str),
        password: &str,
        stored: Option<Arc<str>>,
    ) -> bool {
        if password.len() > PASSWORD_BYTES_MAX {
            return false;
        }
        let digest = stored.as_ref().map(|stored| self.digest(name, password, stored));
        if let Some(digest) = &digest
            && self.remembered.lock().get(name).is_some_and(|known| known.ct_eq(digest).into())
        {
            return true;
        }
        let _of_name = self.names.turn((peer, name.into())).await;
        let _of_address = self.addresses.turn(peer).await;
        let Ok(_place) = self.workers.acquire().await else { return false };
        let password = password.to_owned();
        let good = tokio::task::spawn_blocking(move || match stored {
            Some(stored) => verify(&password, &stored),
            None => {
                verify(&password, decoy());
                false
            }
        });
        let good = good.await.unwrap_or(false);
        if let Some(digest) = digest.filter(|_| good) {
            let mut remembered = self.remembered.lock();
            if remembered.len() >= REMEMBERED_MAX {
                // Rare, and costs one check per user, so no eviction order is needed.
                remembered.clear();
            }
            remembered.insert(name.into(), digest);
        }
        good
    }

    fn digest(&self, name: &str, password: &str, stored: &str) -> [u8; 32] {
        let mut hash = Sha256::new();
        hash.update(self.key);
        for part in [name, stored, password] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        hash.finalize().into()
    }

    #[cfg(test)]
    pub(super) fn remembers(&self, name: &str) -> bool {
        self.remembered.lock().contains_key(name)
    }
}

/// A hash to check against if there is no such user, so that the time does not reveal it.
fn decoy() -> &'static str {
    static DECOY: OnceLock<String> = OnceLock::new();
    DECOY.get_or_init(|| hash("nobody"))
}
