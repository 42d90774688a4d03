//! The engine's only source of randomness: seeds, and ids for messages without one.

use std::sync::atomic::{AtomicU64, Ordering};

use malote_model::Timestamp;
use uuid::Uuid;

/// A seeded source of random numbers and ids.
pub struct Chance {
    seed: u64,
    drawn: AtomicU64,
}

impl Chance {
    /// Seeded by the operating system.
    #[allow(clippy::disallowed_methods)] // the only place that may ask the system
    pub fn of_system() -> Self {
        Self::of_seed(Uuid::new_v4().as_u64_pair().0 ^ Uuid::new_v4().as_u64_pair().1)
    }

    /// The same seed gives the same values.
    pub fn of_seed(seed: u64) -> Self {
        Self { seed, drawn: AtomicU64::new(0) }
    }

    pub fn draw(&self) -> u64 {
        let n = self.drawn.fetch_add(1, Ordering::Relaxed);
        let mut mixed =
            self.seed.wrapping_add(n.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// An id that sorts by time. Unique because of the seed and the count of draws; not a secret.
    pub fn uuid_v7(&self, now: Timestamp) -> Uuid {
        let mut random = [0; 10];
        random[..8].copy_from_slice(&self.draw().to_le_bytes());
        random[8..].copy_from_slice(&(self.seed as u16).to_le_bytes());
        uuid::Builder::from_unix_timestamp_millis(now.0, &random).into_uuid()
    }
}
