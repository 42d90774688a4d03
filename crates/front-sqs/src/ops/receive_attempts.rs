//! Receives that a client may repeat with the same `ReceiveRequestAttemptId`, in case the first reply was lost.
//!
//! An attempt is valid for five minutes after its first receive, until one of its messages is deleted or has its
//! visibility timeout changed. Attempts are kept in memory. After a restart of the broker they are gone, but the leases
//! of their messages are not: these messages stay invisible until their visibility timeout ends.

use std::collections::HashMap;
use std::sync::Arc;

use malote_model::{LeaseToken, QueueName, Seq, Timestamp};
use parking_lot::Mutex;

use crate::expiring_map::ExpiringMap;

/// Attempts of all queues. When the limit is reached, the oldest are dropped; repeating them is a new receive.
const ATTEMPTS_MAX: usize = 10_000;
/// How long an attempt can be repeated.
const ATTEMPT_MS: u64 = 300_000;

type AttemptKey = Arc<(QueueName, String)>;

/// The messages of one receive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceiveAttempt {
    /// When they were received; part of their receipt handles.
    pub at: Timestamp,
    pub out: Vec<(Seq, LeaseToken)>,
}

#[derive(Debug)]
pub struct ReceiveAttempts(Mutex<AttemptIndex>);

#[derive(Debug)]
struct AttemptIndex {
    recent: ExpiringMap<AttemptKey, ReceiveAttempt>,
    /// The attempt that a lease belongs to.
    by_lease: HashMap<LeaseToken, AttemptKey>,
}

impl Default for ReceiveAttempts {
    fn default() -> Self {
        Self(Mutex::new(AttemptIndex {
            recent: ExpiringMap::new(ATTEMPTS_MAX, ATTEMPT_MS),
            by_lease: HashMap::new(),
        }))
    }
}

impl ReceiveAttempts {
    /// Stores the messages that a receive returned.
    pub fn put(&self, queue: &QueueName, id: String, attempt: ReceiveAttempt) {
        let (key, at) = (Arc::new((queue.clone(), id)), attempt.at);
        let leases: Vec<LeaseToken> = attempt.out.iter().map(|(_, lease)| *lease).collect();
        let AttemptIndex { recent, by_lease } = &mut *self.0.lock();
        for forgotten in recent.put(key.clone(), attempt, at) {
            forgotten.out.iter().for_each(|(_, lease)| drop(by_lease.remove(lease)));
        }
        by_lease.extend(leases.into_iter().map(|lease| (lease, key.clone())));
    }

    /// The messages of an earlier receive with this id, if it can be repeated.
    pub fn get(&self, queue: &QueueName, id: &str, now: Timestamp) -> Option<ReceiveAttempt> {
        let key = Arc::new((queue.clone(), id.to_owned()));
        self.0.lock().recent.get(&key, now).cloned()
    }

    /// Removes the attempt that a lease belongs to, if there is one.
    pub fn forget(&self, lease: LeaseToken) {
        let AttemptIndex { recent, by_lease } = &mut *self.0.lock();
        let Some(key) = by_lease.remove(&lease) else { return };
        let Some(attempt) = recent.remove(&key) else { return };
        attempt.out.iter().for_each(|(_, lease)| drop(by_lease.remove(lease)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(n: u64) -> LeaseToken {
        LeaseToken { epoch: 1, slot: n as u32, grant: 1, random: 1 }
    }

    #[test]
    fn memory_is_bounded_and_leases_are_always_removed() {
        let (attempts, queue) = (ReceiveAttempts::default(), QueueName::new("q.fifo").unwrap());
        let many = 3 * ATTEMPTS_MAX as u64;
        for n in 0..many {
            let out = vec![(Seq(n), lease(2 * n)), (Seq(n), lease(2 * n + 1))];
            attempts.put(&queue, n.to_string(), ReceiveAttempt { at: Timestamp(n), out });
        }
        let now = Timestamp(many);
        assert_eq!(attempts.get(&queue, "0", now), None);
        assert_eq!(attempts.0.lock().by_lease.len(), 2 * ATTEMPTS_MAX);
        // Reusing an id replaces the attempt.
        let last = (many - 1).to_string();
        let again = ReceiveAttempt { at: now, out: vec![(Seq(1), lease(9 * many))] };
        attempts.put(&queue, last.clone(), again.clone());
        assert_eq!(attempts.get(&queue, &last, now), Some(again));
        assert!(attempts.0.lock().by_lease.len() <= 2 * ATTEMPTS_MAX);
        attempts.forget(lease(9 * many));
        assert_eq!(attempts.get(&queue, &last, now), None);
        let young = (many - 2).to_string();
        attempts.forget(lease(2 * (many - 2) + 1));
        assert_eq!(attempts.get(&queue, &young, now), None);
        assert!(!attempts.0.lock().by_lease.contains_key(&lease(2 * (many - 2))));
    }
}
