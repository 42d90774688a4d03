//! Passwords: argon2id, never on an async thread, and remembered once checked.
//!
//! A check costs 20 MiB and some 20 ms by design, and HTTP clients show their password with every
//! request. A user's last good password is therefore kept as a keyed hash; the key is made at
//! start and never leaves memory. The stored hash is part of it, so a new password, in whatever
//! process it was set, makes the memory of the old one worthless.
//!
//! Checks wait in lanes: of one name at one address one goes at a time, of one address one goes at a time, and addresses
//! take turns. A flood of guesses holds up itself. What waits is bounded by the connections it comes by.

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

/// Users whose last good password is remembered.
const REMEMBERED_MAX: usize = 1024;

/// Longer passwords are refused before they are hashed.
pub(super) const PASSWORD_BYTES_MAX: usize = 1024;

/// OWASP's first choice for argon2id: 19 MiB, two passes, one lane.
fn argon2id() -> Argon2<'static> {
    Argon2::new(Algorithm::Argon2id, Version::V0x13, Params::default())
}

/// Hashes a new password. Takes some 20 ms: not for an async thread.
pub(super) fn hash(password: &str) -> String {
    let salt = SaltString::encode_b64(&random::bytes::<16>()).expect("16 bytes make a salt");
    argon2id()
        .hash_password(password.as_bytes(), &salt)
        .expect("the parameters and the length of the password are valid")
        .to_string()
}

fn verify(password: &str, stored: &str) -> bool {
    PasswordHash::new(stored)
        .is_ok_and(|stored| argon2id().verify_password(password.as_bytes(), &stored).is_ok())
}

/// Checks passwords and remembers the good ones.
pub(super) struct Checker {
    key: [u8; 32],
    remembered: Mutex<HashMap<Arc<str>, [u8; 32]>>,
    names: Lanes<(IpAddr, Box<str>)>,
    addresses: Lanes<IpAddr>,
    /// A flood of sign-ins may take this many cores and this many times 19 MiB, not more.
    places: Semaphore,
}

/// One at a time of each kind.
struct Lanes<K>(Mutex<HashMap<K, Arc<Semaphore>>>);

/// A turn in a lane; the next begins when it is dropped.
struct Turn<'a, K: Eq + Hash> {
    lanes: &'a Lanes<K>,
    key: K,
    lane: Arc<Semaphore>,
    permit: Option<OwnedSemaphorePermit>,
}

impl<K: Eq + Hash + Clone> Lanes<K> {
    async fn turn(&self, key: K) -> Turn<'_, K> {
        let one = || Arc::new(Semaphore::new(1));
        let lane = self.0.lock().entry(key.clone()).or_insert_with(one).clone();
        let mut turn = Turn { lanes: self, key, lane, permit: None };
        turn.permit = turn.lane.clone().acquire_owned().await.ok();
        turn
    }
}

impl<K: Eq + Hash> Drop for Turn<'_, K> {
    fn drop(&mut self) {
        let mut lanes = self.lanes.0.lock();
        self.permit = None;
        // The map has one, and this turn: nobody waits.
        if Arc::strong_count(&self.lane) == 2 {
            lanes.remove(&self.key);
        }
    }
}

impl Checker {
    pub(super) fn new() -> Checker {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Checker {
            key: random::bytes(),
            remembered: Mutex::new(HashMap::new()),
            names: Lanes(Mutex::default()),
            addresses: Lanes(Mutex::default()),
            // Half of them: signing in is not what the server is for.
            places: Semaphore::new((cores / 2).max(1)),
        }
    }

    /// Whether `password` is the one behind `stored`. Without a stored hash (no such user) it
    /// takes as long and says no.
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
        let Ok(_place) = self.places.acquire().await else { return false };
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
                // Rare, and the cost is one check per user: no order to keep.
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

/// A hash to check against when there is no user, so that time does not tell.
fn decoy() -> &'static str {
    static DECOY: OnceLock<String> = OnceLock::new();
    DECOY.get_or_init(|| hash("nobody"))
}
